"""Writes the explorer to a file."""

from __future__ import annotations

from pathlib import Path

from galton import files
from galton.explorer.page import render
from galton.explorer.results import Results
from galton.report.write import check_output


def write_explorer(results: Results, output: str | Path) -> Path:
    """Writes the explorer as one HTML file that loads nothing from elsewhere.

    The file is written whole or not at all; one that exists is replaced.

    Args:
      results: the figures that it shows.
      output: file to write.

    Returns:
      The path of the file.
    """
    target = check_output(output)
    files.write_text(target, render(results))
    return target
