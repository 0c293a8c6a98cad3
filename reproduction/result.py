"""The one shape of a result: rows that take long, and a text and a picture that follow from them alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.points import Maker

Cell = str | int | float | None
Row = dict[str, Cell]
Rows = Sequence[Row]


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
    rows: tuple[Row, ...]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {"name": self.name, "title": self.title, "rows": list(self.rows), "text": self.text}


@dataclass(frozen=True)
class Further:
    """A row beyond the paper's, which can be computed by itself, after the others.

    Attributes:
      key: the cells that name it.
      make: computes it from the rows that are there and the key.
    """

    key: Row
    make: Callable[[Maker, Rows, Row], Row]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.key.items())

    def row(self, maker: Maker, rows: Rows) -> Row:
        """Computes it; `rows` are those of the paper, at least."""
        return self.make(maker, rows, self.key)

    def is_in(self, rows: Rows) -> bool:
        """Whether these rows hold it."""
        return any(all(row[name] == value for name, value in self.key.items()) for row in rows)


@dataclass(frozen=True)
class Recipe:
    """How a result is made.

    Attributes:
      name: as on the command line.
      title: one line.
      minutes: about how long it takes by itself on two idle cores.
      columns: names of the columns, in order.
      rows: computes the rows of the paper.
      text: what they show; a function of the rows alone, as is the picture.
      draw: the picture, a matplotlib figure.
      further: rows beyond the paper's, the cheapest first; the files may be without some of them.
    """

    name: str
    title: str
    minutes: float
    columns: tuple[str, ...]
    rows: Callable[[Maker], Rows]
    text: Callable[[Rows], str]
    draw: Callable[[Rows], Any]
    further: tuple[Further, ...] = ()

    def missing(self, rows: Rows) -> list[Further]:
        """Returns the rows beyond the paper's that these rows are without."""
        return [further for further in self.further if not further.is_in(rows)]

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that its code is in."""
        return tuple(sorted({part.__module__ for part in (self.rows, self.text, self.draw)}))

    def result(self, rows: Rows) -> Result:
        """Returns the result that these rows make."""
        return Result(self.name, self.title, self.columns, tuple(rows), self.text(rows))


def number(row: Row, column: str) -> float:
    """Returns a cell that must hold a number."""
    value = row[column]
    assert isinstance(value, int | float), f"{column} is {value!r}"
    return float(value)


def by_series(rows: Rows, column: str, across: str = "epsilon") -> dict[str, dict[float, float]]:
    """Returns the curves that rows hold: of every series, `column` over rising `across`; empty cells left out."""
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        curve = curves.setdefault(str(row["series"]), {})
        if row[column] is not None:
            curve[number(row, across)] = number(row, column)
    return {name: dict(sorted(curve.items())) for name, curve in curves.items()}


def listed(values: Sequence[float]) -> str:
    """Returns numbers as words: 'no epsilon', '1', '1 and 2', '1, 2 and 4'.

    >>> listed([0.5, 1, 2])
    '0.5, 1 and 2'
    """
    words = [f"{value:g}" for value in values]
    if len(words) < 2:
        return words[0] if words else "none"
    return ", ".join(words[:-1]) + " and " + words[-1]
