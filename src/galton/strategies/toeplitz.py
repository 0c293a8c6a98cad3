"""Toeplitz strategies: identity, square root, any coefficients, banded or full."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array, count, count_rounds, sign_allowed
from galton.strategies.base import Strategy
from galton.typechecking import typechecked
from galton.workloads import Workload

if TYPE_CHECKING:
    from galton.strategies.modes import Modes
    from galton.strategies.streams import InverseStream


class ToeplitzLike(Strategy):
    """C[t, s] = c[t - s]: everything that follows from the coefficients alone."""

    @property
    @abstractmethod
    def series(self) -> FloatArray:
        """Coefficients c_0, c_1, ... of C; those not listed are zero."""

    @property
    def full_series(self) -> FloatArray:
        """All `rounds` coefficients, zeros included."""
        return np.pad(self.series, (0, self.rounds - self.series.size))

    @property
    def has_negative(self) -> bool:
        return bool((self.series < 0).any())

    @cached_property
    def inverse_series(self) -> FloatArray:
        """Coefficients of C^-1, which is lower-triangular Toeplitz too."""
        return self._inverted_series()

    def _inverted_series(self) -> FloatArray:
        from scipy.signal import lfilter

        impulse = np.zeros(self.rounds)
        impulse[0] = 1.0
        return np.asarray(lfilter([1.0], self.series, impulse))

    def columns(self, start: int, stop: int) -> FloatArray:
        return _shifted_columns(self.full_series, start, stop)

    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        return _shifted_columns(self.inverse_series, start, stop)

    def first_mode(self, bins: int) -> FloatArray:
        """Returns the mode of bin 0: s[t] = |c[t]| + s[t - bins]. The mode of bin i is s shifted down by i.

        Args:
          bins: batches per epoch.
        """
        mode = np.abs(self.full_series)
        for start in range(bins, self.rounds, bins):
            stop = min(start + bins, self.rounds)
            mode[start:stop] += mode[start - bins : stop - bins]
        return mode

    def modes(self, bins: int) -> FloatArray:
        return _shifted_columns(self.first_mode(self.check_bins(bins)), 0, bins)

    def gram(self, bins: int) -> FloatArray:
        """O(n * bins) time and O(n + bins^2) memory: G[i, i+l] = sum_{u < n-i-l} s[u] s[u+l].

        Args:
          bins: batches per epoch.

        Returns:
          The Gram matrix of the modes, of shape (bins, bins), for noise of standard deviation 1.
        """
        mode = self.first_mode(self.check_bins(bins))
        common = self.rounds - bins + 1
        result = np.empty((bins, bins))
        for lag in range(bins):
            tail = mode[common : self.rounds - lag] * mode[common + lag :]
            sums = np.cumsum(np.concatenate(([mode[:common] @ mode[lag : lag + common]], tail)))
            upper = np.arange(bins - lag)
            result[upper, upper + lag] = result[upper + lag, upper] = sums[::-1]
        return result

    def linear_modes(self, bins: int, weights: FloatArray | None = None) -> Modes:
        from galton.strategies.modes import ShiftedModes

        if weights is None:
            return ShiftedModes(self.first_mode(self.check_bins(bins)), np.ones((1, bins)))
        padded = np.pad(weights, (0, -self.rounds % self.check_bins(bins)))
        return ShiftedModes(np.abs(self.full_series), padded.reshape(-1, bins))

    def sensitivity(self, bins: int) -> float:
        return float(np.linalg.norm(self.first_mode(self.check_bins(bins))))

    def column_norm(self) -> float:
        return float(np.linalg.norm(self.series))

    def row_errors(self, workload: Workload | None = None) -> FloatArray:
        workload = self.check_workload(workload)
        if not workload.is_toeplitz:
            return super().row_errors(workload)
        with np.errstate(all="ignore"):  # what overflows is refused
            first = workload.apply(self.inverse_series[:, None])[:, 0]
            errors = np.sqrt(np.cumsum(np.square(first)))
        return self.check_errors(errors)


def first_column(rounds: int, coefficients: ArrayLike) -> FloatArray:
    """Returns the coefficients of a lower-triangular Toeplitz matrix that can be inverted, at most one per round."""
    values = array("coefficients", coefficients, 1)
    rounds = count_rounds(rounds)
    if values.size > rounds:
        raise InvalidArgument("coefficients", values.size, f"must be at most one per round, {rounds}")
    if not values[0] > 0:
        raise InvalidArgument("coefficients[0]", float(values[0]), "the diagonal must be positive")
    return values


def _shifted_columns(series: FloatArray, start: int, stop: int) -> FloatArray:
    """Columns start..stop of the lower-triangular Toeplitz matrix with this first column (a view, no copy)."""
    size = series.size
    padded = np.concatenate((np.zeros(size), series))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)
    return windows[size - stop + 1 : size - start + 1][::-1].T


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(ToeplitzLike):
    """A Toeplitz C with the given coefficients; fewer coefficients than rounds make it banded.

    Args:
      rounds: rounds of the run.
      coefficients: the first column of C, at most one number per round; the others are zero. The first is positive.
      allow_negative: whether negative coefficients are accepted.

    Example:
      >>> Toeplitz(4, [1.0, 0.5]).matrix()[:, 0]
      array([1. , 0.5, 0. , 0. ])
    """

    kind: ClassVar[str] = "toeplitz"
    rounds: int
    coefficients: FloatArray
    allow_negative: bool = False

    def __init__(self, rounds: int, coefficients: ArrayLike, allow_negative: bool = False) -> None:
        values = first_column(rounds, coefficients)
        sign_allowed("coefficients", values, allow_negative)
        object.__setattr__(self, "rounds", count_rounds(rounds))
        object.__setattr__(self, "coefficients", values)
        object.__setattr__(self, "allow_negative", allow_negative)

    @property
    def series(self) -> FloatArray:
        return self.coefficients

    @property
    def bands(self) -> int:
        """Number of coefficients."""
        return self.coefficients.size

    def stream(self) -> InverseStream:
        from galton.strategies.streams import WindowStream

        return WindowStream(self.rounds, self.coefficients[None, :])

    def _leading(self, rounds: int) -> Toeplitz:
        return Toeplitz(rounds, self.coefficients[:rounds], self.allow_negative)

    def parameters(self) -> dict[str, Any]:
        return {"coefficients": self.coefficients.tolist()}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Toeplitz:
        return cls(rounds, **parameters)


@typechecked
def identity(rounds: int) -> Toeplitz:
    """Returns C = I: independent noise in every round, as in DP-SGD.

    Args:
      rounds: rounds of the run.

    Returns:
      The strategy.

    Example:
      >>> identity(3).matrix().tolist()
      [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return Toeplitz(rounds, [1.0])


@typechecked
def square_root(rounds: int, bands: int | None = None) -> Toeplitz:
    """Returns the Toeplitz square root of the prefix-sum matrix, or its first `bands` bands.

    Its coefficients are c_k = binom(2k, k) / 4^k, those of (1 - x)^(-1/2).

    Args:
      rounds: rounds of the run.
      bands: coefficients to keep; default all.

    Returns:
      The strategy.

    Example:
      >>> square_root(rounds=8, bands=3).coefficients
      array([1.   , 0.5  , 0.375])
    """
    rounds = count_rounds(rounds)
    kept = rounds if bands is None else count("bands", bands, at_most=rounds)
    steps = np.arange(1, kept)
    return Toeplitz(rounds, np.concatenate(([1.0], np.cumprod((2 * steps - 1) / (2 * steps)))))


def check_identity(strategy: Strategy, what: str) -> None:
    """Refuses a strategy that is not a multiple of the identity, for an analysis of independent noise."""
    if strategy.rows == strategy.rounds and strategy.bands == 1:
        diagonal = [float(strategy.columns(t, t + 1)[t, 0]) for t in range(strategy.rounds)]
        if max(diagonal) == min(diagonal):
            return
    raise InvalidArgument("strategy", strategy.kind, f"must be the identity: {what} is for independent noise")
