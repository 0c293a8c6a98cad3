"""The first rounds of a run alone: the same noise, fewer releases, a smaller epsilon (docs/math.md, section 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from galton.accountants import Run
from galton.accountants.base import PLAN_TAU
from galton.accounting import Certificate, Ledger, Options
from galton.batching import scheme_from_json, truncation
from galton.errors import GaltonError, InvalidArgument, count
from galton.guarantee import Guarantee
from galton.plan.plan import Plan
from galton.typechecking import typechecked

INDEPENDENT = (
    "if the round to stop at was fixed beforehand, or chosen without looking at the data or at anything that was "
    "computed from it, released or not"
)


@typechecked
@dataclass(frozen=True)
class Prefix:
    """What may be stated of the first rounds of a run.

    Attributes:
      rounds: how many of the plan's rounds had their noise.
      planned: how many were planned.
      guarantee: of these rounds; the plan's own where nothing smaller was proved.
      words: how it was proved.
      certificate: where samples proved it.

    Example:
      >>> from galton import make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> prefix = prefix_guarantee(plan, rounds_done=4)
      >>> prefix.rounds, prefix.planned, prefix.guarantee.epsilon < guarantee.epsilon
      (4, 8, True)
    """

    rounds: int
    planned: int
    guarantee: Guarantee
    words: str
    certificate: Certificate | None = None

    @property
    def statement(self) -> str:
        """In words: of what, and under which condition."""
        return (
            f"The first {self.rounds} of {self.planned} planned rounds, released without any later one, are "
            f"{self.guarantee}, {INDEPENDENT}. Else the plan's guarantee holds. {self.words}."
        )

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "rounds_done": self.rounds,
            **self.guarantee.to_json(),
            "statement": self.statement,
            "certificate": None if self.certificate is None else self.certificate.to_json(),
        }


@typechecked
def prefix_guarantee(
    plan: Plan, rounds_done: int, options: Options | None = None, ledger: Ledger | None = None
) -> Prefix:
    """Returns what a run of a plan guarantees that ends after some of its rounds, proved anew.

    Formal guarantee: what the first `rounds_done` rounds of a run that follows the plan release has the guarantee of
    the result, at the plan's delta, if the number of rounds does not depend on the data, the batches or the noise
    (docs/math.md, section 15). A number that was chosen by what was released has the plan's guarantee, and no other.

    Args:
      plan: the plan.
      rounds_done: rounds that had their noise. Fewer than one epoch count as one.
      options: seed, workers and progress.
      ledger: where attempts are counted (default: the user's).

    Returns:
      The guarantee, with how it was proved.

    Example:
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=4, batching="fixed-order", strategy="identity"
      ... )
      >>> prefix_guarantee(plan, rounds_done=8).guarantee.epsilon < 4
      True
    """
    options, adjacency = options or Options(), plan.guarantee.adjacency
    if not 1 <= count("rounds_done", rounds_done) <= plan.rounds:
        raise InvalidArgument("rounds_done", rounds_done, f"must be from 1 to the rounds of the plan, {plan.rounds}")
    own = Prefix(rounds_done, plan.rounds, plan.guarantee, "It is the plan's")
    counted = max(rounds_done, plan.bins)
    if counted == plan.rounds:
        return own
    run = _first_rounds(plan, counted)
    lost = truncation(run.scheme, plan.padded_batch_size).delta(plan.guarantee.epsilon, adjacency)
    claim = plan.guarantee.with_delta(plan.guarantee.delta - lost)
    aim = plan.accountant.room(claim).delta / PLAN_TAU
    epsilon = plan.accountant.epsilon(run, aim, adjacency, options)
    if not epsilon < plan.guarantee.epsilon:
        return own
    smaller = Guarantee(max(epsilon, 1e-9), claim.delta, adjacency)
    verdict = plan.accountant.verify(run, smaller, options, ledger)
    if not verdict.accepted:
        raise GaltonError(
            f"rounds_done: epsilon {epsilon:.4g} was not proved for the first {rounds_done} rounds ({verdict.words}); "
            "state the plan's guarantee, or try again"
        )
    stated = Guarantee(smaller.epsilon, plan.guarantee.delta, adjacency)
    words = verdict.words[:1].upper() + verdict.words[1:]
    if rounds_done < counted:
        words += f". It is that of the whole first epoch, {counted} rounds, which these are a part of"
    return Prefix(rounds_done, plan.rounds, stated, words, verdict.certificate)


def _first_rounds(plan: Plan, rounds: int) -> Run:
    """The run of the first rounds, with the plan's own noise; its multiplier is relative to the sensitivity there."""
    strategy = plan.strategy.prefix(rounds)
    scheme = scheme_from_json(plan.scheme.to_json() | {"rounds": rounds})
    multiplier = plan.noise_multiplier * plan.sensitivity / strategy.sensitivity(plan.bins)
    plan.accountant.check(strategy, scheme, plan.bins)
    return Run(strategy, scheme, plan.bins, multiplier * (1 - 1e-9))
