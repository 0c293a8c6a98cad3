"""A hash of a sum of gradients, bit by bit, made where the sum is: no array leaves its devices for it.

An array in the memory of this machine is hashed by SHA-256, in row-major order. One on accelerators, or with parts on
other machines, is hashed by its devices: every element is replaced by Threefry words of (place, bits) under a secret
key, and these are added up modulo 2^32. Addition of integers has no order, so that the result does not depend on how
many devices there are, and sixteen bytes are all that is exchanged.

Formal guarantee: two different arrays have the same words with probability 2^-128 if Threefry's words cannot be told
from random ones, whatever the arrays are, as long as they were not made with knowledge of the key: the words of an
element that differs are uniform and independent of all others.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from galton.noise import threefry
from galton.noise.keys import apart
from galton.noise.layout import Tree


def content_hash(tree: Tree, key: jax.Array) -> bytes:
    """Returns a hash of all arrays of a tree: of values, shapes and dtypes.

    Args:
      tree: of arrays.
      key: the first key of the run, for arrays that are hashed by their devices.

    Returns:
      32 bytes.
    """
    digest = hashlib.sha256()  # processors have instructions for it
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        array: Any = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        values = np.asarray(array if in_memory(array) else device_words(array, key, number))
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.digest()


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
        total += jnp.stack(_added_up(blocks))
    return total


def _added_up(words: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Adds up all elements of four arrays in one pass."""
    zero = np.uint32(0)
    return jax.lax.reduce(
        words, (zero,) * 4, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), tuple(range(words[0].ndim))
    )
