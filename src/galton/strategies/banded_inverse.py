"""Strategies whose inverse is banded: each round adds up the last few z, so that noise needs no buffers at all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, count, count_rounds, probability, sign_allowed
from galton.strategies.toeplitz import ToeplitzLike, first_column
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.strategies.streams import InverseStream


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class BandedInverse(ToeplitzLike):
    """A Toeplitz C given by the few coefficients of its inverse: x_t = r_0 z_t + r_1 z_(t-1) + ... + r_(W-1) z_(t-W+1).

    C itself has as many bands as rounds. It is non-negative where r_1, r_2, ... are not positive, for then
    c_t = (|r_1| c_(t-1) + ... + |r_(W-1)| c_(t-W+1)) / r_0 adds up non-negative numbers.

    Args:
      rounds: rounds of the run.
      coefficients: r_0, r_1, ..., at most one per round; the others are zero. The first is positive.
      allow_negative: whether a C with negative entries is accepted.

    Example:
      >>> strategy = BandedInverse(4, [1.0, -0.5])
      >>> strategy.series.tolist(), strategy.stream().memory
      ([1.0, 0.5, 0.25, 0.125], 1)
    """

    kind: ClassVar[str] = "banded-inverse"
    rounds: int
    coefficients: FloatArray
    allow_negative: bool = False

    def __init__(self, rounds: int, coefficients: ArrayLike, allow_negative: bool = False) -> None:
        values = first_column(rounds, coefficients)
        object.__setattr__(self, "rounds", count_rounds(rounds))
        object.__setattr__(self, "coefficients", values)
        object.__setattr__(self, "allow_negative", allow_negative)
        if not np.isfinite(self.series).all():
            raise InvalidArgument("coefficients", values.tolist(), "make a C that is too large for float64")
        sign_allowed("C", self.series, allow_negative)

    @cached_property
    def series(self) -> FloatArray:
        from scipy.signal import lfilter

        impulse = np.zeros(self.rounds)
        impulse[0] = 1.0
        with np.errstate(all="ignore"):  # what overflows is refused
            return np.asarray(lfilter([1.0], self.coefficients, impulse))

    @cached_property
    def inverse_series(self) -> FloatArray:
        return np.pad(self.coefficients, (0, self.rounds - self.coefficients.size))

    @property
    def bands(self) -> int:
        return int(self.series.nonzero()[0][-1]) + 1

    def stream(self) -> InverseStream:
        from galton.strategies.streams import FilterStream

        return FilterStream(self.rounds, self.coefficients)

    def _leading(self, rounds: int) -> BandedInverse:
        return BandedInverse(rounds, self.coefficients[:rounds], self.allow_negative)

    def parameters(self) -> dict[str, Any]:
        return {"coefficients": self.coefficients.tolist()}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> BandedInverse:
        return cls(rounds, **parameters)


@typechecked
def banded_inverse_root(rounds: int, bands: int, power: float = 0.5) -> BandedInverse:
    """Returns the strategy whose inverse has the first `bands` coefficients of (1 - x)^power.

    Power 1/2 is the banded inverse square root (BISR; Kalinin, McKenna, Upadhyay and Lampert, 2025), the same with any
    power a banded inverse fractional root (gamma-BIFR). With all bands, C is the power of the prefix sums.

    Args:
      rounds: rounds of the run.
      bands: coefficients of the inverse.
      power: gamma, between 0 (independent noise) and 1 (C is the prefix sums).

    Returns:
      The strategy.

    Example:
      >>> banded_inverse_root(rounds=8, bands=3).coefficients
      array([ 1.   , -0.5  , -0.125])
    """
    kept, gamma = count("bands", bands, at_most=count_rounds(rounds)), probability("power", power)
    steps = np.arange(1, kept)
    return BandedInverse(rounds, np.concatenate(([1.0], np.cumprod((steps - 1 - gamma) / steps))))


@typechecked
def lambda_cgd(rounds: int, decay: float) -> BandedInverse:
    """Returns the strategy of DP-lambda-CGD: every round takes back a share of the noise before it.

    Args:
      rounds: rounds of the run.
      decay: lambda, between 0 (independent noise) and 1.

    Returns:
      The strategy; C has the coefficients 1, decay, decay^2 and so on.

    Example:
      >>> lambda_cgd(rounds=4, decay=0.5).series.tolist()
      [1.0, 0.5, 0.25, 0.125]
    """
    share = probability("decay", decay)
    return BandedInverse(rounds, [1.0, -share] if count_rounds(rounds) > 1 else [1.0])
