"""Strategies given entry by entry: any lower-triangular C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array, sign_allowed
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.strategies.streams import InverseStream


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class Dense(Strategy):
    """Any lower-triangular C with a positive diagonal, given entry by entry.

    Args:
      entries: C, of shape (rounds, rounds).
      allow_negative: whether negative entries are accepted.

    Example:
      >>> Dense([[1.0, 0.0], [0.5, 1.0]]).bands
      2
    """

    kind: ClassVar[str] = "dense"
    entries: FloatArray
    allow_negative: bool = False

    def __init__(self, entries: ArrayLike, allow_negative: bool = False) -> None:
        values = array("C", entries, 2)
        if values.shape[0] != values.shape[1]:
            raise InvalidArgument("C", values.shape, "must be square (this is its shape)")
        above = np.argwhere(np.triu(values, 1))
        if above.size:
            row, column = (int(i) for i in above[0])
            raise InvalidArgument(f"C[{row}, {column}]", float(values[row, column]), "must be 0: C is lower-triangular")
        sign_allowed("C", values, allow_negative)
        if not (values.diagonal() > 0).all():
            row = int(np.argmin(values.diagonal() > 0))
            raise InvalidArgument(f"C[{row}, {row}]", float(values[row, row]), "the diagonal must be positive")
        object.__setattr__(self, "entries", values)
        object.__setattr__(self, "allow_negative", allow_negative)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Rounds of the run."""
        return self.entries.shape[0]

    @property
    def has_negative(self) -> bool:
        return bool((self.entries < 0).any())

    def columns(self, start: int, stop: int) -> FloatArray:
        return self.entries[:, start:stop]

    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.entries, np.eye(self.rounds)[:, start:stop], lower=True))

    def stream(self) -> InverseStream:
        from galton.strategies.streams import WindowStream

        rows = np.zeros((self.rounds, self.rounds))
        for row in range(self.rounds):
            rows[row, : row + 1] = self.entries[row, row::-1]
        return WindowStream(self.rounds, rows)

    def _leading(self, rounds: int) -> Dense:
        return Dense(self.entries[:rounds, :rounds], self.allow_negative)

    def parameters(self) -> dict[str, Any]:
        return {"rows": [self.entries[row, : row + 1].tolist() for row in range(self.rounds)]}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Dense:
        rows = parameters["rows"]
        if len(rows) != rounds or any(len(row) != index + 1 for index, row in enumerate(rows)):
            raise InvalidArgument("rows", len(rows), f"must be {rounds} rows, row t with t+1 entries")
        entries = np.zeros((rounds, rounds))
        for index, row in enumerate(rows):
            entries[index, : index + 1] = row
        return cls(entries, parameters["allow_negative"])
