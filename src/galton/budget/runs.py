"""Runs among the releases about one data set: by their accountants, by samples that were kept, or by their pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from galton.accountants import Accountant, Run
from galton.accountants.losses import Aim, AtomicLoss, GaussianLoss, Loss, both_ways, sampled_loss
from galton.budget.events import Event, GaussianEvent, KnownEvent, LaplaceEvent, leaked
from galton.errors import InvalidArgument
from galton.fields import Fields
from galton.guarantee import Adjacency
from galton.loss_grids import Atoms
from galton.pair import DominatingPair


@dataclass(frozen=True, eq=False, kw_only=True)
class CertifiedEvent(Event):
    """A run, by a loss that dominates its own except with a stated probability.

    Attributes:
      name: of the run.
      adjacency: that of the run.
      known: the loss, in every direction of the adjacency and its reverse.
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
        loss = self.loss(replace(aim, directions=aim.sides))  # whatever it is composed with may need both
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


def _gaussian(mu: float, adjacency: Adjacency, displacement: float, unit: str | None) -> Event:
    """The Gaussian mechanism with this shift under an adjacency, but for what truncation told."""
    return leaked(GaussianEvent(adjacency.sides / mu, unit=unit), displacement)


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
        atoms = {direction: _atoms(losses.inner(direction.value)) for direction in both_ways(adjacency.directions)}
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
