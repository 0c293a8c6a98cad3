"""Plans as somebody would forge them: they hold together, and only a verification can tell."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from galton.accountants import Calculated, Certified, Evidence
from galton.plan import Plan
from galton.plan.folder import PLAN, STRATEGY, SUMS
from galton.plan.leak import leaked


def fitting(evidence: Evidence, noise_multiplier: float) -> Evidence:
    """The same evidence, as if it were for another noise multiplier."""
    if isinstance(evidence, Certified):
        certificate = replace(evidence.certificate, noise_multiplier=noise_multiplier)
        return replace(evidence, verified=certificate)
    assert isinstance(evidence, Calculated)
    return replace(evidence, multiplier=noise_multiplier)


def with_noise(plan: Plan, noise_multiplier: float) -> Plan:
    """The same plan with other noise, and all that follows from it made to fit."""
    changed = replace(plan, noise_multiplier=noise_multiplier, evidence=fitting(plan.evidence, noise_multiplier))
    return replace(changed, leak=leaked(changed))


def rewrite_sums(folder: Path) -> None:
    """Writes the hashes of a plan's folder anew."""
    lines = (f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in (PLAN, STRATEGY))
    (folder / SUMS).write_text("".join(lines))
