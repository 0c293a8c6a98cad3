"""Checks a plan: integrity when it is loaded, and its guarantee once more, with fresh samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from galton.accounting import Certificate, Options
from galton.accounting.ledger import Ledger
from galton.plan.plan import Plan


@dataclass(frozen=True)
class Verification:
    """What a second look at a plan's guarantee found.

    Attributes:
      accepted: whether the claim was proved again.
      plan: content hash.
      words: what was done.
      certificate: the new certificate, where the accountant samples.
      seconds: time it took.
    """

    accepted: bool
    plan: str
    words: str
    certificate: Certificate | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        certificate = None if self.certificate is None else self.certificate.to_json()
        return self.__dict__ | {"certificate": certificate}


def verify_plan(plan: Plan, options: Options | None = None, ledger: Ledger | None = None) -> Verification:
    """Proves the plan's claim anew: with fresh samples where the accountant samples, by the same calculation otherwise.

    What is proved is the plan's own guarantee, less what truncation costs, with the noise that training will use. A
    look that rejects takes nothing back (the plan was released because its own verification accepted) but says that
    something is wrong: a true claim with the room that plans leave is rejected with a probability of about 1e-3.
    It is written to the ledger of attempts like any other.

    Args:
      plan: the plan, loaded (which checks its integrity).
      options: seed, workers and progress.
      ledger: where attempts are counted (default: the user's).

    Returns:
      Whether the claim was proved, and how.
    """
    start = time.perf_counter()
    plan.check()
    verdict = plan.accountant.verify(plan.run, plan.claim, options or Options(), ledger)
    seconds = time.perf_counter() - start
    return Verification(verdict.accepted, plan.digest, verdict.words, verdict.certificate, seconds)
