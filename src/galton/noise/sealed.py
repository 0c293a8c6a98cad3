"""Noise for loops that keep its state among their own: what is secret in it is sealed, and the key stays elsewhere.

The buffers of a state are sums of past normals: whoever reads them can take the noise off. Here they are kept XORed
with a keystream, Threefry words as a function of (key, round, position), and no key is in the state. The same key and
round always come with the same buffers (up to the last bits, where code was compiled differently), so that no part of
the keystream covers two contents. Nothing is authenticated: a state that was changed gives other noise, so keep states
where only their owner can write.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from galton import files
from galton.errors import InvalidArgument, InvalidFile
from galton.noise import threefry
from galton.noise.keys import check_key, fresh_key, key_from_bytes
from galton.noise.layout import Layout, Tree
from galton.noise.stream import CorrelatedNoise, NoiseState

_APART = 0xFFFFFFFF
"""In the place of the number of a draw, which normals never have."""
_SIZE = 16


@partial(jax.tree_util.register_dataclass, data_fields=["salt", "check", "round", "buffers"], meta_fields=["layout"])
@dataclass(frozen=True, eq=False)
class SealedState:
    """The state of a `SealedNoise` between two rounds. It shows the round, and nothing about the noise.

    Attributes:
      salt: what this run's key was made from, besides the secret.
      check: words that tell whether it is used with the right secret.
      round: the next round, counted from 0.
      buffers: of the noise, under a keystream, as uint32.
      layout: how the vectors make up the model; static under `jit`.
    """

    salt: jax.Array
    check: jax.Array
    round: jax.Array
    buffers: list[jax.Array]
    layout: Layout


@dataclass(frozen=True, eq=False)
class SealedNoise:
    """Correlated noise whose state may leave the machine, and whose secret may not.

    Attributes:
      noise: the noise.
      secret: four uint32 words that make the key of a run, with its salt.
      derived: whether the key is made so, anew for each run; else the secret is the key.

    Formal guarantees:
      - The noise is that of `noise`. With a state that belongs to another secret it is NaN in all rounds.
      - Without the secret, a state tells no more about the noise than its round, if Threefry's words cannot be told
        from random ones.
    """

    noise: CorrelatedNoise
    secret: jax.Array = field(repr=False)
    derived: bool = True

    def init(self, params: Tree) -> SealedState:
        """Returns the state before the first round of a new run.

        Args:
          params: the model's parameters, a tree of arrays, for their shapes.

        Returns:
          The state.
        """
        if self.derived and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
            raise InvalidArgument(
                "key", None, "must be given inside jit or vmap: a fresh one would be the same each time"
            )
        salt = fresh_key() if self.derived else jnp.zeros(4, jnp.uint32)
        key = self._key(salt)
        return self._seal(salt, key, self.noise.init(params, key))

    def next(self, state: SealedState) -> tuple[Tree, SealedState]:
        """Returns the noise of this round and the state after it; pure, for use inside `jit` and `scan`.

        Args:
          state: the state before the round.

        Returns:
          The noise, a tree like the parameters, and the state after it.
        """
        key = self._key(state.salt)
        noise, after = self.noise.next(self._unseal(key, state))
        known = (state.check == _apart(key, 1)).all()
        return jax.tree.map(lambda x: jnp.where(known, x, jnp.nan), noise), self._seal(state.salt, key, after)

    def _key(self, salt: jax.Array) -> jax.Array:
        return _block(self.secret, tuple(salt)) if self.derived else self.secret

    def _seal(self, salt: jax.Array, key: jax.Array, state: NoiseState) -> SealedState:
        sealed = [
            _words(buffer) ^ _keystream(key, state.round, number, _words(buffer).shape)
            for number, buffer in enumerate(state.buffers)
        ]
        return SealedState(salt, _apart(key, 1), state.round, sealed, state.layout)

    def _unseal(self, key: jax.Array, state: SealedState) -> NoiseState:
        opened = [
            _numbers(sealed ^ _keystream(key, state.round, number, sealed.shape), dtype)
            for number, (sealed, (_, dtype)) in enumerate(zip(state.buffers, state.layout.groups, strict=True))
        ]
        return NoiseState(key[None], jnp.zeros(1, jnp.int32), state.round, opened, state.layout)


def _words(buffer: jax.Array) -> jax.Array:
    """Returns the bits of (rows, size) numbers as (words, size) uint32."""
    words = jax.lax.bitcast_convert_type(buffer, jnp.uint32)
    return words if words.ndim == 2 else jnp.moveaxis(words, 2, 1).reshape(-1, words.shape[1])


def _numbers(words: jax.Array, dtype: str) -> jax.Array:
    """The inverse of `_words`."""
    if jnp.dtype(dtype).itemsize == 8:
        words = jnp.moveaxis(words.reshape(-1, 2, words.shape[1]), 1, 2)
    return jax.lax.bitcast_convert_type(words, jnp.dtype(dtype))


def _keystream(key: jax.Array, turn: jax.Array, group: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns a uint32 array of two axes; four rows come from each block."""
    rows, size = shape
    seal = _apart(key, 2)
    index = jax.lax.iota(jnp.uint32, size)
    streams = [
        word
        for chunk in range(-(-rows // 4))
        for word in threefry.block(tuple(seal), (index, jnp.uint32(group), turn.astype(jnp.uint32), jnp.uint32(chunk)))
    ]
    return jnp.stack(streams[:rows]) if rows else jnp.zeros(shape, jnp.uint32)


def _apart(key: jax.Array, purpose: int) -> jax.Array:
    """Returns words of a key that no normals are made of."""
    return _block(key, (jnp.uint32(purpose), jnp.uint32(0), jnp.uint32(0), jnp.uint32(_APART)))


def _block(key: jax.Array, counter: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.stack(threefry.block(tuple(key), counter))


def sealed_noise(noise: CorrelatedNoise, folder: str | Path | None = None, key: jax.Array | None = None) -> SealedNoise:
    """Returns noise for loops that keep its state themselves.

    Args:
      noise: the noise.
      folder: has the secret in the file `noise.secret`, readable by its owner only; made if it is not there. Without
        it the secret is in memory only, and no other process can go on from a state.
      key: the noise key, if it is the caller's to keep; then no folder is needed.

    Returns:
      The noise.
    """
    if key is not None:
        if folder is not None:
            raise InvalidArgument("key", "given", "must be left out: the folder has a secret of its own")
        return SealedNoise(noise, check_key(key), derived=False)
    if folder is None:
        return SealedNoise(noise, fresh_key())
    path = Path(folder) / "noise.secret"
    if not path.exists():
        files.make_folder(path.parent, mode=0o700)
        files.write_new(path, secrets.token_bytes(_SIZE), secret=True)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) != _SIZE:
        raise InvalidFile(f"{path}: is not a secret of {8 * _SIZE} bits")
    return SealedNoise(noise, key_from_bytes(content))
