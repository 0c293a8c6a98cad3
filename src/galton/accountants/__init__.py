"""Who accounts for which batches: one class each, behind one shape (`base.Accountant`) and one registry."""

from galton.accountants.allocation import allocation_delta
from galton.accountants.base import Accountant, Optimum, Verdict
from galton.accountants.curve import Curve
from galton.accountants.evidence import Calculated, Certified, Evidence
from galton.accountants.figure import Figure
from galton.accountants.mmcc import mmcc_delta
from galton.accountants.peers import MissingPackage
from galton.accountants.poisson import subsampled_delta
from galton.accountants.registry import ACCOUNTANTS, check_covered, covering, default_accountant, find_accountant
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Standing, Statement

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Calculated",
    "Certified",
    "Curve",
    "Evidence",
    "Figure",
    "MissingPackage",
    "Optimum",
    "Run",
    "Setting",
    "Standing",
    "Statement",
    "Verdict",
    "allocation_delta",
    "check_covered",
    "covering",
    "default_accountant",
    "find_accountant",
    "mmcc_delta",
    "subsampled_delta",
]
