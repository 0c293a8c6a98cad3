"""Banded strategies whose coefficients differ from column to column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array, count, sign_allowed
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.strategies.modes import Modes
    from galton.strategies.streams import InverseStream


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class ColumnBanded(Strategy):
    """A banded C with coefficients of its own in every column: C[t + k, t] = coefficients[k, t] for k < W.

    Args:
      coefficients: shape (W, rounds), the diagonal first; entries that would fall below the last row must be zero.
      allow_negative: whether negative entries are accepted.

    Example:
      >>> ColumnBanded([[1.0, 1.0, 1.0], [0.5, 0.25, 0.0]]).matrix()
      array([[1.  , 0.  , 0.  ],
             [0.5 , 1.  , 0.  ],
             [0.  , 0.25, 1.  ]])
    """

    kind: ClassVar[str] = "banded"
    coefficients: FloatArray
    allow_negative: bool = False

    def __init__(self, coefficients: ArrayLike, allow_negative: bool = False) -> None:
        values = array("coefficients", coefficients, 2)
        bands, rounds = values.shape
        if bands > rounds:
            raise InvalidArgument("coefficients", bands, f"must have at most as many bands as rounds, {rounds}")
        sign_allowed("coefficients", values, allow_negative)
        if not (values[0] > 0).all():
            column = int(np.argmin(values[0] > 0))
            raise InvalidArgument(
                f"coefficients[0, {column}]", float(values[0, column]), "the diagonal must be positive"
            )
        if (values * ~_inside_matrix(bands, rounds)).any():
            raise InvalidArgument("coefficients", values.shape, "entries below the last row of C must be zero")
        object.__setattr__(self, "coefficients", values)
        object.__setattr__(self, "allow_negative", allow_negative)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Rounds of the run."""
        return self.coefficients.shape[1]

    @property
    def bands(self) -> int:
        """Number of non-zero diagonals."""
        return self.coefficients.shape[0]

    @property
    def has_negative(self) -> bool:
        return bool((self.coefficients < 0).any())

    def column_normalized(self) -> ColumnBanded:
        """Returns the strategy with every column scaled to norm 1, as in BandMF."""
        return ColumnBanded(self.coefficients / np.linalg.norm(self.coefficients, axis=0), self.allow_negative)

    def columns(self, start: int, stop: int) -> FloatArray:
        result = np.zeros((self.rounds, stop - start))
        for column in range(start, stop):
            kept = min(self.bands, self.rounds - column)
            result[column : column + kept, column - start] = self.coefficients[:kept, column]
        return result

    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        from scipy.linalg import LinAlgError, solve_banded

        units = np.zeros((self.rounds, stop - start))
        units[np.arange(start, stop), np.arange(stop - start)] = 1.0
        try:
            return np.asarray(solve_banded((self.bands - 1, 0), self.coefficients, units))
        except LinAlgError:  # pivots vanished
            raise self.nearly_singular() from None

    def column_norm(self) -> float:
        return float(np.linalg.norm(self.coefficients, axis=0).max())

    def linear_modes(self, bins: int, weights: FloatArray | None = None) -> Modes:
        from galton.strategies.modes import BandedModes

        columns = np.abs(self.coefficients)
        return BandedModes(columns if weights is None else columns * weights, self.check_bins(bins))

    def stream(self) -> InverseStream:
        from galton.strategies.streams import WindowStream

        rows = np.zeros((self.rounds, self.bands))
        for lag in range(self.bands):
            rows[lag:, lag] = self.coefficients[lag, : self.rounds - lag]
        return WindowStream(self.rounds, rows)

    def _leading(self, rounds: int) -> ColumnBanded:
        kept = self.coefficients[: min(rounds, self.bands), :rounds].copy()
        for band in range(1, kept.shape[0]):
            kept[band, rounds - band :] = 0.0  # below the last row
        return ColumnBanded(kept, self.allow_negative)

    def parameters(self) -> dict[str, Any]:
        return {"coefficients": self.coefficients.tolist()}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> ColumnBanded:
        strategy = cls(**parameters)
        if strategy.rounds != rounds:
            raise InvalidArgument("rounds", rounds, f"must be the number of columns, {strategy.rounds}")
        return strategy


@typechecked
def column_banded(strategy: Strategy, bands: int) -> ColumnBanded:
    """Returns the first `bands` diagonals of a square strategy, with every column scaled to norm 1.

    Args:
      strategy: any square strategy.
      bands: diagonals to keep.

    Returns:
      The banded strategy.

    Example:
      >>> from galton import square_root
      >>> strategy = column_banded(square_root(16), bands=4)
      >>> strategy.bands, round(strategy.column_norm(), 6)
      (4, 1.0)
    """
    rounds = strategy.rounds
    count("bands", bands, at_most=rounds)
    if strategy.rows != rounds:
        raise InvalidArgument("strategy", strategy.kind, "must be square")
    kept = np.zeros((bands, rounds))
    for column in range(rounds):
        size = min(bands, rounds - column)
        kept[:size, column] = strategy.columns(column, column + 1)[column : column + size, 0]
    return ColumnBanded(kept, strategy.allow_negative).column_normalized()


def _inside_matrix(bands: int, rounds: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.arange(bands)[:, None] + np.arange(rounds)[None, :] < rounds
