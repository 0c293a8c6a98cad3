"""One row of a run under Poisson sampling: N(S, 1) against N(0, 1) with a random shift S (docs/mechanisms.md).

Privacy only falls when S grows in the stochastic order: the likelihood ratio increases in the observation, so that the
best tests are half-lines, and half-lines gain mass under N(S, 1) when S grows. All rounding here is upwards.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from galton.convolution import FAR, LOST, MASS_ERROR, MOST_CELLS, UNIT, GridTooLarge
from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.loss_grids import LossGrid

_CELLS = 1 << 13
"""Cells of the grid on which sums are convolved."""
_POINTS = 96
"""Support kept of the distribution of a sum."""
_NODES = 3000
"""Cells of a row without its tails, at least."""
_CORE = 5.5
"""Tails are what is farther out than so many standard deviations."""
_ABSCISSAE, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_WIDTH = 0.4
"""Most that the width of a cell times (distance to a point of the shift + 2) may be, so that quadrature is right to
1e-12."""
_WIDEST = 100.0
"""A row whose observations range farther than this has no privacy to speak of."""
_BEYOND = 1e-30
"""Observations above which fewer than this share of the masses lies count as an infinite loss."""


@dataclass(frozen=True, eq=False)
class Shift:
    """A random shift S: `points` (increasing, >= 0) with `masses`, and +infinity with mass `missing`.

    Attributes:
      points: values of S.
      masses: their probabilities.
      missing: the probability of +infinity.
      error: relative error of all of these, by rounding.
    """

    points: FloatArray
    masses: FloatArray
    missing: float = 0.0
    error: float = 0.0

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
    # Every value is rounded up by less than a cell: the sum of all must still fit where the grid is to hold it.
    step = reach / (_CELLS - 2 - min(values.size, _CELLS // 2)) * (1 + 1e-9)
    cells = np.ceil(values / step * (1 - 1e-12)).astype(np.int64)
    grid = np.arange(_CELLS, dtype=np.float64) * step * (1 + 1e-9)
    masses = np.zeros(_CELLS)
    masses[0] = 1.0
    missing = 0.0
    shifts = []
    for index in range(max(stops)):
        jump, chance = int(cells[index]), float(chances[index])
        if jump:
            missing += chance * float(masses[-jump:].sum())
            moved = chance * masses[:-jump]
            masses *= 1 - chance
            masses[jump:] += moved
        if index + 1 in stops:
            points, kept = _thinned(grid, masses)
            shifts.append(Shift(points, kept, missing, error=(4 * (index + 1) + _CELLS) * UNIT))
    return shifts


def _thinned(grid: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rounds up to fewer points, dense where mass times shift is; point 0 stays."""
    weight = np.sqrt(masses * grid)
    total = float(weight.sum())
    if total == 0:
        return grid[:1], masses[:1].copy()
    level = np.ceil(np.cumsum(weight) / total * _POINTS * (1 - 1e-12))
    ends = np.flatnonzero(np.diff(level, append=np.inf) > 0)
    group = np.searchsorted(ends, np.arange(1, grid.size))
    sums = np.bincount(group, weights=masses[1:], minlength=ends.size)
    kept = sums > 0
    points = np.concatenate(([0.0], grid[ends][kept]))
    return points, np.concatenate((masses[:1], sums[kept]))


