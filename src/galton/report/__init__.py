"""A plan as one HTML page: the guarantee in words and pictures, with nothing loaded from elsewhere."""

from galton.report.curves import privacy_curve
from galton.report.page import render
from galton.report.write import REPORT, write_report

__all__ = ["REPORT", "privacy_curve", "render", "write_report"]
