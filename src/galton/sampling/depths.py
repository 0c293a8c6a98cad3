"""How deep in a half-space to draw: staircases of nested half-spaces (docs/math.md, section 10.4).

Within {w <= bound}, w standard normal, a value at depth w is at most c(w) = 1 - exp(spread (w - bound)). A staircase of
half-spaces whose density is at least in proportion to c gives the smallest range; a second one, further down, draws
more where values are usually large. Where depths above `top` need not be drawn, the staircase begins there. A sample
has one depth in each of several strata of equal probability.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from galton.errors import FloatArray
from galton.sampling.normals import uniforms
from galton.sampling.strata import ALMOST_ALL

_STEPS = 256
_STEP = 0.05
"""Height of a step in units of 1 / (1 + depth): the probability of what lies deeper falls by about so much."""
_SHARE = 0.9
"""Share of the samples that the range rests on; the others are drawn where values are usually large."""
_NARROW, _NARROWEST = 2.0**-28, 2.0**-43
"""A step with a smaller share of what is drawn on it and below, or of all, is too narrow for the bits of a uniform."""


class Depths(NamedTuple):
    """A density that is constant, against the normal, on each of some steps; JAX arrays in float64.

    Attributes:
      masses: normal probabilities of what lies below the upper end of each step, falling.
      shares: probabilities of drawing a depth below it; `masses` and `shares` end with 0.
      log_densities: logarithms of the density of each step against the normal.
    """

    masses: jax.Array
    shares: jax.Array
    log_densities: jax.Array


def _staircase(spread: float, bound: float, top: float) -> tuple[FloatArray, FloatArray, float]:
    """Probabilities of half-spaces, their heights, and a bound on c(w) / (height of all that hold w)."""
    step = _STEP / (1 + max(0.0, -top))
    masses = ndtr(top - step * np.arange(_STEPS))
    levels = -np.expm1(-spread * (bound - top + step * np.arange(1, _STEPS + 1)))
    levels[-1] = 1.0
    heights = np.diff(levels, prepend=0.0)
    largest = float(masses @ heights)
    return masses, heights / largest, largest


def choose_depths(spread: float, bound: float, deep: float, top: float | None = None) -> tuple[Depths, float, float]:
    """Returns how depths are drawn, the range of c / density, and what of them is lost; call inside `wide_jax()`.

    Lost are, as a probability, depths on steps that are too narrow, and what rounding makes of the others' law.

    Args:
      spread: rounded up.
      bound: of the half-space, in standard deviations; rounded up.
      deep: below which values are usually large; at most `top`, any number is valid.
      top: above which no depth is drawn; at most `bound`, its default.
    """
    top = bound if top is None else top
    masses, heights, largest = _staircase(spread, bound, top)
    deep_masses, deep_heights, _ = _staircase(spread, deep, deep)
    masses = np.concatenate((masses, deep_masses))
    heights = np.concatenate((_SHARE * heights, (1 - _SHARE) * deep_heights))
    order = np.argsort(-masses, kind="stable")
    masses, densities = np.append(masses[order], 0.0), np.cumsum(heights[order])
    steps = densities * -np.diff(masses)
    shares = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
    steps, shares, densities = steps / shares[0], shares / shares[0], densities / shares[0]
    narrow = steps < np.maximum(_NARROW * shares[:-1], _NARROWEST)
    lost = float(steps[narrow].sum()) + _STEPS * 2.0**-48
    parts = Depths(jnp.asarray(masses), jnp.asarray(shares), jnp.asarray(np.log(densities)))
    return parts, largest / _SHARE * (1 + (1e-9 if top <= 0 else 1e-5)), lost


def draw_depths(key: jax.Array, samples: int, strata: int, depths: Depths) -> tuple[jax.Array, jax.Array]:
    """Returns (strata, samples) depths, one in each stratum, and the logarithms of their density against the normal."""
    shares = (jnp.arange(strata)[:, None] + uniforms(key, (strata, samples))) / strata
    step = jnp.clip(jnp.searchsorted(-depths.shares, -shares, side="right") - 1, 0, depths.log_densities.size - 1)
    above, below = depths.shares[step], depths.shares[step + 1]
    upper, lower = depths.masses[step], depths.masses[step + 1]
    tails = lower + (shares - below) / (above - below) * (upper - lower)
    return jax.scipy.special.ndtri(jnp.minimum(tails, ALMOST_ALL)), depths.log_densities[step]
