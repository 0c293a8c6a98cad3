"""C = T diag(w): a strategy with one positive weight per round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array
from galton.strategies.base import Strategy
from galton.strategies.blt import Blt
from galton.typechecking import typechecked
from galton.workloads import Training, Workload

if TYPE_CHECKING:
    from galton.strategies.modes import Modes
    from galton.strategies.streams import InverseStream


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class Scaled(Strategy):
    """C = T diag(w): column t of `inner` times weights[t]; round t of its noise stream is divided by weights[t].

    Args:
      inner: T, any square strategy.
      weights: w, a positive number per round.

    Example:
      >>> from galton import identity
      >>> Scaled(identity(2), [1.0, 3.0]).matrix()
      array([[1., 0.],
             [0., 3.]])
    """

    kind: ClassVar[str] = "scaled"
    inner: Strategy
    weights: FloatArray

    def __init__(self, inner: Strategy, weights: ArrayLike) -> None:
        values = array("weights", weights, 1)
        if inner.rows != inner.rounds:
            raise InvalidArgument("inner", inner.kind, "must be a square strategy")
        if values.shape != (inner.rounds,):
            raise InvalidArgument("weights", values.shape, f"must have one entry per round: shape ({inner.rounds},)")
        if not (values > 0).all():
            raise InvalidArgument("weights", float(values.min()), "must be positive")
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "weights", values)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Rounds of the run."""
        return self.inner.rounds

    @property
    def allow_negative(self) -> bool:  # type: ignore[override]
        """Whether C may have negative entries."""
        return self.inner.allow_negative

    @property
    def has_negative(self) -> bool:
        return self.inner.has_negative

    @property
    def bands(self) -> int:
        return self.inner.bands

    def columns(self, start: int, stop: int) -> FloatArray:
        return self.inner.columns(start, stop) * self.weights[start:stop]

    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        return self.inner.inverse_columns(start, stop) / self.weights[:, None]

    def row_errors(self, workload: Workload | None = None) -> FloatArray:
        """Returns the standard deviation of every entry of A C^-1 z for unit noise z.

        For a BLT round by round, from the covariance of its buffers: O(rounds buffers^2).

        Args:
          workload: A; default prefix sums.
        """
        workload = self.check_workload(workload)
        if not isinstance(self.inner, Blt) or not isinstance(workload, Training):
            return super().row_errors(workload)
        size, momentum = self.inner.buffers, workload.momentum
        rates = np.ones(self.rounds) if workload.learning_rates is None else np.asarray(workload.learning_rates)
        noise = np.concatenate((-self.inner.scale, np.zeros(2)))  # of the state: buffers, moving average, running sum
        step = np.diag(np.concatenate((self.inner.decay, [momentum, 1.0])))
        into, covariance = np.ones(size + 2), np.zeros((size + 2, size + 2))
        variances = np.empty(self.rounds)
        with np.errstate(all="ignore"):  # what overflows is refused below
            for index, (weight, rate) in enumerate(zip(self.weights, rates, strict=True)):
                into[size:] = 1 / weight, rate / weight
                step[size + 1, size] = rate * momentum
                moved = step + into[:, None] * noise
                covariance = moved @ covariance @ moved.T + into[:, None] * into
                variances[index] = covariance[-1, -1]
            errors = np.sqrt(variances)
        return self.check_errors(errors)

    def linear_modes(self, bins: int, weights: FloatArray | None = None) -> Modes | None:
        return self.inner.linear_modes(bins, self.weights if weights is None else self.weights * weights)

    def stream(self) -> InverseStream:
        from galton.strategies.streams import ScaledStream

        return ScaledStream(self.inner.stream(), self.weights)

    def _leading(self, rounds: int) -> Scaled:
        return Scaled(self.inner.prefix(rounds), self.weights[:rounds])

    def parameters(self) -> dict[str, Any]:
        return {"inner": self.inner.to_json(), "weights": self.weights.tolist()}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Scaled:
        inner = parameters["inner"]
        if inner.allow_negative is not parameters["allow_negative"]:
            raise InvalidArgument("inner", inner.allow_negative, "must agree with allow_negative outside")
        scaled = cls(inner, parameters["weights"])
        if scaled.rounds != rounds:
            raise InvalidArgument("rounds", rounds, f"must be those of the inner strategy, {scaled.rounds}")
        return scaled
