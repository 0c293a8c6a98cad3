"""Random words that are a pure function of (seed, purpose, number): SHAKE-128, the same on every machine and version.

Batches have to stay secret for amplification to hold, so their randomness is cryptographic too; at a quarter of a
gigabyte a second it is fast enough. NumPy's generators are not used: their streams may change between versions.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galton.errors import InvalidArgument

SEED_BYTES = 32
BLOCK = 1 << 16
"""Words drawn at a time where every example needs one."""


def fresh_seed() -> str:
    """Returns 256 bits of the operating system's entropy, as hexadecimal digits."""
    return secrets.token_hex(SEED_BYTES)


def check_seed(seed: str | int | None) -> str:
    """Returns a seed as 64 hexadecimal digits; None takes the operating system's entropy, an int is padded."""
    if seed is None:
        return fresh_seed()
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << (8 * SEED_BYTES):
        return f"{seed:0{2 * SEED_BYTES}x}"
    try:
        if not isinstance(seed, str) or len(bytes.fromhex(seed)) != SEED_BYTES:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            "seed", "(not shown)", "must be a whole number from 0 to 2^256 - 1, or 64 hexadecimal digits"
        ) from None
    return seed.lower()


@dataclass(frozen=True)
class Words:
    """The random words of one seed."""

    seed: str = field(repr=False)

    def draw(self, purpose: str, number: int, size: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Returns `size` independent uniform words for block `number` of one purpose."""
        name = f"galton {self.seed} {purpose} {number}".encode()
        wide = np.dtype(dtype).newbyteorder("<")
        return np.frombuffer(hashlib.shake_128(name).digest(size * wide.itemsize), wide).astype(dtype, copy=False)

    def below(self, limit: int, purpose: str, number: int, size: int) -> NDArray[np.uint32]:
        """Returns integers that are exactly uniform on 0..limit-1 (Lemire's method; rejected words are drawn again).

        Fewer numbers are the first of more: an example's bin does not depend on how many examples follow.
        """
        result, rejected = _scale_down(self.draw(purpose, number, size), limit)
        attempt = 0
        while rejected.size:
            attempt += 1
            redrawn, still_rejected = _scale_down(self.draw(f"{purpose} again {attempt}", number, rejected.size), limit)
            result[rejected] = redrawn
            rejected = rejected[still_rejected]
        return result

    def uniforms(self, purpose: str, number: int, size: int) -> NDArray[np.float64]:
        """Returns float64 uniforms on the lattice k 2^-53, 0 < k <= 2^53."""
        words = self.draw(purpose, number, size, np.uint64) >> np.uint64(11)
        return (words + np.uint64(1)).astype(np.float64) * 2.0**-53


def _scale_down(words: NDArray[np.uint32], limit: int) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Returns words * limit / 2^32, rounded down, and the places at which that is not uniform."""
    product = np.multiply(words, limit, dtype=np.uint64)
    unfair = np.flatnonzero(product.astype(np.uint32) < 2**32 % limit)
    return (product >> np.uint64(32)).astype(np.uint32), unfair
