"""How deep a convex loss can fall: a floor under most of space, by isoperimetry (docs/math.md, section 10.14).

Noise-first asks how likely L <= -epsilon is under noise alone. Jensen's inequality says where it cannot be, and is far
from sharp: L at noise is above its mean over patterns. But L is convex. If at a set of points of probability Phi(alpha)
L - r |gradient| is at least some level, then L is below that level only at a distance of more than r from all of them,
which has probability Phi(-alpha - r) at most. How large such a set is, a few thousand samples tell that are not rare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, log_ndtr, ndtr, ndtri

from galton.errors import FloatArray

_STEP = 0.02
_HIGHEST = 8.0
"""Depths above this many standard deviations are one step."""
_LEVEL, _SLOPE, _STEEPNESS = 0.4, 0.01, 0.99
"""Quantiles of a pilot that the floor is laid at; any are valid."""
_MOST = 0.97
_DISTANCES = np.linspace(0.0, 10.0, 21)


@dataclass(frozen=True)
class Slopes:
    """What was observed at one depth: rounding is on the safe side.

    Attributes:
      loss: lower bounds on L.
      along: lower bounds on its derivative along the average mode.
      across: upper bounds on the norm of its gradient across that.
    """

    loss: FloatArray
    along: FloatArray
    across: FloatArray


@dataclass(frozen=True, eq=False)
class Floor:
    """Sets of points at one depth; points of no set are so far away that the loss may be lower.

    In set j, L - distance_j * |gradient across| is at least `levels[j]`; its probability, among all points at that
    depth, is at least Phi(alphas[j]).

    Attributes:
      depth: along the average mode, in standard deviations.
      slope: at most the derivative of L along the average mode, in all sets; not negative.
      steepness: at least the norm of its gradient across, in all sets; positive.
      distances: not negative.
      levels: one for each distance.
      alphas: one for each distance.
    """

    depth: float
    slope: float
    steepness: float
    distances: FloatArray
    levels: FloatArray
    alphas: FloatArray

    def rest(self, epsilon: float, above: float) -> float:
        """Returns an upper bound on what points above a depth contribute to the noise-first delta.

        Args:
          epsilon: where delta is wanted.
          above: a depth; at least that of the floor.
        """
        depths = np.arange(above, max(_HIGHEST, above) + _STEP, _STEP)
        room = self.levels + epsilon + self.slope * (depths - self.depth)[:, None]
        bounds = _shortfall(room + self.steepness * (self.distances + self.alphas), self.steepness)
        shares = np.append(np.where(depths[:-1] > 0, -np.diff(ndtr(-depths)), np.diff(ndtr(depths))), ndtr(-depths[-1]))
        return min(1.0, float(shares @ np.where(room >= 0, bounds, 1.0).min(axis=1)) * (1 + 1e-6) + 1e-300)


def _shortfall(means: FloatArray, spread: float) -> FloatArray:
    """E (1 - exp(Y))_+ for Y ~ N(mean, spread^2)."""
    below = -means / spread
    values: FloatArray = ndtr(below) - np.exp(means + spread**2 / 2 + log_ndtr(below - spread))
    # The difference of nearly equal numbers, both at most ndtr(below), whose exponents are right to some units.
    return np.minimum(np.maximum(values, 0.0) + 1e-12 * ndtr(below), 1.0)


def lay_floor(depth: float, pilot: Slopes) -> Floor:
    """Returns a floor whose sets are likely to have more than half of all points; their sizes are not known yet."""
    levels = np.quantile(pilot.loss - _DISTANCES[:, None] * pilot.across, _LEVEL, axis=1)
    steepness = max(float(np.quantile(pilot.across, _STEEPNESS)), 1e-9)
    slope = max(0.0, float(np.quantile(pilot.along, _SLOPE)))
    return Floor(depth, slope, steepness, _DISTANCES, levels, np.full(_DISTANCES.size, -np.inf))


def measure_floor(floor: Floor, fresh: Slopes, failure: float, lost: float) -> Floor:
    """Returns the floor with the sizes of its sets, from points that had no part in laying it.

    Args:
      floor: from `lay_floor`.
      fresh: independent observations.
      failure: probability with which any of the sizes may be too large.
      lost: probability that rounding of one observation is not bounded.
    """
    usable = (fresh.along >= floor.slope) & (fresh.across <= floor.steepness) & np.isfinite(fresh.loss)
    reached = fresh.loss - floor.distances[:, None] * fresh.across >= floor.levels[:, None]
    hits = (reached & usable).sum(axis=1)
    shares = betaincinv(np.maximum(hits, 1), usable.size - hits + 1, failure / hits.size)  # Clopper and Pearson
    shares = np.where(hits > 0, shares * (1 - 1e-9) - lost, 0.0)
    return replace(floor, alphas=ndtri(np.maximum(shares, 0.0)))


def usual_depths(depth: float, pilot: Slopes, epsilon: float) -> tuple[float, float]:
    """Returns about what the noise-first delta is, as if losses at every depth were normal, and where it comes from.

    Returns:
      About delta; and the depth below which most of it lies.
    """
    depths = np.arange(-40.0, _HIGHEST, _STEP)
    spread = max(float(pilot.loss.std()), 1e-9)
    means = epsilon + float(pilot.loss.mean()) + float(pilot.along.mean()) * (depths - depth)
    parts = np.cumsum(np.diff(ndtr(depths), prepend=0.0) * _shortfall(means, spread))
    return float(parts[-1]), float(depths[np.searchsorted(parts, _MOST * parts[-1])])
