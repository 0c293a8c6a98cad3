"""No amplification: every example at rounds known beforehand. The Gaussian mechanism, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from galton.accountants.attacks import Attack, known_bin
from galton.accountants.base import Accountant, Compared, Optimum
from galton.accountants.curve import Curve
from galton.accountants.figure import Figure
from galton.accountants.losses import Aim, GaussianLoss, Loss
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.batching.laws import KnownBin, Law, RandomBin
from galton.gaussian import gaussian_delta, gaussian_epsilon, unamplified_multiplier
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.optimization import unamplified_optimum
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

_FINER = 4
"""Points of a curve in closed form for every one of another."""


class Unamplified(Accountant):
    """The Gaussian mechanism of the worst bin.

    Formal guarantee: for per-example contributions of norm at most 1, any C, and every example in the rounds
    i, i + bins, ... of one i, chosen in any way (the order of the data will do). Exact: the pair N(m_i, sigma^2 I)
    against N(0, sigma^2 I), or against its mirror image for replace, is reached for the largest |m_i|.
    """

    name: ClassVar[str] = "unamplified"
    default_strategy: ClassVar[str] = "toeplitz"
    typical_bands: ClassVar[int] = 64
    bounded: ClassVar[frozenset[Direction]] = frozenset(Direction)
    compared: ClassVar[Compared] = Compared(
        batches="order of the data known",
        kinds=("dpsgd", "bandmf", "banded", "memf", "tree", "cgd", "bisr", "bifr", "bandinv"),
        candidates=("dpsgd", "bandmf", "memf", "tree"),
        references=("dpsgd", "memf"),
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="any fixed order: an example in rounds i, i + bins, i + 2 bins, ... for some i",
        standing=Standing.EXACT,
        source="Gaussian mechanism in closed form, rounded up by 1e-9",
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, KnownBin | RandomBin)

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        strategy.check_bins(bins)
        return Figure((1 + 1e-9) * unamplified_multiplier(guarantee), guarantee, self.stated(guarantee))

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        return min(1.0, gaussian_delta(claim.epsilon, claim.sides / run.noise_multiplier) * (1 + 1e-9))

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        return gaussian_epsilon(delta, adjacency.sides / run.noise_multiplier * (1 + 1e-9))

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        mu = guarantee.sides / run.noise_multiplier
        words = "Exact: the Gaussian mechanism in closed form. It does not rely on the batches being secret."
        between = np.linspace(0.0, epsilons[-1], _FINER * (len(epsilons) - 1) + 1)
        fine = np.union1d(between, epsilons).tolist()
        uppers = tuple(gaussian_delta(epsilon, mu) for epsilon in fine)
        return Curve(tuple(fine), uppers, (), words, guarantee.adjacency)

    def loss(self, run: Run, aim: Aim) -> Loss:
        """Returns the loss of one Gaussian mechanism."""
        return GaussianLoss(run.noise_multiplier * (1 - 1e-9), 1.0, 1)

    def optimum(
        self, family: str, setting: Setting, options: Options, tau: float, start: Strategy | None = None
    ) -> Optimum:
        return Optimum(unamplified_optimum(family, setting.bins, setting.rounds, setting.workload))

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return known_bin(run, adjacency, whitening)
