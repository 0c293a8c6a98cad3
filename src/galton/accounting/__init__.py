"""The questions users ask: delta, epsilon, profile, calibrate, certify."""

from galton.accounting.calibration import Calibration, calibrate
from galton.accounting.certificate import Certificate, certify
from galton.accounting.curve import Profile, profile
from galton.accounting.deterministic import delta_upper_bound, epsilon_upper_bound, multiplier_upper_bound
from galton.accounting.estimate import DeltaEstimate, delta
from galton.accounting.inversion import EpsilonEstimate, epsilon
from galton.accounting.ledger import Ledger, default_ledger
from galton.accounting.options import Options

__all__ = [
    "Calibration",
    "Certificate",
    "DeltaEstimate",
    "EpsilonEstimate",
    "Ledger",
    "Options",
    "Profile",
    "calibrate",
    "certify",
    "default_ledger",
    "delta",
    "delta_upper_bound",
    "epsilon",
    "epsilon_upper_bound",
    "multiplier_upper_bound",
    "profile",
]
