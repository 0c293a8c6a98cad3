"""The plan: one artefact with the strategy, the batches, the noise and the proof of the guarantee."""

from galton.plan.folder import load_plan, save_plan
from galton.plan.leak import Leak
from galton.plan.make import make_plan
from galton.plan.plan import Alternative, Plan
from galton.plan.prefix import Prefix, prefix_guarantee
from galton.plan.signature import Signature, new_key_pair
from galton.plan.trust import Basis, PlanNotTrusted, Trust, check_signature, establish_trust, sign_plan
from galton.plan.verify import Verification, verify_plan

__all__ = [
    "Alternative",
    "Basis",
    "Leak",
    "Plan",
    "PlanNotTrusted",
    "Prefix",
    "Signature",
    "Trust",
    "Verification",
    "check_signature",
    "establish_trust",
    "load_plan",
    "make_plan",
    "new_key_pair",
    "prefix_guarantee",
    "save_plan",
    "sign_plan",
    "verify_plan",
]
