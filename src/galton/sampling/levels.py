"""A tilt by a product of sums of exponentials, one factor a bin, for banded G (docs/math.md, section 18.6).

The tilt by exp(theta * sum_k X_k), X_k = exp(A_k), would need no more than theta at every bin, but has no mean under
noise. In its place every bin has a factor f(A_k) = sum_n c_n exp(u_n A_k) that is nowhere below exp(theta X_k) up to a
cut. A product of such factors is a mixture of Gaussians, one for every way to give each bin a level u_n, and
with banded G the levels are a chain with a short memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linprog, minimize
from scipy.special import log_ndtr, logsumexp

from galton.errors import FloatArray
from galton.sampling.chains import Ring, ring

_SETS = ((1.0, 2.0, 3.0, 4.0, 6.0), (1.0, 2.0, 4.0), (1.0, 3.0), (2.0,))
"""Levels beside 0 that are tried: as many as the memory leaves room for."""
_MOST_STATES = 1 << 12
_LARGEST_EXPONENT = 600.0
_FARTHEST = 12
_MARGIN = 1e-9
"""Added to the logarithm of the range for the rounding of the recursion, which is far smaller."""
_STRENGTHS, _CUTS = (15.0, 25.0, 40.0, 60.0), (12.0, 20.0, 32.0)
"""Where the search starts: theta b exp(epsilon), and about theta times the sum of X around an A_k at the cut."""
_STEP = 2e-3
"""Cells on which it is proved that f(A) >= exp(theta X)."""
_FEWEST_STEPS = 16
_MOST_PROGRAMS, _LEAST_GAIN, _SHARES = 12, 0.02, (0.97, 0.6, 0.2, 0.05)
"""Linear programs for the coefficients, what the last must gain, and how far to go towards the solution of each."""


@dataclass(frozen=True, eq=False)
class LevelChain:
    """The levels of all bins but the last few of a circle, which have level 0.

    A state is the level of each of the last bins that a bin is attracted by, the latest first; its number has them
    for digits.

    Attributes:
      ring: the bins, in groups of one.
      levels: u, from 0 upwards.
    """

    ring: Ring
    levels: FloatArray

    @property
    def steps(self) -> int:
        """Bins that may have a level above 0."""
        return self.ring.groups - self.ring.memory

    @cached_property
    def log_attraction(self) -> FloatArray:
        """For every level and state, the logarithm of the weight beside the coefficient."""
        digits = np.indices((self.levels.size,) * self.ring.memory).reshape(self.ring.memory, -1)
        field = (self.ring.lags[1:, None] * self.levels[digits]).sum(axis=0)
        alone = self.ring.lags[0] * self.levels * (self.levels - 1) / 2
        return np.asarray(alone[:, None] + self.levels[:, None] * field)

    def weights(self, log_coefficients: FloatArray) -> FloatArray:
        """Returns the weight of every level after every state, (levels, later states, last digit)."""
        count = self.levels.size
        return np.exp(log_coefficients[:, None] + self.log_attraction).reshape(count, -1, count)

    def futures(self, weights: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        """Returns the total weight of all that may follow each state, before each step and after the last.

        Args:
          weights: of levels after states.
          steps: how many bins.

        Returns:
          The totals, each row divided by its largest, and the logarithm of the factor of every row but the last.
        """
        rows, scales = [np.ones(weights[0].size)], []
        for _ in range(steps):
            future = (weights * rows[-1].reshape(*weights.shape[:2], 1)).sum(axis=0).ravel()
            scales.append(float(future.max()))
            rows.append(future / scales[-1])
        return np.array(rows[::-1]), np.log(np.array(scales[::-1]))

    def log_normaliser(self, log_coefficients: FloatArray) -> float:
        """Returns the logarithm of the total weight."""
        rows, scales = self.futures(self.weights(log_coefficients), self.steps)
        return float(scales.sum()) + math.log(rows[0, 0])

    def roughly(self, log_coefficients: FloatArray) -> tuple[float, FloatArray]:
        """Returns about the logarithm of the total weight, and its derivatives by the logarithms of coefficients."""
        if float((log_coefficients[:, None] + self.log_attraction).max()) > _LARGEST_EXPONENT:
            return math.inf, np.ones(self.levels.size)
        steps = min(self.steps, 2 * self.ring.memory + _FEWEST_STEPS)
        weights = self.weights(log_coefficients)
        rows, scales = self.futures(weights, steps)
        occupied, counts = np.zeros(rows.shape[1]), np.zeros((steps, self.levels.size))
        occupied[0] = 1.0
        for step in range(steps):
            moves = weights * rows[step + 1].reshape(*weights.shape[:2], 1)
            totals = moves.sum(axis=0)
            moves *= occupied.reshape(totals.shape) / totals
            counts[step] = moves.sum(axis=(1, 2))
            occupied = moves.sum(axis=2).ravel()
        more, middle = self.steps - steps, slice(steps // 3, -(-2 * steps // 3))
        total = float(scales.sum()) + math.log(rows[0, 0]) + more * float(scales[middle].mean())
        return total, counts.sum(axis=0) + more * counts[middle].mean(axis=0)


@dataclass(frozen=True, eq=False)
class LevelTilt:
    """Factors for all bins, and the cut up to which they bound exp(theta X).

    Attributes:
      chain: the levels.
      log_coefficients: logarithms of c.
      theta: of the tilt that the product stands for.
      cut: f(A) >= exp(theta X / (1 - memory / bins)) for A up to here.
      log_above: logarithm of the mean number of A_k above the cut, under the mixture.
      log_normaliser: logarithm of the total weight of all levels.
      log_bound: logarithm of a bound on V below the cut, but for -theta b exp(epsilon).
    """

    chain: LevelChain
    log_coefficients: FloatArray
    theta: float
    cut: float
    log_above: float
    log_normaliser: float
    log_bound: float

    def log_below(self, epsilon: float) -> float:
        """Returns the logarithm of a bound on V where no A_k is above the cut."""
        return self.log_bound - self.theta * self.chain.ring.groups * math.exp(min(epsilon, 100.0))

    def log_range(self, epsilon: float) -> float:
        """Returns the logarithm of the range of V at this epsilon, if it is the one that the shares are chosen for."""
        return float(np.logaddexp(self.log_above, self.log_below(epsilon)))


def best_levels(gram: FloatArray, epsilon: float) -> LevelTilt | None:
    """Returns the tilt with about the smallest range at `epsilon`; None if G is not banded, or its memory too long.

    Args:
      gram: G.
      epsilon: where delta is wanted.
    """
    bins = ring(gram, 1, _FARTHEST)
    levels = None if bins is None else _affordable(bins)
    if bins is None or levels is None:
        return None
    fit = _Fit(gram, LevelChain(bins, levels), epsilon)
    near = float(bins.lags.sum() * 2 / bins.lags[0]) - 1
    strengths = np.log(np.array(_STRENGTHS) / (bins.groups * math.exp(epsilon)))
    starts = [np.array((log, math.log(far / near) - log)) for log in strengths for far in _CUTS]
    start = min(starts, key=fit.log_range)
    simplex = start + np.array([(0.0, 0.0), (0.15, 0.0), (0.0, -0.15)])
    optimum = minimize(
        fit.log_range,
        start,
        method="Nelder-Mead",
        options={"initial_simplex": simplex, "maxfev": 24, "xatol": 0.02, "fatol": 0.05},
    )
    return fit.tilt(float(optimum.x[0]), float(optimum.x[1]))


def _affordable(bins: Ring) -> FloatArray | None:
    """The first set of levels whose chain is small enough."""
    for levels in _SETS:
        top = levels[-1]
        exponent = top * (top - 1) / 2 * bins.lags[0] + top**2 * bins.lags[1:].sum()
        if (len(levels) + 1) ** bins.memory <= _MOST_STATES and exponent <= _LARGEST_EXPONENT:
            return np.array((0.0, *levels))
    return None


class _Fit:
    """Coefficients for a theta and a cut."""

    def __init__(self, gram: FloatArray, chain: LevelChain, epsilon: float) -> None:
        self._gram, self._chain, self._epsilon = gram, chain, epsilon

    def log_range(self, where: FloatArray) -> float:
        """The logarithm of the range, roughly, at the logarithm of theta and a cut."""
        theta, cut = math.exp(float(where[0])), float(where[1])
        _, log_normaliser = self._coefficients(theta, cut)
        below = log_normaliser - 1 - math.log(theta * self._bins) - theta * self._bins * math.exp(self._epsilon)
        return float(np.logaddexp(log_exceeding(self._gram, cut), below))

    def tilt(self, log_theta: float, cut: float) -> LevelTilt | None:
        """Returns the tilt, its coefficients raised to where they are proved to be large enough; None if too large."""
        theta, chain = math.exp(log_theta), self._chain
        coefficients, _ = self._coefficients(theta, cut)
        coefficients = coefficients + shortfall(chain.levels, coefficients, self._local(theta), cut)
        if not math.isfinite(chain.roughly(coefficients)[0]):
            return None
        log_normaliser = chain.log_normaliser(coefficients)
        beyond = chain.ring.beyond * (float(chain.levels[-1]) * self._bins) ** 2 / 2
        log_bound = log_normaliser - 1 - math.log(theta * self._bins) + beyond + _MARGIN
        above = log_exceeding(self._gram, cut)
        return LevelTilt(chain, coefficients, theta, cut, above, log_normaliser, log_bound)

    @property
    def _bins(self) -> int:
        return self._chain.ring.groups

    def _local(self, theta: float) -> float:
        """Theta of a factor: larger, as some bins have level 0 wherever the circle is cut."""
        return theta / (1 - self._chain.ring.memory / self._bins)

    def _coefficients(self, theta: float, cut: float) -> tuple[FloatArray, float]:
        """Coefficients with f >= exp(theta X) up to the cut, and about the logarithm of their normaliser."""
        levels, lags = self._chain.levels, self._chain.ring.lags
        costs = levels * (levels - 1) / 2 * lags[0] + levels**2 / 2 * float(lags[1:].sum())
        return cheapest_coefficients(levels, self._local(theta), cut, costs, self._chain.roughly)


def cheapest_coefficients(
    levels: FloatArray,
    theta: float,
    cut: float,
    log_costs: FloatArray,
    roughly: Callable[[FloatArray], tuple[float, FloatArray]],
) -> tuple[FloatArray, float]:
    """Returns coefficients with f >= exp(theta X) at some points, and a small normaliser: linear programs in a row.

    Args:
      levels: exponents of f.
      theta: of the tilt.
      cut: up to where f is needed.
      log_costs: logarithms of what a coefficient adds to the normaliser, as a start.
      roughly: the logarithm of the normaliser and its derivatives by the logarithms of coefficients.
    """
    points = np.concatenate((np.linspace(cut - 12, cut - 5, 20), np.linspace(cut - 5, cut, 120)))
    logs = points[:, None] * levels - theta * np.exp(points)[:, None]
    best = _program(logs, log_costs)
    value, counts = roughly(best)
    for _ in range(_MOST_PROGRAMS):
        aim, before = _program(logs, np.log(np.maximum(counts, 1e-200)) - best), value
        for share in _SHARES:
            tried = np.logaddexp(best + math.log1p(-share), aim + math.log(share))
            tried_value, tried_counts = roughly(tried)
            if tried_value < value:
                best, value, counts = tried, tried_value, tried_counts
                break
        if before - value < _LEAST_GAIN:
            break
    return best, value


def _program(logs: FloatArray, log_costs: FloatArray) -> FloatArray:
    """Logarithms of the coefficients of least cost that are large enough at every point; none is exactly 0."""
    terms = logs - log_costs
    largest = terms.max(axis=1)
    program = linprog(np.ones(log_costs.size), A_ub=-np.exp(terms - largest[:, None]), b_ub=-np.exp(-largest))
    solution = np.zeros(log_costs.size) if program.x is None else program.x
    peak = float(solution.max())
    coefficients = np.log(np.maximum(solution, 1e-9 * peak) if peak > 0 else np.ones_like(solution)) - log_costs
    return np.asarray(coefficients - float(logsumexp(logs + coefficients, axis=1).min()))


def log_exceeding(gram: FloatArray, cut: float) -> float:
    """Returns the logarithm of the mean number of A_k above the cut under the mixture."""
    return float(logsumexp(log_exceedances(gram, cut))) - math.log(gram.shape[0])


def log_exceedances(gram: FloatArray, cut: float) -> FloatArray:
    """Returns the logarithm of the probability that A_k is above the cut under bin i, one row for every i."""
    diagonal = gram.diagonal()
    return np.asarray(log_ndtr((gram - cut - diagonal / 2) / np.sqrt(diagonal)))


def shortfall(levels: FloatArray, log_coefficients: FloatArray, theta: float, cut: float) -> float:
    """Returns a bound on theta exp(A) - log f(A) for all A up to the cut.

    log f and exp are convex: on a cell log f is above its tangent and exp below its chord. Left of all cells f is at
    least its value at A = -infinity, and exp(A) at most its value at their end.
    """
    end = min(math.log(1e-12 / theta), cut - 1.0)
    points = np.linspace(end, cut, 2 + int((cut - end) / _STEP))
    terms = points[:, None] * levels + log_coefficients
    logs = logsumexp(terms, axis=1)
    slopes = (np.exp(terms - logs[:, None]) * levels).sum(axis=1)
    powers = theta * np.exp(points)
    right = powers[1:] - logs[:-1] - slopes[:-1] * np.diff(points)
    left = theta * math.exp(end) - float(log_coefficients[0])
    return max(float((powers - logs).max()), float(right.max()), left) + 1e-12