def row_losses(shift: Shift, direction: Direction, interval: float) -> LossGrid:
    """Returns the privacy loss of a row on multiples of `interval`, dominating the true one, rounding included.

    Observations between two nodes are a cell: the loss grows from one end to the other, so that it lies between two
    points of the grid, and the cell's mass goes to these so that both its probabilities are kept (docs/mechanisms.md).

    Args:
      shift: S.
      direction: mixture-first or noise-first.
      interval: distance of two losses.
    """
    cells = _cells(shift)
    if cells is None:
        return LossGrid(interval, 0, np.ones(1), 1.0)
    low = np.floor((cells.losses[:-1] - cells.error) / interval)
    high = np.ceil((cells.losses[1:] + cells.error) / interval)
    if direction is Direction.MIXTURE_FIRST:
        numerator, denominator, ends = cells.mixture, cells.noise, (low, high)
        rest, infinite = cells.mixture_below, cells.mixture_above + shift.missing
        rest_at = math.ceil((cells.losses[0] + cells.error) / interval)
    else:  # the loss is the negative one
        numerator, denominator, ends = cells.noise, cells.mixture, (-high, -low)
        rest, infinite = cells.noise_above, cells.noise_below
        rest_at = math.ceil((cells.error - cells.losses[-1]) / interval)
    lower, upper = (end.astype(np.int64) for end in ends)
    first, last = min(int(lower.min()), rest_at), max(int(upper.max()), rest_at)
    if last - first >= MOST_CELLS:
        raise GridTooLarge(f"composition: a row needs a grid of {last - first} losses, too many")
    spread = -np.expm1(-(upper - lower) * interval)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (1 - denominator / numerator * np.exp(lower * interval)) / spread
    moved = (4 * MASS_ERROR + 2 * shift.error + 4 * UNIT * np.abs(lower * interval)) / spread
    share = np.where(np.isfinite(share), np.clip(share + moved, 0.0, 1.0), 1.0)
    masses = np.bincount(upper - first, numerator * share, last - first + 1)
    masses += np.bincount(lower - first, numerator * (1 - share), last - first + 1)
    masses[rest_at - first] += rest
    raised = np.asarray(masses * (1 + 2 * MASS_ERROR + 2 * shift.error), np.float64)
    return LossGrid(interval, first, raised, infinite * (1 + 1e-9) + LOST)


@dataclass(frozen=True, eq=False)
class _Cells:
    """A row cut at nodes: losses at the nodes, and the masses of the cells between, with and without the shift.

    Attributes:
      losses: log of the likelihood ratio at each node, increasing; right up to `error`.
      error: of the losses.
      mixture, noise: masses of the cells under N(S, 1) and N(0, 1).
      mixture_below, mixture_above, noise_below, noise_above: masses outside.
    """

    losses: FloatArray
    error: float
    mixture: FloatArray
    noise: FloatArray
    mixture_below: float
    mixture_above: float
    noise_below: float
    noise_above: float


def _cells(shift: Shift) -> _Cells | None:
    """The cells of a row; None for shifts so large that nothing can be claimed."""
    largest = float(shift.points[-1])
    high = largest + FAR
    if high + FAR > _WIDEST:
        return None
    while float(shift.masses @ ndtr(shift.points - high + 0.25)) < _BEYOND:
        high -= 0.25
    nodes = _nodes(high, max(high, largest) + FAR)
    low, high_ends = nodes[:-1], nodes[1:]
    half = (high_ends - low) / 2
    at = ((low + high_ends) / 2)[:, None] + half[:, None] * _ABSCISSAE
    weights = half[:, None] * _WEIGHTS / math.sqrt(2 * math.pi)
    noise = np.exp(-np.square(at) / 2)
    density = np.exp(-np.square(at[:, :, None] - shift.points) / 2) @ shift.masses
    reach = FAR + max(high, largest)
    return _Cells(
        losses=_log_ratio(shift, nodes),
        error=8 * UNIT * (reach * largest + largest**2 + 800 + shift.points.size) + 2 * shift.error,
        mixture=(weights * density).sum(axis=1),
        noise=(weights * noise).sum(axis=1),
        mixture_below=float(shift.masses @ ndtr(nodes[0] - shift.points)),
        mixture_above=float(shift.masses @ ndtr(shift.points - nodes[-1])),
        noise_below=float(ndtr(nodes[0])),
        noise_above=float(ndtr(-nodes[-1])),
    )


def _nodes(high: float, span: float) -> FloatArray:
    """Nodes from -FAR to `high`, three quarters of them without the tails, and close enough for the quadrature."""
    tail = FAR - _CORE
    edges = np.unique(np.clip([-FAR, -_CORE, high - tail, high], -FAR, high))
    parts = [
        np.linspace(start, stop, max(_NODES // (1 if stop - start > tail else 6), _least(stop - start, span)), False)
        for start, stop in itertools.pairwise(edges)
    ]
    return np.concatenate([*parts, [high]])


def _least(length: float, span: float) -> int:
    return math.ceil(length * (span + 2) / _WIDTH) + 1


def _log_ratio(shift: Shift, at: FloatArray) -> FloatArray:
    exponents = np.outer(at, shift.points) + (np.log(np.maximum(shift.masses, 1e-300)) - np.square(shift.points) / 2)
    peak = exponents.max(axis=1)
    return np.asarray(peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1)))
