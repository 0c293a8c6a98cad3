"""From a plan to its page on disk."""

from __future__ import annotations

from pathlib import Path

from galton import files
from galton.accounting import Options
from galton.cache import Cache
from galton.errors import InvalidArgument
from galton.plan import Plan
from galton.plots import pyplot
from galton.report.curves import privacy_curve
from galton.report.page import render

REPORT = "report.html"


def write_report(
    plan: Plan, path: str | Path, options: Options | None = None, cache: Cache | None = None, points: int = 19
) -> Path:
    """Writes the page of a plan, whole or not at all, and returns where it is.

    Args:
      plan: the plan, loaded (which checks its integrity).
      path: file to write.
      options: seed, workers and progress of the samples behind the curve.
      cache: where the curve is kept (default: the user's).
      points: epsilons of the curve.
    """
    target = check_path(path)
    pyplot()  # what is missing is missed before the work begins
    files.write_text(target, render(plan, privacy_curve(plan, options, cache, points)))
    return target


def check_path(path: str | Path) -> Path:
    """Refuses a place where no page can be written, before the work begins."""
    target = Path(path)
    if target.is_dir():
        raise InvalidArgument("output", str(path), "is a folder; give the name of a file")
    return target
