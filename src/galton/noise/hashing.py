"""A hash of a sum of gradients, bit by bit, made where the sum is: no array leaves its devices for it.

An array in the memory of this machine is hashed by SHA-256, in row-major order. Of a large one it hashes digests of
blocks, which take a tenth of the time: NH of J. Black, S. Halevi, H. Krawczyk, T. Krovetz, P. Rogaway ("UMAC: fast and
secure message authentication", CRYPTO 1999) with a secret key, four times. An array on accelerators, or with parts on
other machines, is hashed by its devices: every element is replaced by Threefry words of (place, bits) under a secret
key, and these are added up modulo 2^32. Addition of integers has no order, so that the result does not depend on how
many devices there are, and sixteen bytes are all that is exchanged.

Formal guarantee: two different arrays have the same hash with probability 2^-128 (and that of a collision of SHA-256)
if Threefry's words cannot be told from random ones, whatever the arrays are, as long as they were not made with
knowledge of the key. By devices, the words of an element that differs are uniform and independent of all others. In
memory, two different blocks have the same NH with probability at most 2^-32 (theorem 4.2 there, for words of 32 bits),
and the four keys are independent; all blocks may share them, for arrays that differ do so in some block.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from galton.noise import threefry
from galton.noise.keys import apart, key_from_bytes
from galton.noise.layout import Tree
from galton.noise.stream import WIDE

BLOCK = 2048
"""Words of a block."""

TIMES = 4
"""How many digests of 64 bits a block has: two different blocks have the same one with probability 2^-32."""

LARGE = 2**17
"""Bytes from which on arrays are hashed by blocks; to call JAX for smaller ones takes longer."""


def content_hash(tree: Tree, key: jax.Array) -> bytes:
    """Returns a hash of all arrays of a tree: of values, shapes and dtypes.

    Args:
      tree: of arrays.
      key: the first key of the run, for arrays that are hashed by their devices.

    Returns:
      32 bytes.
    """
    digest, large = hashlib.sha256(), []  # processors have instructions for it
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        array: Any = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        values = np.asarray(array if in_memory(array) else device_words(array, key, number))
        digest.update(f"{array.dtype} {array.shape} ".encode())
        content = values.reshape(-1).view(np.uint8)
        if len(content) >= LARGE:
            whole = len(content) // (4 * BLOCK) * 4 * BLOCK
            large.append(content[:whole].view(np.uint32))
            content = content[whole:]
        digest.update(content.data)
    if large:
        digest.update(_digests_of_blocks(large, key).data)
    return digest.digest()


def _digests_of_blocks(arrays: list[NDArray[np.uint32]], key: jax.Array) -> NDArray[np.uint64]:
    with jax.enable_x64(True):
        return np.asarray(_nh(arrays, _keys_of_blocks(np.asarray(key).tobytes())))


@lru_cache(maxsize=1)
def _keys_of_blocks(key: bytes) -> jax.Array:
    """Returns secret words for blocks, shape (`TIMES`, 2, BLOCK / 2)."""
    return _expanded(key_from_bytes(key))


@jax.jit
def _expanded(key: jax.Array) -> jax.Array:
    places = jax.lax.iota(jnp.uint32, TIMES * BLOCK)
    words = threefry.block(tuple(apart(key, 4)), (places, *[jnp.uint32(0)] * 3))
    return words[0].reshape(TIMES, 2, BLOCK // 2)


@partial(jax.jit, compiler_options=WIDE)
def _nh(arrays: list[jax.Array], keys: jax.Array) -> jax.Array:
    """NH of all blocks under each of the keys: sums of products of words in a block's first half with the second's."""

    def digests(words: jax.Array) -> tuple[jax.Array, ...]:
        first, second = (words.reshape(-1, 2, BLOCK // 2)[:, half] for half in range(2))
        wide = [((first + own[0]).astype(jnp.uint64), (second + own[1]).astype(jnp.uint64)) for own in keys]
        return _added_up(tuple(a * b for a, b in wide), axes=(1,))

    return jnp.concatenate([part for words in arrays for part in digests(words)])


def in_memory(array: Any) -> bool:
    """Whether an array is in the memory of this machine, all of it."""
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and {device.platform for device in array.devices()} == {"cpu"}


def device_words(leaf: jax.Array, key: jax.Array, number: int) -> jax.Array:
    """Returns four words that stand for an array, added up by the devices that have it.

    Args:
      leaf: the array.
      key: the first key of the run; a key of its own is made from it.
      number: of the array within its tree.

    Returns:
      Four uint32 words, the same for the same bits.
    """
    return _words(leaf, key, jnp.uint32(number))


@jax.jit
def _words(leaf: jax.Array, key: jax.Array, number: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}"))
    halves = [bits] if bits.ndim == leaf.ndim else [bits[..., half] for half in range(bits.shape[-1])]
    place, total, secret = jnp.zeros(leaf.shape, jnp.uint32), jnp.zeros(4, jnp.uint32), apart(key, 3)
    for axis in range(leaf.ndim):
        stride = np.uint32(math.prod(leaf.shape[axis + 1 :]) % 2**32)
        place += jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis) * stride
    for half, word in enumerate(halves):
        blocks = threefry.block(tuple(secret), (place, word.astype(jnp.uint32), number, jnp.uint32(half)))
        total += jnp.stack(_added_up(blocks, tuple(range(leaf.ndim))))
    return total


def _added_up(arrays: tuple[jax.Array, ...], axes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Adds up several arrays of one shape along axes, in one pass."""
    zero = np.zeros((), arrays[0].dtype)
    return jax.lax.reduce(
        arrays, (zero,) * len(arrays), lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), axes
    )
