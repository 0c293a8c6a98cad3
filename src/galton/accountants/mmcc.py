"""MMCC: conditional composition for any non-negative C under Poisson sampling (docs/mechanisms.md).

Choquette-Choo, Ganesh, Steinke and Thakurta, "Privacy amplification for matrix mechanisms", ICLR 2024. Row i of C x + z
given the rows before it is a Gaussian with a random shift sum_j C[i,j] x_j, where x_j are the participations given
the past. Unless the past is unusually telling, which has a small probability, the shift is stochastically at most
sum_j C[i,j] Bernoulli(p_ij) with inflated independent chances p_ij (`posterior`); so rows compose as if they were
independent mixtures (`mixtures`), and the small probability is added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from galton.accountants.attacks import Attack
from galton.accountants.base import Accountant, Compared
from galton.accountants.curve import Curve, point_by_point
from galton.accountants.figure import Figure
from galton.accountants.mixtures import Shift, row_losses, sums_of_bernoullis
from galton.accountants.poisson import coin_attack
from galton.accountants.posterior import Past, RowGroup, chances, past
from galton.accountants.search import least_noise
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.batching.laws import Coins, Law
from galton.convolution import GridTooLarge
from galton.errors import positive, probability
from galton.gaussian import gaussian_mu
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.loss_grids import Composition
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

_TAIL_SHARE = 0.02
"""Share of delta spent on a past that tells too much."""
_COARSER = 12
"""How often the grid of losses may be made twice as coarse, which only raises the bound, until it fits."""
_LEAST_EPSILON = 1e-3
"""Where a curve begins, relative to the epsilon that was claimed: the bound asks for an epsilon above 0."""
_LARGEST_EPSILON = 1e4


def mmcc_delta(
    strategy: Strategy,
    bins: int,
    noise_multiplier: float,
    epsilon: float,
    tail: float = 1e-7,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
) -> float:
    """Returns an upper bound on delta of a run of `strategy` under Poisson sampling with probability 1 / bins.

    Formal guarantee: delta(epsilon) of the run is at most this, for C without negative entries, per-example
    contributions of norm at most 1 that may depend on the past, and every example in every round independently with
    probability 1 / bins. Nothing is sampled; every rounding is towards a larger delta, and what the FFT of the
    composition may hide is bounded and added, if exp and log are right to 4 units in the last place and the normal
    distribution function to 1e-13.

    Args:
      strategy: C.
      bins: one over the probability of use.
      noise_multiplier: for sensitivity 1 over a run of fixed order: noise std / strategy.sensitivity(bins).
      epsilon: where.
      tail: probability of a past that tells more than is allowed for; part of the result.
      adjacency: add-or-remove, add or remove.
    """
    strategy.check_bins(bins)
    positive("noise_multiplier", noise_multiplier)
    positive("epsilon", epsilon)
    probability("tail", tail)
    Mmcc().check_adjacency(Adjacency(adjacency))
    sigma = noise_multiplier * strategy.sensitivity(bins)
    return _delta(past(strategy), 1 / bins, sigma, epsilon, tail, Adjacency(adjacency).directions)


def _delta(history: Past, prior: float, sigma: float, epsilon: float, tail: float, both: Sequence[Direction]) -> float:
    if prior == 1 or not history.pairs:
        tail = 0.0
    shifts = row_shifts(history, prior, sigma, tail)
    if max(shift.missing for _, shift in shifts) > 1e-3:
        return 1.0
    spread = math.sqrt(sum(size * shift.spread() ** 2 for size, shift in shifts) / sum(size for size, _ in shifts))
    interval = min(max(0.02 * spread, 1e-5), 2e-3 * max(1.0, epsilon))
    for coarser in range(_COARSER):
        try:
            composed = max(_composed(shifts, direction, interval * 2**coarser, epsilon) for direction in both)
            return min(1.0, (composed + tail) * (1 + 1e-12))
        except GridTooLarge:
            continue
    return 1.0


def row_shifts(history: Past, prior: float, sigma: float, tail: float) -> list[tuple[int, Shift]]:
    """Returns shifts in units of sigma, each with the number of rows that it stands for."""
    failure = tail / max(history.pairs, 1)

    def shifts(group: RowGroup) -> list[Shift]:
        chance = np.full(group.values.size, prior) if failure == 0 else chances(group, prior, sigma, failure)
        stops = [lags for lags, _ in group.stops]
        return sums_of_bernoullis(group.values / sigma, np.minimum(chance, 1.0), stops)

    sizes = [rows for group in history.groups for _, rows in group.stops]
    return list(zip(sizes, (shift for group in history.groups for shift in shifts(group)), strict=True))


def _composed(shifts: Sequence[tuple[int, Shift]], direction: Direction, interval: float, epsilon: float) -> float:
    return Composition([(row_losses(shift, direction, interval), size) for size, shift in shifts]).delta(epsilon)


class Mmcc(Accountant):
    """Conditional composition; the guarantee is the one of `mmcc_delta`."""

    name: ClassVar[str] = "mmcc"
    default_strategy: ClassVar[str] = "bandmf"
    compared: ClassVar[Compared] = Compared(
        batches="Poisson sampling by conditional composition (MMCC)", kinds=("bandmf",), candidates=("bandmf",)
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="Poisson: every example in every round with probability 1 / bins",
        standing=Standing.UPPER_BOUND,
        source="conditional composition (MMCC), privacy loss distribution, rounding bounded",
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, Coins)

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        self.check_adjacency(guarantee.adjacency)
        strategy.check_bins(bins)
        history, sensitivity = past(strategy), strategy.sensitivity(bins)
        epsilon, delta = guarantee.epsilon, guarantee.delta

        def at(noise_multiplier: float) -> float:
            sigma = noise_multiplier * sensitivity
            return _delta(history, 1 / bins, sigma, epsilon, _TAIL_SHARE * delta, guarantee.directions)

        multiplier = least_noise(at, delta, guess=1 / gaussian_mu(epsilon, delta), width=2e-3)
        return Figure(multiplier * (1 + 1e-12), guarantee, self.stated(guarantee))

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        tail = _TAIL_SHARE * claim.delta
        return mmcc_delta(run.strategy, run.bins, run.noise_multiplier, claim.epsilon, tail, claim.adjacency)

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        """Returns an epsilon within 1% of the least at which the bound is at most delta."""
        self.check_adjacency(adjacency)
        tail = _TAIL_SHARE * delta

        def enough(epsilon: float) -> bool:
            bound = mmcc_delta(run.strategy, run.bins, run.noise_multiplier, epsilon, tail, adjacency)
            return bound <= delta

        low, high = 0.0, 1.0
        while not enough(high):
            low, high = high, 2 * high
            if high > _LARGEST_EPSILON:
                return math.inf
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def places(self, run: Run, deltas: Sequence[float], adjacency: Adjacency, options: Options) -> list[float]:
        """Returns nothing to draw at: the curve of one run ends at the share of delta that is set aside."""
        return [math.inf for _ in deltas]

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        tail = _TAIL_SHARE * guarantee.delta
        grid = (_LEAST_EPSILON * guarantee.epsilon, *epsilons[1:])

        def at(epsilon: float) -> float:
            return mmcc_delta(run.strategy, run.bins, run.noise_multiplier, epsilon, tail, guarantee.adjacency)

        words = (
            "Upper bound at every ε, with certainty: conditional composition (MMCC). It is never below "
            f"{tail:.3g}, the share of δ that this accountant sets aside."
        )
        return Curve(grid, point_by_point(grid, at, options.progress), (), words, guarantee.adjacency)

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return coin_attack(self, run, whitening)
