"""Checks a plan: integrity when it is loaded, and its guarantee once more, with fresh samples."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from galton.accounting import Certificate, Options, certify
from galton.accounting.ledger import Ledger
from galton.errors import InvalidArgument
from galton.pair import dominating_pair, groups_for
from galton.plan.accountants import prove
from galton.plan.guarantee import Certified
from galton.plan.plan import Plan


@dataclass(frozen=True)
class Verification:
    """What a second look at a plan's guarantee found.

    Attributes:
      accepted: whether the claim was proved again.
      plan: content hash.
      words: what was done.
      certificate: the new certificate, for balls-in-bins.
    """

    accepted: bool
    plan: str
    words: str
    certificate: Certificate | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return asdict(self)


def verify_plan(plan: Plan, options: Options | None = None, ledger: Ledger | None = None) -> Verification:
    """Proves the plan's claim anew: with fresh samples for balls-in-bins, by the same calculation otherwise.

    A look that rejects takes nothing back (the plan was released because its own verification accepted) but says that
    something is wrong: a true claim with the room that plans leave is rejected with a probability of about 1e-3.
    It is written to the ledger of attempts like any other.

    Args:
      plan: the plan, loaded (which checks its integrity).
      options: seed, workers and progress; adjacency is the plan's.
      ledger: where attempts are counted (default: the user's).
    """
    start = time.perf_counter()
    options = options or Options(adjacency=plan.adjacency)
    if options.adjacency != plan.adjacency:
        raise InvalidArgument("adjacency", options.adjacency, f"must be that of the plan, {plan.adjacency}")
    plan.evidence.check(plan)
    if isinstance(plan.evidence, Certified):
        pair = dominating_pair(plan.strategy, plan.bins, plan.noise_multiplier, groups_for(plan.bins))
        claim = float(plan.evidence.certificate["delta"])
        found = certify(pair, plan.epsilon, claim, options, ledger=ledger)
        words = f"{found.samples:,} fresh samples {'prove' if found.accepted else 'do NOT prove'} delta <= {claim:g}"
        return Verification(found.accepted, plan.digest, words, found, time.perf_counter() - start)
    claim = float(plan.evidence.to_json()["delta"])
    needed, _ = prove(plan.evidence.accountant, plan.strategy, plan.bins, plan.epsilon, claim, options)
    accepted = needed <= plan.noise_multiplier * (1 + 1e-6)
    words = (
        f"{plan.evidence.accountant} asks for a multiplier of {needed:.6g}; the plan has {plan.noise_multiplier:.6g}"
    )
    return Verification(accepted, plan.digest, words, None, time.perf_counter() - start)
