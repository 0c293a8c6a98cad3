"""Which checks fit which batches."""

from __future__ import annotations

from typing import Protocol

from galton.audit.batch_checks import BatchTally
from galton.audit.checks import Finding
from galton.audit.participation import Participation
from galton.audit.redrawn_checks import RedrawnTally
from galton.audit.separation_checks import SeparationTally
from galton.batching.laws import RedrawnBins, Renewal
from galton.plan.plan import Plan


class Tally(Protocol):
    """Counts over all realisations of an audit, and the findings that follow from them."""

    def add(self, participation: Participation) -> None:
        """Adds more realisations to the counts."""

    def findings(self) -> list[Finding]:
        """Returns the findings that follow from the counts."""


def batch_tally(plan: Plan) -> Tally:
    """Returns the checks of a plan's batches, by the law of its scheme; `BatchTally` refuses laws without cycles."""
    law = plan.scheme.law
    if isinstance(law, Renewal):
        return SeparationTally(plan, law)
    return RedrawnTally(plan) if isinstance(law, RedrawnBins) else BatchTally(plan)
