"""delta for C = I with bins redrawn in every epoch between two bounds, without a sample (docs/math.md, section 11.1).

The likelihood ratio of an epoch is the mean of independent log-normal variables X_k, and that of the run the product
over the epochs. delta is the expectation of a function that is convex in every single X_k: these are spread, or drawn
together, as in `likelihoods`. The law of an epoch follows by FFT, and the losses of all epochs add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from galton.convolution import FAR, LOST, MOST_CELLS, UNIT, Grid, GridTooLarge, TiltedSum
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.likelihoods import BEYOND, EXTREME, Likelihood, at_ends, on_grid
from galton.loss_grids import LARGEST_LOSS, Atoms, Composition, LossGrid

_Result = TypeVar("_Result")

_SHARE_OF_SPREAD = {False: 2.0**-7, True: 2.0**-13}
"""Interval of the grid of likelihoods over their standard deviation, for an upper and for a lower bound."""
_POINTS = {False: 1 << 14, True: 1 << 18}
"""Points of a grid of likelihoods; larger likelihoods are on a coarser one."""
_COARSER = {False: 64, True: 16}
"""By how much that is coarser."""
_LOSSES = 128
"""Points of the grid of losses in a standard deviation of an epoch's loss, for an upper bound."""
_ROUNDED = 5e-4
"""Share of epsilon that a lower bound gives up, at most, because losses are rounded down."""
_TRIES = 12
"""How often a grid may be made twice as coarse until the sum fits."""
_LAST, _BEYOND_LAST = 8.5, 1e-17
"""Normals beyond this, and their probability, which is counted: far less than rounding hides."""
_RARE = 30.0
"""Errors of the grid exceed the margin of a lower bound with a probability of e^-30."""
_MOST_ENERGY = 250.0
"""Squares of larger likelihoods, and sums of them, might overflow; delta is near 1 there."""
_MOVED = 16 * UNIT
"""Losses move by this, relative to 1 + |loss|, for the rounding of logarithms and of what they are taken of."""
_FAINT = 1e-18
"""Masses below this are mostly rounding errors of the FFT: they are left out, and counted with these."""


@lru_cache(maxsize=1024)
def epochs_upper(modes: int, energy: float, epochs: int, direction: Direction, epsilon: float) -> float:
    """Returns an upper bound on delta of independent epochs of `modes` orthogonal modes each, usually within 1%.

    Formal guarantee: delta(epsilon) is at most this with certainty, if exp and log are right to 4 units in the last
    place, the normal distribution function to 1e-13, and the FFT has the error of the standard algorithm. That error
    is absolute here: below 1e-7 or so the bound is loose.

    Args:
      modes: bins of an epoch.
      energy: squared length of each mode in units of the noise.
      epochs: how many.
      direction: mixture-first or noise-first.
      epsilon: where.

    Returns:
      The bound; 1 where the numbers are out of reach.
    """
    epoch = _epoch_in_reach(modes, energy, direction, False)
    if epoch is None:
        return 1.0
    arguments = (modes, energy, direction, epochs)
    composed = _first_that_fits(lambda coarser: _dominating(*arguments, coarser).delta(epsilon))
    return 1.0 if composed is None else min(1.0, composed + epoch.wrong(epochs) + LOST)


@lru_cache(maxsize=256)
def epochs_lower(modes: int, energy: float, epochs: int, direction: Direction, epsilon: float) -> float:
    """Returns a lower bound on delta of independent epochs of `modes` orthogonal modes each, mostly within 5%.

    Formal guarantee: as for `epochs_upper`, from below. The more epochs, the looser it is, since errors of first order
    add up.

    Args:
      modes: bins of an epoch.
      energy: squared length of each mode in units of the noise.
      epochs: how many.
      direction: mixture-first or noise-first.
      epsilon: where.

    Returns:
      The bound; 0 where the numbers are out of reach.
    """
    epoch = _epoch_in_reach(modes, energy, direction, True)
    if epoch is None or epsilon > EXTREME:
        return 0.0
    finest = _power_of_two(min(epoch.spread / _LOSSES, _ROUNDED * max(epsilon, 0.1) / epochs))

    def composed(coarser: int) -> float:
        total = TiltedSum([(_rounded_down(epoch, finest * 2**coarser), epochs)])
        return total.bracket(epsilon, lambda gaps: -np.expm1(-gaps), most=1.0)[0]

    known = _first_that_fits(composed)
    factor = 1.0 if direction is Direction.MIXTURE_FIRST else math.exp(epsilon)
    missed = epochs * epoch.missed * factor * _power(epoch.mean, epochs - 1)
    return 0.0 if known is None else max(0.0, known * (1 - 1e-12) - missed - epoch.wrong(epochs))


