"""Several releases about one data set: the guarantee of all together, rounding and failures included."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from galton.accountants.composition import Composition
from galton.accountants.losses import Aim, Loss
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.options import derived_seed
from galton.budget.events import Event, KnownEvent
from galton.budget.sources import Source, as_event
from galton.convolution import GridTooLarge
from galton.errors import GaltonError, InvalidArgument, non_negative, probability
from galton.files import plain
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.plan.plan import USER
from galton.typechecking import typechecked

DEFAULT_DELTA = 1e-5
"""The delta that curves are sharp for, where the caller names none."""
_FINEST, _NEGLIGIBLE = 1e-5, 8
_COARSER = 20
"""How often the grid may be made twice as coarse, which only raises the bound, until it fits."""
_WIDTH = 5e-4
_USERS = " Neighbours differ in all examples of a user: the noise of mechanisms by name is relative to a user's part."
_LARGEST_EPSILON = 2e4


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
        self.losses, self.directions, self.displacement = tuple(losses), tuple(directions), displacement
        self._adjacency = adjacency
        self._interval = max(_common_interval(losses), finest)
        self._compositions: dict[Direction, Composition] = {}
        self.failure = math.fsum(loss.failure for loss in losses)
        self.samples = sum(loss.samples for loss in losses)

    def truncation_delta(self, epsilon: float) -> float:
        """Returns what truncation adds to delta.

        Args:
          epsilon: where.
        """
        return self._adjacency.truncation_delta(self.displacement, epsilon)

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
        composed = max(self.direction_delta(direction, epsilon) for direction in self._adjacency.directions)
        return min(1.0, composed + self.truncation_delta(epsilon))

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

        if target <= max(self._lost(direction) for direction in self._adjacency.directions):
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


def _common_interval(losses: Sequence[Loss]) -> float:
    """A grid for all: as fine as steps that are repeated need, and as single ones that matter beside the others."""
    single = [loss.interval(1.0) for loss in losses if not loss.repeated]
    needed = [loss.interval(1.0) for loss in losses if loss.repeated]
    if single:
        needed.append(max(min(single), max(single) / _NEGLIGIBLE))
    return min(needed)


@typechecked
@dataclass(frozen=True)
class Composed:
    """The guarantee of several releases about one data set.

    Attributes:
      epsilon: of the guarantee.
      delta: of the guarantee; it includes `analysis_failure` and `truncation_delta`.
      adjacency: which data sets are neighbours.
      analysis_failure: probability, over the random numbers of the analysis, that the loss of an event does not
        dominate it.
      truncation_delta: what truncated batches add to delta at this epsilon.
      events: what is released, in words.
      samples: samples taken.
      seed: of the samples.
      statement: what may be stated, in words.
      seconds: how long it took.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    analysis_failure: float
    truncation_delta: float
    events: tuple[str, ...]
    samples: int
    seed: int
    statement: str
    seconds: float

    def meets(self, guarantee: Guarantee) -> bool:
        """Returns whether it is at least as good as a guarantee.

        Args:
          guarantee: under the same adjacency.

        Returns:
          True if neither epsilon nor delta is larger.
        """
        if guarantee.adjacency is not self.adjacency:
            raise InvalidArgument("guarantee", str(guarantee), f"must be under {self.adjacency} adjacency")
        return self.epsilon <= guarantee.epsilon and self.delta <= guarantee.delta

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return plain(asdict(self))


@typechecked
def compose(
    events: Sequence[Source],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    failure: float | None = None,
    options: Options | None = None,
) -> Composed:
    """Returns the guarantee of several releases about the same data: epsilon at a delta, or delta at an epsilon.

    Every event is replaced by a privacy loss that dominates it; losses add up, by FFTs whose rounding is bounded.
    What an event asks may depend on what others released; what it costs (its kind, noise and count) may not: a release
    whose noise was chosen in view of earlier ones is not covered.

    Formal guarantee: all events together are (epsilon, delta)-DP. delta includes the probability `failure` over the
    accountant's random numbers. This is no certificate: nothing is written to the ledger of attempts, and whoever
    composes the same events several times with other seeds and keeps the best answer has to add up the failures.

    Args:
      events: plans or their folders, dominating pairs, events such as `gaussian:sigma=4,count=10`, `laplace:scale=20`
        or `dp:epsilon=0.1,delta=1e-7`, or events of dp-accounting.
      epsilon: where delta is wanted; give this or `delta`.
      delta: where epsilon is wanted.
      adjacency: which data sets are neighbours; by default that of the plans, or add-or-remove.
      failure: probability that the analysis may fail with, for all events together; by default 0.0015 * delta. What
        needs no samples does not fail.
      options: how to sample. Where epsilon is given, the curves of runs are sharp for deltas of 1e-5 and above.

    Returns:
      The guarantee.

    Example:
      >>> composed = compose(["gaussian:sigma=3", "gaussian:sigma=4"], delta=1e-5)
      >>> round(composed.epsilon, 2)  # that of sigma = 2.4, as 1/9 + 1/16 = 1/2.4^2
      1.63
    """
    parts = all_events(events)
    whole_adjacency = common_adjacency(parts, adjacency)
    if (epsilon is None) == (delta is None):
        raise InvalidArgument("delta", delta, "must be given, or epsilon, but not both")
    options = options or Options()
    seeded = replace(options, seed=options.fresh_seed())
    important = DEFAULT_DELTA if delta is None else probability("delta", delta)
    share = FAILURE_SHARE * important if failure is None else probability("failure", failure)
    at = None if epsilon is None else non_negative("epsilon", epsilon)
    composed = composed_at(parts, whole_adjacency, important, share, seeded, at)
    if not math.isfinite(composed.epsilon):
        raise GaltonError(f"compose: no epsilon can be shown at delta {delta:g}; take a larger delta")
    return composed


