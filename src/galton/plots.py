"""What every plot shares: written beside its place first, so that a failure leaves the old file as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from galton.errors import GaltonError, InvalidArgument, InvalidFile

FORMATS = (".png", ".pdf", ".svg")


def pyplot() -> Any:
    """Returns matplotlib.pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError:
        raise GaltonError("plot: needs matplotlib: pip install 'galton[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as loaded

    return loaded


def check_plot_path(path: str | Path) -> Path:
    """Refuses a name that no plot can be written to, before the work begins."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InvalidArgument("plot", str(path), "must end in " + ", ".join(FORMATS))
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InvalidArgument("plot", str(path), "must be a file in a folder that exists")
    return target


def save(figure: Any, path: Path) -> None:
    """Writes a matplotlib figure and closes it."""
    from matplotlib import pyplot

    target = check_plot_path(path)
    temporary = target.with_name(f".galton-{os.getpid()}-{target.name}")
    try:
        figure.savefig(temporary, dpi=160)
        os.replace(temporary, target)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
        pyplot.close(figure)
