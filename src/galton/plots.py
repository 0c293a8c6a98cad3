"""What every plot shares."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from galton import files
from galton.errors import GaltonError, InvalidArgument

FORMATS = (".png", ".pdf", ".svg")


def pyplot() -> Any:
    """Returns matplotlib.pyplot, drawing to files only."""
    _need_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as loaded

    return loaded


def check_plot_path(path: str | Path) -> Path:
    """Returns the path, refusing one that no plot can be written to; call it before the work begins."""
    _need_matplotlib()
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InvalidArgument("plot", str(path), "must end in " + ", ".join(FORMATS))
    if files.is_folder(target) or not target.absolute().parent.is_dir():
        raise InvalidArgument("plot", str(path), "must be a file in a folder that exists")
    files.check_target(target)
    return target


def _need_matplotlib() -> None:
    """Says what to install; loads nothing, which would take a second."""
    if importlib.util.find_spec("matplotlib") is None:
        raise GaltonError("plot: needs matplotlib: pip install 'galton[plot]'")


def save(figure: Any, path: Path) -> None:
    """Writes a matplotlib figure and closes it; a failure leaves the old file as it was."""
    from matplotlib import pyplot

    target = check_plot_path(path)
    try:
        with files.replacing(target) as temporary:
            figure.savefig(temporary, dpi=160)
    finally:
        pyplot.close(figure)
