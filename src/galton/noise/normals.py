"""Standard normals for the noise of training: deep tails in float32, a pure function of (key, round, position).

64 random bits make one normal: a sign and 63 bits of the tail probability p in (0, 1/2), so that |z| reaches 9.1 where
the 23 bits of `jax.random.normal` in float32 end at 5.42. z = Phi^-1(p) by two polynomials of w = -log(4 p (1 - p)),
which cost half of a general-purpose inverse. Code is the same for JAX and NumPy: words are equal bit by bit, normals
up to the last place or two of the platform's log and sqrt.

Formal guarantees:
  - |computed - z| <= ERROR * |z| + 2^-50 for z = Phi^-1(p), p uniform on the lattice (k + 1/2) 2^-64, and the sign is
    a bit of its own. ERROR is measured, not proved: 3.7e-7 is the worst found on all scales (`tests/test_noise.py`).
  - Not covered: attacks on the low-order bits of floating-point noise (Mironov 2012). The noise is real-valued
    Gaussian up to rounding; it is no discrete Gaussian.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from galton.noise import threefry

ERROR = 6e-7
"""Relative error of a normal; see the guarantees above. Noise is made larger by as much (`stream.MARGIN`)."""

# Minimax in relative error (6e-9 and 4e-8), coefficients of rising powers; w = -log(4p(1-p)), x = 1 - 2p.
_SPLIT = 5.0
_CENTRE = (  # z = x * poly((w - 2.5) / 2.5) for w <= 5
    *(2.1233134269714355, 0.8720051050186157, -0.036923229694366455, -0.027681946754455566, 0.012061940506100655),
    *(-0.000685471692122519, -0.001195557531900704, 0.0004023828369099647, 5.013410554965958e-05),
    -4.74257321911864e-05,
)
_LAST = 6.62  # sqrt(w) at p = 2^-65 is 6.609
_MIDDLE, _HALF = (_LAST + math.sqrt(_SPLIT)) / 2, (_LAST - math.sqrt(_SPLIT)) / 2
_TAIL = (  # z = poly((sqrt(w) - middle) / half) for w > 5
    *(6.041595935821533, 3.1314632892608643, 0.0028754849918186665, -0.007108004298061132, 0.005406311713159084),
    *(-0.002928741741925478, 0.0013379683950915933, -0.001403573201969266, 0.0009781094267964363),
    *(0.00035758051672019064, -0.0004394330899231136),
)


def _polynomial(coefficients: tuple[float, ...], at: Any) -> Any:
    result = np.float32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * at + np.float32(coefficient)
    return result


def from_words(high: Any, low: Any, library: ModuleType = jnp) -> Any:
    """Returns float32 normals: the top bit of `high` is the sign, the other 63 bits are p."""
    single = np.float32
    head = high & np.uint32(0x7FFFFFFF)
    fine = (low.astype(single) + single(0.5)) * single(2.0**-32)
    p = (head.astype(single) + fine) * single(2.0**-32)
    x = ((np.uint32(1 << 31) - head).astype(single) - fine) * single(2.0**-31)  # 1 - 2p, exact to float32 near 0
    w = -library.log(library.minimum(single(4) * p * (single(1) - p), single(1)))
    centre = x * _polynomial(_CENTRE, w * single(0.4) - single(1))
    root = library.sqrt(library.maximum(w, single(_SPLIT)))
    tail = _polynomial(_TAIL, (root - single(_MIDDLE)) * single(1 / _HALF))
    z = library.where(w <= single(_SPLIT), centre, tail)
    return library.where(high >> np.uint32(31) == 0, z, -z)


def standard_normals(key: jax.Array, turn: Any, group: Any, draw: Any, places: jax.Array) -> jax.Array:
    """Draws the normals of arrays of one group in one round.

    Args:
      key: four uint32 words.
      turn: the round.
      group: number of the group within the model.
      draw: number of the draw within the round; 0 unless C is rectangular.
      places: of the elements in the group, as uint32: each has a normal of its own, which depends on nothing else.
    """
    counter = (places, *(jnp.asarray(part).astype(jnp.uint32) for part in (group, turn, draw)))
    high, low, _, _ = threefry.block(tuple(key), counter)
    normals: jax.Array = from_words(high, low)
    return normals
