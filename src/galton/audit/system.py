"""What is audited: the batches and the noise that training gets from a plan, saved and resumed halfway."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from galton.batching import Batch, Batches
from galton.plan.plan import Plan

if TYPE_CHECKING:
    from galton.noise import CorrelatedNoise

Vector = NDArray[np.floating[Any]]


class System(Protocol):
    """Batches and noise of whole runs. The auditor sees nothing else of what it audits."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        """Yields the batches of one run, round by round.

        Args:
          seed: of the batches; None for a seed of the system's own.

        Yields:
          One batch per round.
        """

    def noise(
        self, coordinates: int, members: Callable[[int], NDArray[np.int64]], seed: int | None
    ) -> Iterator[Vector]:
        """Yields the noise of one run, round by round, for a model of one vector of parameters.

        Args:
          coordinates: number of parameters.
          members: members(t) are the examples of round t, for the journal.
          seed: of the noise; None for a key of the system's own.

        Yields:
          One vector per round.
        """


class RealSystem(System):
    """The system that training uses: `plan.batches` and `plan.noise`, each saved and resumed halfway through the run.

    Batches go through the JSON of their state, noise through the checkpoint file and the journal of a `NoiseRun`: the
    parts that a `TrainingRun` consists of.

    Args:
      plan: the plan to be audited.

    Attributes:
      plan: as given.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def source(self) -> CorrelatedNoise:
        """The noise of the plan; it has no state and is compiled once."""
        return self.plan.noise()

    @property
    def halfway(self) -> int:
        """The round before which a run is interrupted and resumed."""
        return self.plan.rounds // 2

    def batches(self, seed: int | None) -> Iterator[Batch]:
        begun = self.plan.batches(seed)
        yield from islice(begun, self.halfway)
        yield from Batches.resume(self.plan.scheme, json.loads(json.dumps(begun.state())))

    def noise(
        self, coordinates: int, members: Callable[[int], NDArray[np.int64]], seed: int | None
    ) -> Iterator[Vector]:
        from galton.noise import NoiseRun, key_from_seed

        key = None if seed is None else key_from_seed(seed)
        model = np.zeros(coordinates, np.float32)
        with tempfile.TemporaryDirectory(prefix="galton-audit-") as folder:
            with NoiseRun(folder, self.source, model, self.plan.digest, key) as run:
                while run.round < self.halfway:
                    yield np.asarray(run.next(members(run.round)))
                run.save()
            with NoiseRun(folder, self.source, model, self.plan.digest, renew=seed is None) as run:
                while run.round < self.plan.rounds:
                    yield np.asarray(run.next(members(run.round)))
