"""One row of a run under Poisson sampling: N(S, 1) against N(0, 1) with a random shift S (docs/mechanisms.md).

Privacy only falls when S grows in the stochastic order: the likelihood ratio increases in the observation, so that the
best tests are half-lines, and half-lines gain mass under N(S, 1) when S grows. All rounding here is upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from galton.accountants.peers import pld_pmf
from galton.errors import FloatArray
from galton.guarantee import Direction

_CELLS = 1 << 13
"""Cells of the grid on which sums are convolved."""
_POINTS = 96
"""Support kept of the distribution of a sum."""
_NODES = 3000
"""Observations at which the divergences of a row are computed exactly."""
_FAR = 8.8
"""A standard normal is beyond this with probability 1e-18."""
_GROUND = 4e-16
"""Added to every delta of a row: float64 rounding of a difference of two probabilities."""


@dataclass(frozen=True, eq=False)
class Shift:
    """A random shift S: `points` (increasing, >= 0) with `masses`, and +infinity with what is missing to 1."""

    points: FloatArray
    masses: FloatArray

    @property
    def missing(self) -> float:
        """Mass at infinity, with room for rounding."""
        return max(0.0, 1.0 - float(self.masses.sum())) + 1e-15

    def spread(self) -> float:
        """Returns sqrt(E e^(S S') - 1), S' an independent copy: the spread of the privacy loss of the row."""
        energy = np.outer(self.points, self.points)
        return math.sqrt(max(0.0, float(self.masses @ np.expm1(np.minimum(energy, 50.0)) @ self.masses)))


def sums_of_bernoullis(values: FloatArray, chances: FloatArray, stops: list[int]) -> list[Shift]:
    """Returns, for each stop, a shift not below the sum of the first `stop` terms values[k] * Bernoulli(chances[k]).

    By repeated convolution of non-negative numbers: values are rounded up to a grid, what leaves the grid counts as
    infinite, and the support is thinned by rounding up.
    """
    mean, square = float(values @ chances), float(np.square(values) @ (chances * (1 - chances)))
    largest = float(values.max())
    reach = min(float(values.sum()), mean + 12 * math.sqrt(square) + 10 * largest)
    step = reach / (_CELLS - 2) * (1 + 1e-9)
    cells = np.ceil(values / step * (1 - 1e-12)).astype(np.int64)
    grid = np.arange(_CELLS, dtype=np.float64) * step * (1 + 1e-9)
    masses = np.zeros(_CELLS)
    masses[0] = 1.0
    shifts = []
    for index in range(max(stops)):
        jump, chance = int(cells[index]), float(chances[index])
        if jump:
            moved = chance * masses[:-jump]
            masses *= 1 - chance
            masses[jump:] += moved
        if index + 1 in stops:
            shifts.append(_thinned(grid, masses))
    return shifts


def _thinned(grid: FloatArray, masses: FloatArray) -> Shift:
    """Rounds up to fewer points, dense where mass times shift is; point 0 stays."""
    weight = np.sqrt(masses * grid)
    total = float(weight.sum())
    if total == 0:
        return Shift(grid[:1], masses[:1].copy())
    level = np.ceil(np.cumsum(weight) / total * _POINTS * (1 - 1e-12))
    ends = np.flatnonzero(np.diff(level, append=np.inf) > 0)
    group = np.searchsorted(ends, np.arange(1, grid.size))
    sums = np.bincount(group, weights=masses[1:], minlength=ends.size)
    kept = sums > 0
    points = np.concatenate(([0.0], grid[ends][kept]))
    return Shift(points, np.concatenate((masses[:1], sums[kept])))


def row_distribution(shift: Shift, direction: Direction, interval: float) -> Any:
    """Returns a privacy loss distribution (dp-accounting) on multiples of `interval` that dominates the row.

    At the loss L(y) of an observation y the best test is the half-line that ends at y, so that delta there is exact.
    delta is convex in e^eps: chords between such points bound it from above on the grid, and connecting the dots of
    the grid (Doroshenko et al. 2022) keeps it so.
    """
    losses, deltas = _mixture_first(shift) if direction is Direction.MIXTURE_FIRST else _noise_first(shift)
    first, last = math.floor(losses[0] / interval), math.ceil(losses[-1] / interval)
    grid = np.arange(first, last + 1)
    on_grid = _chords(losses, deltas, interval * grid)
    on_grid = np.minimum(np.maximum.accumulate(on_grid[::-1])[::-1] + _GROUND, 1.0)
    return pld_pmf().create_pmf_pessimistic_connect_dots(interval, grid, on_grid)


def _nodes(shift: Shift) -> FloatArray:
    high = float(shift.points[-1]) + _FAR
    while float(shift.masses @ ndtr(shift.points - high + 0.25)) < 1e-18:
        high -= 0.25
    return np.linspace(-_FAR, high, _NODES)


def _log_ratio(shift: Shift, at: FloatArray) -> FloatArray:
    exponents = np.outer(at, shift.points) + (np.log(np.maximum(shift.masses, 1e-300)) - np.square(shift.points) / 2)
    peak = exponents.max(axis=1)
    return np.asarray(peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1)))


def _mixture_first(shift: Shift) -> tuple[FloatArray, FloatArray]:
    """sup over c of P(y >= c) - e^eps Q(y >= c); the mass at infinity counts in full."""
    at = _nodes(shift)
    losses = _log_ratio(shift, at)
    above = ndtr(shift.points - at[:, None]) @ shift.masses
    deltas = np.maximum(above - np.exp(losses + log_ndtr(-at)), 0.0)
    return losses, deltas * (1 + 1e-12) + shift.missing


def _noise_first(shift: Shift) -> tuple[FloatArray, FloatArray]:
    """sup over c of Q(y <= c) - e^eps P(y <= c); the mass at infinity is never below c."""
    at = _nodes(shift)[::-1]
    losses = -_log_ratio(shift, at)
    below = ndtr(at)
    under = ndtr(at[:, None] - shift.points) @ shift.masses
    deltas = np.maximum(below - np.exp(losses + np.log(np.maximum(under, 1e-300))), 0.0)
    return losses, deltas * (1 + 1e-12)


def _chords(losses: FloatArray, deltas: FloatArray, at: FloatArray) -> FloatArray:
    """Upper bound at any epsilon: chords in e^eps between nodes, to (0, 1) before the first, flat after the last."""
    index = np.clip(np.searchsorted(losses, at) - 1, 0, losses.size - 2)
    low, high = losses[index], losses[index + 1]
    width = np.expm1(np.maximum(high - low, 1e-300))
    share = np.clip(np.expm1(np.clip(at - low, 0.0, 700.0)) / width, 0.0, 1.0)
    inside = deltas[index] + share * (deltas[index + 1] - deltas[index])
    before = 1 - np.exp(np.minimum(at - losses[0], 0.0)) * (1 - deltas[0])
    return np.where(at < losses[0], before, np.where(at >= losses[-1], deltas[-1], inside))
