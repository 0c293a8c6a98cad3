"""Several releases about one data set: the guarantee of all together, rounding and failures included."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from galton.accountants.losses import Aim, both_ways
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.options import derived_seed
from galton.budget.direct import direct
from galton.budget.events import Event, KnownEvent
from galton.budget.sources import Source, as_event
from galton.budget.whole import NothingToShow, Whole
from galton.errors import ABSENT, GaltonError, InvalidArgument, non_negative, probability
from galton.files import plain
from galton.guarantee import Adjacency, Direction, Guarantee, no_less
from galton.plan.plan import USER
from galton.typechecking import typechecked

DEFAULT_DELTA = 1e-5
"""The delta that curves are sharp for, where the caller names none."""
LOSSES, DIRECT = "losses", "direct"
"""How a figure was found: by adding up losses, or by samples of a run beside the other releases."""
_USERS = " Neighbours differ in all examples of a user: the noise of mechanisms by name is relative to a user's part."


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
      composed_by: `losses`, if the losses of all events were added up; `direct`, if samples of a run were valued by the
        curve of the others, which is sharper.
      whole: the losses of all events, from which `disclose_composition` takes what officers read.
      releases: the events.

    Example:
      >>> composed = compose(["gaussian:sigma=3", "gaussian:sigma=4"], delta=1e-5)
      >>> composed.events, composed.meets(Guarantee(epsilon=2.0, delta=1e-5))
      (('gaussian:sigma=3', 'gaussian:sigma=4'), True)
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
    composed_by: str = LOSSES
    whole: Whole | None = field(default=None, repr=False, compare=False)
    releases: tuple[Event, ...] = field(default=(), repr=False, compare=False)

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
        body = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return plain(body)

    def if_known(self) -> Whole | None:
        """Returns the losses of all events if it is known who was in which batch, so that nothing is amplified.

        Returns:
          The losses, without samples; None where a release does not tell.
        """
        events = [event.if_known(self.adjacency) for event in self.releases]
        known = [event for event in events if event is not None]
        if not known or len(known) < len(events):
            return None
        sides = both_ways(self.adjacency.directions)
        try:
            return whole_of(known, sides, self.adjacency, self.delta, 0.0, Options(seed=0))
        except NothingToShow:  # of a search, whose runs may be told with a probability of about delta
            return None

    def rho(self) -> float | None:
        """Returns a rho for which all events together are zCDP, but for the sum of their displacements.

        Returns:
          rho; None where a release has none.
        """
        each = [event.rho(self.adjacency) for event in self.releases]
        known = [rho for rho in each if rho is not None]
        return math.fsum(known) * (1 + 1e-9) if known and len(known) == len(each) else None


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

    Every event is replaced by a privacy loss that dominates it; losses add up, by FFTs whose rounding is bounded. Where
    a run was sampled, it is sampled once more, each sample valued by the curve of the other events: that is sharper.
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
    if epsilon is None and delta is None:
        raise InvalidArgument("delta", ABSENT, "must be given, or epsilon")
    if epsilon is not None and delta is not None:
        raise InvalidArgument("epsilon", epsilon, "is given beside delta: give one of them, not both")
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
    sides = both_ways(adjacency.directions)
    whole = whole_of(known, sides, adjacency, delta, failure / 2, options)  # the other half is for direct samples
    sampled = direct(whole, delta, options) if events and epsilon != 0 else None
    more = failure / 2 if sampled else 0.0
    spent, samples, composed_by = whole.failure + more, whole.samples, LOSSES
    if epsilon is None:
        epsilon = bound = whole.epsilon(delta - more) if events else 0.0
        if sampled and 0 < bound < math.inf:
            epsilon, taken = sampled.epsilon(bound, delta - spent, more, options)
            samples, composed_by = samples + taken, DIRECT if epsilon < bound else LOSSES
    else:
        bound = delta = min(1.0, whole.delta(epsilon) + spent)
        if sampled:
            sharper, taken = sampled.delta(epsilon, more, options)
            delta = min(bound, sharper + spent)
            samples, composed_by = samples + taken, DIRECT if delta < bound else LOSSES
    return Composed(
        epsilon=float(epsilon),
        delta=delta,
        adjacency=adjacency,
        analysis_failure=spent,
        truncation_delta=whole.truncation_delta(epsilon) if math.isfinite(epsilon) else 1.0,
        events=tuple(event.words for event in events),
        samples=samples,
        seed=options.fresh_seed(),
        statement=_statement(epsilon, delta, adjacency, len(events), spent) + _of_users(events),
        seconds=time.perf_counter() - start,
        composed_by=composed_by,
        whole=whole,
        releases=tuple(events),
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
    if not count:
        return "Nothing has been released."
    subject = "This release is" if count == 1 else f"All {count} releases together are"
    words = f"{subject} ({no_less(epsilon)}, {no_less(delta)})-DP under {adjacency} adjacency"
    if not failure:
        return words + ", with certainty."
    return words + f"; delta includes {failure:.2g}, the probability that the samples of this analysis mislead."
