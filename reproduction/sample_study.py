"""A short search with a given number of samples per iteration, and what it reaches.

Apart from the rows and the picture of it (`sample_counts.py`), so that work on these does not cost what is cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from galton.accounting import Options
from galton.errors import FloatArray, GaltonError
from galton.guarantee import Guarantee
from galton.optimization.families import BltFamily
from galton.optimization.problem import Problem
from galton.optimization.search import Target, descend, design, judge
from galton.optimization.starts import blt_starts
from galton.sampling.base import wide_jax
from galton.threads import one_blas_thread
from galton.workloads import prefix_sums
from reproduction.points import DELTA, SEED, TAU
from reproduction.series import BINS, EPOCHS

ITERATIONS = 12


@dataclass(frozen=True)
class Study:
    """A short search for BLT-4 on a given number of frozen samples, always from the same start.

    Attributes:
      epsilon, delta: the guarantee; sigma is for delta / tau.
      bins, rounds: of the run.
      seed: of all draws.
    """

    epsilon: float
    bins: int = BINS
    rounds: int = BINS * EPOCHS
    delta: float = DELTA
    tau: float = TAU
    seed: int = SEED

    @cached_property
    def problem(self) -> Problem:
        """What is minimised: RMSE of prefix sums over BLTs with 4 buffers."""
        return Problem(BltFamily(self.rounds, 4), self.bins, prefix_sums(self.rounds))

    @cached_property
    def start(self) -> FloatArray:
        """A BLT that remembers one epoch."""
        return blt_starts(BltFamily(self.rounds, 4), self.bins)[1]

    def target(self, estimator: str, samples: int) -> Target:
        """Returns the guarantee, and how it is estimated."""
        guarantee = Guarantee(self.epsilon, self.delta / self.tau)
        return Target(guarantee, Options(seed=self.seed), estimator, samples, self.seed)

    def rmse(self, estimator: str, samples: int) -> float | None:
        """Returns the RMSE that the search ends at, judged on 32,768 fresh importance samples; None: too few."""
        with wide_jax(), one_blas_thread():
            fresh = self.target("mixture", 1)
            guess = design(self.problem, self.start, fresh, "guess", 4096)(self.problem.statistic(self.start)).log_sigma
            target = self.target(estimator, samples)
            try:
                level = design(self.problem, self.start, target, "study", samples, guess, near=True)
                optimum = descend(
                    lambda parameters: self.problem.value_and_gradient(parameters, level),
                    self.start,
                    ITERATIONS,
                    lambda value: None,
                    self.problem.participation.tolerance(self.problem.bins),
                )
                return math.exp(judge(self.problem, optimum, fresh, "study", 1 << 15).value)
            except GaltonError:
                return None
