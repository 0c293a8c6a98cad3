"""delta for orthogonal modes (C = I) between two bounds, without a sample (docs/math.md, section 11).

The likelihood ratio is then the mean of independent log-normal variables X_k, and delta in either direction is the
expectation of a convex function of their sum. Convex functions only gain if every X_k is spread to the points of a grid
with its mean kept, and only lose if it is drawn together to the means of cells: bounds with an error of second order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from galton.convolution import FAR, LOST, MASS_ERROR, UNIT, Grid, GridTooLarge, TiltedSum, normal_masses
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction

_CELLS = 1 << 14
"""Cells of the normal variable behind a likelihood."""
_QUICK = 1 << 13
"""Points of the grid of a likelihood, at most, for an upper bound, whose error is of second order."""
_FINE = {Direction.MIXTURE_FIRST: (1 << 17, 1 << 19), Direction.NOISE_FIRST: (1 << 19, 1 << 21)}
"""The same for a lower bound, and for a second try. Mixture-first, sums spread over several times the grid's width."""
_CLOSE = 0.02
"""Relative distance of the two bounds that needs no second try."""
_COARSER = 6
"""How often the grid may be made twice as coarse until the sum fits."""
BEYOND = 4e-36
"""Probability that a standard normal is beyond FAR."""
_HARDLY = 0.01 - FAR
"""A standard normal is below this with a probability below 2 BEYOND."""
_HOPELESS = 1e-30
"""Deltas that no second try is worth."""
EXTREME = 600.0
"""Levels and energies beyond which nothing is computed."""
_SHARE = 12.0
"""A lower bound gives up a share of about e^-12 of delta for rare errors of the grid."""


@lru_cache(maxsize=1024)
def likelihood_upper(modes: int, energy: float, direction: Direction, epsilon: float) -> float:
    """Returns an upper bound on delta of `modes` orthogonal modes, G = energy * I: quick, and usually within 1%.

    Formal guarantee: delta(epsilon) is at most this with certainty, if exp and log are right to 4 units in the last
    place, the normal distribution function to 1e-13, and the FFT has the error of the standard algorithm.

    Args:
      modes: how many.
      energy: squared length of each mode in units of the noise.
      direction: mixture-first or noise-first.
      epsilon: where.

    Returns:
      The bound; 1 where the numbers are out of reach.
    """
    return _bound(modes, energy, direction, epsilon, _QUICK, None)


@lru_cache(maxsize=256)
def likelihood_lower(modes: int, energy: float, direction: Direction, epsilon: float) -> float:
    """Returns a lower bound on delta of `modes` orthogonal modes, G = energy * I, usually within 1%.

    Formal guarantee: as for `likelihood_upper`, from below.

    Args:
      modes: how many.
      energy: squared length of each mode in units of the noise.
      direction: mixture-first or noise-first.
      epsilon: where.

    Returns:
      The bound; 0 where the numbers are out of reach.
    """
    upper = likelihood_upper(modes, energy, direction, epsilon)
    lower = 0.0
    for points in _FINE[direction]:
        lower = max(lower, min(upper, _bound(modes, energy, direction, epsilon, points, upper)))
        if upper - lower <= _CLOSE * lower or upper < _HOPELESS:
            break
    return lower


def _bound(modes: int, energy: float, direction: Direction, epsilon: float, points: int, upper: float | None) -> float:
    """The upper bound; or, given that, the lower one."""
    if direction is Direction.REPLACE:
        raise InvalidArgument("direction", direction.value, "must be mixture-first or noise-first")
    rising = direction is Direction.MIXTURE_FIRST
    level = math.log(modes) + (epsilon if rising else -epsilon)
    if abs(level) > EXTREME or not 1 / EXTREME**2 < energy < EXTREME:
        return 1.0 if upper is None else 0.0
    return min(1.0, _Task(modes, math.sqrt(energy), rising, level, epsilon, points).bound(upper))


