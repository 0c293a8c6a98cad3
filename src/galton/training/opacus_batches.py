"""The batches of a plan for Opacus: sampler, loader, and a note of the batch that was delivered last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from galton.batching import Batch, Users
from galton.training.rounds import PlanViolated
from galton.training.run import TrainingRun
from galton.training.streams import InOrder
from galton.training.torch_batches import in_order
from galton.training.torch_workers import prepare_server


def rows_of(batch: Batch, users: Users | None, bins: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the examples of a batch, in the order in which they are loaded, and to whom each belongs.

    Args:
      batch: of the plan.
      users: which examples are whose, if the unit is a user.
      bins: batches per epoch.

    Returns:
      Indices of examples; and for each the place of its user in the batch, from 0 on and never falling. Where examples
      are the unit every example has a place of its own.
    """
    if users is None:
        return batch.examples, np.arange(len(batch.examples))
    indices, present = users.rows(batch.examples, batch.round // bins)
    return indices[present], np.repeat(np.arange(len(batch.examples)), present.sum(axis=1))


class Delivery:
    """The batch of the plan that was last delivered to the training loop: loaders note it, the optimiser checks it.

    `PlanLoader` notes a batch when it hands it over, however far its workers read ahead. `BatchMemoryManager` makes a
    loader of its own around the sampler. It announces every part (physical batch) to the optimiser when the sampler is
    asked for it; parts are assumed to arrive in that order, one for each `step`.

    Args:
      ahead: number of parts that workers may have been asked for but not delivered yet.

    Attributes:
      asked: rounds that the sampler was asked for and that were not delivered yet.
      passes: number of passes over the sampler that were begun.
      round: that was delivered last; None if it was stepped.
      between_rounds: called when a script asks for a batch, so that it is done with the one before.

    What is detected:
      - Batches of any other loader, for then nothing was delivered.
      - A batch of `PlanLoader` without a step, for then the batch delivered last is not that of the next round.
      - A part of `BatchMemoryManager` without a step, for then more parts are open than workers can have under way.
        Without workers this is always detected. With workers it is not among the last `ahead` parts of an epoch, when
        the sampler is asked no more.
    What is not detected: tensors that were exchanged for as many others between the loader and the model.
    """

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead
        self.asked: deque[int] = deque()
        self._noted = False  # whether it is PlanLoader that delivers
        self._parts: deque[tuple[bool, int | None]] = deque()
        self.passes = 0
        self.round: int | None = None
        self.between_rounds: Callable[[], None] = lambda: None

    def begin(self) -> deque[int]:
        """Notes that a pass over the sampler begins; returns the queue to which it appends the rounds asked for.

        Returns:
          The queue.
        """
        self.forget()
        self.passes, self.asked, self._noted = self.passes + 1, deque(), False
        return self.asked

    def forget(self) -> None:
        """Forgets what was delivered so far: it can no longer be stepped."""
        self.round = None
        self._parts.clear()

    def note(self, turn: int) -> None:
        """Notes that the batch of this round is handed over.

        Args:
          turn: the round.
        """
        self.round, self._noted = turn, True

    def open_part(self, skip: bool) -> None:
        """Notes that a part is on its way; `skip` says that others of the same batch follow.

        Args:
          skip: whether others of the same batch follow.
        """
        self._parts.append((skip, self.round if self._noted or not self.asked else self.asked[-1]))

    def next_part(self, take: bool = True) -> bool:
        """Returns whether other parts of the batch follow the one that is stepped now; `take` removes it.

        Args:
          take: whether the part is removed.

        Returns:
          True if the batch has further parts.
        """
        if not self._parts:
            return False
        if not take:
            return self._parts[0][0]
        if not self._noted and len(self._parts) > self._ahead + 1:
            raise PlanViolated(
                "step: the loader of BatchMemoryManager has delivered a batch that was not stepped; begin a new pass"
            )
        skip, self.round = self._parts.popleft()
        return skip

    @property
    def stepped(self) -> int | None:
        """The round that the part which is stepped now belongs to; None if no loader of the plan delivered it."""
        return self._parts[0][1] if self._parts else self.round

    def check(self, coming: int) -> None:
        """Raises `PlanViolated` unless the batch of the next round, `coming`, was delivered and none after it.

        Args:
          coming: the next round.
        """
        if self.round is None:
            raise PlanViolated(
                f"step: no loader of the plan has delivered the batch of round {coming}; batches have to come from the "
                "loader that make_private returned, each for one step"
            )
        if self.round != coming:
            raise PlanViolated(
                f"step: the batch of round {self.round} was delivered, but the coming round is {coming}; every batch "
                "has to be stepped, in order. A new pass over the loader begins with the coming round"
            )


class ReadInOrder(Dataset[Any]):
    """A data set that can only be read, by places: those of epoch e are e times the number of examples, and onwards.

    Args:
      data: the data set, as it was shuffled.
      examples: their number, in the plan.
    """

    def __init__(self, data: IterableDataset[Any], examples: int) -> None:
        self._data, self._examples = data, examples
        self._reader: InOrder | None = None  # of each worker, which reads all of it

    def __getstate__(self) -> dict[str, Any]:
        """What a worker gets: it opens the data for itself."""
        return self.__dict__ | {"_reader": None}

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, place: int) -> Any:
        self._reader = self._reader or in_order(self._data)
        epoch, position = divmod(int(place), self._examples)
        return self._reader.take([position], epoch)[0]


