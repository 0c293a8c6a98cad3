"""Mechanisms side by side, on the same footing: error, noise, cost, and what each figure is worth."""

from galton.comparison.cost import NoiseCost, noise_cost
from galton.comparison.mechanism import Mechanism, Row, Solved, banded, classical_bands
from galton.comparison.plot import plot_comparison
from galton.comparison.registry import DEFAULT, MECHANISMS, find_mechanism
from galton.comparison.shuffling import calibrate_shuffling, shuffling_bracket, shuffling_lower_bound
from galton.comparison.table import Comparison, compare

__all__ = [
    "DEFAULT",
    "MECHANISMS",
    "Comparison",
    "Mechanism",
    "NoiseCost",
    "Row",
    "Solved",
    "banded",
    "calibrate_shuffling",
    "classical_bands",
    "compare",
    "find_mechanism",
    "noise_cost",
    "plot_comparison",
    "shuffling_bracket",
    "shuffling_lower_bound",
]
