"""The Gaussian mechanism in closed form: the unamplified reference, and a bracket for everything else."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

from galton.errors import extended, non_negative, positive, probability
from galton.guarantee import Guarantee
from galton.typechecking import typechecked

_SMALL = 0.5
"""Below this mu delta is computed as an integral, not as a difference."""
_UNDERFLOW = -40.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@typechecked
def gaussian_delta(epsilon: float, mu: float) -> float:
    """Returns the exact delta of N(mu, 1) against N(0, 1): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    With R = Phi / phi, and e^eps phi(-mu/2 - eps/mu) = phi(mu/2 - eps/mu), delta is phi(a) (R(a) - R(a - mu)) at
    a = mu/2 - eps/mu, in which e^eps does not appear. For small mu the two terms cancel; their difference is then the
    integral of R' = 1 + x R, which is positive, by quadrature.

    Args:
      epsilon: where; may be negative or infinite.
      mu: how far apart the means are, at least 0.

    Returns:
      delta, right to about 1e-11 of itself.

    Example:
      >>> round(gaussian_delta(1.0, 1.0), 6)
      0.126937
    """
    epsilon = extended("epsilon", epsilon)
    if non_negative("mu", mu) == 0 or math.isinf(epsilon):
        return -math.expm1(min(epsilon, 0.0)) if not math.isinf(epsilon) else float(epsilon < 0)
    if epsilon < 0:  # the other side of the same trade-off
        return -math.expm1(epsilon) + math.exp(epsilon) * gaussian_delta(-epsilon, mu)
    if epsilon == 0:
        return math.erf(mu / math.sqrt(8))
    inside, outside = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if inside < _UNDERFLOW:
        return 0.0
    if mu < _SMALL:
        points = (inside + outside) / 2 + mu / 2 * _NODES
        slopes = 1 + points * math.sqrt(math.pi / 2) * erfcx(-points / math.sqrt(2))
        return math.exp(-inside * inside / 2) / math.sqrt(2 * math.pi) * mu * float(slopes @ _WEIGHTS) / 2
    density = math.exp(-inside * inside / 2) / math.sqrt(2 * math.pi)
    if inside > 0:
        return float(ndtr(inside)) - density * _mills(outside)
    return density * (_mills(inside) - _mills(outside))


def _mills(x: float) -> float:
    """Phi(x) / phi(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(-x / math.sqrt(2)))


@typechecked
def gaussian_epsilon(delta: float, mu: float) -> float:
    """Returns the smallest epsilon >= 0 at which the Gaussian mechanism with this mu has this delta.

    Args:
      delta: strictly between 0 and 1.
      mu: how far apart the means are, above 0.

    Returns:
      epsilon, to a relative 1e-12.

    Example:
      >>> round(gaussian_epsilon(1e-5, 1.0), 4)
      4.3772
    """
    probability("delta", delta)
    positive("mu", mu)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = mu * mu / 2 + mu
    while gaussian_delta(high, mu) > delta:
        high *= 2
    return float(brentq(lambda x: gaussian_delta(x, mu) - delta, 0.0, high, xtol=1e-300, rtol=1e-12, maxiter=1000))


@typechecked
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Returns the largest mu that is (epsilon, delta)-DP; its inverse is the unamplified noise multiplier.

    Args:
      epsilon: at least 0.
      delta: strictly between 0 and 1.

    Returns:
      mu, to a relative 1e-12.

    Example:
      >>> round(1 / gaussian_mu(1.0, 1e-5), 4)
      3.7306
    """
    non_negative("epsilon", epsilon)
    probability("delta", delta)
    low = high = 1.0
    while gaussian_delta(epsilon, low) > delta:
        low /= 2
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    return float(brentq(lambda x: gaussian_delta(epsilon, x) - delta, low, high, xtol=1e-300, rtol=1e-12, maxiter=1000))


def unamplified_multiplier(guarantee: Guarantee) -> float:
    """Returns the exact sensitivity-1 noise multiplier of a run without amplification.

    Args:
      guarantee: what the run has to give.

    Returns:
      The multiplier: 1 / mu, twice that under replace adjacency.

    Example:
      >>> round(unamplified_multiplier(Guarantee(1.0, 1e-5)), 4)
      3.7306
    """
    return guarantee.sides / gaussian_mu(guarantee.epsilon, guarantee.delta)
