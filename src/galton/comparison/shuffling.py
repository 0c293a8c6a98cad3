"""Shuffling: no tight analysis exists. What is known is a lower bound, and that a fixed order is never better.

Nothing here is a privacy guarantee of a shuffled run except the unamplified figure.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from galton.accountants import Figure, Standing, Statement
from galton.accountants.search import least_noise
from galton.errors import FloatArray, InvalidArgument, count, non_negative, positive
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Guarantee
from galton.strategies import Strategy
from galton.strategies.toeplitz import check_identity

STATEMENT = Statement(
    adjacency=Adjacency.ZERO_OUT,
    sampling="shuffled once into batches of equal size, the same batches in every epoch",
    standing=Standing.LOWER_BOUND,
    source="Chua et al. 2024, tests by the largest output",
)


def shuffling_lower_bound(bins: int, noise_multiplier: float, epsilon: float) -> float:
    """Returns a LOWER bound on delta of shuffled batches with independent noise: the true delta is at least this.

    NOT a guarantee. All examples but one contribute -1, and the odd one +1 or, zeroed out, nothing. Shifted by the
    batch size, the outputs have a mean of 2 or 1 in the odd one's batch and 0 in all others:
    P = mean_t N(2 e_t, s^2 I), Q = mean_t N(e_t, s^2 I) (Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang, "How
    private are DP-SGD implementations?", 2024). delta is at least P(A) - e^eps Q(A) and Q(A) - e^eps P(A) for the
    events A that the largest output exceeds a level, or does not. With the same batches in E epochs the mean over
    epochs is sufficient: one epoch at s / sqrt(E), the sensitivity-1 multiplier that is asked for here.

    The unamplified Gaussian mechanism bounds delta of any order, and so of a random one, from above
    (`shuffling_bracket`).

    Args:
      bins: batches per epoch.
      noise_multiplier: for sensitivity 1 over the whole run.
      epsilon: where.

    Returns:
      A number from 0 to 1; no guarantee.
    """
    count("bins", bins)
    positive("noise_multiplier", noise_multiplier)
    non_negative("epsilon", epsilon)
    levels = np.linspace(-10 * noise_multiplier, 2 + 40 * noise_multiplier + 2 * epsilon * noise_multiplier**2, 20_001)
    with_one = _log_below(levels, 2.0, bins, noise_multiplier)
    without = _log_below(levels, 1.0, bins, noise_multiplier)
    factor = math.exp(min(epsilon, 700.0))
    above = -np.expm1(with_one) - factor * -np.expm1(without)
    below = np.exp(without) - factor * np.exp(with_one)
    return max(0.0, float(above.max()), float(below.max())) * (1 - 1e-9)


def _log_below(levels: FloatArray, mean: float, bins: int, noise_multiplier: float) -> FloatArray:
    """log Pr[no output exceeds the level] when one batch has this mean and the others 0."""
    others = (bins - 1) * log_ndtr(levels / noise_multiplier)
    return np.asarray(log_ndtr((levels - mean) / noise_multiplier) + others)


def shuffling_bracket(bins: int, noise_multiplier: float, epsilon: float) -> tuple[float, float]:
    """Returns a lower bound on delta of shuffled batches, and the upper bound of a fixed order (a guarantee).

    The upper end holds since H of a mixture over orders, the same on both sides, is at most the largest H of an order.

    Args:
      bins: batches per epoch.
      noise_multiplier: for sensitivity 1 over the whole run.
      epsilon: where.

    Returns:
      The lower and the upper bound.
    """
    return shuffling_lower_bound(bins, noise_multiplier, epsilon), gaussian_delta(epsilon, 1 / noise_multiplier)


def calibrate_shuffling(strategy: Strategy, bins: int, guarantee: Guarantee) -> Figure:
    """Returns a noise multiplier that shuffled DP-SGD needs AT LEAST. NOT a guarantee: the truth may need more.

    Every multiplier below the one returned has a delta above the target, provably.

    Args:
      strategy: C, which must be the identity.
      bins: batches per epoch.
      guarantee: the claim, with its adjacency.

    Returns:
      The multiplier: with less noise the claim is false, with this much nothing is known.
    """
    check_identity(strategy, "the lower bound for shuffling")
    strategy.check_bins(bins)
    if strategy.rounds % bins:
        raise InvalidArgument("rounds", strategy.rounds, f"must be whole epochs of {bins} batches")
    epsilon, delta = guarantee.epsilon, guarantee.delta
    multiplier = least_noise(lambda level: shuffling_lower_bound(bins, level, epsilon), delta, guess=1.0)
    return Figure(multiplier * (1 - 3e-4), guarantee, STATEMENT)
