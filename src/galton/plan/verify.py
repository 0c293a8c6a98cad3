"""Proves the guarantee of a plan once more, with fresh samples. (Its integrity is checked when it is loaded.)"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from galton.accounting import Certificate, Options
from galton.accounting.ledger import Ledger
from galton.plan.marks import Mark, leave_mark, withdraw_mark
from galton.plan.plan import Plan
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True)
class Verification:
    """The outcome of `verify_plan`.

    Attributes:
      accepted: whether the claim was proved again.
      plan: content hash of the plan.
      words: what was done.
      certificate: the new certificate; None if the accountant does not sample.
      seconds: time that it took.

    Example:
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> verification = verify_plan(plan)
      >>> verification.accepted, verification.plan == plan.digest, verification.certificate
      (True, True, None)
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


@typechecked
def verify_plan(plan: Plan, options: Options | None = None, ledger: Ledger | None = None) -> Verification:
    """Proves the plan's claim again: with fresh samples where the accountant samples, else by the same calculation.

    What is proved is the plan's guarantee, less what truncation costs, for the noise that training will use. A
    rejection takes nothing back, for the plan was released because its own verification accepted. But it is a sign
    that something is wrong: a true claim with the room that plans leave is rejected with a probability of about 1e-3.
    The attempt is written to the ledger like any other; more rejections than delta covers are a rejection too. If the
    claim is accepted, a mark is left by which this user's runs trust the plan from then on; if not, a mark is
    withdrawn, and the next run verifies the plan again.

    Args:
      plan: the plan; `load_plan` has checked its integrity.
      options: seed, workers and progress of the accountant.
      ledger: where attempts are counted (default: the user's).

    Returns:
      Whether the claim was proved, and how.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, load_plan, make_plan, save_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     verify_plan(load_plan(save_plan(plan, f"{folder}/plan"))).accepted
      True
    """
    start = time.perf_counter()
    plan.check()
    verdict = plan.accountant.verify(plan.run, plan.claim, options or Options(), ledger)
    seconds = time.perf_counter() - start
    if verdict.accepted:
        leave_mark(plan.digest, Mark.VERIFIED)
    else:
        withdraw_mark(plan.digest)
    return Verification(verdict.accepted, plan.digest, verdict.words, verdict.certificate, seconds)
