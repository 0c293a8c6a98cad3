"""The one shape of an accountant's answer: so much noise, and what that number is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from galton.baselines.statement import Statement
from galton.errors import InvalidArgument
from galton.strategies.base import Strategy


@dataclass(frozen=True)
class Figure:
    """A noise multiplier for (epsilon, delta), in the sensitivity-1 convention (docs/math.md, section 7).

    Noise of standard deviation noise_multiplier * strategy.sensitivity(bins) * clip norm is meant, whatever the
    sampling: figures of different mechanisms with one strategy compare directly.
    """

    noise_multiplier: float
    epsilon: float
    delta: float
    statement: Statement

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "statement": self.statement.to_json(),
        }


Accountant = Callable[[Strategy, int, float, float], Figure]
"""accountant(strategy, bins, epsilon, delta): the noise that this strategy needs."""


def bands_of(strategy: Strategy) -> int:
    """Returns the number of diagonals of C that are not zero, from the main one down."""
    if strategy.rows != strategy.rounds:
        raise InvalidArgument("strategy", strategy.kind, "has no bands: C is not square")
    known = getattr(strategy, "bands", None)
    if isinstance(known, int):
        return known
    most = 1
    for column in range(strategy.rounds):
        filled = strategy.columns(column, column + 1)[column:, 0].nonzero()[0]
        most = max(most, int(filled[-1]) + 1)
    return most


def check_identity(strategy: Strategy, what: str) -> None:
    """Refuses a strategy other than a multiple of the identity."""
    if strategy.rows == strategy.rounds and bands_of(strategy) == 1:
        diagonal = [float(strategy.columns(t, t + 1)[t, 0]) for t in range(strategy.rounds)]
        if max(diagonal) == min(diagonal):
            return
    raise InvalidArgument("strategy", strategy.kind, f"must be the identity: {what} is for independent noise")
