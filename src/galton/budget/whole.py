"""Several losses as one: the sum of all, and its curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from galton.accountants.losses import AtomicLoss, GaussianLoss, Loss
from galton.accounting.limits import POINTS, Limits
from galton.convolution import GridTooLarge
from galton.errors import FloatArray, GaltonError
from galton.guarantee import Adjacency, Direction
from galton.loss_grids import Composition

_FINEST, _NEGLIGIBLE = 1e-5, 8
_COARSER = 20
"""How often the grid may be made twice as coarse, which only raises the bound, until it fits."""
_WIDTH = 5e-4
_LARGEST_EPSILON = 2e4
_BEYOND = 2.0
"""A curve goes on to this multiple of the epsilon at delta."""


class NothingToShow(GaltonError):
    """Raised where no epsilon can be shown at the delta that matters."""


class Whole:
    """Several losses as one: the sum of all.

    Formal guarantee: except with probability `failure`, `delta(epsilon)` is not below the delta of all events together,
    each of which may depend on what the others released before (docs/math.md, section 13.2).

    Args:
      losses: of all events.
      directions: the divergences that they bound.
      adjacency: which data sets are neighbours.
      displacement: sum of the events' displacements.
      finest: interval that no grid is finer than; every one gives bounds.
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        directions: Sequence[Direction],
        adjacency: Adjacency,
        displacement: float,
        finest: float = _FINEST,
    ) -> None:
        self.losses, self.directions, self.displacement = merged(losses), tuple(directions), displacement
        self.adjacency = adjacency
        self._interval = max(_common_interval(self.losses), finest)
        self._compositions: dict[Direction, Composition] = {}
        self.failure = math.fsum(loss.failure for loss in losses)
        self.samples = sum(loss.samples for loss in losses)

    def truncation_delta(self, epsilon: float) -> float:
        """Returns what truncation adds to delta.

        Args:
          epsilon: where.
        """
        return self.adjacency.truncation_delta(self.displacement, epsilon)

    def direction_delta(self, direction: Direction, epsilon: float) -> float:
        """Returns an upper bound on delta in one direction, truncation apart.

        Args:
          direction: which divergence.
          epsilon: where; at least 0.

        Returns:
          A number from 0 to 1.
        """
        for _ in range(_COARSER):
            try:
                if direction not in self._compositions:
                    steps = [step for loss in self.losses for step in loss.steps(direction, self._interval)]
                    self._compositions[direction] = Composition(steps)
                return self._compositions[direction].delta(epsilon)
            except GridTooLarge:
                self._interval *= 2
                self._compositions.clear()
        return 1.0

    def _lost(self, direction: Direction) -> float:
        """The probability of an infinite loss, as far as it is known on this grid."""
        try:
            steps = [step for loss in self.losses for step in loss.steps(direction, self._interval)]
        except GridTooLarge:
            return 0.0
        return -math.expm1(math.fsum(times * math.log1p(-min(step.infinite, 0.5)) for step, times in steps))

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta, without the failure probability.

        Args:
          epsilon: where; at least 0.

        Returns:
          A number from 0 to 1.
        """
        composed = max(self.direction_delta(direction, epsilon) for direction in self.adjacency.directions)
        return min(1.0, composed + self.truncation_delta(epsilon))

    def coarser(self, interval: float) -> Whole:
        """Returns the same whole on a coarser grid, whose bounds are quicker; as it is where errors of steps add up.

        Args:
          interval: least distance of two losses.

        Returns:
          A whole.
        """
        if any(loss.repeated for loss in self.losses):
            return self
        return Whole(self.losses, self.directions, self.adjacency, self.displacement, interval)

    def epsilon(self, delta: float) -> float:
        """Returns an epsilon, within 0.05% of the least, at which `delta` and the failures are at most delta.

        Args:
          delta: where; above 0.

        Returns:
          The epsilon; infinity if there is none.
        """
        target = delta - self.failure

        def enough(epsilon: float) -> bool:
            return self.delta(epsilon) <= target

        if target <= max(self._lost(direction) for direction in self.adjacency.directions):
            return math.inf
        last = _LARGEST_EPSILON
        if self.truncation_delta(1.0) > self.truncation_delta(0.0):  # it grows: beyond this it is half of the target
            last = min(last, math.log(max(target / 2 / self.displacement, 1.0)))
        low, high = 0.0, min(1.0, last)
        while not enough(high):
            if high >= last:
                return math.inf
            low, high = high, min(2 * high, last)
        while high - low > _WIDTH * high and high > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def merged(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """Returns losses with the same sum: those of Gaussian mechanisms on all examples as one, of less noise.

    Each of them is normal with mean and half the variance mu^2 / 2, and so is their sum, with the sum of the mu^2.

    Args:
      losses: of all events.

    Returns:
      The losses; a single one of a kind stays as it is.
    """
    normal = [loss for loss in losses if isinstance(loss, GaussianLoss) and loss.probability_of_use == 1]
    if len(normal) < 2:
        return tuple(losses)
    # Noise below the least of these is none, and its loss infinite; noise above the largest counts as so much.
    noises = [min(max(loss.noise_multiplier, 1e-9), 1e9) for loss in normal]
    square = math.fsum(loss.count / noise**2 for loss, noise in zip(normal, noises, strict=True))
    lost = min(1.0, math.fsum(loss.lost for loss in normal))
    whole = GaussianLoss((1 - 1e-14) / math.sqrt(square), 1.0, 1, lost)
    return (*(loss for loss in losses if loss not in normal), whole)


def _common_interval(losses: Sequence[Loss]) -> float:
    """A grid for all: as fine as steps that are repeated need, and as single ones that matter beside the others."""
    single = [loss.interval(1.0) for loss in losses if not loss.repeated]
    needed = [loss.interval(1.0) for loss in losses if loss.repeated]
    if single:
        needed.append(max(min(single), max(single) / _NEGLIGIBLE))
    return min(needed)


def curve_limits(whole: Whole, delta: float, points: int = POINTS) -> dict[Direction, Limits]:
    """Returns bounds on delta of the whole, in all its directions, truncation included and failures not.

    Args:
      whole: the losses.
      delta: that the bounds should be sharp for.
      points: how many there are, unless the curve has corners.

    Returns:
      Limits by direction.
    """
    knots = _knots(whole, delta, points)
    return {direction: _limits(whole, direction, knots[direction]) for direction in whole.directions}


def _limits(whole: Whole, direction: Direction, epsilons: FloatArray) -> Limits:
    """Bounds on delta in one direction, truncation included."""
    moved = [direction.adjacency.truncation_delta(whole.displacement, epsilon) for epsilon in epsilons.tolist()]
    composed = [whole.direction_delta(direction, epsilon) for epsilon in epsilons.tolist()]
    return Limits(tuple(epsilons.tolist()), tuple(min(1.0, sum(both)) for both in zip(composed, moved, strict=True)), 0)


def _knots(whole: Whole, delta: float, points: int) -> dict[Direction, FloatArray]:
    """Where a curve is looked at: at its corners if it has any, else at a grid beyond the epsilon at delta."""
    loss = whole.losses[0]
    if len(whole.losses) == 1 and isinstance(loss, AtomicLoss) and loss.times == 1:
        return {
            direction: np.concatenate(([0.0], atoms.points[atoms.points > 0]))
            for direction, atoms in loss.by_direction.items()
        }
    last = _BEYOND * whole.epsilon(delta)
    if not np.isfinite(last):
        raise NothingToShow(f"composition: no epsilon can be shown at delta {delta:g}; take a larger delta")
    return {direction: np.linspace(0.0, last, points) for direction in whole.directions}
