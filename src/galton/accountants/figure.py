"""The one shape of an accountant's answer: so much noise, and what that number is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from galton.accountants.statement import Statement
from galton.guarantee import Guarantee


@dataclass(frozen=True)
class Figure:
    """A noise multiplier for a guarantee, in the sensitivity-1 convention (docs/math.md, section 7).

    Noise of standard deviation noise_multiplier * strategy.sensitivity(bins) * clip norm is meant, whatever the
    sampling: figures of different mechanisms with one strategy compare directly.

    Attributes:
      noise_multiplier: for C scaled to sensitivity 1 over a run of fixed order.
      guarantee: what that much noise gives.
      statement: what the figure is worth.
    """

    noise_multiplier: float
    guarantee: Guarantee
    statement: Statement

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "statement": self.statement.to_json(),
        }
