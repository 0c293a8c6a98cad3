"""Buffered linear Toeplitz (BLT) strategies: c_0 = 1, c_t = sum_i scale_i * decay_i^(t-1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, array, count_rounds, sign_allowed
from galton.strategies.toeplitz import ToeplitzLike
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.strategies.streams import InverseStream


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class Blt(ToeplitzLike):
    """A Toeplitz C whose noise stream needs only one model-sized buffer per decay (docs/math.md, section 7).

    Args:
      rounds: rounds of the run.
      decay: theta_i, distinct, strictly between 0 and 1.
      scale: omega_i, positive.
      allow_negative: whether negative scales and any finite decays are accepted, as the inverse of a BLT has.

    Example:
      >>> strategy = Blt(4, decay=[0.5], scale=[0.4])
      >>> strategy.buffers, strategy.series.tolist()
      (1, [1.0, 0.4, 0.2, 0.1])
    """

    kind: ClassVar[str] = "blt"
    rounds: int
    decay: FloatArray
    scale: FloatArray
    allow_negative: bool = False

    def __init__(self, rounds: int, decay: ArrayLike, scale: ArrayLike, allow_negative: bool = False) -> None:
        theta, omega = array("decay", decay, 1), array("scale", scale, 1)
        rounds = count_rounds(rounds)
        if omega.shape != theta.shape:
            raise InvalidArgument(
                "scale", omega.shape, f"must have one entry per buffer, like decay: shape {theta.shape}"
            )
        if theta.size > rounds:
            raise InvalidArgument("decay", theta.size, f"must have at most one buffer per round, {rounds}")
        sign_allowed("scale", omega, allow_negative)
        if not allow_negative:
            outside = ~((theta > 0) & (theta < 1))
            if outside.any():
                raise InvalidArgument("decay", float(theta[outside][0]), "must lie strictly between 0 and 1")
        if np.unique(theta).size != theta.size:
            raise InvalidArgument("decay", theta.tolist(), "must be distinct")
        if not omega.all():
            raise InvalidArgument("scale", 0.0, "must not be zero: drop that buffer")
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "decay", theta)
        object.__setattr__(self, "scale", omega)
        object.__setattr__(self, "allow_negative", allow_negative)

    @property
    def buffers(self) -> int:
        """Number of model-sized buffers the noise stream keeps."""
        return self.decay.size

    @cached_property
    def series(self) -> FloatArray:
        powers = np.arange(self.rounds - 1)
        tail = (self.scale[:, None] * self.decay[:, None] ** powers[None, :]).sum(axis=0)
        return np.concatenate(([1.0], tail))

    @cached_property
    def inverse_series(self) -> FloatArray:
        return self.inverse_blt().series if (self.scale > 0).all() else self._inverted_series()

    def inverse_blt(self) -> Blt:
        """Returns C^-1, again a BLT, from the spectrum of diag(decay) - 1 scale^T, which moves the stream's state."""
        if (self.scale > 0).all():
            root = np.sqrt(self.scale)
            decay, vectors = np.linalg.eigh(np.diag(self.decay) - np.outer(root, root))
            scale = -np.square(root @ vectors)
        else:
            decay, right = np.linalg.eig(np.diag(self.decay) - np.outer(np.ones(self.buffers), self.scale))
            scale = -(self.scale @ right) * np.linalg.solve(right, np.ones(self.buffers))
            if np.abs(decay.imag).max() > 0:
                raise InvalidArgument("scale", self.scale.tolist(), "the inverse has complex decays: not a real BLT")
        return Blt(self.rounds, decay.real, scale.real, allow_negative=True)

    def stream(self) -> InverseStream:
        from galton.strategies.streams import BufferStream

        return BufferStream(self.rounds, self.decay, self.scale)

    def _leading(self, rounds: int) -> Blt:
        return Blt(rounds, self.decay, self.scale, self.allow_negative)

    def parameters(self) -> dict[str, Any]:
        return {"decay": self.decay.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Blt:
        return cls(rounds, **parameters)
