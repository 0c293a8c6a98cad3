"""What is released about one data set, as values: runs, and plain mechanisms by name (docs/composition.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from galton.accountants import Accountant, Run
from galton.accountants.composition import LossGrid
from galton.accountants.losses import Aim, AtomicLoss, Atoms, GaussianLoss, Loss, Steps, sampled_loss
from galton.convolution import MASS_ERROR, MOST_CELLS, GridTooLarge
from galton.errors import InvalidArgument, count, non_negative, positive
from galton.fields import Fields
from galton.guarantee import LARGEST_EPSILON, Adjacency, Direction
from galton.pair import DominatingPair
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
        return replace(self, probability=1.0)

    def rho(self, adjacency: Adjacency) -> float:
        return self.count * (adjacency.sides / self.sigma) ** 2 / 2

    def loss(self, aim: Aim) -> Loss:
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


@dataclass(frozen=True, eq=False, kw_only=True)
class CertifiedEvent(Event):
    """A run, by a loss that dominates its own except with a stated probability.

    Attributes:
      name: of the run.
      adjacency: that of the run.
      known: the loss, in every direction of the adjacency.
      displacement: see `Event`.
      unit: see `Event`.
      mu: shift of the Gaussian mechanism that is left if the batches are known; None where that is not known.
    """

    kind: ClassVar[str] = "certified"
    name: str
    adjacency: Adjacency
    known: AtomicLoss
    displacement: float = 0.0
    unit: str | None = None
    mu: float | None = None

    @property
    def words(self) -> str:
        return self.name

    def if_known(self, adjacency: Adjacency) -> Event | None:
        return None if self.mu is None else _gaussian(self.mu, adjacency, self.displacement, self.unit)

    def rho(self, adjacency: Adjacency) -> float | None:
        return None if self.mu is None else self.mu**2 / 2

    def loss(self, aim: Aim) -> Loss:
        return self.known

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "adjacency": self.adjacency.value,
            "displacement": self.displacement,
            "unit": self.unit,
            **({} if self.mu is None else {"mu_if_known": self.mu}),
            "failure_probability": self.known.failure,
            "samples": self.known.samples,
            "losses": {
                direction.value: {
                    "points": atoms.points.tolist(),
                    "masses": atoms.masses.tolist(),
                    "infinite": atoms.infinite,
                }
                for direction, atoms in self.known.by_direction.items()
            },
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class RunEvent(Event):
    """A training run, by its accountant.

    Attributes:
      name: of the run.
      adjacency: that its plan is for.
      accountant: whose analysis it is.
      run: strategy, batches and noise.
      displacement: see `Event`.
      unit: see `Event`.
    """

    kind: ClassVar[str] = "plan"
    name: str
    adjacency: Adjacency
    accountant: Accountant
    run: Run
    displacement: float
    unit: str | None

    @property
    def words(self) -> str:
        return self.name

    def if_known(self, adjacency: Adjacency) -> Event:
        return _gaussian(self.run.mu_if_known(adjacency), adjacency, self.displacement, self.unit)

    def rho(self, adjacency: Adjacency) -> float:
        return self.run.mu_if_known(adjacency) ** 2 / 2

    def loss(self, aim: Aim) -> Loss:
        return self.accountant.loss(self.run, aim)

    def settled(self, aim: Aim) -> Event:
        loss = self.loss(aim)
        if isinstance(loss, GaussianLoss):
            sums = GaussianEvent(
                loss.noise_multiplier, loss.count, loss.probability_of_use, self.displacement, self.unit
            )
            return BoundEvent(sums, self.adjacency)
        if isinstance(loss, AtomicLoss):
            return CertifiedEvent(
                name=self.name,
                adjacency=self.adjacency,
                known=replace(loss, pair=None),  # a file holds none
                displacement=self.displacement,
                unit=self.unit,
                mu=self.run.mu_if_known(self.adjacency),
            )
        raise InvalidArgument("event", self.name, "cannot be written to a file")


@dataclass(frozen=True, eq=False)
class PairEvent(Event):
    """A run, by its dominating pair.

    Attributes:
      pair: the mechanism with its noise multiplier.
    """

    kind: ClassVar[str] = "pair"
    pair: DominatingPair

    @property
    def words(self) -> str:
        return f"{self.pair.rounds} rounds of {self.pair.bins} bins at noise multiplier {self.pair.noise_multiplier:g}"

    def if_known(self, adjacency: Adjacency) -> Event:
        return GaussianEvent(1 / self.pair.mu_upper)

    def rho(self, adjacency: Adjacency) -> float:
        return (adjacency.sides * self.pair.mu_upper) ** 2 / 2

    def loss(self, aim: Aim) -> Loss:
        return sampled_loss(self.pair, aim)


@dataclass(frozen=True, eq=False)
class BoundEvent(Event):
    """An event that is known under one adjacency only, because it was written down under it.

    Attributes:
      event: the event.
      adjacency: under which it was written down.
    """

    kind: ClassVar[str] = "bound"
    event: Event
    adjacency: Adjacency

    @property
    def words(self) -> str:
        return self.event.words

    @property
    def displacement(self) -> float:  # type: ignore[override]
        return self.event.displacement

    @property
    def unit(self) -> str | None:  # type: ignore[override]
        return self.event.unit

    def check_adjacency(self, adjacency: Adjacency) -> None:
        super().check_adjacency(adjacency)
        self.event.check_adjacency(adjacency)

    def if_known(self, adjacency: Adjacency) -> Event | None:
        return self.event.if_known(adjacency)

    def rho(self, adjacency: Adjacency) -> float | None:
        return self.event.rho(adjacency)

    def loss(self, aim: Aim) -> Loss:
        return self.event.loss(aim)

    def settled(self, aim: Aim) -> Event:
        return BoundEvent(self.event.settled(aim), self.adjacency)

    def to_json(self) -> dict[str, Any]:
        return self.event.to_json()  # whoever writes it down has checked the adjacency


def _gaussian(mu: float, adjacency: Adjacency, displacement: float, unit: str | None) -> GaussianEvent:
    """The Gaussian mechanism with this shift under an adjacency."""
    return GaussianEvent(adjacency.sides / mu, displacement=displacement, unit=unit)


def event_from_json(value: dict[str, Any]) -> Event:
    """Rebuilds an event from `Event.to_json`; every field is checked.

    Args:
      value: a dictionary as `to_json` returns it.

    Returns:
      The event.
    """
    body = Fields("event", value)
    kind = body.text("kind")
    if kind == GaussianEvent.kind:
        return GaussianEvent(
            body.real("sigma"),
            body.count("count", 1),
            body.real("probability"),
            body.real("displacement"),
            body.text_or_none("unit"),
        )
    if kind == LaplaceEvent.kind:
        return LaplaceEvent(body.real("scale"), body.count("count", 1))
    if kind == KnownEvent.kind:
        return KnownEvent(body.real("epsilon"), body.real("delta"), body.count("count", 1))
    if kind == CertifiedEvent.kind:
        adjacency = body.member("adjacency", Adjacency)
        losses = body.inner("losses")
        atoms = {direction: _atoms(losses.inner(direction.value)) for direction in adjacency.directions}
        loss = AtomicLoss(atoms, body.real("failure_probability", 0.0, 1.0), body.count("samples"))
        return CertifiedEvent(
            name=body.text("name"),
            adjacency=adjacency,
            known=loss,
            displacement=body.real("displacement", 0.0, 1.0),
            unit=body.text_or_none("unit"),
            mu=body.real("mu_if_known", 0.0) if "mu_if_known" in value else None,
        )
    raise InvalidArgument("event.kind", kind, "must be gaussian, laplace, dp or certified")


def _atoms(body: Fields) -> Atoms:
    points, masses = np.array(body.reals("points")), np.array(body.reals("masses"))
    infinite = body.real("infinite", 0.0, 1.001)
    total = float(masses.sum()) + infinite
    whole = points.size == masses.size and (masses >= 0).all() and (np.diff(points) > 0).all()
    if not whole or not 1 - 1e-9 <= total <= 1.001:
        raise InvalidArgument("event.losses", total, "must be increasing points with masses that add up to 1")
    return Atoms(points, masses, infinite)
