"""What somebody who sees all that a run releases can do at most: the numbers that privacy officers compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtr, ndtri

from galton.accountants import Curve
from galton.gaussian import gaussian_delta
from galton.plan import Plan
from galton.plan.leak import displaced, epsilon_if_known, leaked_mu
from galton.report.curves import DELTAS

RATES = (0.001, 0.01, 0.1)
"""False-positive rates at which the power of the best test is stated."""


@dataclass(frozen=True)
class Risk:
    """Upper limits for a run of a plan, for batches that are secret or for batches that are known.

    Attributes:
      advantage: true-positive rate minus false-positive rate of any test: the total variation distance.
      true_positive_rates: of any test, at the false-positive rates `RATES`.
      epsilons: at `DELTAS`; None where there is nothing to claim.
      mu: no test does better than the best of N(mu, 1) against N(0, 1) by more than `mu_delta`; None if not known.
      mu_delta: by how much a test may do better.
      rho: `rho_delta`-approximate rho-zCDP, which is rho-zCDP if `rho_delta` is 0; None if not known.
      rho_delta: probability that is left out of it.
    """

    advantage: float
    true_positive_rates: tuple[float, ...]
    epsilons: tuple[float | None, ...]
    mu: float | None
    mu_delta: float
    rho: float | None
    rho_delta: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "advantage_upper": self.advantage,
            "true_positive_rates": [
                {"false_positive_rate": rate, "true_positive_rate": limit}
                for rate, limit in zip(RATES, self.true_positive_rates, strict=True)
            ],
            "epsilon_at": [
                {"delta": delta, "epsilon": epsilon} for delta, epsilon in zip(DELTAS, self.epsilons, strict=True)
            ],
            "gdp": {"mu": self.mu, "but_for": self.mu_delta if self.mu is not None else None},
            "zcdp": {"rho": self.rho, "but_for": self.rho_delta if self.rho is not None else None},
        }


def risk_if_known(plan: Plan) -> Risk:
    """Returns the risk if it is known who was in which batch: a Gaussian mechanism, in closed form.

    Formal guarantee: docs/math.md, section 14.3. With certainty, and for secret batches too.

    Args:
      plan: the plan.

    Returns:
      The limits.
    """
    mu, lost = leaked_mu(plan), displaced(plan)
    return Risk(
        advantage=min(1.0, (1 - lost) * gaussian_delta(0.0, mu) * (1 + 1e-9) + lost),
        true_positive_rates=tuple(_power(rate, mu, lost) for rate in RATES),
        epsilons=tuple(epsilon_if_known(plan, delta) for delta in DELTAS),
        mu=mu,
        mu_delta=lost,
        rho=mu * mu / 2,
        rho_delta=lost,
    )


def risk_if_secret(plan: Plan, curve: Curve) -> Risk:
    """Returns the risk if the batches stay secret, by the plan's privacy curve.

    Formal guarantee: if the limits of the curve hold (`curve.words` says how surely), so do these (docs/math.md,
    section 14). rho is that of known batches: no smaller one holds at all orders.

    Args:
      plan: the plan.
      curve: its privacy curve.

    Returns:
      The limits; none is above that for known batches.
    """
    known = risk_if_known(plan)
    return smaller(risk_of_curve(curve, known.rho, known.rho_delta), known)


def smaller(secret: Risk, known: Risk) -> Risk:
    """Returns the risk of secret batches, none of whose limits is above that for known ones.

    Args:
      secret: limits for secret batches.
      known: limits for known batches, which hold for secret ones too.

    Returns:
      The smaller limits; rho is that of `secret`.
    """
    least = known if known.mu is not None and (secret.mu is None or secret.mu >= known.mu) else secret
    rates = zip(secret.true_positive_rates, known.true_positive_rates, strict=True)
    epsilons = zip(secret.epsilons, known.epsilons, strict=True)
    return Risk(
        advantage=min(secret.advantage, known.advantage),
        true_positive_rates=tuple(min(both) for both in rates),
        epsilons=tuple(_least(*both) for both in epsilons),
        mu=least.mu,
        mu_delta=least.mu_delta,
        rho=secret.rho,
        rho_delta=secret.rho_delta,
    )


def risk_of_curve(curve: Curve, rho: float | None, rho_delta: float) -> Risk:
    """Returns the risk that a curve leaves, whatever it is the curve of.

    Formal guarantee: if the limits of the curve hold, so do these (docs/math.md, sections 14.1 and 14.2).

    Args:
      curve: upper limits on delta, from epsilon 0 on.
      rho: of zCDP.
      rho_delta: what is left out of it.

    Returns:
      The limits.
    """
    mu = curve.dominating_mu()
    return Risk(
        advantage=curve.advantage,
        true_positive_rates=tuple(curve.hits(rate) for rate in RATES),
        epsilons=tuple(curve.epsilon(delta) for delta in DELTAS),
        mu=mu,
        mu_delta=curve.uppers[-1],
        rho=rho,
        rho_delta=rho_delta,
    )


def _power(rate: float, mu: float, lost: float) -> float:
    """The largest true-positive rate if, but for events of probability `lost`, the test is of N(mu, 1)."""
    if rate >= 1 - lost:
        return 1.0
    return min(1.0, (1 - lost) * float(ndtr(ndtri(rate / (1 - lost)) + mu)) * (1 + 1e-9) + lost)


def _least(first: float | None, second: float | None) -> float | None:
    values = [value for value in (first, second) if value is not None and math.isfinite(value)]
    return min(values, default=None)
