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
from typing import Any

import jax
import jax.numpy as jnp

from galton import files
from galton.errors import InvalidArgument, InvalidFile
from galton.noise import threefry
from galton.noise.keys import apart, check_key, fresh_key, key_from_bytes
from galton.noise.layout import Layout, Tree, layout_of
from galton.noise.stream import CorrelatedNoise

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
        key, layout, turn = self._key(salt), layout_of(params), jnp.zeros((), jnp.int32)

        def seal(shared: Any, group: int, places: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
            words, (key, turn) = _words(rows), shared
            return rows.sum(axis=0), words ^ _keystream(key, turn, group, places, len(words))

        sealing = jax.jit(lambda shared, rows: layout.compute(seal, shared, rows)[1])
        buffers = sealing((apart(key, 2), turn), layout.zeros(self.noise.memory))
        return SealedState(salt, apart(key, 1), turn, buffers, layout)

    def next(self, state: SealedState) -> tuple[Tree, SealedState]:
        """Returns the noise of this round and the state after it; pure, for use inside `jit` and `scan`.

        Args:
          state: the state before the round.

        Returns:
          The noise, a tree like the parameters, and the state after it.
        """
        key, turn = self._key(state.salt), state.round
        keys = (key[None], jnp.zeros(1, jnp.int32), turn, self.noise.scale(turn))

        def draw(shared: Any, group: int, places: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
            keys, seal, known = shared
            dtype = state.layout.groups[group][1]
            opened = _numbers(rows ^ _keystream(seal, keys[2], group, places, len(rows)), dtype)
            x, after = self.noise.draw(keys, group, places, opened)
            sealed = _words(after) ^ _keystream(seal, keys[2] + 1, group, places, len(rows))
            return jnp.where(known, x, jnp.nan), sealed

        known = (state.check == apart(key, 1)).all()
        noise, buffers = state.layout.compute(draw, (keys, apart(key, 2), known), state.buffers)
        return noise, SealedState(state.salt, apart(key, 1), turn + 1, buffers, state.layout)

    def _key(self, salt: jax.Array) -> jax.Array:
        return _block(self.secret, tuple(salt)) if self.derived else self.secret


def _words(buffer: jax.Array) -> jax.Array:
    """Returns the bits of (rows, size) numbers as (words, size) uint32."""
    words = jax.lax.bitcast_convert_type(buffer, jnp.uint32)
    return words if words.ndim == 2 else jnp.moveaxis(words, 2, 1).reshape(-1, words.shape[1])


def _numbers(words: jax.Array, dtype: str) -> jax.Array:
    """The inverse of `_words`."""
    if jnp.dtype(dtype).itemsize == 8:
        words = jnp.moveaxis(words.reshape(-1, 2, words.shape[1]), 1, 2)
    return jax.lax.bitcast_convert_type(words, jnp.dtype(dtype))


def _keystream(seal: jax.Array, turn: jax.Array, group: int, places: jax.Array, rows: int) -> jax.Array:
    """Returns rows of uint32 for the elements at some places; four come from each block."""
    counter = (places, jnp.uint32(group), turn.astype(jnp.uint32))
    streams = [
        word for chunk in range(-(-rows // 4)) for word in threefry.block(tuple(seal), (*counter, jnp.uint32(chunk)))
    ]
    return jnp.stack(streams[:rows]) if rows else jnp.zeros((0, places.size), jnp.uint32)


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
