"""Balls-in-bins with C = I, by the exact numerical accountant of random allocation (package PLD_accounting)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from galton.baselines.figure import Figure, check_identity
from galton.baselines.peers import random_allocation
from galton.baselines.search import least_noise
from galton.baselines.statement import Standing, Statement
from galton.errors import InvalidArgument, count, positive, probability
from galton.gaussian import gaussian_mu
from galton.pair import Direction, directions
from galton.strategies.base import Strategy

STATEMENT = Statement(
    adjacency="add-or-remove",
    sampling="balls-in-bins: one batch in each epoch, the same in all epochs, uniformly and independently",
    standing=Standing.EXACT,
    source="random allocation by PLD_accounting, rounded up",
)
_TRUNCATION = 1e-12


def allocation_delta(
    bins: int,
    noise_multiplier: float,
    epsilon: float,
    adjacency: str = "add-or-remove",
    upper: bool = True,
    interval: float | None = None,
) -> float:
    """Returns delta of balls-in-bins with independent noise, rounded up (or down: `upper` false), by PLD_accounting.

    Formal guarantee: with `upper`, not below the truth up to float64 arithmetic and truncation of 1e-12. E epochs at a
    per-round multiplier s are one epoch at s / sqrt(E), the sensitivity-1 multiplier that is asked for here.

    Args:
      bins: batches per epoch.
      noise_multiplier: sensitivity-1 noise multiplier.
      epsilon: where.
      adjacency: add-or-remove, add or remove.
      upper: rounding up, or down for a bracket.
      interval: grid of losses; None takes one that is good to about 1% of delta at a few seconds.
    """
    count("bins", bins, at_least=2)
    positive("noise_multiplier", noise_multiplier)
    positive("epsilon", epsilon)
    asked = directions(adjacency)
    if Direction.REPLACE in asked:
        raise InvalidArgument("adjacency", adjacency, "must be add-or-remove, add or remove for random allocation")
    step = interval or max(0.002, 0.01 * min(1.0, epsilon) / max(noise_multiplier, 0.3))
    return max(_direction_delta(bins, noise_multiplier, epsilon, one, upper, step) for one in asked)


def _direction_delta(
    bins: int, noise_multiplier: float, epsilon: float, direction: Direction, upper: bool, interval: float
) -> float:
    peer = random_allocation()
    found = peer.gaussian_allocation_directional_pld(
        params=peer.PrivacyParams(sigma=noise_multiplier, num_steps=bins),
        config=peer.AllocationSchemeConfig(
            loss_discretization=interval,
            tail_truncation=_TRUNCATION,
            convolution_method=peer.ConvolutionMethod.GEOM,
        ),
        direction=peer.Direction.REMOVE if direction is Direction.MIXTURE_FIRST else peer.Direction.ADD,
        bound_type=peer.BoundType.DOMINATES if upper else peer.BoundType.IS_DOMINATED,
    )
    values = -np.expm1(np.minimum(epsilon - np.asarray(found.x_array), 0.0))
    return min(1.0, float(np.asarray(found.prob_arr) @ values + found.p_max))


def calibrate_allocation(
    strategy: Strategy, bins: int, epsilon: float, delta: float, interval: float | None = None
) -> Figure:
    """Returns the noise multiplier of balls-in-bins with independent noise, rounded up by at most 0.1% plus the grid's.

    The noise-first direction is below the mixture-first one here but is checked too, once, at the result.
    """
    check_identity(strategy, "random allocation")
    strategy.check_bins(bins)
    if strategy.rounds % bins:
        raise InvalidArgument("rounds", strategy.rounds, f"must be whole epochs of {bins} batches")
    positive("epsilon", epsilon)
    probability("delta", delta)

    def at(adjacency: str) -> Callable[[float], float]:
        return lambda level: allocation_delta(bins, level, epsilon, adjacency, interval=interval)

    guess = 0.3 / gaussian_mu(epsilon, delta) + 0.25
    multiplier = least_noise(at("remove"), delta, guess, width=1e-3)
    if at("add")(multiplier) > delta:
        multiplier = least_noise(at("add-or-remove"), delta, multiplier, width=1e-3)
    return Figure(multiplier, float(epsilon), float(delta), STATEMENT)
