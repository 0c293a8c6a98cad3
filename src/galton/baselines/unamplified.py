"""No amplification: every example at rounds known beforehand. The Gaussian mechanism, in closed form."""

from __future__ import annotations

from galton.baselines.figure import Figure
from galton.baselines.statement import Standing, Statement
from galton.errors import positive, probability
from galton.gaussian import gaussian_mu
from galton.strategies.base import Strategy

STATEMENT = Statement(
    adjacency="add-or-remove",
    sampling="any fixed order: an example in rounds i, i + bins, i + 2 bins, ... for some i",
    standing=Standing.EXACT,
    source="Gaussian mechanism in closed form, rounded up by 1e-9",
)


def calibrate_unamplified(strategy: Strategy, bins: int, epsilon: float, delta: float) -> Figure:
    """Returns the noise multiplier of a run whose order is known: 1 / mu of the Gaussian mechanism.

    Formal guarantee: (epsilon, delta)-DP under add-or-remove adjacency, for per-example contributions of norm at most
    1, any C, and every example in the rounds i, i + bins, ... of one i, chosen in any way (the order of the data
    will do). Exact: the pair N(m_i, sigma^2 I) against N(0, sigma^2 I) is reached for the largest |m_i|.
    """
    strategy.check_bins(bins)
    positive("epsilon", epsilon)
    probability("delta", delta)
    return Figure((1 + 1e-9) / gaussian_mu(epsilon, delta), float(epsilon), float(delta), STATEMENT)
