"""Poisson sampling: DP-SGD, and banded strategies with cyclic Poisson sampling, by the PLD of dp-accounting."""

from __future__ import annotations

import math
from functools import lru_cache

from galton.baselines.figure import Figure, bands_of
from galton.baselines.peers import privacy_loss_distribution
from galton.baselines.search import least_noise
from galton.baselines.statement import Standing, Statement
from galton.errors import InvalidArgument, count, positive, probability
from galton.strategies.base import Strategy

STATEMENT = Statement(
    adjacency="add-or-remove",
    sampling="cyclic Poisson: W groups of examples in turn, each example of the group with probability W / bins",
    standing=Standing.UPPER_BOUND,
    source="dp-accounting PLD, connect-the-dots, pessimistic",
)
DPSGD_STATEMENT = Statement(
    adjacency="add-or-remove",
    sampling="Poisson: every example in every round with probability 1 / bins",
    standing=Standing.UPPER_BOUND,
    source="dp-accounting PLD, connect-the-dots, pessimistic",
)


def subsampled_delta(noise_multiplier: float, probability_of_use: float, steps: int, epsilon: float) -> float:
    """Returns an upper bound on delta of `steps` Poisson-subsampled Gaussian mechanisms of sensitivity 1.

    Formal guarantee: the discretised privacy loss distribution dominates the true one in both directions of
    add-or-remove adjacency (connect-the-dots), so that the value is not below the truth, up to float64 arithmetic.
    """
    positive("noise_multiplier", noise_multiplier)
    count("steps", steps)
    if not 0 < probability_of_use <= 1:
        raise InvalidArgument("probability_of_use", probability_of_use, "must be above 0 and at most 1")
    pld = privacy_loss_distribution().from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=probability_of_use,
        value_discretization_interval=loss_interval(probability_of_use, noise_multiplier),
        pessimistic_estimate=True,
        use_connect_dots=True,
    )
    return min(1.0, float(pld.self_compose(steps).get_delta_for_epsilon(epsilon)))


def loss_interval(probability_of_use: float, noise_multiplier: float) -> float:
    """Returns a grid of losses good to 1e-3 of the noise: 3% of the spread q sqrt(e^(1/s^2) - 1) of one step.

    The error of connected dots is of second order in the interval over the spread, whatever the number of steps.
    """
    spread = probability_of_use * math.sqrt(math.expm1(min(noise_multiplier**-2, 100.0)))
    return min(max(0.03 * spread, 1e-5), 1e-3)


def calibrate_poisson(strategy: Strategy, bins: int, epsilon: float, delta: float) -> Figure:
    """Returns the noise multiplier of a banded strategy with cyclic Poisson sampling (Choquette-Choo et al. 2023).

    Formal guarantee: (epsilon, delta)-DP under add-or-remove adjacency, if the examples are split beforehand into W
    groups (W: bands of C, at most `bins`), each example into any group, round t takes the group t mod W, and
    every example of it with probability W / bins, independently. Columns of C that are W or more apart have no row
    in common, so that the run is at most ceil(rounds / W) subsampled Gaussian mechanisms, each with a sensitivity of
    the largest column norm. With W = 1 this is DP-SGD.

    The multiplier is for sensitivity 1 over a run of fixed order: column multiplier * column norm / sensitivity.
    """
    strategy.check_bins(bins)
    positive("epsilon", epsilon)
    probability("delta", delta)
    bands = bands_of(strategy)
    if bands > bins:
        raise InvalidArgument("strategy", f"{bands} bands", f"must have at most as many bands as bins, {bins}")
    column = column_multiplier(bands / bins, -(-strategy.rounds // bands), float(epsilon), float(delta))
    ratio = strategy.column_norm() / strategy.sensitivity(bins) * (1 + 1e-12)
    return Figure(column * ratio, float(epsilon), float(delta), STATEMENT if bands > 1 else DPSGD_STATEMENT)


@lru_cache(maxsize=1024)
def column_multiplier(probability_of_use: float, steps: int, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier of one subsampled Gaussian step of sensitivity 1 for this many steps.

    >>> round(column_multiplier(0.01, 100, 1.0, 1e-5), 2)
    0.9
    """

    def at(noise_multiplier: float) -> float:
        return subsampled_delta(noise_multiplier, probability_of_use, steps, epsilon)

    return least_noise(at, delta, guess=1.0)
