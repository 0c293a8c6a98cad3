"""The explorer: one HTML page on which people see what epsilon, delta, batches and epochs cost under each mechanism."""

from galton.explorer.page import render
from galton.explorer.results import MECHANISMS, Axes, Results, Series, compute_results, shipped_results
from galton.explorer.write import write_explorer

__all__ = [
    "MECHANISMS",
    "Axes",
    "Results",
    "Series",
    "compute_results",
    "render",
    "shipped_results",
    "write_explorer",
]
