"""Poisson sampling: DP-SGD, and banded strategies with cyclic Poisson sampling, by the PLD of dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from galton.accountants.attacks import Attack, period_of, unknown_coins
from galton.accountants.base import Accountant, Compared
from galton.accountants.curve import Curve, point_by_point
from galton.accountants.figure import Figure
from galton.accountants.peers import privacy_loss_distribution
from galton.accountants.search import least_noise
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.batching import Scheme
from galton.batching.laws import Coins, GroupCoins, Law
from galton.errors import InvalidArgument, count, positive
from galton.guarantee import Adjacency, Guarantee
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening


class CyclicPoisson(Accountant):
    """Banded strategies with cyclic Poisson sampling (Choquette-Choo et al. 2023).

    Formal guarantee: under add-or-remove adjacency, if the examples are split beforehand into W groups (W: bands of C,
    at most `bins`), each example into any group, round t takes the group t mod W, and every example of it with
    probability W / bins, independently. Columns of C that are W or more apart have no row in common, so that the
    run is at most ceil(rounds / W) subsampled Gaussian mechanisms, each with a sensitivity of the largest column norm.
    With W = 1 this is DP-SGD.
    """

    name: ClassVar[str] = "cyclic-poisson"
    default_strategy: ClassVar[str] = "bandmf"
    typical_bands: ClassVar[int] = 4
    compared: ClassVar[Compared] = Compared(
        batches="cyclic Poisson sampling", kinds=("bandmf", "banded"), candidates=("bandmf", "banded")
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="cyclic Poisson: W groups of examples in turn, each example of the group with probability W / bins",
        standing=Standing.UPPER_BOUND,
        source="dp-accounting PLD, connect-the-dots, pessimistic",
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, GroupCoins)

    def check(self, strategy: Strategy, scheme: Scheme, bins: int) -> None:
        check_groups(strategy, scheme, strategy.bands)
        super().check(strategy, scheme, bins)

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        """Returns the multiplier for sensitivity 1 over a run of fixed order: that of a column, scaled."""
        self.check_adjacency(guarantee.adjacency)
        strategy.check_bins(bins)
        bands, most = strategy.bands, self.most_bands(bins)
        if bands > most:
            raise InvalidArgument(
                "strategy", f"{bands} bands", f"must have at most {most} bands for {self.name} batches"
            )
        column = column_multiplier(bands / bins, -(-strategy.rounds // bands), guarantee.epsilon, guarantee.delta)
        ratio = strategy.column_norm() / strategy.sensitivity(bins) * (1 + 1e-12)
        statement = self.stated(guarantee)
        if bands == 1:
            statement = replace(statement, sampling=Poisson.statement.sampling)
        return Figure(column * ratio, guarantee, statement)

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        self.check_adjacency(adjacency)
        composed = _composed(run.column_multiplier, run.scheme.sampling_probability, _steps(run))
        return float(composed.get_epsilon_for_delta(delta))

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        self.check_adjacency(guarantee.adjacency)
        column, chance, steps = run.column_multiplier, run.scheme.sampling_probability, _steps(run)
        uppers = point_by_point(
            epsilons, lambda epsilon: subsampled_delta(column, chance, steps, epsilon), options.progress
        )
        words = "Upper bound at every ε, with certainty: privacy loss distribution of dp-accounting, pessimistic."
        return Curve(tuple(epsilons), uppers, (), words, guarantee.adjacency)

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return coin_attack(self, run, whitening)


class Poisson(CyclicPoisson):
    """DP-SGD as it is usually accounted: independent noise, Poisson sampling."""

    name: ClassVar[str] = "poisson"
    default_strategy: ClassVar[str] = "identity"
    typical_bands: ClassVar[int] = 1
    compared: ClassVar[Compared] = Compared(
        batches="Poisson sampling: DP-SGD as usually accounted", kinds=("dpsgd",), references=("dpsgd",)
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="Poisson: every example in every round with probability 1 / bins",
        standing=Standing.UPPER_BOUND,
        source="dp-accounting PLD, connect-the-dots, pessimistic",
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, Coins)

    def most_bands(self, bins: int) -> int:
        return 1


def _steps(run: Run) -> int:
    return -(-run.strategy.rounds // period_of(run.scheme))


def check_groups(strategy: Strategy, scheme: Scheme, groups: int) -> None:
    """Refuses groups of examples other than those that were analysed."""
    if scheme.period != groups:
        remedy = f"has {groups} bands, but there are {scheme.period} groups of examples; take cyclic-poisson batches"
        raise InvalidArgument("strategy", strategy.kind, remedy)


def coin_attack(accountant: Accountant, run: Run, whitening: Whitening) -> Attack:
    """Returns the attack on coins that are not known, where the rounds of a group are independent."""
    if run.strategy.bands > period_of(run.scheme):
        raise accountant.no_attack(run)
    return unknown_coins(run, whitening)


def subsampled_delta(noise_multiplier: float, probability_of_use: float, steps: int, epsilon: float) -> float:
    """Returns an upper bound on delta of `steps` Poisson-subsampled Gaussian mechanisms of sensitivity 1.

    Formal guarantee: the discretised privacy loss distribution dominates the true one in both directions of
    add-or-remove adjacency (connect-the-dots), so that the value is not below the truth, up to float64 arithmetic.
    """
    positive("noise_multiplier", noise_multiplier)
    count("steps", steps)
    if not 0 < probability_of_use <= 1:
        raise InvalidArgument("probability_of_use", probability_of_use, "must be above 0 and at most 1")
    return min(1.0, float(_composed(noise_multiplier, probability_of_use, steps).get_delta_for_epsilon(epsilon)))


def _composed(noise_multiplier: float, probability_of_use: float, steps: int) -> Any:
    """The privacy loss distribution of all steps together, pessimistic."""
    step = privacy_loss_distribution().from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=probability_of_use,
        value_discretization_interval=loss_interval(probability_of_use, noise_multiplier),
        pessimistic_estimate=True,
        use_connect_dots=True,
    )
    return step.self_compose(steps)


def loss_interval(probability_of_use: float, noise_multiplier: float) -> float:
    """Returns a grid of losses good to 1e-3 of the noise: 3% of the spread q sqrt(e^(1/s^2) - 1) of one step.

    The error of connected dots is of second order in the interval over the spread, whatever the number of steps.
    """
    spread = probability_of_use * math.sqrt(math.expm1(min(noise_multiplier**-2, 100.0)))
    return min(max(0.03 * spread, 1e-5), 1e-3)


@lru_cache(maxsize=1024)
def column_multiplier(probability_of_use: float, steps: int, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier of one subsampled Gaussian step of sensitivity 1 for this many steps.

    >>> round(column_multiplier(0.01, 100, 1.0, 1e-5), 2)
    0.9
    """

    def at(noise_multiplier: float) -> float:
        return subsampled_delta(noise_multiplier, probability_of_use, steps, epsilon)

    return least_noise(at, delta, guess=1.0)
