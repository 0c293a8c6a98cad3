"""What is asked of an accountant: the run, without its noise (`Setting`), or with it (`Run`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from galton.accountants.figure import Figure
from galton.batching import Scheme
from galton.errors import MOST_ROUNDS, InvalidArgument, count
from galton.guarantee import Adjacency, Guarantee
from galton.strategies import Strategy
from galton.workloads import Workload


@dataclass(frozen=True, eq=False)
class Setting:
    """A run that is to be planned or compared.

    Attributes:
      bins: batches per epoch.
      epochs: epochs.
      guarantee: what it has to give.
      workload: what the error is of; None is prefix sums.
    """

    bins: int
    epochs: int
    guarantee: Guarantee
    workload: Workload | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", count("bins", self.bins, at_most=MOST_ROUNDS))
        object.__setattr__(self, "epochs", count("epochs", self.epochs, at_most=MOST_ROUNDS // self.bins))
        if self.workload is not None and self.workload.rounds != self.rounds:
            raise InvalidArgument("workload", self.workload.rounds, f"must have bins * epochs rounds, {self.rounds}")

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.bins * self.epochs

    def error(self, strategy: Strategy, figure: Figure) -> float:
        """Returns the root-mean-square error on the workload with clip norm 1.

        Args:
          strategy: C.
          figure: the noise that an accountant found for it.

        Returns:
          The error, by the convention of plans: sums of gradients, not means.
        """
        return figure.noise_multiplier * strategy.sensitivity(self.bins) * strategy.rmse(self.workload)

    def with_guarantee(self, guarantee: Guarantee) -> Setting:
        """Returns the same run with another guarantee.

        Args:
          guarantee: the claim, with its adjacency.

        Returns:
          A new setting.
        """
        return replace(self, guarantee=guarantee)


@dataclass(frozen=True, eq=False)
class Run:
    """A run with all that its privacy depends on.

    Attributes:
      strategy: C.
      scheme: how batches are drawn.
      bins: batches per epoch, which the noise multiplier's convention refers to.
      noise_multiplier: for C scaled to sensitivity 1 over a run of fixed order.
    """

    strategy: Strategy
    scheme: Scheme
    bins: int
    noise_multiplier: float

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of z for C as given and clip norm 1."""
        return self.noise_multiplier * self.strategy.sensitivity(self.bins)

    @property
    def column_multiplier(self) -> float:
        """Noise multiplier for C scaled to a largest column norm of 1: that of one participation; rounded down."""
        return self.sigma / self.strategy.column_norm() * (1 - 1e-12)

    def mu_if_known(self, adjacency: Adjacency) -> float:
        """Returns the mean shift of the Gaussian mechanism that is left if the batches are known, truncation aside.

        Args:
          adjacency: which data sets are neighbours.

        Returns:
          The shift in units of the noise, rounded up.
        """
        return adjacency.sides * self.scheme.sensitivity_if_known(self.strategy) / self.sigma * (1 + 1e-9)
