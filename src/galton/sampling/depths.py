"""How deep in a half-space to draw: staircases of nested half-spaces (docs/math.md, section 10.4).

Within {w <= bound}, w standard normal, a value at depth w is at most c(w) = 1 - exp(spread (w - bound)). A staircase of
half-spaces whose density is at least in proportion to c gives the smallest range; a second one, further down, draws
more where values are usually large. Where depths above `top` need not be drawn, the staircase begins there.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from galton.errors import FloatArray
from galton.sampling.normals import uniforms

_STEPS = 256
_STEP = 0.05
"""Height of a step in units of 1 / (1 + depth): the probability of what lies deeper falls by about so much."""
_SHARE = 0.9
"""Share of the samples that the range rests on; the others are drawn where values are usually large."""
DEPTHS_LOST = 2 * _STEPS * 2.0**-48
"""Probability that rounding puts a sample on another step, or chooses another half-space; and relative errors of q."""


class Depths(NamedTuple):
    """A mixture of normals, each given that it is in one of several half-spaces; JAX arrays in float64.

    Attributes:
      masses: probabilities of the half-spaces, falling.
      ends: running sums of the shares of the half-spaces.
      densities: against the normal, by how many half-spaces a depth lies in.
    """

    masses: jax.Array
    ends: jax.Array
    densities: jax.Array


def _staircase(spread: float, bound: float, top: float) -> tuple[FloatArray, FloatArray, float]:
    """Probabilities of half-spaces, their heights, and a bound on c(w) / (height of all that hold w)."""
    step = _STEP / (1 + max(0.0, -top))
    masses = ndtr(top - step * np.arange(_STEPS))
    levels = -np.expm1(-spread * (bound - top + step * np.arange(1, _STEPS + 1)))
    levels[-1] = 1.0
    heights = np.diff(levels, prepend=0.0)
    largest = float(masses @ heights)
    return masses, heights / largest, largest


def choose_depths(spread: float, bound: float, deep: float, top: float | None = None) -> tuple[Depths, float]:
    """Returns how depths are drawn, and the range of c / density; call inside `wide_jax()`.

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
    masses, heights = masses[order], heights[order]
    ends = np.cumsum(masses * heights)
    parts = Depths(jnp.asarray(masses), jnp.asarray(ends / ends[-1]), jnp.asarray(np.cumsum(heights)))
    return parts, largest / _SHARE * (1 + (1e-9 if top <= 0 else 1e-5))


def draw_depths(key: jax.Array, samples: int, depths: Depths) -> tuple[jax.Array, jax.Array]:
    """Returns depths, and the logarithm of their density against the normal."""
    for_which, for_depth = jax.random.split(key)
    which = jnp.searchsorted(depths.ends, uniforms(for_which, (samples,)))
    last = depths.masses.size - 1
    tails = uniforms(for_depth, (samples,)) * depths.masses[jnp.minimum(which, last)]
    held = jnp.searchsorted(-depths.masses, -tails, side="right")
    return jax.scipy.special.ndtri(tails), jnp.log(depths.densities[jnp.maximum(held, 1) - 1])
