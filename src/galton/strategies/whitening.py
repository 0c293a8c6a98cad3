"""Whitening: how an observer of all noisy sums turns the correlated noise back into independent noise."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.strategies import Strategy

BLOCK = 256
MOST_ROUNDS = 1 << 15
MOST_DENSE = 1 << 12


class Whitening:
    """A matrix R with R B B^T R^T = I, for noise B z. Where C is square, B = C^-1 and R = C.

    Where C has more rows than rounds (a tree), only B z is released, and R is the inverse of the Cholesky factor
    of B B^T: the best that can be done with what is observed.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.rounds = strategy, strategy.rounds
        most = MOST_ROUNDS if strategy.rows == strategy.rounds else MOST_DENSE
        if self.rounds > most:
            raise InvalidArgument(
                "rounds", self.rounds, f"must be at most {most} for an audit of {strategy.kind} noise"
            )

    @cached_property
    def _dense(self) -> FloatArray:
        decoder = self.strategy.inverse()
        return np.asarray(np.linalg.inv(np.linalg.cholesky(decoder @ decoder.T)))

    def columns(self, start: int, stop: int) -> FloatArray:
        """Returns R[:, start:stop]."""
        if self.strategy.rows == self.rounds:
            return self.strategy.columns(start, stop)
        return self._dense[:, start:stop]

    def apply(self, x: Any) -> FloatArray:
        """Returns R x, for x with one row per round."""
        spans = [slice(start, min(start + BLOCK, self.rounds)) for start in range(0, self.rounds, BLOCK)]
        return np.asarray(sum(self.columns(span.start, span.stop) @ x[span] for span in spans))

    def adjoint(self, y: FloatArray) -> FloatArray:
        """Returns R^T y."""
        spans = [(start, min(start + BLOCK, self.rounds)) for start in range(0, self.rounds, BLOCK)]
        return np.concatenate([self.columns(*span).T @ y for span in spans])
