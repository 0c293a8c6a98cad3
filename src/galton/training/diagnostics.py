"""Figures about single rounds that help to debug training and are NOT private: they stay in the run's folder.

Mean loss, norms of gradients and the share of clipped ones are computed from the data without any noise. Nothing in the
plan's guarantee covers them. They are written only if asked for, to a file that says so by its name, readable by its
owner only, and `galton release` leaves it behind. Do not publish them, and do not choose by them what to publish.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from galton import files
from galton.errors import InvalidFile

FILE = "NOT-PRIVATE-diagnostics.jsonl"


@dataclass(frozen=True)
class Diagnostics:
    """What was seen of a round before any noise was added. It is not private: see this module.

    Attributes:
      round: the round, counted from 0.
      examples: number of examples (or users) in its batch.
      mean_loss: over them; None for an empty batch.
      mean_norm: of their gradients before clipping.
      clipped_fraction: share of the examples whose gradients were made shorter.
      aux: means of what else the loss returned, by name.

    Example:
      >>> seen = Diagnostics.of_sums(7, 200, {"loss": 300.0, "norm": 500.0, "clipped": 150.0, "accuracy": 90.0})
      >>> seen.mean_loss, seen.clipped_fraction, seen.aux
      (1.5, 0.75, {'accuracy': 0.45})
    """

    round: int
    examples: int
    mean_loss: float | None
    mean_norm: float | None
    clipped_fraction: float | None
    aux: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_sums(cls, turn: int, examples: int, sums: Mapping[str, float]) -> Diagnostics:
        """Returns the figures of a round from sums over its examples.

        Args:
          turn: the round.
          examples: their number.
          sums: of losses, norms and clipped examples by the names `loss`, `norm` and `clipped`; all others are aux.

        Returns:
          The figures.
        """
        means = {name: value / examples for name, value in sums.items()} if examples else {}
        own = (means.pop("loss", None), means.pop("norm", None), means.pop("clipped", None))
        return cls(turn, examples, *own, means)


Receiver = Callable[[Diagnostics], None]
"""What `diagnostics=` may be instead of True: called with the figures of every round."""


def keep_diagnostics(folder: Path, diagnostics: Diagnostics) -> None:
    """Appends the figures of a round to the file of a run; one line each, and the last about a round counts.

    Args:
      folder: of the run.
      diagnostics: the figures.
    """
    path = folder / FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(files.canonical({"private": False, **asdict(diagnostics)}) + "\n")
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be written ({error.strerror})") from None