@dataclass(frozen=True)
class Likelihood:
    """X = exp(mu z - mu^2 / 2), z standard normal, in cells of the normal up to some `last` one.

    Attributes:
      mu: standard deviation of the logarithm.
      rising: whether what is counted grows with X; errors then move points and masses of an upper bound up.
    """

    mu: float
    rising: bool

    def _position_error(self) -> float:
        """Relative error of a likelihood that is computed from its normal."""
        return 16 * UNIT * (2 + self.mu * (self.mu + 2 * FAR) + self.mu**2)

    def _mass_error(self, last: float) -> float:
        """Relative error of the mass of a cell: that of its quadrature, and of edges that are moved by rounding."""
        return MASS_ERROR + 4 * UNIT * (2 * FAR + 2 * self.mu) * _CELLS / (last + FAR)

    def _cells(self, last: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Likelihoods at the edges of cells; masses of the cells; and their means over the lower edges, less 1."""
        edges = np.linspace(-FAR, last, _CELLS + 1)
        masses, weighted = normal_masses(edges, 0.0), normal_masses(edges, self.mu)
        positions = np.exp(self.mu * edges - self.mu**2 / 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = weighted / (masses * positions[:-1]) - 1
        return positions, masses, np.where(np.isfinite(excess), excess, 0.0)

    def ends(self, last: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns points and masses that dominate X up to `last`: each cell spread to its ends, the mean kept.

        Errors move mass, and points, to where more is counted.

        Args:
          last: the largest normal.

        Returns:
          The edges of all cells; the mass that each cell gives to its lower end; and to its upper end.
        """
        positions, masses, excess = self._cells(last)
        error, raised = self._position_error(), 1 + 2 * self._mass_error(last)
        width = np.expm1(self.mu * np.diff(np.linspace(-FAR, last, _CELLS + 1)))
        moved = (2 * self._mass_error(last) + 4 * error) / width
        share = np.clip(excess / width + (moved if self.rising else -moved), 0.0, 1.0)
        lower, upper = masses * (1 - share) * raised, masses * share * raised
        if self.rising:  # what is below the first edge is moved up to it
            lower[0] += float(ndtr(-FAR)) * raised
        return positions * (1 + error if self.rising else 1 - error), lower, upper

    def means(self, last: float) -> tuple[FloatArray, FloatArray]:
        """Returns points and masses that X up to `last` dominates: each cell drawn together to its mean.

        Args:
          last: the largest normal.

        Returns:
          A point for every cell, and its mass.
        """
        positions, masses, excess = self._cells(last)
        error = 2 * self._mass_error(last) + 4 * self._position_error()
        width = positions[1:] / positions[:-1] - 1
        points = positions[:-1] * (1 + np.clip(excess, 0.0, width)) * (1 - error if self.rising else 1 + error)
        return points, masses * (1 - 2 * self._mass_error(last))


def at_ends(points: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Returns the masses at the edges of cells that give so much to their lower and to their upper ends."""
    spread = np.zeros(points.size)
    spread[1:] += upper
    spread[:-1] += lower
    return spread


@dataclass(frozen=True)
class _Task:
    """delta = E(S/b - e^eps)_+ (mixture-first) or e^eps E(e^-eps - S/b)_+ (noise-first), S = X_1 + ... + X_b.

    Attributes:
      modes: b.
      mu: X = exp(mu z - mu^2 / 2), z standard normal.
      rising: whether delta counts sums above the level.
      log_level: logarithm of the level that sums are compared with.
      epsilon: where.
      points: of the grid of a likelihood, at most.
    """

    modes: int
    mu: float
    rising: bool
    log_level: float
    epsilon: float
    points: int

    def bound(self, upper: float | None) -> float:
        """The upper bound on delta; or, given that, the lower one."""
        # A likelihood above the level settles the sign of what is counted: that part has a closed form, or is 0.
        exact = (self.log_level + self.mu**2 / 2) / self.mu
        reach = exact + 1e-12 * (abs(exact) + 1 / self.mu)
        last = min(reach, FAR + (self.mu if self.rising else 0.0))
        cut = reach <= last
        lower = upper is not None
        outside = self._outside(last, cut, lower)
        if last <= _HARDLY:  # 2 b BEYOND covers all normals below that
            return outside
        likelihood = Likelihood(self.mu, self.rising)
        if lower:
            atoms = likelihood.means(last)
        else:
            points, *masses = likelihood.ends(last)
            atoms = points, at_ends(points, *masses)
        for coarser in range(_COARSER):
            try:
                return self._inside(atoms, coarser, upper) + outside
            except GridTooLarge:
                continue
        return 0.0 if lower else 1.0

    def _outside(self, last: float, cut: bool, lower: bool) -> float:
        """What is counted where some normal is above `last`, or below -FAR."""
        if not self.rising:
            return 0.0 if lower else 2 * self.modes * BEYOND
        if not cut:
            return 0.0 if lower else (self.modes + 1) * BEYOND
        above, likely = float(ndtr(-last)), float(ndtr(self.mu - last))
        counted = -math.expm1(math.log1p(-likely) + (self.modes - 1) * math.log1p(-above)) if likely < 1 else 1.0
        taken = -math.exp(self.epsilon) * math.expm1(self.modes * math.log1p(-above))
        error = 1e-11 * (counted + taken)
        return max(0.0, counted - taken - error) if lower else counted - taken + error

    def _inside(self, atoms: tuple[FloatArray, FloatArray], coarser: int, upper: float | None) -> float:
        """What is counted where every normal is in reach; a lower bound if `upper` is given."""
        points, masses = atoms
        interval = 2.0 ** math.ceil(math.log2((points[-1] - points[0]) / self.points) + coarser)
        term = on_grid(points, masses, interval)
        level = math.exp(self.log_level)
        factor = math.exp(0.0 if self.rising else self.epsilon) / self.modes
        if not self.rising:
            term = Grid(interval, -(term.first + term.masses.size - 1), term.masses[::-1].copy())
        sign = 1 if self.rising else -1
        # The level itself is rounded: to where more is counted, or less.
        rounding = 8 * UNIT * (2 + abs(self.log_level)) * level
        if self.modes * float(term.points[-1]) <= sign * level - rounding:
            return 0.0 if upper is not None else LOST  # no sum gets there
        total = TiltedSum([(term, self.modes)])
        most = math.inf if self.rising else 1.0
        if upper is None:
            _, counted = total.bracket(sign * level - rounding, lambda gaps: gaps * factor, most)
            return counted * (1 + 1e-12) + LOST
        margin, missed = self._margin(interval, upper / factor)
        counted, _ = total.bracket(sign * level + rounding + margin, lambda gaps: gaps * factor, most)
        return max(0.0, counted * (1 - 1e-12) - missed * factor * (1 + 1e-12))

    def _margin(self, interval: float, scale: float) -> tuple[float, float]:
        """A margin that the errors of the grid hardly exceed in the sum, and the expectation of what exceeds it.

        The errors have mean 0, lie in intervals of this length, and are independent: Hoeffding.
        """
        exponent = _SHARE + max(0.0, math.log(interval * math.sqrt(self.modes) / max(scale, 1e-300)))
        margin = interval * math.sqrt(self.modes * exponent / 2)
        return margin, self.modes * interval**2 / (4 * margin) * math.exp(-exponent)


def on_grid(points: FloatArray, masses: FloatArray, interval: float) -> Grid:
    """Spreads every point to its two neighbours on a grid, the mean kept.

    Args:
      points: increasing.
      masses: of the points.
      interval: of the grid; a power of two, so that the shares are exact.

    Returns:
      The masses on the grid.
    """
    scaled = points / interval
    below = np.floor(scaled)
    share = scaled - below
    first = int(below[0])
    index = below.astype(np.int64) - first
    size = int(index[-1]) + 2
    spread = np.bincount(index, masses * (1 - share), size) + np.bincount(index + 1, masses * share, size)
    return Grid(interval, first, np.asarray(spread, np.float64))
