"""A run beside other releases, sampled directly: sharper limits on delta of all (docs/math.md, section 13.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from galton.accountants.beside import beside
from galton.accountants.losses import AtomicLoss, dominating_atoms
from galton.accounting import Options
from galton.accounting.estimate import Interval, observe
from galton.accounting.limits import POINTS
from galton.accounting.options import AUTO, derived_seed
from galton.budget.whole import Whole, curve_limits
from galton.guarantee import Direction
from galton.loss_grids import Atoms
from galton.pair import DominatingPair
from galton.sampling import Choice, draws

_POINTS = 257
"""Of the others' curve where it is quick to compute: its chords cost a sixteenth of those of a run's."""
_COARSE = 1e-3
"""Interval of the others' losses, unless the errors of many steps add up."""
_SAMPLES, _PILOT = 1 << 19, 1 << 13
_BELOW, _ABOVE, _GRID = 0.996, 1.016, 41
"""Epsilons at which samples are valued, around where a pilot of other samples puts the answer."""
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Direct:
    """A run that is sampled, with a loss that dominates all other releases.

    Formal guarantee: what `epsilon` and `delta` return fails with at most the probability that they are given, over
    their samples, in addition to that of the losses of `whole` (docs/math.md, section 13.5).

    Attributes:
      whole: the losses of all releases, the run's included: a bound that is taken where samples say less.
      pair: the run.
      direction: the divergence that is sampled; others are bounded by `whole`.
      others: a loss that dominates the other releases in that direction.
    """

    whole: Whole
    pair: DominatingPair
    direction: Direction
    others: Atoms

    def delta(self, epsilon: float, failure: float, options: Options) -> tuple[float, int]:
        """Returns a bound on delta of all releases together, without failures.

        Args:
          epsilon: where; above 0.
          failure: probability that the samples may mislead with.
          options: how to sample, with a seed.

        Returns:
          The delta, truncation included, and the samples.
        """
        chosen = beside(self.pair, self.direction, self.others, epsilon)
        limits, samples = self._observe(chosen, [epsilon], failure, options)
        return max(limits[0], self._elsewhere(epsilon)) + self.whole.truncation_delta(epsilon), samples

    def epsilon(self, most: float, target: float, failure: float, options: Options) -> tuple[float, int]:
        """Returns an epsilon at which delta of all releases together is at most `target`.

        Args:
          most: such an epsilon, by the losses alone; above 0.
          target: failures taken off already.
          failure: probability that the samples may mislead with.
          options: how to sample, with a seed.

        Returns:
          The epsilon, at most `most`, and the samples.
        """
        chosen = beside(self.pair, self.direction, self.others, most)
        guess = self._guess(chosen, most, target, options)
        grid = [each for each in np.linspace(_BELOW * guess, _ABOVE * guess, _GRID).tolist() if each < most]
        if not grid:
            return most, 0
        limits, samples = self._observe(chosen, grid, failure, options)
        costs = [self.whole.truncation_delta(epsilon) for epsilon in grid]
        least = len(grid)
        while least and limits[least - 1] + costs[least - 1] <= target:
            least -= 1
        for epsilon in grid[least:]:  # mostly the first will do
            if self._elsewhere(epsilon) + self.whole.truncation_delta(epsilon) <= target:
                return epsilon, samples
        return most, samples

    def _elsewhere(self, epsilon: float) -> float:
        """A bound on delta in the directions that are not sampled, by the losses."""
        others = (each for each in self.whole.adjacency.directions if each is not self.direction)
        return max((self.whole.direction_delta(each, epsilon) for each in others), default=0.0)

    def _guess(self, chosen: Choice, most: float, target: float, options: Options) -> float:
        """About the answer, from a few samples that are used for nothing else."""
        sampler = chosen.sampler
        pilot = list(draws(sampler, _PILOT, derived_seed(options.fresh_seed(), "pilot"), options.pool))

        def enough(epsilon: float) -> bool:
            mean = float(np.mean(np.concatenate([sampler.values(draw, epsilon) for draw in pilot])))
            return mean + self.others.infinite + self.whole.truncation_delta(epsilon) <= target

        low, high = 0.0, most
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
            if high - low < 1e-4 * high:
                break
        return high

    def _observe(
        self, chosen: Choice, epsilons: Sequence[float], failure: float, options: Options
    ) -> tuple[list[float], int]:
        """Upper limits on delta in this direction, each of which fails with at most this probability."""
        how = replace(options, samples=options.samples or _SAMPLES)

        def enough(intervals: Sequence[Interval]) -> bool:
            return all(each.upper - each.lower <= how.rel_width * each.estimate for each in intervals)

        seed = derived_seed(options.fresh_seed(), "direct")
        intervals, samples = observe(chosen, epsilons, failure, seed, how, enough)
        return [min(1.0, interval.upper + self.others.infinite) for interval in intervals], samples


def direct(whole: Whole, delta: float, options: Options) -> Direct | None:
    """Returns how to sample the run that tells most among these releases, beside the others.

    Args:
      whole: the losses of all releases.
      delta: that matters.
      options: how to sample; a sampler that was asked for by name is not used here.

    Returns:
      What is sampled; None where nothing was, or in no direction that has samples of this kind.
    """
    sampled = [loss for loss in whole.losses if isinstance(loss, AtomicLoss) and loss.pair is not None]
    directions = [each for each in whole.adjacency.directions if each is not Direction.NOISE_FIRST]
    if not sampled or not directions or options.sampler != AUTO:
        return None
    (direction,) = directions
    run = max(sampled, key=lambda loss: loss.by_direction[direction].spread)
    assert run.pair is not None
    rest = [loss for loss in whole.losses if loss is not run]
    if not rest:
        return Direct(whole, run.pair, direction, Atoms(np.zeros(1), np.ones(1), 0.0))
    repeated = any(loss.repeated for loss in rest)
    others = Whole(rest, whole.directions, whole.adjacency, 0.0).coarser(_COARSE)
    if not math.isfinite(others.epsilon(delta)):
        return None
    limits = curve_limits(others, delta, POINTS if repeated or len(rest) > 1 else _POINTS)
    return Direct(whole, run.pair, direction, dominating_atoms(limits[direction], limits[direction.reverse]))
