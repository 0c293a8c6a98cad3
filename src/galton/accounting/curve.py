"""The whole privacy curve: delta(epsilon), the trade-off curve and the adversary's best advantage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from galton.accounting.deterministic import epsilon_upper_bound
from galton.accounting.estimate import Interval, delta_with_failure, observe
from galton.accounting.options import Options, derived_seed
from galton.errors import FloatArray, InvalidArgument, array, count
from galton.files import plain
from galton.guarantee import Adjacency
from galton.pair import DominatingPair
from galton.sampling import choose_sampler
from galton.typechecking import typechecked

_LEAST_DELTA = 1e-9


@typechecked
@dataclass(frozen=True)
class Profile:
    """delta at many epsilons, with the trade-off curve and the advantage that follow from it.

    Attributes:
      epsilons: the grid, in increasing order from 0.
      deltas: an estimate of delta at every epsilon.
      lowers: lower limits on delta.
      uppers: upper limits on delta; all limits hold at once with probability `confidence`.
      false_positive_rates: the grid of the trade-off curve.
      false_negative_rates: the trade-off curve by the upper limits: no test of "was this example used" with that
        false-positive rate has a smaller false-negative rate.
      advantage: delta(0), the total variation distance: the best possible true-positive rate minus false-positive
        rate of an attacker.
      advantage_upper: upper limit on the advantage.
      confidence: probability that all limits hold at once.
      adjacency: which data sets are neighbours.
      bound: how samples were turned into limits.
      samples: samples taken in total.
      sampler: names of the samplers.
      seed: the seed of the samples.
      seconds: how long it took.

    Example:
      >>> from galton import dominating_pair, identity
      >>> curve = profile(dominating_pair(identity(4), bins=1, noise_multiplier=2.0), [1.0])
      >>> curve.epsilons, round(curve.advantage_upper, 3)
      ((0.0, 1.0), 0.197)
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    lowers: tuple[float, ...]
    uppers: tuple[float, ...]
    false_positive_rates: tuple[float, ...]
    false_negative_rates: tuple[float, ...]
    advantage: float
    advantage_upper: float
    confidence: float
    adjacency: Adjacency
    bound: str
    samples: int
    sampler: str
    seed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return plain(asdict(self))


