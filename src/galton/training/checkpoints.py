"""The models in the folder of a run: the checkpoint, from which it goes on, and the model alone, for others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from galton import files
from galton.errors import InvalidFile


def _path(folder: Path, turn: int) -> Path:
    return folder / f"checkpoint-{turn}"


def write_checkpoint(folder: Path, turn: int, write: Callable[[Path], object]) -> None:
    """Writes the checkpoint of a round, whole or not at all, beside earlier ones.

    Args:
      folder: of the run.
      turn: the round that comes next.
      write: write(path) writes it.
    """
    with files.replacing(_path(folder, turn), secret=True) as temporary:
        write(temporary)


def keep_checkpoint(folder: Path, turn: int) -> None:
    """Removes the checkpoints of all rounds but one, if that is there.

    Args:
      folder: of the run.
      turn: the round whose checkpoint stays.
    """
    path = _path(folder, turn)
    for old in (*folder.glob("checkpoint-*"), *folder.glob("model-*")):
        if old != path and path.exists():
            old.unlink()


def find_checkpoint(folder: Path, turn: int) -> Path | None:
    """Returns the file of a checkpoint; raises `InvalidFile` if it must be there and is not.

    Args:
      folder: of the run.
      turn: the round that comes next in the saved run.

    Returns:
      The file; None before the first checkpoint.
    """
    path = _path(folder, turn)
    for candidate in (path, folder / f"model-{turn}"):  # the name of galton 0.1
        if candidate.exists():
            return candidate
    if turn:
        raise InvalidFile(f"{path}: is missing; the run cannot go on without the model of its round")
    return None


def publish_model(folder: Path, write: Callable[[Path], object], suffix: str) -> dict[str, Any]:
    """Writes the model for others, in place of the one before.

    Args:
      folder: of the run.
      write: write(path) writes the model.
      suffix: of the file.

    Returns:
      Its name and hash, for the record.
    """
    path = folder / f"model{suffix}"
    with files.replacing(path) as temporary:
        write(temporary)
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    for other in folder.glob("model.*"):
        if other != path:
            other.unlink()
    return {"file": path.name, "sha256": digest}
