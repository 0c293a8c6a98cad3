"""A plan as one HTML page: the guarantee in words and pictures, with nothing loaded from elsewhere."""

from galton.report.composition import disclose_composition
from galton.report.curves import privacy_curve
from galton.report.disclosure import Disclosure, disclose
from galton.report.page import render
from galton.report.sheet import render_sheet
from galton.report.write import REPORT, write_report, write_sheet

__all__ = [
    "REPORT",
    "Disclosure",
    "disclose",
    "disclose_composition",
    "privacy_curve",
    "render",
    "render_sheet",
    "write_report",
    "write_sheet",
]