@typechecked
def profile(
    pair: DominatingPair,
    epsilons: Sequence[float] | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    *,
    points: int = 33,
    options: Options | None = None,
) -> Profile:
    """Returns delta on a grid of epsilons, with limits that hold at all grid points at once.

    Formal guarantee: all limits, those on the trade-off curve and the advantage included, hold at once except with
    probability 1 - options.confidence over the accountant's random numbers.

    Args:
      pair: the mechanism with its noise multiplier.
      epsilons: the grid; 0 is added if it is missing. Default: `points` values from 0 to where delta is below 1e-9.
      adjacency: which data sets are neighbours.
      points: size of the default grid.
      options: how to sample. The default stops at an interval of 10% at every point, enough for a plot.

    Returns:
      The curve with its limits.

    Example:
      >>> from galton import Options, dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> curve = profile(pair, [0.5, 1.0], options=Options(seed=1, rel_width=0.2))
      >>> curve.epsilons, curve.uppers[2] < curve.uppers[1] < curve.advantage_upper
      ((0.0, 0.5, 1.0), True)
    """
    options = options or Options(rel_width=0.1, samples=1 << 20)
    adjacency = Adjacency(adjacency)
    start = time.perf_counter()
    seed = options.fresh_seed()
    if epsilons is None:
        last = epsilon_upper_bound(pair, _LEAST_DELTA, adjacency)
        grid = np.linspace(0.0, max(last, 1e-3), count("points", points, at_least=2, at_most=10_000))
    else:
        grid = np.unique(array("epsilons", epsilons, 1))
        if grid[0] < 0:
            raise InvalidArgument("epsilons", float(grid[0]), "must not be negative")
        grid = grid if grid[0] == 0 else np.concatenate(([0.0], grid))
    share = (1 - options.confidence) / grid.size
    if options.sampler == "plain":
        curve, samples = _on_shared_samples(pair, grid, adjacency, share, seed, options)
        name = "plain"
    else:
        curve, samples, name = _point_by_point(pair, grid, adjacency, share, seed, options)
    uppers = np.minimum.accumulate([point.upper for point in curve])
    rates, misses = trade_off(grid, uppers, adjacency)
    return Profile(
        epsilons=tuple(grid.tolist()),
        deltas=tuple(point.estimate for point in curve),
        lowers=tuple(point.lower for point in curve),
        uppers=tuple(uppers.tolist()),
        false_positive_rates=tuple(rates.tolist()),
        false_negative_rates=tuple(misses.tolist()),
        advantage=curve[0].estimate,
        advantage_upper=float(uppers[0]),
        confidence=options.confidence,
        adjacency=adjacency,
        bound=options.bound,
        samples=samples,
        sampler=name,
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _on_shared_samples(
    pair: DominatingPair, grid: FloatArray, adjacency: Adjacency, share: float, seed: int, options: Options
) -> tuple[list[Interval], int]:
    """All epsilons on the same plain samples."""
    samples_seed = derived_seed(seed, "profile")
    by_direction, samples = [], 0
    for direction in adjacency.directions:
        chosen = choose_sampler(pair, direction, 0.0, "plain")
        intervals, taken = observe(chosen, grid.tolist(), share / 2, samples_seed, options, lambda _: False)
        by_direction.append(intervals)
        samples += taken
    return [_largest_interval([intervals[i] for intervals in by_direction]) for i in range(grid.size)], samples


def _point_by_point(
    pair: DominatingPair, grid: FloatArray, adjacency: Adjacency, share: float, seed: int, options: Options
) -> tuple[list[Interval], int, str]:
    """Every epsilon on samples of its own, from the sampler chosen for it."""
    curve: list[Interval] = []
    names: set[str] = set()
    samples = 0
    for index, epsilon in enumerate(grid.tolist()):
        options.tell("points of the curve", index, grid.size)
        quiet = replace(options, progress=None)
        point = delta_with_failure(pair, epsilon, adjacency, quiet, seed, share, f"point {index}")
        curve.append(Interval(point.delta, point.lower, point.upper))
        samples += point.samples
        names.update(estimate.sampler for estimate in point.by_direction)
    return curve, samples, ", ".join(sorted(names))


def _largest_interval(intervals: Sequence[Interval]) -> Interval:
    """Limits on the largest delta of all directions; the lower is that of the first (docs/math.md, section 2.4)."""
    return Interval(
        max(interval.estimate for interval in intervals),
        intervals[0].lower,
        max(interval.upper for interval in intervals),
    )


def trade_off(
    epsilons: FloatArray, deltas: FloatArray, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE, points: int = 101
) -> tuple[FloatArray, FloatArray]:
    """Returns the trade-off curve that follows from delta(epsilon): false-positive and false-negative rates.

    The hypothesis to be rejected is "the example was not used". H(used || not used) <= delta, which is `remove`,
    gives f(a) >= 1 - delta - e^eps a; H(not used || used) <= delta, which is `add`, gives
    f(a) >= e^-eps (1 - delta - a); add-or-remove and replace bound both.
    Fewer epsilons give a lower, still valid, curve.
    """
    rates = np.unique(np.concatenate((np.linspace(0.0, 1.0, points), np.geomspace(1e-6, 0.1, points))))
    growth = np.exp(np.minimum(epsilons, 700.0))[:, None]
    curves = [np.zeros_like(rates)]
    if any(direction.with_first for direction in adjacency.directions):
        curves.append((1 - deltas[:, None] - growth * rates).max(axis=0))
    if any(direction.without_first for direction in adjacency.directions):
        curves.append(((1 - deltas[:, None] - rates) / growth).max(axis=0))
    return rates, np.max(curves, axis=0)
