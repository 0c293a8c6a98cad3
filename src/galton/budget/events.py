"""What is released about one data set, as values: what all have in common, and mechanisms by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from galton.accountants.losses import Aim, AtomicLoss, GaussianLoss, Loss, Steps
from galton.convolution import MASS_ERROR, MOST_CELLS, GridTooLarge
from galton.errors import InvalidArgument, count, non_negative, positive
from galton.guarantee import LARGEST_EPSILON, Adjacency, Direction
from galton.loss_grids import Atoms, LossGrid
from galton.typechecking import typechecked

_MOST_TIMES = 10**9
_MOST_SCALE = 1e6
"""Noise beyond this counts as so much."""
_LARGEST_LOSS = 200.0


class Event(ABC):
    """Something that is released about the data, at a price in privacy.

    Attributes:
      kind: name in files and on the command line.
      adjacency: the only adjacency that it is known under; None where it is known under all.
      displacement: probability that truncation makes of it another mechanism; see `Truncation`.
      unit: what neighbours differ in, an example or a user; None where the user of this class has seen to it.

    Example:
      >>> event = GaussianEvent(sigma=4.0)
      >>> isinstance(event, Event), event.rho(Adjacency.ADD_OR_REMOVE)
      (True, 0.03125)
    """

    kind: ClassVar[str]
    adjacency: Adjacency | None = None
    displacement: float = 0.0
    unit: str | None = None

    @property
    @abstractmethod
    def words(self) -> str:
        """What it is, in a few words."""

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Refuses an adjacency under which nothing is known of the event.

        Args:
          adjacency: which data sets are neighbours.
        """
        if self.adjacency not in (None, adjacency):
            remedy = f"must be that of all releases; {self.words} is for {self.adjacency}"
            raise InvalidArgument("adjacency", str(adjacency), remedy)

    def if_known(self, adjacency: Adjacency) -> Event | None:
        """Returns what is released if it is known who was in which batch or sample.

        Args:
          adjacency: which data sets are neighbours.

        Returns:
          An event without amplification; None where that is not known.
        """
        return self

    def rho(self, adjacency: Adjacency) -> float | None:
        """Returns a rho for which the event is zCDP, but for its displacement.

        Args:
          adjacency: which data sets are neighbours.

        Returns:
          rho; None where none is known.
        """
        return None

    @abstractmethod
    def loss(self, aim: Aim) -> Loss:
        """Returns a privacy loss that dominates the event's, truncation apart.

        Args:
          aim: in which directions, and how sure.

        Returns:
          The loss.
        """

    def settled(self, aim: Aim) -> Event:
        """Returns the same event with all that samples have to tell of it, which can be written to a file.

        Args:
          aim: in which directions, and how sure.

        Returns:
          An event with `to_json`.
        """
        return self

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `event_from_json` rebuilds a settled event."""
        raise InvalidArgument("event", self.words, "must be settled before it is written")


@typechecked
@dataclass(frozen=True)
class GaussianEvent(Event):
    """Sums with Gaussian noise, of all examples or of a Poisson sample of them.

    Args:
      sigma: standard deviation of the noise, in units of the l2 norm that the contribution of one example is bounded
        by.
      count: how many such sums.
      probability: with which every example is in the sample of a sum, independently.
      displacement: see `Event`.
      unit: see `Event`.

    >>> GaussianEvent(sigma=4.0, count=10).words
    'gaussian:sigma=4,count=10'
    """

    kind: ClassVar[str] = "gaussian"
    sigma: float
    count: int = 1
    probability: float = 1.0
    displacement: float = 0.0
    unit: str | None = None

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)
        count("count", self.count, at_most=_MOST_TIMES)
        if not 0 < self.probability <= 1:
            raise InvalidArgument("probability", self.probability, "must be above 0 and at most 1")
        if not 0 <= self.displacement <= 1:
            raise InvalidArgument("displacement", self.displacement, "must lie between 0 and 1")

    @property
    def words(self) -> str:
        more = f",probability={self.probability:g}" if self.probability < 1 else ""
        return f"gaussian:sigma={self.sigma:g}" + (f",count={self.count}" if self.count > 1 else "") + more

    def check_adjacency(self, adjacency: Adjacency) -> None:
        if self.probability < 1 and Direction.REPLACE in adjacency.directions:
            raise InvalidArgument("adjacency", str(adjacency), f"is not covered for {self.words}, on Poisson samples")

    def if_known(self, adjacency: Adjacency) -> Event:
        return leaked(replace(self, probability=1.0, displacement=0.0), self.displacement)

    def rho(self, adjacency: Adjacency) -> float:
        return self.count * (adjacency.sides / self.sigma) ** 2 / 2

    def loss(self, aim: Aim) -> GaussianLoss:
        return GaussianLoss(self.sigma, self.probability, self.count)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sigma": self.sigma,
            "count": self.count,
            "probability": self.probability,
            "displacement": self.displacement,
            "unit": self.unit,
        }


@dataclass(frozen=True)
class LeakedEvent(Event):
    """A run of which it is known who was in which batch: Gaussian sums, but for a probability with which all is told.

    Args:
      sums: the sums.
      lost: the probability, that an example pushed another one out of a batch (docs/math.md, section 14.4).
    """

    kind: ClassVar[str] = "leaked"
    sums: GaussianEvent
    lost: float

    @property
    def unit(self) -> str | None:  # type: ignore[override]
        return self.sums.unit

    @property
    def words(self) -> str:
        return self.sums.words

    def loss(self, aim: Aim) -> Loss:
        return replace(self.sums.loss(aim), lost=self.lost)


def leaked(sums: GaussianEvent, lost: float) -> Event:
    """Returns sums of known batches, of which truncation may have told more.

    Args:
      sums: the sums, without displacement.
      lost: the displacement of the run.

    Returns:
      An event.
    """
    return LeakedEvent(sums, lost) if lost else sums


@dataclass(frozen=True)
class _LaplaceLoss(Loss):
    """The loss of Laplace mechanisms: a = 1 / scale with probability 1/2, -a with e^-a / 2, between them a density."""

    scale: float
    count: int

    @property
    def repeated(self) -> bool:  # type: ignore[override]
        return self.count > 1

    def interval(self, epsilon: float) -> float:
        return min(1 / self.scale / 64, 1e-3 * max(1.0, epsilon / 4))

    def steps(self, direction: Direction, interval: float) -> Steps:
        largest = direction.sides / self.scale
        if largest > _LARGEST_LOSS:  # nothing is private
            return [(LossGrid(interval, 0, np.zeros(1), 1.0), 1)]
        cells = max(1, math.ceil(2 * largest / interval))
        if cells > MOST_CELLS:
            raise GridTooLarge(f"composition: a Laplace mechanism needs a grid of {cells} losses, too many")
        width = 2 * largest / cells
        points = np.linspace(-largest, largest, cells + 1)
        # A cell's mass goes to its ends so that both its probabilities are kept; the share is the same in all.
        inside = np.exp((points[:-1] - largest) / 2) * math.expm1(width / 2) / 2
        share = 1 / (1 + math.exp(-width / 2))
        masses = np.zeros(points.size)
        masses[1:] += inside * share
        masses[:-1] += inside * (1 - share)
        masses[0] += math.exp(-largest) / 2
        masses[-1] += 0.5
        atoms = Atoms(points, masses * (1 + MASS_ERROR), 0.0)
        return [(atoms.on_grid(interval), self.count)]


@typechecked
@dataclass(frozen=True)
class LaplaceEvent(Event):
    """Single numbers with Laplace noise.

    Args:
      scale: of the noise, in units of what one example adds to the number at most.
      count: how many such numbers.

    Example:
      >>> LaplaceEvent(scale=20.0, count=3).words
      'laplace:scale=20,count=3'
    """

    kind: ClassVar[str] = "laplace"
    scale: float
    count: int = 1

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        count("count", self.count, at_most=_MOST_TIMES)

    @property
    def words(self) -> str:
        return f"laplace:scale={self.scale:g}" + (f",count={self.count}" if self.count > 1 else "")

    def rho(self, adjacency: Adjacency) -> float:
        return self.count * (adjacency.sides / self.scale) ** 2 / 2  # pure privacy with this epsilon is zCDP

    def loss(self, aim: Aim) -> Loss:
        return _LaplaceLoss(min(self.scale, _MOST_SCALE), self.count)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "scale": self.scale, "count": self.count}


@typechecked
@dataclass(frozen=True)
class KnownEvent(Event):
    """A mechanism of which nothing is known but that it is (epsilon, delta)-DP, under the adjacency of the whole.

    Args:
      epsilon: of its guarantee.
      delta: of its guarantee; 0 for pure differential privacy.
      count: how many such mechanisms.

    Example:
      >>> KnownEvent(epsilon=0.1, delta=1e-7).words
      'dp:epsilon=0.1,delta=1e-07'
    """

    kind: ClassVar[str] = "dp"
    epsilon: float
    delta: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        non_negative("epsilon", self.epsilon)
        if self.epsilon > LARGEST_EPSILON:
            raise InvalidArgument("epsilon", self.epsilon, f"must be at most {LARGEST_EPSILON:g}")
        if not 0 <= non_negative("delta", self.delta) < 1:
            raise InvalidArgument("delta", self.delta, "must be at least 0 and below 1")
        count("count", self.count, at_most=_MOST_TIMES)

    @property
    def words(self) -> str:
        more = f",count={self.count}" if self.count > 1 else ""
        return f"dp:epsilon={self.epsilon:g}" + (f",delta={self.delta:g}" if self.delta else "") + more

    def check_adjacency(self, adjacency: Adjacency) -> None:
        one_way = any(direction.reverse not in adjacency.directions for direction in adjacency.directions)
        if one_way and self.epsilon > 0:  # at epsilon 0 the two divergences are the same
            remedy = f"says too little of {self.words} for composition; take add-or-remove"
            raise InvalidArgument("adjacency", str(adjacency), remedy)

    def rho(self, adjacency: Adjacency) -> float | None:
        return None if self.delta else self.count * self.epsilon**2 / 2

    def loss(self, aim: Aim) -> Loss:
        # That of randomised response with this epsilon, and an infinite one with probability delta.
        finite = (1 - self.delta) * np.array([1.0, math.exp(min(self.epsilon, 700.0))])
        masses = finite / (1 + math.exp(min(self.epsilon, 700.0))) * (1 + MASS_ERROR)
        atoms = Atoms(np.array([-self.epsilon, self.epsilon]), masses, self.delta)
        return AtomicLoss(dict.fromkeys(aim.directions, atoms), times=self.count)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon, "delta": self.delta, "count": self.count}
