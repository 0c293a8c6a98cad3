"""delta with bounds: one run of a sampler per direction, turned into confidence intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from galton.accounting.deterministic import direction_bracket, direction_lower_bound
from galton.accounting.options import AUTO, SEQUENCE, Options, derived_seed
from galton.bounds import BOUNDS, EmpiricalBernstein, FixedSample
from galton.errors import non_negative
from galton.files import plain
from galton.guarantee import Adjacency, Direction
from galton.pair import DominatingPair
from galton.sampling import Choice, choose_sampler, draws
from galton.sampling.toolkits import toolkit_for
from galton.typechecking import typechecked

TINY = 1e-280
"""Where the deterministic bound is below this, no sample is taken: delta is zero for every purpose."""

_NEGLIGIBLE = 1e-3
"""Share of another direction's delta below which a bound on this one is good enough."""

Limit = EmpiricalBernstein | FixedSample


@dataclass(frozen=True)
class Interval:
    """An estimate between two limits."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class DirectionDelta:
    """delta in one direction; each of its limits holds on its own with half the failure probability of the estimate.

    Attributes:
      direction: mixture-first (REMOVE), noise-first (ADD) or replace.
      delta: the estimate.
      lower: lower limit on delta.
      upper: upper limit on delta.
      samples: samples taken.
      sampler: name of the sampler.
      reason: why that sampler was chosen.
      range: R, the largest value that a sample can have.
      slack_epsilon: bound on the rounding error of a loss; the limits include it.
      lost: probability that this bound fails for a sample; the limits include it.
      deterministic_upper: upper bound on delta that needs no sampling.
    """

    direction: Direction
    delta: float
    lower: float
    upper: float
    samples: int
    sampler: str
    reason: str
    range: float
    slack_epsilon: float
    lost: float
    deterministic_upper: float


@typechecked
@dataclass(frozen=True)
class DeltaEstimate:
    """delta at one epsilon: the maximum over the directions of the adjacency.

    Attributes:
      epsilon: where delta was estimated.
      delta: the estimate.
      lower: lower limit on delta.
      upper: upper limit on delta.
      confidence: probability that `lower` and `upper` hold at once.
      bound: how samples were turned into limits: sequence, or the name of a fixed-sample bound.
      adjacency: which data sets are neighbours.
      samples: samples taken over all directions.
      sampler: name of the sampler in the direction with the largest delta.
      range: the largest value that one of its samples can have.
      seed: the seed of the samples.
      by_direction: the estimate in every direction.
      seconds: how long it took.

    Example:
      >>> from galton import dominating_pair, identity
      >>> estimate = delta(dominating_pair(identity(4), bins=1, noise_multiplier=2.0), epsilon=1.0)
      >>> round(estimate.upper, 5), estimate.samples  # a single bin is the Gaussian mechanism: no sample needed
      (0.00683, 0)
    """

    epsilon: float
    delta: float
    lower: float
    upper: float
    confidence: float
    bound: str
    adjacency: Adjacency
    samples: int
    sampler: str
    range: float
    seed: int
    by_direction: tuple[DirectionDelta, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return plain(asdict(self))


@typechecked
def delta(
    pair: DominatingPair,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    *,
    options: Options | None = None,
) -> DeltaEstimate:
    """Returns delta at `epsilon`, with a lower and an upper limit.

    With the default confidence sequence, sampling stops once the interval is as narrow as `options.rel_width` asks
    for; with a fixed-sample bound it takes exactly `options.samples`.

    Formal guarantee: both limits hold at once except with probability 1 - options.confidence over the accountant's
    random numbers. This is no certificate: nothing is written to the ledger of attempts.

    Args:
      pair: the mechanism with its noise multiplier.
      epsilon: where delta is wanted.
      adjacency: which data sets are neighbours.
      options: how to sample.

    Returns:
      The estimate with its limits.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> estimate = delta(pair, epsilon=1.0, options=Options(seed=1, rel_width=0.2))
      >>> 0.002 < estimate.lower < estimate.delta < estimate.upper < 0.004
      True
    """
    options = options or Options()
    return delta_with_failure(
        pair, epsilon, Adjacency(adjacency), options, options.fresh_seed(), 1 - options.confidence
    )


def delta_with_failure(
    pair: DominatingPair,
    epsilon: float,
    adjacency: Adjacency,
    options: Options,
    seed: int,
    failure: float,
    purpose: str = "estimate",
    claim: float | None = None,
) -> DeltaEstimate:
    """Returns delta with limits that hold at once except with probability `failure`.

    Both limits of every direction have half of it: the largest upper limit is too small only if that of the direction
    with the largest delta is, and the lower limit is that of the first direction alone (docs/math.md, section 2.4).
    With a `claim` sampling also stops as soon as the limits say whether delta is at most that.
    """
    non_negative("epsilon", epsilon)
    start = time.perf_counter()
    estimates: list[DirectionDelta] = []
    for direction in adjacency.directions:
        settled = max((other.lower for other in estimates), default=0.0)
        samples_seed = derived_seed(seed, purpose)
        estimates.append(direction_delta(pair, direction, epsilon, failure / 2, samples_seed, options, settled, claim))
    upper = max(estimate.upper for estimate in estimates)
    floor = max(direction_lower_bound(pair, direction, epsilon) for direction in adjacency.directions)
    top = max(estimates, key=lambda estimate: estimate.delta)
    return DeltaEstimate(
        epsilon=float(epsilon),
        delta=top.delta,
        lower=min(max(estimates[0].lower, floor), upper),
        upper=upper,
        confidence=1 - failure,
        bound=options.bound,
        adjacency=adjacency,
        samples=sum(estimate.samples for estimate in estimates),
        sampler=top.sampler,
        range=top.range,
        seed=seed,
        by_direction=tuple(estimates),
        seconds=time.perf_counter() - start,
    )


def direction_delta(
    pair: DominatingPair,
    direction: Direction,
    epsilon: float,
    failure: float,
    seed: int,
    options: Options,
    settled: float,
    claim: float | None = None,
) -> DirectionDelta:
    """Returns delta in one direction; also stops once the upper limit is below `settled`, another direction's limit.

    With a `claim` it stops, too, once the limits say whether delta is at most that.
    """
    free, computable = options.sampler == AUTO, toolkit_for(pair).computable(pair, direction)
    floor, ceiling = direction_bracket(pair, direction, epsilon, sharp=free)
    chosen = choose_sampler(pair, direction, epsilon, options.sampler)
    sampler = chosen.sampler
    value_range = sampler.value_range(epsilon)
    interval, samples = Interval((floor + ceiling) / 2, floor, ceiling), 0
    if ceiling <= TINY:
        interval, reason = Interval(0.0, 0.0, ceiling), "the deterministic bound is zero for every purpose"
    elif free and ceiling - floor <= options.rel_width * floor:
        reason = "deterministic bounds are close to each other"
    elif free and ceiling <= (1.0 if computable else _NEGLIGIBLE) * settled:
        reason = "the deterministic bound is nothing beside the other direction"
    elif free and claim is not None and ceiling <= claim:
        reason = "the deterministic bound proves the claim"
    else:

        def enough(intervals: Sequence[Interval]) -> bool:
            high, low = min(intervals[0].upper, ceiling), max(intervals[0].lower, floor)
            decided = claim is not None and (high <= claim or low > claim)
            return decided or high - low <= options.rel_width * intervals[0].estimate or high < settled

        (interval,), samples = observe(chosen, [epsilon], failure, seed, options, enough, claim)
        reason = chosen.reason
    upper = min(interval.upper, ceiling)
    lower = min(max(interval.lower, floor), upper)
    return DirectionDelta(
        direction=direction,
        delta=min(max(interval.estimate, lower), upper),
        lower=lower,
        upper=upper,
        samples=samples,
        sampler=sampler.name if samples else "none",
        reason=reason if samples else f"no sample needed: {reason}",
        range=value_range,
        slack_epsilon=sampler.slack.epsilon,
        lost=sampler.slack.lost,
        deterministic_upper=ceiling,
    )


def observe(
    chosen: Choice,
    epsilons: Sequence[float],
    failure: float,
    seed: int,
    options: Options,
    enough: Callable[[Sequence[Interval]], bool],
    claim: float | None = None,
) -> tuple[list[Interval], int]:
    """Runs one sampler and returns an interval for every epsilon, with the number of samples taken.

    Every single limit fails with probability at most `failure`. `enough` may stop the run only with a sequence.
    """
    sampler, failure = chosen.sampler.measured(seed, failure, claim)
    budget = options.budget(sampler.order)

    def limit(epsilon: float) -> Limit:
        value_range = max(sampler.value_range(epsilon), TINY)
        if options.bound == SEQUENCE:
            return EmpiricalBernstein(value_range, failure, options.rel_width / 2, budget)
        return FixedSample(BOUNDS[options.bound], value_range, failure)

    uppers, lowers = [limit(epsilon) for epsilon in epsilons], [limit(epsilon) for epsilon in epsilons]
    samples = 0

    def intervals() -> list[Interval]:
        result = []
        for epsilon, high, low in zip(epsilons, uppers, lowers, strict=True):
            lost, estimate = sampler.lost_delta(epsilon), (high.mean + low.mean) / 2
            upper = high.upper() + lost + sampler.rest(epsilon)
            result.append(Interval(estimate, max(0.0, low.lower() - lost), min(1.0, upper)))
        return result

    for draw in draws(sampler, budget, seed, options.pool, options.progress):
        for epsilon, high, low in zip(epsilons, uppers, lowers, strict=True):
            high.add(sampler.values(draw, epsilon, rounding=1))
            low.add(sampler.values(draw, epsilon, rounding=-1))
        samples += len(draw)
        if options.bound == SEQUENCE and enough(intervals()):
            break
    return intervals(), samples