class PlanSampler(Sampler[list[int]]):
    """A batch sampler: each pass yields the examples of the batches from the next round to the end of its epoch.

    Batches are not padded, are truncated as planned, and may be empty.

    Args:
      run: source of the batches.
      delivery: is told what was asked for.
      users: which examples are whose, if the unit is a user.
      apart: by how much the examples of an epoch are numbered higher than those of the epoch before.
    """

    def __init__(self, run: TrainingRun, delivery: Delivery, users: Users | None, apart: int = 0) -> None:
        self._run, self._delivery, self._users, self._apart = run, delivery, users, apart

    def __iter__(self) -> Iterator[list[int]]:
        self._delivery.between_rounds()
        return self._indices_by_round(self._delivery.begin())

    def _indices_by_round(self, asked: deque[int]) -> Iterator[list[int]]:
        for batch in self._run.epoch():
            asked.append(batch.round)
            first = batch.round // self._run.plan.bins * self._apart
            yield [first + index for index in rows_of(batch, self._users, self._run.plan.bins)[0].tolist()]

    def __len__(self) -> int:
        return self._run.plan.bins


class CollateWithEmpty:
    """Collates a batch; an empty one becomes tensors without rows."""

    def __init__(self, collate: Callable[[list[Any]], Any], like: Any, batch_first: bool) -> None:
        def empty(leaf: Tensor) -> Tensor:
            return leaf[:0] if batch_first or leaf.ndim < 2 else leaf[:, :0]

        self._collate, self._empty = collate, tree_map(empty, collate([like]))

    def __call__(self, items: list[Any]) -> Any:
        return self._collate(items) if items else self._empty


class PlanLoader(DataLoader[Any]):
    """A script's data loader with the batches of the plan; it notes what it delivers.

    With every batch it seeds PyTorch, so that dropout comes out the same if the round is computed again.

    Args:
      run: source of the batches.
      like: the script's loader, for its data set, workers and `collate_fn`.
      batch_first: whether examples are the first axis of what is collated.
      users: which examples are whose, if the unit is a user; a batch has theirs one user after the other.
    """

    def __init__(self, run: TrainingRun, like: DataLoader[Any], batch_first: bool, users: Users | None = None) -> None:
        self._run, data, apart = run, like.dataset, 0
        if isinstance(data, IterableDataset):
            apart = run.plan.examples
            data = ReadInOrder(data, apart)
        self.delivery = Delivery(like.num_workers * (like.prefetch_factor or 0))
        collate: Any = CollateWithEmpty(like.collate_fn, data[0], batch_first)
        super().__init__(
            data,
            batch_sampler=PlanSampler(run, self.delivery, users, apart),
            collate_fn=collate,
            num_workers=like.num_workers,
            pin_memory=like.pin_memory,
            timeout=like.timeout,
            worker_init_fn=like.worker_init_fn,
            multiprocessing_context=_start_method(like),
            generator=like.generator,
            prefetch_factor=like.prefetch_factor,
            persistent_workers=like.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        asked = self.delivery.asked
        for rows in batches:
            turn = asked.popleft()
            self.delivery.note(turn)
            torch.manual_seed(self._run.round_seed(turn))
            yield rows
            if turn + 1 < self._run.rounds and (turn + 1) % self._run.plan.bins:
                self.delivery.between_rounds()


def _start_method(like: DataLoader[Any]) -> Any:
    """Workers are not forked unless the script says so, for a process that uses JAX should not be."""
    requested = like.multiprocessing_context
    if requested is not None or not like.num_workers:
        return requested
    prepare_server(__name__)
    return "forkserver"
