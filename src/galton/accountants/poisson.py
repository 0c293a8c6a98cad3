"""Poisson sampling: DP-SGD, and banded strategies with cyclic Poisson sampling, by composed privacy losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import ClassVar

from galton.accountants.attacks import Attack, period_of, unknown_coins
from galton.accountants.base import Accountant, Compared
from galton.accountants.composition import subsampled_step
from galton.accountants.curve import Curve, point_by_point
from galton.accountants.figure import Figure
from galton.accountants.losses import Aim, GaussianLoss, Loss, loss_interval
from galton.accountants.search import WIDTH, least_noise
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.batching import Scheme
from galton.batching.laws import Coins, GroupCoins, Law
from galton.convolution import GridTooLarge
from galton.errors import InvalidArgument, count, non_negative, positive
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Guarantee
from galton.loss_grids import Composition
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

_LARGEST_EPSILON, _LEAST_EPSILON = 1e5, 1e-9
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
"""Noise multipliers beyond which the trivial bounds, 1 and that without amplification, are taken."""
_COARSER = 12
"""How often the grid may be made twice as coarse, which only raises the bound, until it fits."""
_SEARCH_GRIDS = (64.0, 16.0, 4.0, 1.0)
"""Grids, in multiples of `loss_interval`, on which a noise level is searched for, one after the other."""


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
        source="privacy loss distribution, connect-the-dots, rounding bounded",
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
        claim = guarantee.epsilon, guarantee.delta, guarantee.adjacency
        if bands > most:
            raise InvalidArgument(
                "strategy", f"{bands} bands", f"must have at most {most} bands for {self.name} batches"
            )
        column = column_multiplier(bands / bins, -(-strategy.rounds // bands), *claim)
        ratio = strategy.column_norm() / strategy.sensitivity(bins) * (1 + 1e-12)
        statement = self.stated(guarantee)
        if bands == 1:
            statement = replace(statement, sampling=Poisson.statement.sampling)
        return Figure(column * ratio, guarantee, statement)

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        chance = run.scheme.sampling_probability
        return subsampled_delta(run.column_multiplier, chance, _steps(run), claim.epsilon, claim.adjacency)

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        self.check_adjacency(adjacency)
        chance = run.scheme.sampling_probability
        return subsampled_epsilon(run.column_multiplier, chance, _steps(run), delta, adjacency)

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        self.check_adjacency(guarantee.adjacency)
        column, chance, steps = run.column_multiplier, run.scheme.sampling_probability, _steps(run)
        uppers = point_by_point(
            epsilons,
            lambda epsilon: subsampled_delta(column, chance, steps, epsilon, guarantee.adjacency),
            options.progress,
        )
        words = "Upper bound at every ε, with certainty: composed privacy loss distribution, rounding included."
        return Curve(tuple(epsilons), uppers, (), words, guarantee.adjacency)

    def loss(self, run: Run, aim: Aim) -> Loss:
        """Returns the losses of all steps, which compose without a loss."""
        return GaussianLoss(run.column_multiplier, run.scheme.sampling_probability, _steps(run))

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
        source="privacy loss distribution, connect-the-dots, rounding bounded",
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


def subsampled_delta(
    noise_multiplier: float,
    probability_of_use: float,
    steps: int,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    coarseness: float = 1.0,
) -> float:
    """Returns an upper bound on delta of `steps` Poisson-subsampled Gaussian mechanisms of sensitivity 1.

    Formal guarantee: not below the truth at any delta, rounding included: every step is dominated by one on a grid of
    losses, and their composition adds what the FFT's rounding can hide (docs/mechanisms.md).

    Args:
      noise_multiplier: standard deviation of the noise of one step.
      probability_of_use: that an example is in the batch of a step.
      steps: number of steps.
      epsilon: where.
      adjacency: add-or-remove, add, remove or zero-out.
      coarseness: multiple of `loss_interval` on which losses are put; the bound holds for every one.

    Returns:
      A number from 0 to 1.

    Example:
      >>> round(subsampled_delta(1.0, 0.01, 1000, 1.0), 5)
      0.00261
    """
    positive("noise_multiplier", noise_multiplier)
    count("steps", steps, at_most=10**9)
    non_negative("epsilon", epsilon)
    if not 0 < probability_of_use <= 1:
        raise InvalidArgument("probability_of_use", probability_of_use, "must be above 0 and at most 1")
    Poisson().check_adjacency(Adjacency(adjacency))
    if noise_multiplier < _LEAST_NOISE:
        return 1.0
    unamplified = min(1.0, gaussian_delta(epsilon, math.sqrt(steps) / noise_multiplier) * (1 + 1e-9))
    if probability_of_use == 1 or noise_multiplier > _MOST_NOISE:  # nothing is left to chance, or nothing to gain
        return unamplified
    interval = coarseness * loss_interval(probability_of_use, noise_multiplier, epsilon)
    step = partial(subsampled_step, noise_multiplier, probability_of_use)
    for coarser in range(_COARSER):
        try:
            return min(
                unamplified,
                max(
                    Composition([(step(direction, interval * 2**coarser), steps)]).delta(epsilon)
                    for direction in Adjacency(adjacency).directions
                ),
            )
        except GridTooLarge:
            continue
    return unamplified


def subsampled_epsilon(
    noise_multiplier: float, probability_of_use: float, steps: int, delta: float, adjacency: Adjacency
) -> float:
    """Returns an epsilon, within 0.1% of the least, at which `subsampled_delta` is at most delta."""

    def enough(epsilon: float) -> bool:
        return subsampled_delta(noise_multiplier, probability_of_use, steps, epsilon, adjacency) <= delta

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _LARGEST_EPSILON:
            return math.inf
    while high - low > 1e-3 * high and high > _LEAST_EPSILON:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def column_multiplier(
    probability_of_use: float, steps: int, epsilon: float, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
) -> float:
    """Returns the noise multiplier of one subsampled Gaussian step of sensitivity 1 for this many steps.

    It is found on a coarse grid first, then on grids four times as fine, each from the level before. All give upper
    bounds. Since what a grid costs is of second order in its interval, the grid before costs 16 times as much: where
    that leaves less than the width of the search to gain, no finer grid is tried.

    >>> round(column_multiplier(0.01, 100, 1.0, 1e-5), 2)
    0.9
    """

    def on_grid(coarseness: float, noise_multiplier: float) -> float:
        return subsampled_delta(noise_multiplier, probability_of_use, steps, epsilon, adjacency, coarseness)

    level = least_noise(partial(on_grid, _SEARCH_GRIDS[0]), delta, guess=1.0)
    for coarseness in _SEARCH_GRIDS[1:]:
        before, level = level, min(level, least_noise(partial(on_grid, coarseness), delta, guess=level, step=0.01))
        if before / level - 1 < 15 * WIDTH / 2:
            break
    return level
