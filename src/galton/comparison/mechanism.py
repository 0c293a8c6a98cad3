"""The one shape of a mechanism: where its strategy comes from, and who accounts for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from galton.accountants import Accountant, Figure, Run, Setting, Statement
from galton.accountants.base import COMPARISON_TAU, comparison_options
from galton.batching import PLANNED
from galton.comparison.cost import noise_cost
from galton.gaussian import gaussian_epsilon
from galton.guarantee import Guarantee
from galton.optimization import unamplified_optimum
from galton.optimization.bands import best_bands
from galton.strategies import Strategy
from galton.typechecking import typechecked
from galton.workloads import Workload


@dataclass(frozen=True, eq=False)
class Solved:
    """A strategy with its noise, and the number of bands if it was chosen."""

    strategy: Strategy
    figure: Figure
    bands: int | None = None


Solver = Callable[[Setting, int | None], Solved]
"""solver(setting, hint): the hint is the number of bands chosen at a nearby epsilon."""


@dataclass(frozen=True)
class Row:
    """One mechanism at one epsilon.

    Attributes:
      rmse: root-mean-square error on the workload with clip norm 1.
      noise_multiplier: for sensitivity 1 over a run of fixed order.
      bands: number of bands that was chosen, None where there is no such choice.
      memory: model-sized buffers of the noise stream.
      operations: multiplications per parameter and round of the noise stream.
      draws: fresh normals per parameter and round.
      epsilon_if_known: what is left of the guarantee, at the same delta, if it becomes known who was in which batch;
        None where the figure is no guarantee.
      strategy: content hash of C.
    """

    mechanism: str
    epsilon: float
    delta: float
    rmse: float
    noise_multiplier: float
    bands: int | None
    memory: int
    operations: int
    draws: int
    epsilon_if_known: float | None
    strategy: str
    statement: Statement
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return self.__dict__ | {"statement": self.statement.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Row:
        """Rebuilds a row from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The row.
        """
        return cls(**value | {"statement": Statement.from_json(value["statement"])})


Calibrate = Callable[[Strategy, int, Guarantee], Figure]
"""calibrate(strategy, bins, guarantee): the noise that a strategy needs."""


@typechecked
@dataclass(frozen=True, eq=False)
class Mechanism:
    """A way to train with privacy.

    Attributes:
      name: as on the command line.
      description: one line.
      statement: what its figure is worth (the failure probability of a certified one is that at delta = 1e-5).
      solver: strategy and noise for a setting.
      accountant: whose analysis it rests on; None where the figure is no guarantee.
      slow: whether it is left out unless asked for by name.
      candidate: whether a plan that looks for the best strategy considers it.
      reference: whether every plan is compared with it: takes seconds.

    Example:
      >>> from galton import MECHANISMS
      >>> MECHANISMS["dpsgd-poisson"].statement.is_guarantee, MECHANISMS["dpsgd-shuffling"].statement.is_guarantee
      (True, False)
    """

    name: str
    description: str
    statement: Statement
    solver: Solver
    accountant: Accountant | None = None
    slow: bool = False
    candidate: bool = False
    reference: bool = False

    def row(self, setting: Setting, hint: int | None = None) -> Row:
        """Returns the row of a comparison: error, noise, cost, and what the figure is worth.

        Args:
          setting: run, guarantee and workload.
          hint: number of bands to begin the search with, where bands are searched for.

        Returns:
          The row.
        """
        start = time.perf_counter()
        solved = self.solver(setting, hint)
        cost = noise_cost(solved.strategy)
        return Row(
            mechanism=self.name,
            epsilon=setting.guarantee.epsilon,
            delta=setting.guarantee.delta,
            rmse=setting.error(solved.strategy, solved.figure),
            noise_multiplier=solved.figure.noise_multiplier,
            bands=solved.bands,
            memory=cost.memory,
            operations=cost.operations,
            draws=cost.draws,
            epsilon_if_known=self._epsilon_if_known(setting, solved),
            strategy=solved.strategy.digest,
            statement=solved.figure.statement,
            seconds=time.perf_counter() - start,
        )

    def _epsilon_if_known(self, setting: Setting, solved: Solved) -> float | None:
        """Epsilon of the same noise without the secret of the batches, which are those that a plan would make."""
        if self.accountant is None:
            return None
        for make in PLANNED.values():
            # One example a batch: how far known batches let an example move C x does not depend on their size.
            scheme = make(setting.bins, setting.bins, setting.rounds, solved.strategy)
            if self.accountant.covers(scheme.law):
                run = Run(solved.strategy, scheme, setting.bins, solved.figure.noise_multiplier)
                return gaussian_epsilon(setting.guarantee.delta, run.mu_if_known(setting.guarantee.adjacency))
        return None


@lru_cache(maxsize=64)
def classical(family: str, bins: int, rounds: int, workload: Workload | None) -> Strategy:
    """Returns the optimum of a family without amplification, remembered for the other epsilons."""
    return unamplified_optimum(family, bins, rounds, workload)


def classical_bands(family: str) -> Callable[[Setting, int], Strategy]:
    """Returns make(setting, bands), the optimum without amplification of a family that is numbered by its bands."""
    return lambda setting, bands: classical(f"{family}:{bands}", setting.bins, setting.rounds, setting.workload)


def fixed(make: Callable[[Setting], Strategy], calibrate: Calibrate) -> Solver:
    """A solver whose strategy does not depend on epsilon."""

    def solve(setting: Setting, hint: int | None) -> Solved:
        strategy = make(setting)
        return Solved(strategy, calibrate(strategy, setting.bins, setting.guarantee))

    return solve


def banded(make: Callable[[Setting, int], Strategy], accountant: Accountant, start: int | None = None) -> Solver:
    """A solver that takes the number of bands with the least error, a power of two of at most `bins`.

    The choice is by the accountant's quick estimate; the figure of the one that was chosen is calibrated.

    Args:
      make: make(setting, bands) returns C.
      accountant: whose noise counts.
      start: where the search begins, if not at the accountant's typical number of bands.

    Returns:
      The solver.
    """

    def solve(setting: Setting, hint: int | None) -> Solved:
        def error(bands: int) -> float:
            candidate = make(setting, bands)
            return setting.error(candidate, accountant.estimate(candidate, setting.bins, setting.guarantee))

        first = hint or min(start or accountant.typical_bands, setting.bins)
        chosen = best_bands(error, setting.bins, first)
        strategy = make(setting, chosen)
        return Solved(strategy, accountant.calibrate(strategy, setting.bins, setting.guarantee), chosen)

    return solve


def optimized(family: str, accountant: Accountant) -> Solver:
    """A solver that optimises C for the accountant at every epsilon."""

    def solve(setting: Setting, hint: int | None) -> Solved:
        options = comparison_options(setting.guarantee.delta)
        optimum = accountant.optimum(family, setting, options, COMPARISON_TAU)
        figure = optimum.figure or accountant.calibrate(optimum.strategy, setting.bins, setting.guarantee)
        return Solved(optimum.strategy, figure)

    return solve
