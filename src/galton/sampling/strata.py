"""A normal coordinate drawn once in each of several strata: averages with little variance and a smaller range.

docs/math.md, sections 3.4 and 17.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import ndtri

from galton.errors import FloatArray
from galton.pair import ROUNDOFF
from galton.sampling.normals import uniforms

STRATA = 16
"""Of a sample."""
FINE_STRATA = 64
"""For bounds that take no samples."""
FARTHEST_NORMAL = 10.0
"""A normal is farther out with probability below 1e-22."""
_FARTHEST, _STEP = 8.0, 0.05
WIDER = 1e-7
"""By so much strata are taken to be wider than they are: a depth is right up to this (docs/math.md, section 6.5)."""
_UNEVEN = 1e-9
ALMOST_ALL = 1 - 2.0**-53
"""No tail probability in use is larger: that of 1 belongs to no depth."""


@dataclass(frozen=True, eq=False)
class EvenLine:
    """The direction of z that moves all A_k of a point by the same (docs/math.md, 18.9).

    Attributes:
      weights: the coordinate of z along it is the sum of these times root @ z.
      slope: by how much all A_k grow with that coordinate.
      uneven: bound on the relative difference of what an A_k grows by from `slope`, for the factor's own G.
      stretch: sum of |weights|.
    """

    weights: FloatArray
    slope: float
    uneven: float
    stretch: float


def even_line(gram: FloatArray, residual: float) -> EvenLine | None:
    """Returns the line along G^-1 1; None if G is too close to singular.

    Args:
      gram: G.
      residual: bound on how far the product of the factor in use is from G, entry by entry.
    """
    bins = gram.shape[0]
    try:
        weights = cho_solve(cho_factor(gram), np.ones(bins))
    except LinAlgError:
        return None
    total, length = float(weights.sum()), float(np.abs(weights).sum())
    if not total > 0:
        return None
    rounding = 2 * (bins + 4) * ROUNDOFF * float((np.abs(gram) @ np.abs(weights)).max())
    missed = float(np.abs(gram @ weights - 1).max()) + rounding + residual * length
    uneven = 1.1 * missed * (1 + length / total) + 4 * bins * ROUNDOFF * length / total
    slope = 1 / math.sqrt(total)
    return EvenLine(slope * weights, slope, uneven, slope * length) if uneven < _UNEVEN else None


def stratified_normals(key: jax.Array, samples: int, strata: int) -> jax.Array:
    """Returns (strata, samples) normals: entry j is between the j-th and the (j+1)-th quantile. `strata` is even."""
    index = jnp.arange(strata)[:, None]
    tails = (jnp.minimum(index, strata - 1 - index) + uniforms(key, (strata, samples))) / strata
    return jnp.where(index < strata // 2, 1.0, -1.0) * jax.scipy.special.ndtri(tails)


def stratified_depths(key: jax.Array, samples: int, strata: int, mass: jax.Array | float) -> jax.Array:
    """The same for a normal given that it is below the quantile of probability `mass`."""
    tails = (jnp.arange(strata)[:, None] + uniforms(key, (strata, samples))) / strata * mass
    return jax.scipy.special.ndtri(jnp.minimum(tails, ALMOST_ALL))


def log_largest_average(order: int, slope: float, strata: int) -> float:
    """Bounds the logarithm of the average, over strata, of exp(-t x) (1 - exp(-x))_+ at x = x(w), w the normal.

    For every x that grows with w by at least `slope`. h(x) = exp(-t x) (1 - exp(-x))_+ is largest at
    x* = log((1 + t) / t) and falls to both sides, so that h(x(w)) <= h(x* + slope (w - w*)), where x(w*) = x*. The
    maximum over w* is taken cell by cell.
    """
    peak = math.log1p(1 / order)
    edges = ndtri(np.arange(strata + 1) / strata)
    cells = np.concatenate(([-np.inf], np.arange(-_FARTHEST, _FARTHEST + _STEP, _STEP), [np.inf]))
    low = edges[:-1] - WIDER - cells[1:, None]
    high = edges[1:] + WIDER - cells[:-1, None]
    nearest = np.where(low > 0, low, np.where(high < 0, high, 0.0))
    return float(np.log(_values(order, peak, slope, nearest).mean(axis=1).max())) + 1e-12


def _values(order: int, peak: float, slope: float, distances: FloatArray) -> FloatArray:
    excess = np.maximum(peak + slope * distances, 0.0)
    return np.asarray(np.exp(-order * excess) * -np.expm1(-excess))


def depth_range(spread: float, bound: float, mass: float, strata: int) -> float:
    """Returns mass times the largest average, over strata of {w <= bound}, of 1 - exp(spread (w - bound))."""
    edges = ndtri(np.arange(1, strata) / strata * mass) - WIDER
    values = -np.expm1(np.minimum(spread * (edges - bound), 0.0))
    return mass * (1 + float(values.sum())) / strata
