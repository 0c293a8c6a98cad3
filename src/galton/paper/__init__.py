"""Tables and figures of the paper, regenerated: `galton paper NAME`.

A recipe computes rows out of points (`points.py`), which the content cache keeps; text and picture follow from the
rows alone, so that both can be made anew from the CSV.
"""

from galton.paper.points import SEED, Maker, Point, Question
from galton.paper.registry import ALL, RESULTS, find_results
from galton.paper.result import Recipe, Result
from galton.paper.writing import is_made, read_rows, redraw, regenerate, write_result

__all__ = [
    "ALL",
    "RESULTS",
    "SEED",
    "Maker",
    "Point",
    "Question",
    "Recipe",
    "Result",
    "find_results",
    "is_made",
    "read_rows",
    "redraw",
    "regenerate",
    "write_result",
]