def epochs_error(modes: int, energy: float, epochs: int, direction: Direction) -> float:
    """Returns how much of `epochs_upper` is rounding of the FFT, whatever epsilon; 1 where nothing is in reach.

    Args:
      modes: bins of an epoch.
      energy: squared length of each mode in units of the noise.
      epochs: how many.
      direction: mixture-first or noise-first.
    """
    epoch = _epoch_in_reach(modes, energy, direction, False)
    return 1.0 if epoch is None else epoch.wrong(epochs)


def _power_of_two(value: float) -> float:
    """The largest that does not exceed the value."""
    return 2.0 ** math.floor(math.log2(value))


def _power(base: float, exponent: int) -> float:
    """A power of a number above 0, rounded up; infinity if it is too large."""
    logarithm = exponent * math.log(base)
    return math.exp(logarithm) * (1 + 1e-9) if logarithm < EXTREME else math.inf


def _first_that_fits(make: Callable[[int], _Result]) -> _Result | None:
    """What is made with the finest grid that is not too large, each twice as coarse as the one before; or None."""
    for coarser in range(_TRIES):
        try:
            return make(coarser)
        except GridTooLarge:
            continue
    return None


@dataclass(frozen=True, eq=False)
class _Epoch:
    """The loss of one epoch in the run that comes first: it dominates, or is dominated, up to errors.

    Attributes:
      losses: its values, at least one, increasing.
      masses: their probabilities, above 0.
      error: bounds the sum of the sizes of their errors, and what is left out: too much for an upper bound, and rare.
      missed: a lower bound's expectation of errors of the grid beyond the margin, over the number of modes.
      mean: bounds the mean of the likelihood ratio in the second run.
    """

    losses: FloatArray
    masses: FloatArray
    error: float
    missed: float
    mean: float

    def wrong(self, epochs: int) -> float:
        """Bounds what `error` may do to delta of so many epochs; the masses of the others are right, or these."""
        total = (float(self.masses.sum()) + self.error) * (1 + 1e-12)
        return epochs * self.error * _power(max(1.0, total), epochs - 1) if self.error else 0.0

    @property
    def spread(self) -> float:
        """The standard deviation of the loss, but above 0."""
        total = float(self.masses.sum())
        centre = float(self.masses @ self.losses) / total
        return math.sqrt(float(self.masses @ np.square(self.losses - centre)) / total) + 1e-9


def _epoch_in_reach(modes: int, energy: float, direction: Direction, lower: bool) -> _Epoch | None:
    """The loss of an epoch on the finest grid that fits; None if the numbers are out of reach."""
    if direction is Direction.REPLACE:
        raise InvalidArgument("direction", direction.value, "must be mixture-first or noise-first")
    if not 1 / EXTREME**2 < energy < _MOST_ENERGY:
        return None
    return _epoch(modes, energy, direction, lower)


@lru_cache(maxsize=4)
def _epoch(modes: int, energy: float, direction: Direction, lower: bool) -> _Epoch | None:
    """The loss of an epoch on the finest grid that fits."""
    return _first_that_fits(lambda coarser: _on_grids(modes, energy, direction, lower, coarser))


def _on_grids(modes: int, energy: float, direction: Direction, lower: bool, coarser: int) -> _Epoch | None:
    """The loss of an epoch: dominating, or with `lower` dominated; None if nothing of it is resolved."""
    mu, rising = math.sqrt(energy), direction is Direction.MIXTURE_FIRST
    last = _LAST + (mu if rising else 0.0)
    cells = _Cells(Likelihood(mu, rising), last, lower)
    interval = _power_of_two(min(1.0, math.sqrt(math.expm1(energy))) * _SHARE_OF_SPREAD[lower]) * 2.0**coarser
    points = _POINTS[lower]
    error, missed, mean, before = 0.0 if lower else modes * (_BEYOND_LAST + BEYOND), 0.0, 1 + 1e-9, 0
    losses, masses = [], []
    while before < cells.count:
        here = max(cells.below(cells.least + points * interval), before + 1)
        law, wrong = _sum_law(cells.on_grid(here, interval), modes, rising)
        sums, chances = law.points, law.masses
        if before:  # sums whose likelihoods were all on the finer grid are counted there
            finer, more = _sum_law(cells.on_grid(before, interval), modes, rising)
            chances, wrong = _without(law, finer), wrong + more
        kept = (chances > _FAINT) & (sums > 0)
        error += wrong + float(chances[~kept].sum()) * (1 + 1e-9)
        sums, chances = sums[kept], chances[kept]
        if lower:
            margin = interval * math.sqrt(modes * _RARE / 2)
            rare = min(1.0, modes * float(ndtr(-cells.edge(before))) * (1 + 1e-9)) if before else 1.0
            missed += rare * interval**2 / (4 * margin) * math.exp(-_RARE) * (1 + 1e-9)  # modes cancel
            mean += 0.0 if rising else rare * margin / modes * (1 + 1e-9)
            sums, chances = _taken_back(sums, chances, margin, rising)
        loss = (1 if rising else -1) * np.log(sums / modes)
        losses.append(loss + (-1 if lower else 1) * _MOVED * (1 + np.abs(loss)))
        masses.append(chances)
        before, interval = here, interval * _COARSER[lower]
    order = np.argsort(np.concatenate(losses), kind="stable")
    epoch = _Epoch(np.concatenate(losses)[order], np.concatenate(masses)[order], error, missed, mean)
    return epoch if epoch.losses.size else None


