"""The best of several runs, as something that is released (docs/math.md, section 13.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from galton.accountants.losses import Aim, AtomicLoss, Loss, dominating_atoms
from galton.budget.events import Event
from galton.budget.runs import CertifiedEvent
from galton.budget.whole import Whole, curve_limits
from galton.guarantee import Adjacency, Direction
from galton.plan.tuning import Tuning


@dataclass(frozen=True, eq=False)
class TunedEvent(Event):
    """The best of several runs.

    Attributes:
      run: a single run.
      tuning: how many there are.
    """

    kind: ClassVar[str] = "tuned"
    run: Event
    tuning: Tuning

    @property
    def adjacency(self) -> Adjacency | None:  # type: ignore[override]
        return self.run.adjacency

    @property
    def unit(self) -> str | None:  # type: ignore[override]
        return self.run.unit

    @property
    def words(self) -> str:
        return f"the best of {self.tuning} runs: {self.run.words}"

    def check_adjacency(self, adjacency: Adjacency) -> None:
        self.run.check_adjacency(adjacency)

    def if_known(self, adjacency: Adjacency) -> Event | None:
        run = self.run.if_known(adjacency)
        return None if run is None else TunedEvent(run, self.tuning)

    def loss(self, aim: Aim) -> Loss:
        delta = aim.delta / max(1.0, self.tuning.mean)
        single = self.run.loss(Aim(aim.sides, delta, aim.failure, aim.options))
        adjacency = Adjacency.REPLACE if Direction.REPLACE in aim.sides else Adjacency.ADD_OR_REMOVE
        limits = curve_limits(Whole([single], aim.sides, adjacency, self.run.displacement), delta)
        tuned = {side: self.tuning.limits(limits[side], limits[side.reverse]) for side in aim.sides}
        atoms = {each: dominating_atoms(tuned[each], tuned[each.reverse]) for each in aim.directions}
        return AtomicLoss(atoms, single.failure, single.samples)

    def settled(self, aim: Aim) -> Event:
        loss = self.loss(replace(aim, directions=aim.sides))
        assert isinstance(loss, AtomicLoss)
        adjacency = self.run.adjacency or Adjacency.ADD_OR_REMOVE
        return CertifiedEvent(name=self.words, adjacency=adjacency, known=loss, unit=self.unit)
