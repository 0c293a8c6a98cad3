"""Upper limits on delta in one direction at a grid of epsilons, all at once: what a dominating curve is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from galton.accounting.deterministic import direction_lower_bound, direction_upper_bound, epsilon_upper_bound
from galton.accounting.estimate import Interval, observe
from galton.accounting.options import AUTO, Options, derived_seed
from galton.guarantee import Direction
from galton.pair import DominatingPair
from galton.sampling import choose_sampler
from galton.sampling.toolkits import toolkit_for

_CLOSE = 1e-3
"""Share of delta up to which a bound that needs no samples may be above the truth."""
POINTS = 65
"""Epsilons of a grid: chords between them cost about 0.2% of epsilon."""
_AT_A_TIME = 6
"""Neighbouring epsilons that share samples: the sampler of the first is nearly as good for the last."""
_SAMPLES = 1 << 17
"""Samples for so many epsilons, unless the options say how many: limits within about 10% of delta, 0.4% of epsilon."""


@dataclass(frozen=True)
class Limits:
    """Upper limits on delta in one direction.

    Attributes:
      epsilons: increasing, from 0.
      uppers: delta is at most this, at all of them at once.
      samples: samples taken; with none the limits hold with certainty.
    """

    epsilons: tuple[float, ...]
    uppers: tuple[float, ...]
    samples: int


def upper_limits(
    pair: DominatingPair,
    direction: Direction,
    least: float,
    failure: float,
    seed: int,
    options: Options,
    points: int = POINTS,
) -> Limits:
    """Returns upper limits from epsilon 0 to where a bound that needs no samples is at most `least`.

    Args:
      pair: the mechanism with its noise multiplier.
      direction: which divergence.
      least: the delta at which the grid ends.
      failure: probability, over the samples, that any of the limits is too low.
      seed: of the samples.
      options: how to sample; a sequence stops once all intervals are as narrow as `rel_width` asks for.
      points: number of epsilons.

    Returns:
      The limits, by a union bound over the grid (docs/math.md, section 2.4).
    """
    last = max(epsilon_upper_bound(pair, least, direction.adjacency), 1e-6)
    epsilons = np.linspace(0.0, last, points).tolist()
    sharp = options.sampler == AUTO and toolkit_for(pair).computable(pair, direction)
    uppers: list[float] = []
    samples = 0
    quiet = replace(options, progress=None, samples=options.samples or _SAMPLES)
    for start in range(0, points, _AT_A_TIME):
        options.tell("points of the curve", start, points)
        some = epsilons[start : start + _AT_A_TIME]
        ceilings = [direction_upper_bound(pair, direction, epsilon) for epsilon in some]
        floors = [direction_lower_bound(pair, direction, epsilon) for epsilon in some]
        loose = [index for index in range(len(some)) if ceilings[index] > max(least, (1 + _CLOSE) * floors[index])]
        if loose and not sharp:
            chosen = choose_sampler(pair, direction, some[loose[0]], options.sampler)

            def enough(intervals: Sequence[Interval]) -> bool:
                return all(each.upper - each.lower <= options.rel_width * each.estimate for each in intervals)

            samples_seed, at = derived_seed(seed, f"limits {start}"), [some[index] for index in loose]
            intervals, taken = observe(chosen, at, failure / points, samples_seed, quiet, enough)
            samples += taken
            for index, interval in zip(loose, intervals, strict=True):
                ceilings[index] = min(ceilings[index], interval.upper)
        uppers += ceilings
    return Limits(tuple(epsilons), tuple(uppers), samples)
