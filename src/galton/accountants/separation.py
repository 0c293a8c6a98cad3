"""Min-separation batches, for C with as many bands as rounds between two participations at least."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from galton.accountants.attacks import Attack, unknown_rests
from galton.accountants.base import Compared, Optimum
from galton.accountants.monte_carlo import MonteCarlo
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Standing, Statement
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.batching import Scheme
from galton.batching.laws import Law, Renewal
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency
from galton.optimization.families import parse_family
from galton.separated import SeparatedPair, separated_pair
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening


class MinSeparation(MonteCarlo):
    """The pair has one mode for each pattern of rounds (docs/math.md, section 10.7).

    Formal guarantee: that of a certificate, if the separation is the number of bands of C: after taking part an example
    rests for bands - 1 rounds, then takes part in each round with probability 1 / (bins - bands + 1).
    """

    name: ClassVar[str] = "min-separation"
    participation: ClassVar[str] = SeparatedPair.kind
    default_strategy: ClassVar[str] = "bandmf"
    typical_bands: ClassVar[int] = 8
    compared: ClassVar[Compared] = Compared(
        batches="min-separation batches", kinds=("bandmf",), candidates=("bandmf",), slow=True
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="min-separation: with W bands, W - 1 rounds of rest, then each round with the same probability",
        standing=Standing.CERTIFIED,
        source="galton",
        failure_probability=FAILURE_SHARE * 1e-5,
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, Renewal)

    def check(self, strategy: Strategy, scheme: Scheme, bins: int) -> None:
        super().check(strategy, scheme, bins)
        law = scheme.law
        if not isinstance(law, Renewal) or law.separation != strategy.bands:
            remedy = f"must be the number of bands of C, {strategy.bands}, for which the run is analysed"
            raise InvalidArgument("separation", getattr(law, "separation", None), remedy)

    def _pair(self, strategy: Strategy, bins: int) -> SeparatedPair:
        bands = strategy.bands
        if bands > bins:
            remedy = f"must have at most {bins} bands for min-separation batches: as many as batches per epoch"
            raise InvalidArgument("strategy", f"{bands} bands", remedy)
        return separated_pair(strategy, bins, bands)

    def optimum(
        self, family: str, setting: Setting, options: Options, tau: float, start: Strategy | None = None
    ) -> Optimum:
        bands = parse_family(family, setting.rounds).most_bands
        if bands > setting.bins:
            remedy = f"must have at most {setting.bins} bands for min-separation batches, such as toeplitz:8+scale"
            raise InvalidArgument("strategy", family, remedy)
        return self._optimum(family, setting, options, tau, start, f"{SeparatedPair.kind}:{bands}")

    def gram(self, run: Run) -> FloatArray:
        reach = self._pair(run.strategy, run.bins).reach
        return np.concatenate((reach.gram, reach.overlap)) / run.noise_multiplier**2

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return unknown_rests(run, adjacency, whitening)
