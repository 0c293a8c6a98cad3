"""The one shape of a mechanism: where its strategy comes from, and who accounts for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from galton.baselines.balls_in_bins import TAU, certified_statement, comparison_options
from galton.baselines.bands import best_bands
from galton.baselines.cost import noise_cost
from galton.baselines.figure import Accountant, Figure
from galton.baselines.statement import Statement, statement_from_json
from galton.errors import InvalidArgument, count, positive, probability
from galton.strategies.base import Strategy
from galton.workloads import Workload


@dataclass(frozen=True, eq=False)
class Setting:
    """What is asked of a mechanism.

    Attributes:
      bins: batches per epoch.
      epochs: epochs.
      epsilon, delta: the guarantee.
      workload: what the error is of; None is prefix sums.
    """

    bins: int
    epochs: int
    epsilon: float
    delta: float
    workload: Workload | None = None

    def __post_init__(self) -> None:
        count("bins", self.bins)
        count("epochs", self.epochs)
        positive("epsilon", self.epsilon)
        probability("delta", self.delta)
        if self.workload is not None and self.workload.rounds != self.rounds:
            raise InvalidArgument("workload", self.workload.rounds, f"must have bins * epochs rounds, {self.rounds}")

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.bins * self.epochs

    def error(self, strategy: Strategy, figure: Figure) -> float:
        """Returns the root-mean-square error on the workload with clip norm 1."""
        return figure.noise_multiplier * strategy.sensitivity(self.bins) * strategy.rmse(self.workload)


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
    strategy: str
    statement: Statement
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return self.__dict__ | {"statement": self.statement.to_json()}


def row_from_json(value: dict[str, Any]) -> Row:
    """Rebuilds a row from `Row.to_json()`."""
    return Row(**value | {"statement": statement_from_json(value["statement"])})


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A way to train with privacy.

    Attributes:
      name: as on the command line.
      description: one line.
      statement: what its figure is worth (the failure probability of a certified one is that at delta = 1e-5).
      solver: strategy and noise for a setting.
      slow: whether it is left out unless asked for by name.
    """

    name: str
    description: str
    statement: Statement
    solver: Solver
    slow: bool = False

    def row(self, setting: Setting, hint: int | None = None) -> Row:
        """Returns the row of a comparison: error, noise, cost, and what the figure is worth."""
        start = time.perf_counter()
        solved = self.solver(setting, hint)
        cost = noise_cost(solved.strategy)
        return Row(
            mechanism=self.name,
            epsilon=float(setting.epsilon),
            delta=float(setting.delta),
            rmse=setting.error(solved.strategy, solved.figure),
            noise_multiplier=solved.figure.noise_multiplier,
            bands=solved.bands,
            memory=cost.memory,
            operations=cost.operations,
            draws=cost.draws,
            strategy=solved.strategy.digest,
            statement=solved.figure.statement,
            seconds=time.perf_counter() - start,
        )


@lru_cache(maxsize=64)
def classical(family: str, bins: int, rounds: int, workload: Workload | None) -> Strategy:
    """Returns the optimum of a family without amplification, remembered for the other epsilons."""
    from galton.optimization import unamplified_optimum

    return unamplified_optimum(family, bins, rounds, workload)


def fixed(make: Callable[[Setting], Strategy], accountant: Accountant) -> Solver:
    """A solver whose strategy does not depend on epsilon."""

    def solve(setting: Setting, hint: int | None) -> Solved:
        strategy = make(setting)
        return Solved(strategy, accountant(strategy, setting.bins, setting.epsilon, setting.delta))

    return solve


def banded(family: str, accountant: Accountant, judge: Accountant | None = None, start: int = 8) -> Solver:
    """A solver that takes the number of bands with the least error, a power of two of at most `bins`.

    `judge` is a quick accountant to choose by; the figure of the one that was chosen always comes from `accountant`.
    """

    def solve(setting: Setting, hint: int | None) -> Solved:
        def strategy(bands: int) -> Strategy:
            return classical(f"{family}:{bands}", setting.bins, setting.rounds, setting.workload)

        def error(bands: int) -> float:
            one = strategy(bands)
            return setting.error(one, (judge or accountant)(one, setting.bins, setting.epsilon, setting.delta))

        chosen = best_bands(error, setting.bins, hint or min(start, setting.bins))
        figure = accountant(strategy(chosen), setting.bins, setting.epsilon, setting.delta)
        return Solved(strategy(chosen), figure, chosen)

    return solve


def optimized(family: str) -> Solver:
    """A solver that optimises C under balls-in-bins amplification at every epsilon."""

    def solve(setting: Setting, hint: int | None) -> Solved:
        from galton.optimization import optimize

        options = comparison_options(setting.delta)
        found = optimize(
            family,
            setting.bins,
            setting.rounds,
            setting.epsilon,
            setting.delta,
            workload=setting.workload,
            options=options,
            tau=TAU,
        )
        if found.interrupted:  # the best so far is no figure to compare
            raise KeyboardInterrupt
        statement = certified_statement(found.calibration, options)
        return Solved(found.strategy, Figure(found.noise_multiplier, setting.epsilon, setting.delta, statement))

    return solve
