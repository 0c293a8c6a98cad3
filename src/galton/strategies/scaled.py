"""C = T diag(w): a strategy with one positive weight per round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

if TYPE_CHECKING:
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

    def stream(self) -> InverseStream:
        from galton.strategies.streams import ScaledStream

        return ScaledStream(self.inner.stream(), self.weights)

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
