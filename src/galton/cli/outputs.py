"""Results that are not lost: if they cannot be written where they should be, they are kept elsewhere."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from galton import files
from galton.accounting.ledger import state_folder
from galton.cli.options import warn
from galton.errors import GaltonError


def keep(write: Callable[[Path], object], path: Path) -> bool:
    """Writes a result that took long to compute; if it cannot be written to `path`, keeps it elsewhere and says where.

    Args:
      write: writes the result to a path.
      path: where it should be; checked before the work by `files.check_target`.

    Returns:
      Whether it is at `path`.
    """
    try:
        write(path)
    except (GaltonError, OSError) as error:
        for folder in _elsewhere():
            try:
                files.make_folder(folder)
                write(folder / path.name)
            except (GaltonError, OSError):
                continue
            warn(f"{error}; the result is kept in {folder / path.name}")
            return False
        warn(f"{error}; the result could not be kept anywhere else either, and is only on the screen")
        return False
    return True


def _elsewhere() -> tuple[Path, Path]:
    """New folders that results can be kept in: one that lasts, and one for when that cannot be written either."""
    name = secrets.token_hex(4)
    return state_folder() / "kept" / name, Path(tempfile.gettempdir()) / f"galton-{name}"
