"""Balls-in-bins with C = I, by the exact numerical accountant of random allocation (package PLD_accounting)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from galton.accountants.attacks import Attack
from galton.accountants.balls_in_bins import BallsInBins
from galton.accountants.base import Accountant, Compared
from galton.accountants.curve import Curve
from galton.accountants.figure import Figure
from galton.accountants.peers import random_allocation
from galton.accountants.search import least_noise
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.batching import Scheme
from galton.batching.laws import Law, RandomBin
from galton.errors import FloatArray, InvalidArgument, count, positive
from galton.gaussian import gaussian_mu
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.strategies import Strategy
from galton.strategies.toeplitz import check_identity
from galton.strategies.whitening import Whitening

_TRUNCATION = 1e-12


def allocation_delta(
    bins: int,
    noise_multiplier: float,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
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
    asked = Adjacency(adjacency).directions
    if not set(asked) <= Accountant.bounded:
        raise InvalidArgument("adjacency", str(adjacency), "must be add-or-remove, add or remove for random allocation")
    step = interval or max(0.002, 0.01 * min(1.0, epsilon) / max(noise_multiplier, 0.3))
    return max(_direction_delta(bins, noise_multiplier, epsilon, direction, upper, step) for direction in asked)


def _direction_delta(
    bins: int, noise_multiplier: float, epsilon: float, direction: Direction, upper: bool, interval: float
) -> float:
    peer = random_allocation()
    losses = peer.gaussian_allocation_directional_pld(
        params=peer.PrivacyParams(sigma=noise_multiplier, num_steps=bins),
        config=peer.AllocationSchemeConfig(
            loss_discretization=interval,
            tail_truncation=_TRUNCATION,
            convolution_method=peer.ConvolutionMethod.GEOM,
        ),
        direction=peer.Direction.REMOVE if direction is Direction.MIXTURE_FIRST else peer.Direction.ADD,
        bound_type=peer.BoundType.DOMINATES if upper else peer.BoundType.IS_DOMINATED,
    )
    values = -np.expm1(np.minimum(epsilon - np.asarray(losses.x_array), 0.0))
    return min(1.0, float(np.asarray(losses.prob_arr) @ values + losses.p_max))


def _check_run(strategy: Strategy, bins: int) -> None:
    """Refuses what random allocation does not describe."""
    check_identity(strategy, "random allocation")
    strategy.check_bins(bins)
    if strategy.rounds % bins:
        raise InvalidArgument("rounds", strategy.rounds, f"must be whole epochs of {bins} batches")


class Allocation(Accountant):
    """Balls-in-bins with independent noise, by PLD_accounting; its curve is the sampled one of the same batches.

    Formal guarantee: that of `allocation_delta`, for whole epochs and C = I.
    """

    name: ClassVar[str] = "allocation"
    default_strategy: ClassVar[str] = "identity"
    compared: ClassVar[Compared] = Compared(
        batches="balls-in-bins batches by another exact accountant (package PLD_accounting)",
        kinds=("dpsgd",),
        slow=True,
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling=BallsInBins.statement.sampling,
        standing=Standing.EXACT,
        source="random allocation by PLD_accounting, rounded up",
    )
    _sampled: ClassVar[Accountant] = BallsInBins()

    def covers(self, law: Law) -> bool:
        return isinstance(law, RandomBin)

    def most_bands(self, bins: int) -> int:
        return 1

    def check(self, strategy: Strategy, scheme: Scheme, bins: int) -> None:
        _check_run(strategy, bins)
        super().check(strategy, scheme, bins)

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        """Returns a multiplier that is rounded up by at most 0.1% plus the grid's error.

        The noise-first direction is below the mixture-first one here but is checked too, once, at the result.
        """
        self.check_adjacency(guarantee.adjacency)
        _check_run(strategy, bins)
        epsilon, delta = guarantee.epsilon, guarantee.delta
        guess = 0.3 / gaussian_mu(epsilon, delta) + 0.25
        multiplier = least_noise(
            lambda level: allocation_delta(bins, level, epsilon, Adjacency.REMOVE), delta, guess, width=1e-3
        )
        if allocation_delta(bins, multiplier, epsilon, Adjacency.ADD) > delta:
            multiplier = least_noise(
                lambda level: allocation_delta(bins, level, epsilon), delta, multiplier, width=1e-3
            )
        return Figure(multiplier, guarantee, self.stated(guarantee))

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        self.check_adjacency(claim.adjacency)
        _check_run(run.strategy, run.bins)
        return allocation_delta(run.bins, run.noise_multiplier, claim.epsilon, claim.adjacency)

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        return self._sampled.epsilon(run, delta, adjacency, options)

    def places(self, run: Run, deltas: Sequence[float], adjacency: Adjacency, options: Options) -> list[float]:
        return self._sampled.places(run, deltas, adjacency, options)

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        return self._sampled.curve(run, guarantee, epsilons, options)

    def gram(self, run: Run) -> FloatArray | None:
        return self._sampled.gram(run)

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return self._sampled.attack(run, adjacency, whitening)
