"""Writes the report of a plan to a file."""

from __future__ import annotations

from pathlib import Path

from galton import files
from galton.accounting import Options
from galton.cache import Cache
from galton.errors import InvalidArgument
from galton.plan import Plan
from galton.plots import pyplot
from galton.report.curves import privacy_curve
from galton.report.disclosure import Disclosure
from galton.report.page import render
from galton.report.sheet import render_sheet

REPORT = "report.html"


def write_report(
    plan: Plan, output: str | Path, options: Options | None = None, cache: Cache | None = None, points: int = 19
) -> Path:
    """Writes the report of a plan as one HTML file that loads nothing from elsewhere; needs galton[plot].

    The file is written whole or not at all; one that exists is replaced.

    Args:
      plan: the plan; `load_plan` has checked its integrity.
      output: file to write.
      options: seed, workers and progress, for batches whose privacy curve is sampled.
      cache: where curves are kept (default: the user's).
      points: number of epsilons on the curve.

    Returns:
      The path of the file.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_report(plan, f"{folder}/report.html").name
      'report.html'
    """
    target = check_output(output)
    pyplot()  # if matplotlib is missing, fail before the work begins
    files.write_text(target, render(plan, privacy_curve(plan, options, cache, points)))
    return target


def write_sheet(disclosure: Disclosure, output: str | Path) -> Path:
    """Writes a disclosure as one HTML page that prints on one sheet of paper.

    The file is written whole or not at all; one that exists is replaced.

    Args:
      disclosure: what is disclosed (`disclose`).
      output: file to write.

    Returns:
      The path of the file.

    Example:
      >>> import tempfile
      >>> from galton import compose
      >>> from galton.report import disclose_composition
      >>> disclosure = disclose_composition(compose(["gaussian:sigma=3"], delta=1e-5))
      >>> write_sheet(disclosure, Path(tempfile.mkdtemp()) / "sheet.html").name
      'sheet.html'
    """
    target = check_output(output)
    files.write_text(target, render_sheet(disclosure))
    return target


def check_output(output: str | Path) -> Path:
    """Returns the path of the file; raises, before any work begins, if it is a folder or cannot be written."""
    target = Path(output)
    if files.is_folder(target):
        raise InvalidArgument("output", str(output), "is a folder; give the name of a file")
    files.check_target(target)
    return target
