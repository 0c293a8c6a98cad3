"""epsilon with bounds: delta inverted on the same samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from galton.accounting.deterministic import delta_upper_bound, epsilon_upper_bound
from galton.accounting.estimate import DirectionDelta, Interval, observe
from galton.accounting.estimate import delta as estimate_delta
from galton.accounting.options import Options, derived_seed
from galton.accounting.solve import walk
from galton.errors import FloatArray, probability
from galton.gaussian import gaussian_epsilon
from galton.pair import Pair
from galton.sampling import choose_sampler
from galton.sampling.frozen import blocks_for, frozen_estimator

_POINTS = 8
"""Grid points on either side of the quick estimate."""


@dataclass(frozen=True)
class EpsilonEstimate:
    """epsilon at one delta, with limits that hold at once with probability `confidence`."""

    delta: float
    epsilon: float
    lower: float
    upper: float
    confidence: float
    bound: str
    adjacency: str
    samples: int
    sampler: str
    range: float
    seed: int
    deterministic_upper: float
    by_direction: tuple[dict[str, Any], ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return asdict(self)


def epsilon(pair: Pair, delta: float, options: Options | None = None) -> EpsilonEstimate:
    """Returns the epsilon at which delta(epsilon) is `delta`, with limits.

    A quick estimate places a grid of epsilons; fresh samples then bound delta at each grid point. The upper limit is
    the least grid point from which on every upper limit on delta is at most `delta`. It is below the truth only
    if the limit failed at the last grid point before the truth, a fixed point: no union over the grid is paid.
    """
    options = options or Options()
    target = probability("delta", delta)
    start = time.perf_counter()
    seed = options.fresh_seed()
    certain = epsilon_upper_bound(pair, target, options.adjacency)
    least = pair.mu_lower * (2 if options.adjacency == "replace" else 1)
    floor = gaussian_epsilon(target, least) * (1 - 1e-6) if least > 0 else 0.0
    guess = quick_epsilon(pair, target, certain, options, seed)
    limits = Interval(0.0, floor, certain)
    found: tuple[dict[str, Any], ...] = ()
    samples, name, value_range = 0, "none: the deterministic bound suffices", 0.0
    if guess == 0.0:
        zero = estimate_delta(pair, 0.0, replace(options, seed=seed))
        samples, name, value_range = zero.samples, zero.sampler, zero.range
        limits = Interval(0.0, 0.0, 0.0 if zero.upper <= target else certain)
        found = tuple(_described(one) for one in zero.by_direction)
    elif certain > 0:
        limits, found = _on_grid(pair, target, guess, (floor, certain), seed, options)
        samples = sum(one["samples"] for one in found)
        top = max(found, key=lambda one: one["delta"])
        name, value_range = top["sampler"], top["range"]
    upper = min(limits.upper, certain)
    lower = min(max(limits.lower, floor), upper)
    return EpsilonEstimate(
        delta=float(target),
        epsilon=min(max(limits.estimate, lower), upper),
        lower=lower,
        upper=upper,
        confidence=options.confidence,
        bound=options.bound,
        adjacency=options.adjacency,
        samples=samples,
        sampler=name,
        range=value_range,
        seed=seed,
        deterministic_upper=certain,
        by_direction=found,
        seconds=time.perf_counter() - start,
    )


def _described(one: DirectionDelta) -> dict[str, Any]:
    return asdict(one)


def quick_epsilon(pair: Pair, target: float, certain: float, options: Options, seed: int) -> float:
    """Returns a quick estimate of epsilon by frozen draws, 0 if delta(0) seems to be below the target."""
    if certain == 0 or delta_upper_bound(pair, 0.0, options.adjacency) <= target:
        return 0.0

    def design(level: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        estimators = [frozen_estimator(pair, one, level, blocks, fit) for one in options.directions]
        return lambda other: max(one(pair.noise_multiplier, other).delta for one in estimators)

    least = 1e-6 * certain
    guess, _ = walk(design, target, certain, (least, certain), blocks_for(pair.modes))
    return 0.0 if guess <= least else guess


def _on_grid(
    pair: Pair, target: float, guess: float, bracket: tuple[float, float], seed: int, options: Options
) -> tuple[Interval, tuple[dict[str, Any], ...]]:
    """Bounds delta on a grid around the guess and reads off where it crosses the target."""
    steps = np.arange(-_POINTS, _POINTS + 1) / _POINTS
    grid = np.unique(np.clip(guess * (1 + options.rel_width * steps), 0.0, bracket[1]))
    failure = (1 - options.confidence) / (2 * len(options.directions))
    each: list[list[Interval]] = []
    found = []
    for direction in options.directions:
        chosen = choose_sampler(pair, direction, float(grid[0]), options.sampler)

        def enough(intervals: Sequence[Interval], before: list[list[Interval]] = each) -> bool:
            crossing = _crossing(grid, [*before, list(intervals)], target)
            high, low = min(crossing.upper, bracket[1]), max(crossing.lower, bracket[0])
            return high - low <= options.rel_width * guess

        intervals, samples = observe(chosen, grid.tolist(), failure, derived_seed(seed, "estimate"), options, enough)
        each.append(intervals)
        middle = intervals[len(grid) // 2]
        found.append(
            {
                "direction": direction.value,
                "epsilon": float(grid[len(grid) // 2]),
                "delta": middle.estimate,
                "lower": middle.lower,
                "upper": middle.upper,
                "samples": samples,
                "sampler": chosen.sampler.name,
                "reason": chosen.reason,
                "range": chosen.sampler.value_range(guess),
                "slack_epsilon": chosen.sampler.slack.epsilon,
                "lost": chosen.sampler.slack.lost,
            }
        )
    return _crossing(grid, each, target), tuple(found)


def _crossing(grid: FloatArray, each: Sequence[Sequence[Interval]], target: float) -> Interval:
    """Estimate and limits of the epsilon at which the larger of the directions' deltas is `target`."""
    uppers = np.max([[one.upper for one in intervals] for intervals in each], axis=0)
    lowers = np.max([[one.lower for one in intervals] for intervals in each], axis=0)
    means = np.max([[one.estimate for one in intervals] for intervals in each], axis=0)
    above, below = np.flatnonzero(uppers > target), np.flatnonzero(lowers < target)
    upper = grid[0] if not above.size else (grid[above[-1] + 1] if above[-1] + 1 < grid.size else np.inf)
    lower = grid[-1] if not below.size else (grid[below[0] - 1] if below[0] > 0 else 0.0)
    logs = np.log(np.maximum(means, 1e-300))[::-1]
    estimate = np.interp(np.log(target), logs, grid[::-1])
    return Interval(float(estimate), float(lower), float(upper))
