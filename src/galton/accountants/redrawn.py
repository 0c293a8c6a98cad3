"""Balls-in-bins whose bins are redrawn in every epoch, for any square C."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from galton.accountants.attacks import Attack, unknown_pattern
from galton.accountants.base import Compared
from galton.accountants.monte_carlo import MonteCarlo
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting.certificate import FAILURE_SHARE
from galton.errors import FloatArray
from galton.guarantee import Adjacency
from galton.pair import REDRAWN, DominatingPair
from galton.redrawn import pattern_pair, redrawn_pair
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

MOST_LONG_ROUNDS = 4096
"""Longest run that is audited with a C of more than bins + 1 bands, whose products are all held in memory."""


class RedrawnBins(MonteCarlo):
    """The pair has one mode for each pattern of bins (docs/math.md, section 10)."""

    name: ClassVar[str] = "redrawn"
    participation: ClassVar[str] = REDRAWN
    default_strategy: ClassVar[str] = "blt:4+scale"
    typical_bands: ClassVar[int] = 8
    compared: ClassVar[Compared] = Compared(
        batches="balls-in-bins batches redrawn in every epoch",
        kinds=("dpsgd", "bandmf"),
        candidates=("dpsgd", "bandmf"),
        optimised={
            "blt:4+scale": "BLT with 4 buffers and a weight per round",
            "toeplitz:8+scale": "8 Toeplitz bands with a weight per round",
        },
        slow_optima=True,
        suffix="-redrawn",
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="balls-in-bins redrawn: one batch in each epoch, uniformly, independently of all others",
        standing=Standing.CERTIFIED,
        source="galton",
        failure_probability=FAILURE_SHARE * 1e-5,
    )

    def _pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        return redrawn_pair(strategy, bins)

    def most_bands(self, bins: int) -> int:
        """Returns up to how many bands the pair is exact; what reaches further counts as if it always took part."""
        return bins + 1

    def gram(self, run: Run) -> FloatArray | None:
        reach = pattern_pair(run.strategy, run.bins).reach
        if reach.tail.any():
            return None
        return np.concatenate((reach.gram, reach.overlap)) / run.noise_multiplier**2

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        if run.strategy.rounds > MOST_LONG_ROUNDS and run.strategy.bands > self.most_bands(run.bins):
            raise self.no_attack(run)
        return unknown_pattern(run, adjacency, whitening)
