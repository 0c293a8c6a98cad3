"""What is left of a plan's guarantee if the batches become known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galton.fields import Fields
from galton.gaussian import gaussian_delta, gaussian_epsilon
from galton.guarantee import Guarantee, no_less
from galton.plan.versions import LEAK_FIELDS, VERSION

if TYPE_CHECKING:
    from galton.plan.plan import Plan


@dataclass(frozen=True)
class Leak:
    """The guarantee that remains if the batches become known: that of the same noise in a run of known order.

    They are two statements, not one pair: each holds with the other number of the plan.

    Attributes:
      epsilon_at_delta: epsilon at the plan's delta; None if truncation leaves nothing to claim there.
      delta_at_epsilon: delta at the plan's epsilon.
    """

    epsilon_at_delta: float | None
    delta_at_epsilon: float

    def claim(self, guarantee: Guarantee) -> str:
        """Returns in words what remains of a guarantee.

        Args:
          guarantee: the plan's.

        Returns:
          The statement at the plan's delta; at its epsilon, if there is none at its delta.
        """
        if self.epsilon_at_delta is None:
            return f"({no_less(guarantee.epsilon)}, {no_less(self.delta_at_epsilon, 4)})-DP"
        return f"({no_less(self.epsilon_at_delta, 4)}, {no_less(guarantee.delta)})-DP"

    def to_json(self, version: int = VERSION) -> dict[str, Any]:
        """Returns a JSON-ready dictionary.

        Args:
          version: of the plan's file.

        Returns:
          Its two numbers, by the names of that version.
        """
        return dict(zip(LEAK_FIELDS[version], (self.epsilon_at_delta, self.delta_at_epsilon), strict=True))

    @classmethod
    def from_json(cls, value: dict[str, Any], version: int = VERSION) -> Leak:
        """Rebuilds it from a plan.

        Args:
          value: what `to_json` returns, with a statement in words.
          version: of the plan's file.

        Returns:
          What remains.
        """
        epsilon, delta = LEAK_FIELDS[version]
        names = {"epsilon_at_delta": (epsilon,), "delta_at_epsilon": (delta,)}
        body = Fields("if_batches_leak", value, cls, names, derived=("statement",))
        return cls(body.real_or_none(epsilon, 0.0), body.real(delta, 0.0, 1.0))


def leaked(plan: Plan, runs: int = 1) -> Leak:
    """Returns what the plan's noise guarantees if the batches are known, truncation included (docs/math.md, 14.3).

    Several runs, forked from each other, share batches and the noise of their first rounds (docs/math.md, 12.4).
    """
    mu, lost = leaked_mu(plan) * math.sqrt(runs), displaced(plan)
    delta = min(1.0, (1 - lost) * gaussian_delta(plan.guarantee.epsilon, mu) * (1 + 1e-9) + lost)
    return Leak(epsilon_if_known(plan, plan.guarantee.delta, runs), delta)


def epsilon_if_known(plan: Plan, delta: float, runs: int = 1) -> float | None:
    """Returns an epsilon of a run at a delta if it is known who was in which batch.

    Formal guarantee: docs/math.md, section 14.3, and 12.4 for several runs.

    Args:
      plan: the plan.
      delta: where.
      runs: how many runs of the plan were forked from each other, this one among them.

    Returns:
      The epsilon; None where truncation costs all of delta.
    """
    lost = displaced(plan)
    room = (delta - lost) / (1 - lost) if lost < 1 else 0.0
    return gaussian_epsilon(room * (1 - 1e-9), leaked_mu(plan) * math.sqrt(runs)) if room > 0 else None


def displaced(plan: Plan) -> float:
    """Probability that truncation makes another mechanism of the run; it does not where neighbours have one size."""
    return 0.0 if plan.guarantee.adjacency.equal_sizes else plan.truncation.displacement


def leaked_mu(plan: Plan) -> float:
    """Returns the mean shift of the Gaussian mechanism that is left if the batches are known, truncation aside."""
    return plan.run.mu_if_known(plan.guarantee.adjacency)
