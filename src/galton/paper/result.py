"""The one shape of a result: rows, a few words, and the files they are written to."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galton import files
from galton.cache import Cache
from galton.sampling.schedule import Progress

Cell = str | int | float | None


@dataclass(frozen=True)
class Result:
    """What a figure or table of the paper came out as.

    Attributes:
      name: as on the command line.
      title: one line.
      columns: names of the columns, in order.
      rows: one dictionary a row.
      text: a short text of what it shows.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Cell], ...]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {"name": self.name, "title": self.title, "rows": list(self.rows), "text": self.text}


@dataclass(frozen=True)
class Recipe:
    """How a result is made, and about how long that takes on two cores."""

    name: str
    title: str
    minutes: float
    make: Callable[[Cache, Progress | None], Result]


def write_result(result: Result, folder: Path) -> list[Path]:
    """Writes NAME.csv and NAME.txt; returns their paths."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, result.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.rows)
    table, text = folder / f"{result.name}.csv", folder / f"{result.name}.txt"
    files.write_text(table, buffer.getvalue())
    files.write_text(text, f"{result.title}\n\n{result.text}\n")
    return [table, text]
