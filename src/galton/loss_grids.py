"""Privacy losses on a grid, and the sum of independent ones: never below the truth (docs/math.md, section 13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from galton.convolution import MASS_ERROR, MOST_CELLS, UNIT, Grid, GridTooLarge, TiltedSum
from galton.errors import FloatArray

LARGEST_LOSS = 200.0
"""A loss above this counts as infinite, one below minus this as minus this."""


@dataclass(frozen=True, eq=False)
class LossGrid(Grid):
    """The privacy loss of one step, on multiples of `interval`, dominating the true one.

    Attributes:
      infinite: mass of an infinite loss; together with the other masses it may exceed 1 by rounding.
    """

    infinite: float


@dataclass(frozen=True, eq=False)
class Atoms:
    """A loss with finitely many values, by its probabilities in the first run.

    Attributes:
      points: the values; equal ones may be apart.
      masses: their probabilities.
      infinite: the probability of an infinite loss; the sum of all may exceed 1 by rounding.
    """

    points: FloatArray
    masses: FloatArray
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Returns the hockey-stick divergence at an epsilon of either sign.

        Args:
          epsilon: where.

        Returns:
          A number from 0 to 1, up to rounding.
        """
        return float(self.masses @ -np.expm1(np.minimum(epsilon - self.points, 0.0))) + self.infinite

    @property
    def spread(self) -> float:
        """The root-mean-square size of a finite loss."""
        return math.sqrt(float(self.masses @ np.square(self.points)))

    def on_grid(self, interval: float) -> LossGrid:
        """Returns a loss on a grid that dominates this one.

        The mass of an atom goes to its two neighbours so that both its probabilities are kept: a mean-preserving spread
        of the likelihood ratio. What rounding may do to the split is moved upwards, a loss above 200 to infinity.

        Args:
          interval: distance of two points of the grid.

        Returns:
          The loss on the grid.
        """
        small = self.points <= LARGEST_LOSS
        infinite = self.infinite + float(self.masses[~small].sum())
        if not small.any():
            return LossGrid(interval, 0, np.zeros(1), infinite * (1 + 2 * MASS_ERROR))
        points = np.maximum(self.points[small], -LARGEST_LOSS)
        points = points + 4 * UNIT * (np.abs(points) + interval)
        below = np.floor(points / interval)
        below += points >= (below + 1) * interval
        first, last = int(below.min()), int(below.max()) + 1
        if last - first > MOST_CELLS:
            raise GridTooLarge(f"composition: losses up to {last * interval:g} need a grid of {last - first} points")
        gap = -math.expm1(-interval)
        moved = 8 * UNIT * (1 + np.abs(points)) / gap
        share = np.clip(-np.expm1(below * interval - points) / gap + moved, 0.0, 1.0)
        masses = np.zeros(last - first + 1)
        cells = (below - first).astype(np.int64)
        np.add.at(masses, cells + 1, self.masses[small] * share)
        np.add.at(masses, cells, self.masses[small] * (1 - share))
        return LossGrid(interval, first, masses * (1 + 2 * MASS_ERROR), infinite * (1 + 2 * MASS_ERROR))


class Composition:
    """The sum of independent losses on one grid: several kinds of steps, each so many times.

    Formal guarantee: `delta(epsilon)` is not below E(1 - e^(epsilon - S))_+ for the sum S of the losses, whatever the
    rounding of this arithmetic (`convolution.TiltedSum`).

    Args:
      parts: kinds of steps, each with the number of such steps; all on the same interval.
    """

    def __init__(self, parts: Sequence[tuple[LossGrid, int]]) -> None:
        self._parts = parts
        self._sum = TiltedSum(parts)

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta.

        Args:
          epsilon: where.

        Returns:
          A number from 0 to 1.
        """
        if max(step.infinite for step, _ in self._parts) >= 0.5:
            return 1.0
        infinite = -math.expm1(math.fsum(steps * math.log1p(-step.infinite) for step, steps in self._parts))
        infinite *= 1 + 1e-9
        if sum(steps for _, steps in self._parts) == 1:
            step = self._parts[0][0]
            alone = float(step.masses @ -np.expm1(np.minimum(epsilon - step.points, 0.0)))
            return min(1.0, alone * (1 + 1e-12) + infinite)
        _, composed = self._sum.bracket(epsilon, lambda gaps: -np.expm1(-gaps), most=1.0)
        return min(1.0, composed + infinite)
