"""Standard normals whose tails are not cut: 63 bits of tail probability and a sign.

JAX's float32 normals come from 23 random bits and never exceed 5.42. Here the smaller tail probability p is built
from 63 bits, so that it keeps its relative precision down to 2^-64 in float32 too, and z = +-Phi^-1(p) reaches 9.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

TAIL = 2.0**-48
"""Below this tail probability the lattice of p is too coarse; such a draw counts as lost (`lost_probability`)."""

ERROR = {"float32": 6e-7, "float64": 1.5e-7}
"""Bound on |computed - ideal| / max(1, |z|) for the coupling by equal p, above TAIL. The lattice of p costs
2^-17/|z| at worst, at TAIL; rounding p to float32 costs 2^-23 Mills(z); Phi^-1 itself is good to a few units in the
last place. `tests/test_sampling.py` measures the sum."""


def lost_probability(draws: int) -> float:
    """Probability that any of `draws` normals falls where the coupling error is not bounded by ERROR."""
    return 2 * draws * TAIL


_RARE = 2.0**-30
_RARE_ERROR, _COMMON_ERROR = 1.2e-6, 1e-11
"""In float64, above TAIL and above _RARE: the lattice of p costs 2^-65 / phi(z), and |z| < 7.8 and 6.1 there."""
_TOO_MANY = 1e-14


def distance_bound(draws: int) -> tuple[float, float]:
    """Returns a bound on |computed - ideal| for a vector of float64 normals, and the probability that it fails.

    Normals with a tail probability below 2^-30 have nearly all of the error, and there are few of them: more than k
    among n with probability at most (n 2^-29)^(k+1) / (k+1)!.
    """
    expected, rare, missed = draws * 2 * _RARE, 0, draws * 2 * _RARE
    while missed > _TOO_MANY:
        rare += 1
        missed *= expected / (rare + 1)
    return _COMMON_ERROR * draws**0.5 + _RARE_ERROR * rare**0.5, missed + lost_probability(draws)


def standard_normals(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draws independent standard normals; call inside `jax.enable_x64(True)`, since it needs 64-bit integers."""
    bits = jax.random.bits(key, shape, jnp.uint64)
    high, low = (bits >> 32).astype(jnp.uint32), bits.astype(jnp.uint32)
    return _from_words(high, low, dtype)


def uniforms(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws float64 uniforms in (0, 1] from 64 bits, so that small ones keep their relative precision."""
    bits = jax.random.bits(key, shape, jnp.uint64)
    return (bits.astype(jnp.float64) + 0.5) * 2.0**-64


def _from_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Top bit of `high` is the sign, the other 63 bits are the tail probability p in (0, 1/2]."""
    sign = 1 - 2 * (high >> 31).astype(dtype)
    coarse = (high & jnp.uint32(0x7FFFFFFF)).astype(dtype) * jnp.asarray(2.0**-32, dtype)
    fine = (low.astype(dtype) + jnp.asarray(0.5, dtype)) * jnp.asarray(2.0**-64, dtype)
    tail = jnp.minimum(coarse + fine, jnp.asarray(0.5, dtype))
    return sign * jax.scipy.special.ndtri(tail)