def composed_at(
    events: Sequence[Event],
    adjacency: Adjacency,
    delta: float,
    failure: float,
    options: Options,
    epsilon: float | None = None,
) -> Composed:
    """Returns the composition at a delta, or at an epsilon; infinite where none can be shown, 0 of no events.

    Args:
      events: what is released.
      adjacency: which data sets are neighbours; checked before.
      delta: where epsilon is wanted; the delta that curves are sharp for if `epsilon` is given.
      failure: of all samples together.
      options: how to sample, with a seed.
      epsilon: where delta is wanted.

    Returns:
      The composition.
    """
    start = time.perf_counter()
    known = events or (KnownEvent(0.0),)
    whole = whole_of(known, adjacency.directions, adjacency, delta, failure, options)
    if epsilon is None:
        epsilon = whole.epsilon(delta) if events else 0.0
    else:
        delta = min(1.0, whole.delta(epsilon) + whole.failure)
    return Composed(
        epsilon=float(epsilon),
        delta=delta,
        adjacency=adjacency,
        analysis_failure=whole.failure,
        truncation_delta=whole.truncation_delta(epsilon) if math.isfinite(epsilon) else 1.0,
        events=tuple(event.words for event in events),
        samples=whole.samples,
        seed=options.fresh_seed(),
        statement=_statement(epsilon, delta, adjacency, len(events), whole.failure) + _of_users(events),
        seconds=time.perf_counter() - start,
    )


def all_events(sources: Sequence[Source]) -> list[Event]:
    """Returns the events that a caller named; refuses none at all."""
    events = [event for source in sources for event in as_event(source)]
    if not events:
        raise InvalidArgument("events", [], "must name at least one release")
    return events


def common_adjacency(events: Sequence[Event], adjacency: Adjacency | None = None) -> Adjacency:
    """Returns the adjacency of the whole; refuses events under another one, or with another unit of privacy."""
    known = next((event.adjacency for event in events if event.adjacency), Adjacency.ADD_OR_REMOVE)
    wanted = Adjacency(adjacency) if adjacency else known
    for event in events:
        event.check_adjacency(wanted)
    if len({event.unit for event in events} - {None}) > 1:
        remedy = "must have one unit of privacy: some plans protect examples, others users"
        raise InvalidArgument("events", [event.words for event in events], remedy)
    return wanted


def whole_of(
    events: Sequence[Event],
    directions: tuple[Direction, ...],
    adjacency: Adjacency,
    delta: float,
    failure: float,
    options: Options,
) -> Whole:
    """Returns the losses of all events as one, those that are sampled with equal shares of the failure probability."""
    losses = []
    first_seed = options.fresh_seed()
    for index, event in enumerate(events):
        seed = derived_seed(first_seed, f"event {index}")
        aim = Aim(directions, delta, failure / len(events), replace(options, seed=seed))
        losses.append(event.loss(aim))
    return Whole(losses, directions, adjacency, min(1.0, math.fsum(event.displacement for event in events)))


def stated(composed: Composed, delta: float, failure: float) -> Composed:
    """Returns the same composition with a larger delta, for other compositions that were tried before."""
    words = _statement(composed.epsilon, delta, composed.adjacency, len(composed.events), failure)
    users = _USERS if composed.statement.endswith(_USERS) else ""
    return replace(composed, delta=delta, analysis_failure=failure, statement=words + users)


def _of_users(events: Sequence[Event]) -> str:
    return _USERS if any(event.unit == USER for event in events) else ""


def _statement(epsilon: float, delta: float, adjacency: Adjacency, count: int, failure: float) -> str:
    subject = "This release is" if count == 1 else f"All {count} releases together are"
    words = f"{subject} ({epsilon:.6g}, {delta:.6g})-DP under {adjacency} adjacency"
    if not failure:
        return words + ", with certainty."
    return words + f"; delta includes {failure:.2g}, the probability that the samples of this analysis mislead."
