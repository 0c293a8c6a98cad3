"""What others would do, on the same footing: every mechanism with its own accountant, and all side by side."""

from galton.baselines.allocation import allocation_delta, calibrate_allocation
from galton.baselines.balls_in_bins import calibrate_balls_in_bins, estimate_balls_in_bins
from galton.baselines.comparison import Comparison, compare
from galton.baselines.cost import NoiseCost, noise_cost
from galton.baselines.figure import Figure
from galton.baselines.mechanism import Mechanism, Row, Setting
from galton.baselines.mmcc import calibrate_mmcc, mmcc_delta
from galton.baselines.peers import MissingPackage
from galton.baselines.plot import plot_comparison
from galton.baselines.poisson import calibrate_poisson, subsampled_delta
from galton.baselines.registry import DEFAULT, MECHANISMS, find_mechanism
from galton.baselines.shuffling import calibrate_shuffling, shuffling_bracket, shuffling_lower_bound
from galton.baselines.statement import Standing, Statement
from galton.baselines.unamplified import calibrate_unamplified

__all__ = [
    "DEFAULT",
    "MECHANISMS",
    "Comparison",
    "Figure",
    "Mechanism",
    "MissingPackage",
    "NoiseCost",
    "Row",
    "Setting",
    "Standing",
    "Statement",
    "allocation_delta",
    "calibrate_allocation",
    "calibrate_balls_in_bins",
    "calibrate_mmcc",
    "calibrate_poisson",
    "calibrate_shuffling",
    "calibrate_unamplified",
    "compare",
    "estimate_balls_in_bins",
    "find_mechanism",
    "mmcc_delta",
    "noise_cost",
    "plot_comparison",
    "shuffling_bracket",
    "shuffling_lower_bound",
    "subsampled_delta",
]
