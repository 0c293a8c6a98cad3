"""epsilon with bounds: delta inverted on the same samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from galton.accounting.deterministic import delta_upper_bound, direction_bracket, epsilon_upper_bound
from galton.accounting.estimate import DirectionDelta, Interval, delta_with_failure, observe
from galton.accounting.options import AUTO, Options, derived_seed
from galton.accounting.solve import walk
from galton.errors import FloatArray, probability
from galton.files import plain
from galton.gaussian import gaussian_epsilon
from galton.guarantee import Adjacency, Direction
from galton.pair import DominatingPair
from galton.sampling import choose_sampler
from galton.sampling.toolkits import blocks_for, frozen_estimator, toolkit_for
from galton.typechecking import typechecked

_POINTS = 8
"""Grid points on either side of the quick estimate."""
_NEAR = 0.45
"""How far from the guess, as a share of the width asked for, deterministic bounds are tried."""


@dataclass(frozen=True)
class DirectionPoint:
    """delta in one direction at the epsilon in the middle of the grid.

    Attributes:
      direction: mixture-first (REMOVE), noise-first (ADD) or replace.
      epsilon: the grid point.
      delta: the estimate of delta there.
      lower: lower limit on delta.
      upper: upper limit on delta.
      samples: samples taken.
      sampler: name of the sampler.
      reason: why that sampler was chosen.
      range: R, the largest value that a sample can have.
      slack_epsilon: bound on the rounding error of a loss; the limits include it.
      lost: probability that this bound fails for a sample; the limits include it.
    """

    direction: Direction
    epsilon: float
    delta: float
    lower: float
    upper: float
    samples: int
    sampler: str
    reason: str
    range: float
    slack_epsilon: float
    lost: float


@typechecked
@dataclass(frozen=True)
class EpsilonEstimate:
    """epsilon at one delta.

    Attributes:
      delta: where epsilon was estimated.
      epsilon: the estimate.
      lower: lower limit on epsilon.
      upper: upper limit on epsilon.
      confidence: probability that both limits hold at once.
      bound: how samples were turned into limits: sequence, or the name of a fixed-sample bound.
      adjacency: which data sets are neighbours.
      samples: samples taken over all directions.
      sampler: name of the sampler in the direction with the largest delta.
      range: the largest value that one of its samples can have.
      seed: the seed of the samples.
      deterministic_upper: upper bound on epsilon that needs no sampling.
      by_direction: delta in every direction, at a grid point close to the estimate.
      seconds: how long it took.

    Example:
      >>> from galton import dominating_pair, identity
      >>> estimate = epsilon(dominating_pair(identity(4), bins=1, noise_multiplier=1000.0), delta=1e-3)
      >>> estimate.lower, estimate.epsilon, estimate.upper, estimate.samples  # delta covers all that is told
      (0.0, 0.0, 0.0, 0)
    """

    delta: float
    epsilon: float
    lower: float
    upper: float
    confidence: float
    bound: str
    adjacency: Adjacency
    samples: int
    sampler: str
    range: float
    seed: int
    deterministic_upper: float
    by_direction: tuple[DirectionPoint, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return plain(asdict(self))


@typechecked
def epsilon(
    pair: DominatingPair,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    *,
    options: Options | None = None,
) -> EpsilonEstimate:
    """Returns the epsilon of the pair at this delta, with a lower and an upper limit.

    A quick estimate places a grid of epsilons, and fresh samples then bound delta at every grid point. The upper limit
    on epsilon is the least grid point from which on all upper limits on delta are at most `delta`. It is below the
    truth only if the limit failed at the last grid point before the truth. That is a fixed point, so that no union
    bound over the grid is needed.

    Formal guarantee: both limits hold at once except with probability 1 - options.confidence over the accountant's
    random numbers. This is no certificate: nothing is written to the ledger of attempts.

    Args:
      pair: the mechanism with its noise multiplier.
      delta: where epsilon is wanted.
      adjacency: which data sets are neighbours.
      options: how to sample.

    Returns:
      The estimate with its limits.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> estimate = epsilon(pair, delta=1e-3, options=Options(seed=1, rel_width=0.1))
      >>> 1.0 < estimate.lower < estimate.epsilon < estimate.upper < 1.3
      True
    """
    options = options or Options()
    adjacency = Adjacency(adjacency)
    probability("delta", delta)
    start = time.perf_counter()
    seed = options.fresh_seed()
    ceiling = epsilon_upper_bound(pair, delta, adjacency)
    least = pair.mu_lower * adjacency.sides
    floor = gaussian_epsilon(delta, least) * (1 - 1e-6) if least > 0 else 0.0
    guess = quick_epsilon(pair, delta, ceiling, adjacency, seed)
    limits = Interval(0.0, floor, ceiling)
    points: tuple[DirectionPoint, ...] = ()
    samples, name, value_range = 0, "none: the deterministic bound suffices", 0.0
    if guess == 0.0:
        zero = delta_with_failure(pair, 0.0, adjacency, options, seed, 1 - options.confidence)
        samples, name, value_range = zero.samples, zero.sampler, zero.range
        limits = Interval(0.0, 0.0, 0.0 if zero.upper <= delta else ceiling)
        points = tuple(_point_at_zero(estimate) for estimate in zero.by_direction)
    elif ceiling > 0:
        limits, points = _invert_on_grid(pair, delta, guess, (floor, ceiling), adjacency, seed, options)
        samples = sum(point.samples for point in points)
        top = max(points, key=lambda point: point.delta)
        name, value_range = top.sampler, top.range
    upper = min(limits.upper, ceiling)
    lower = min(max(limits.lower, floor), upper)
    return EpsilonEstimate(
        delta=float(delta),
        epsilon=min(max(limits.estimate, lower), upper),
        lower=lower,
        upper=upper,
        confidence=options.confidence,
        bound=options.bound,
        adjacency=adjacency,
        samples=samples,
        sampler=name,
        range=value_range,
        seed=seed,
        deterministic_upper=ceiling,
        by_direction=points,
        seconds=time.perf_counter() - start,
    )


def _point_at_zero(estimate: DirectionDelta) -> DirectionPoint:
    shared = {field.name: getattr(estimate, field.name) for field in fields(DirectionPoint) if field.name != "epsilon"}
    return DirectionPoint(epsilon=0.0, **shared)


def quick_epsilon(
    pair: DominatingPair,
    target: float,
    ceiling: float,
    adjacency: Adjacency,
    seed: int,
    blocks: int | None = None,
) -> float:
    """Returns a quick estimate of epsilon on frozen draws; 0 if delta(0) seems to be below the target."""
    if ceiling == 0 or delta_upper_bound(pair, 0.0, adjacency) <= target:
        return 0.0

    def design(level: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        estimators = [frozen_estimator(pair, direction, level, blocks, fit) for direction in adjacency.directions]
        return lambda other: max(estimator(pair.noise_multiplier, other).delta for estimator in estimators)

    least = 1e-6 * ceiling
    if design(least, 1, 0)(least) <= target:
        return 0.0
    guess = walk(design, target, ceiling, (least, ceiling), blocks or blocks_for(pair)).value
    return 0.0 if guess <= least else guess


def _invert_on_grid(
    pair: DominatingPair,
    target: float,
    guess: float,
    bracket: tuple[float, float],
    adjacency: Adjacency,
    seed: int,
    options: Options,
) -> tuple[Interval, tuple[DirectionPoint, ...]]:
    """Bounds delta on a grid around the guess and reads off where it crosses the target."""
    settled = _invert_bounds(pair, target, guess, adjacency, options)
    if settled is not None:
        return settled
    steps = np.arange(-_POINTS, _POINTS + 1) / _POINTS
    grid = np.unique(np.clip(guess * (1 + options.rel_width * steps), 0.0, bracket[1]))
    failure = (1 - options.confidence) / 2
    by_direction: list[list[Interval]] = []
    points = []
    for direction in adjacency.directions:
        chosen = choose_sampler(pair, direction, float(grid[0]), options.sampler)

        def enough(intervals: Sequence[Interval], before: list[list[Interval]] = by_direction) -> bool:
            crossing = _find_crossing(grid, [*before, list(intervals)], target)
            high, low = min(crossing.upper, bracket[1]), max(crossing.lower, bracket[0])
            return high - low <= options.rel_width * guess

        intervals, samples = observe(chosen, grid.tolist(), failure, derived_seed(seed, "estimate"), options, enough)
        by_direction.append(intervals)
        middle = intervals[len(grid) // 2]
        points.append(
            DirectionPoint(
                direction=direction,
                epsilon=float(grid[len(grid) // 2]),
                delta=middle.estimate,
                lower=middle.lower,
                upper=middle.upper,
                samples=samples,
                sampler=chosen.sampler.name,
                reason=chosen.reason,
                range=chosen.sampler.value_range(guess),
                slack_epsilon=chosen.sampler.slack.epsilon,
                lost=chosen.sampler.slack.lost,
            )
        )
    return _find_crossing(grid, by_direction, target), tuple(points)


def _invert_bounds(
    pair: DominatingPair, target: float, guess: float, adjacency: Adjacency, options: Options
) -> tuple[Interval, tuple[DirectionPoint, ...]] | None:
    """As `_invert_on_grid`, where deterministic bounds say enough at three epsilons around the guess; else None."""
    toolkit = toolkit_for(pair)
    if options.sampler != AUTO or not all(toolkit.computable(pair, direction) for direction in adjacency.directions):
        return None
    grid = guess * (1 + options.rel_width * np.array([-_NEAR, 0.0, _NEAR]))
    by_direction, points = [], []
    for direction in adjacency.directions:
        bounds = [direction_bracket(pair, direction, float(epsilon)) for epsilon in grid]
        by_direction.append([Interval((low + high) / 2, low, high) for low, high in bounds])
        low, high = bounds[1]
        points.append(
            DirectionPoint(
                direction=direction,
                epsilon=float(grid[1]),
                delta=(low + high) / 2,
                lower=low,
                upper=high,
                samples=0,
                sampler="none",
                reason="no sample needed: deterministic bounds are close to each other",
                range=high,
                slack_epsilon=0.0,
                lost=0.0,
            )
        )
    crossing = _find_crossing(grid, by_direction, target)
    return (crossing, tuple(points)) if crossing.upper < np.inf and crossing.lower > 0 else None


def _find_crossing(grid: FloatArray, by_direction: Sequence[Sequence[Interval]], target: float) -> Interval:
    """Estimate and limits of the epsilon at which delta, the maximum over the directions, is `target`.

    The lower limit is that of the first direction alone (docs/math.md, section 2.4).
    """
    uppers = np.max([[interval.upper for interval in intervals] for intervals in by_direction], axis=0)
    lowers = np.array([interval.lower for interval in by_direction[0]])
    means = np.max([[interval.estimate for interval in intervals] for intervals in by_direction], axis=0)
    above, below = np.flatnonzero(uppers > target), np.flatnonzero(lowers < target)
    upper = grid[0] if not above.size else (grid[above[-1] + 1] if above[-1] + 1 < grid.size else np.inf)
    lower = grid[-1] if not below.size else (grid[below[0] - 1] if below[0] > 0 else 0.0)
    logs = np.log(np.maximum(means, 1e-300))[::-1]
    estimate = np.interp(np.log(target), logs, grid[::-1])
    return Interval(float(estimate), float(lower), float(upper))
