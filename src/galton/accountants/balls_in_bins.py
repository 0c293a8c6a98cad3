"""Balls-in-bins for any C, the bins drawn once."""

from __future__ import annotations

from typing import ClassVar

from galton.accountants.attacks import Attack, unknown_bin
from galton.accountants.base import Compared
from galton.accountants.monte_carlo import MonteCarlo
from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting.certificate import FAILURE_SHARE
from galton.errors import FloatArray
from galton.guarantee import Adjacency
from galton.many_bins import pair_of_bins
from galton.pair import DominatingPair, Pair, dominating_pair
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening


class BallsInBins(MonteCarlo):
    """The pair has one mode for each bin (docs/math.md, section 1)."""

    name: ClassVar[str] = "balls-in-bins"
    participation: ClassVar[str] = Pair.participation
    default_strategy: ClassVar[str] = "blt:4+scale"
    typical_bands: ClassVar[int] = 16
    compared: ClassVar[Compared] = Compared(
        batches="balls-in-bins batches",
        kinds=("dpsgd", "bandmf", "banded", "memf", "tree", "cgd", "bisr", "bifr", "bandinv"),
        candidates=("dpsgd", "bandmf", "memf"),
        optimised={
            "blt:4": "BLT with 4 buffers",
            "toeplitz": "full Toeplitz C",
            "blt:4+scale": "BLT with 4 buffers and a weight per round",
            "toeplitz+scale": "full Toeplitz C with a weight per round",
        },
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="balls-in-bins: one batch in each epoch, the same in all epochs, uniformly and independently",
        standing=Standing.CERTIFIED,
        source="galton",
        failure_probability=FAILURE_SHARE * 1e-5,
    )

    def _pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        return pair_of_bins(strategy, bins)

    def gram(self, run: Run) -> FloatArray:
        return dominating_pair(run.strategy, run.bins, run.noise_multiplier).gram

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return unknown_bin(run, adjacency, whitening)
