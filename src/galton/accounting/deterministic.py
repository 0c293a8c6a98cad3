"""Bounds that need no sampling: for brackets, sanity checks and fallbacks (docs/math.md, sections 3 to 5)."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.errors import non_negative, probability
from galton.gaussian import gaussian_delta, gaussian_epsilon, unamplified_multiplier
from galton.guarantee import Adjacency, Direction, Guarantee, as_guarantee
from galton.pair import DominatingPair
from galton.sampling.toolkits import toolkit_for
from galton.typechecking import typechecked

SMALLEST = 1e-300
"""Bounds that underflow are rounded up to this."""


@typechecked
def delta_upper_bound(pair: DominatingPair, epsilon: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE) -> float:
    """Returns a deterministic upper bound on delta for any C, in milliseconds and with no randomness.

    Formal guarantee: delta(epsilon) of the pair is at most this, with certainty. The bound is the smaller of the
    unamplified Gaussian mechanism's delta and the range R_t of the tilted sampler (mixture-first, replace) or a
    Gaussian bound by Jensen's inequality (noise-first). For C = I it is a sum of likelihoods on a grid, and sharp; for
    few bands also such a sum over every p-th bin (docs/math.md, section 18.4).

    Args:
      pair: the mechanism with its noise multiplier.
      epsilon: where to bound delta.
      adjacency: which data sets are neighbours.

    Returns:
      The bound; usually larger than the upper limit that `delta` gives by sampling.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> round(delta_upper_bound(pair, epsilon=1.0), 4)
      0.0041
    """
    non_negative("epsilon", epsilon)
    return max(direction_upper_bound(pair, direction, epsilon) for direction in Adjacency(adjacency).directions)


def direction_upper_bound(pair: DominatingPair, direction: Direction, epsilon: float) -> float:
    """Returns the deterministic upper bound on delta in one direction."""
    toolkit = toolkit_for(pair)
    mu = toolkit.unamplified_mu(pair) * direction.sides
    unamplified = min(1.0, gaussian_delta(epsilon, mu) * (1 + 1e-7))
    if unamplified <= SMALLEST:  # other bounds may take half a minute, for 10,000 redrawn epochs
        return SMALLEST
    return max(min(unamplified, toolkit.ceiling(pair, direction, epsilon)), SMALLEST)


def direction_lower_bound(pair: DominatingPair, direction: Direction, epsilon: float) -> float:
    """Returns a deterministic lower bound on the pair's delta: all entries of G lowered to the least (section 5)."""
    return gaussian_delta(epsilon, direction.sides * pair.mu_lower) * (1 - 1e-7)


def direction_bracket(
    pair: DominatingPair, direction: Direction, epsilon: float, sharp: bool = True
) -> tuple[float, float]:
    """Returns a lower and an upper bound on delta in one direction; `sharp` ones, in a second, where they exist."""
    lower, upper = direction_lower_bound(pair, direction, epsilon), direction_upper_bound(pair, direction, epsilon)
    close = toolkit_for(pair).bracket(pair, direction, epsilon) if sharp else None
    return (lower, upper) if close is None else (max(lower, close[0]), min(upper, max(close[1], SMALLEST)))


@typechecked
def epsilon_upper_bound(pair: DominatingPair, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE) -> float:
    """Returns a deterministic upper bound on epsilon at this delta, with no sampling.

    Formal guarantee: delta of the pair at the epsilon returned is at most `delta`, with certainty, by
    `delta_upper_bound`.

    Args:
      pair: the mechanism with its noise multiplier.
      delta: where to bound epsilon.
      adjacency: which data sets are neighbours.

    Returns:
      An epsilon that exceeds the least for which `delta_upper_bound` is at most delta by no more than 0.1% of the
      epsilon without amplification.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> round(epsilon_upper_bound(pair, delta=1e-3), 2)
      1.23
    """
    probability("delta", delta)
    high = gaussian_epsilon(delta, pair.mu_upper * Adjacency(adjacency).sides) * (1 + 1e-9)
    return _bisect_least(lambda epsilon: delta_upper_bound(pair, epsilon, adjacency) <= delta, 0.0, high, 1e-3 * high)


@typechecked
def multiplier_upper_bound(pair: DominatingPair, epsilon: float | Guarantee, delta: float | None = None) -> float:
    """Returns a noise multiplier that is enough for a guarantee, with certainty and with no sampling.

    Formal guarantee: the pair with this noise multiplier meets the guarantee, with certainty, by
    `delta_upper_bound`.

    Args:
      pair: the mechanism; its own noise multiplier is ignored.
      epsilon: a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: delta of the guarantee; omit it if `epsilon` is a `Guarantee`.

    Returns:
      A multiplier within 3% of the least for which `delta_upper_bound` proves the guarantee. `calibrate` finds a
      smaller one by sampling.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4)
      >>> round(multiplier_upper_bound(pair, epsilon=2.0, delta=1e-3), 2)
      1.35
    """
    guarantee = as_guarantee(epsilon, delta)
    high = math.log(unamplified_multiplier(guarantee) * pair.at(1.0).mu_upper) + 1e-8

    def enough(log_multiplier: float) -> bool:
        candidate = pair.at(math.exp(log_multiplier))
        return delta_upper_bound(candidate, guarantee.epsilon, guarantee.adjacency) <= guarantee.delta

    low = high - 0.7
    while enough(low) and low > high - 20:
        low, high = low - 0.7, low
    return math.exp(_bisect_least(enough, low, high, 0.03))


def _bisect_least(enough: Callable[[float], bool], low: float, high: float, width: float) -> float:
    """Bisects a monotone condition that holds at `high`; returns a point where it holds."""
    if enough(low):
        return low
    while high - low > width:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
