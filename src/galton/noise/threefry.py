"""Random words as a pure function of (key, counter): Threefry-4x32 with 20 rounds, for JAX and NumPy arrays alike.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); the rounds are those of
the block cipher Threefish at 32 bits. The key has 128 bits and the counter 128 bits. It passes TestU01's BigCrush (by
its authors) and no attack is known, but it is no certified cipher: a run is private as long as nobody can tell these
words from random ones.

JAX's own Threefry has a 64-bit key and on CPUs an unfused loop over its rounds. Here every element of a noise vector is
one block of its own, so that a compiler fuses the generator with whatever uses its words: nothing is stored between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ROUNDS = 20
_PARITY = np.uint32(0x1BD11BDA)
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))


def _rotated(word: Any, by: int) -> Any:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def block(key: Sequence[Any], counter: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Returns four random uint32 words per counter.

    Args:
      key: four uint32 words, scalars or arrays.
      counter: four uint32 words, arrays that broadcast with each other.
    """
    keys = [*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ _PARITY]
    a, b, c, d = (word + part for word, part in zip(counter, keys, strict=False))
    for turn in range(ROUNDS):
        first, second = _ROTATIONS[turn % 8]
        if turn % 2 == 0:
            a, c = a + b, c + d
            b, d = _rotated(b, first) ^ a, _rotated(d, second) ^ c
        else:
            a, c = a + d, c + b
            d, b = _rotated(d, first) ^ a, _rotated(b, second) ^ c
        if turn % 4 == 3:
            at = turn // 4 + 1
            a, b, c = a + keys[at % 5], b + keys[(at + 1) % 5], c + keys[(at + 2) % 5]
            d = d + keys[(at + 3) % 5] + np.uint32(at)
    return a, b, c, d