@dataclass(frozen=True)
class _Cells:
    """A likelihood in cells: spread to their ends, or drawn together to their means for a `lower` bound."""

    likelihood: Likelihood
    last: float
    lower: bool

    @property
    def _parts(self) -> tuple[FloatArray, ...]:
        return _parts_of(self.likelihood, self.last, self.lower)

    @property
    def count(self) -> int:
        """How many."""
        return self._parts[1].size

    @property
    def least(self) -> float:
        """The least likelihood."""
        return float(self._parts[0][0])

    def edge(self, count: int) -> float:
        """The largest normal of the first so many cells, rounded down."""
        return -FAR + (self.last + FAR) * count / self.count - 1e-12

    def below(self, likelihood: float) -> int:
        """How many of the cells have likelihoods up to this."""
        return int(np.searchsorted(self._parts[0][-self.count :], likelihood, side="right"))

    def on_grid(self, count: int, interval: float) -> Grid:
        """The first so many cells on a grid."""
        points, *masses = self._parts
        if self.lower:
            return on_grid(points[:count], masses[0][:count], interval)
        points = points[: count + 1]
        return on_grid(points, at_ends(points, masses[0][:count], masses[1][:count]), interval)


@lru_cache(maxsize=4)
def _parts_of(likelihood: Likelihood, last: float, lower: bool) -> tuple[FloatArray, ...]:
    return likelihood.means(last) if lower else likelihood.ends(last)


def _sum_law(term: Grid, modes: int, rising: bool) -> tuple[Grid, float]:
    """The law of the sum of likelihoods, weighted by their mean if what comes first is the mixture; and its error."""
    if not rising:
        return TiltedSum([(term, modes)]).law()
    weighted = Grid(term.interval, term.first, term.masses * term.points)
    return TiltedSum([(weighted, 1), *([(term, modes - 1)] if modes > 1 else [])]).law()


def _without(law: Grid, other: Grid) -> FloatArray:
    """Masses of a law less those of another one on the same grid."""
    masses = law.masses.copy()
    start = other.first - law.first
    low, high = max(start, 0), min(start + other.masses.size, masses.size)
    if low < high:
        masses[low:high] -= other.masses[low - start : high - start]
    return np.maximum(masses, 0.0)


def _taken_back(sums: FloatArray, chances: FloatArray, margin: float, rising: bool) -> tuple[FloatArray, FloatArray]:
    """Sums moved by the margin to where less is counted; weights that are proportional to them follow."""
    if not rising:
        return sums + margin, chances
    kept = sums > 2 * margin
    return sums[kept] - margin, chances[kept] * (1 - margin / sums[kept]) * (1 - 4 * UNIT)


@lru_cache(maxsize=4)
def _dominating(modes: int, energy: float, direction: Direction, epochs: int, coarser: int) -> Composition:
    """The sum of the losses of all epochs, on a grid; of an epoch that is in reach."""
    epoch = _epoch(modes, energy, direction, False)
    assert epoch is not None
    interval = _power_of_two(min(epoch.spread / _LOSSES, 1e-2)) * 2.0**coarser
    return Composition([(Atoms(epoch.losses, epoch.masses, 0.0).on_grid(interval), epochs)])


def _rounded_down(epoch: _Epoch, interval: float) -> LossGrid:
    """Losses on a grid, none above its value; what is far below 0 is left out."""
    kept = epoch.losses > -LARGEST_LOSS
    scaled = np.floor(epoch.losses[kept] / interval)
    if not scaled.size or scaled[-1] - scaled[0] > MOST_CELLS:  # they increase
        raise GridTooLarge(f"composition: losses up to {epoch.losses[-1]:g} need a grid of too many points")
    cells = scaled.astype(np.int64)
    first = int(cells[0])
    masses = np.bincount(cells - first, epoch.masses[kept] * (1 - 1e-12))
    return LossGrid(interval, first, np.asarray(masses, np.float64), 0.0)
