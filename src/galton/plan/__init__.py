"""The plan: one artefact with the strategy, the batches, the noise and the proof of the guarantee."""

from galton.plan.folder import load_plan, save_plan
from galton.plan.make import make_plan
from galton.plan.plan import Alternative, Leak, Plan
from galton.plan.verify import Verification, verify_plan

__all__ = [
    "Alternative",
    "Leak",
    "Plan",
    "Verification",
    "load_plan",
    "make_plan",
    "save_plan",
    "verify_plan",
]
