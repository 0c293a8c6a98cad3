"""One run in several processes: the batch is split over them, the first has the folder, and noise is made once.

Each process sums the clipped gradients of its part of the batch. The sums are reduced to rank 0, which alone has the
folder: it writes the round to the journal, adds the noise and sends the noisy sum to all. So there is one run, one
journal and one noise, and what other ranks get is what a model may be computed from. Ranks trust each other: sums
without noise and the seed of the batches go over the group's connections, which are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.dlpack import from_dlpack

from galton.batching import Batch, Batches
from galton.errors import GaltonError, InvalidArgument
from galton.plan import Plan
from galton.training.clipping import Clipping
from galton.training.lost import RoundsSkipped
from galton.training.rounds import PlanViolated, Rounds
from galton.training.run import TrainingRun

Result = TypeVar("Result")
FIRST = 0
"""The rank that has the folder."""


def check_plain(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a model that averages gradients before they are clipped.

    Args:
      model: the model.
    """
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise InvalidArgument(
            "model",
            type(model).__name__,
            "must be the module inside (model.module), with train(distributed=True) or share_run: the "
            "wrapper averages gradients that are "
            "not clipped, while a run sums clipped ones over all processes by itself",
        )


class SharedRun(Rounds):
    """A training run that the processes of `torch.distributed` share; `share_run` makes it, and its example shows one.

    All ranks must call its methods, in the same order. What fails on rank 0 fails on all.

    Args:
      begin: opens the run; called on rank 0 only.
      plan: the run's plan.
      folder: of the run; only rank 0 reads and writes it.
      about: what must be the same on all ranks, such as names and shapes of parameters.

    Attributes:
      plan: as given.
      folder: as given.
      rank: of this process.
      processes: number of processes.

    Formal guarantees:
      - Each example of a round's batch is in the part of exactly one rank. The noise is that of the plan, added to the
        sum over all ranks, once, after rank 0 has written the round to the journal.
      - What `TrainingRun` guarantees of replays and skips holds for the sum over all ranks.
    """

    def __init__(self, begin: Callable[[], TrainingRun], plan: Plan, folder: str | Path, about: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument(
                "distributed", True, "needs a process group: call torch.distributed.init_process_group, or use torchrun"
            )
        self.plan, self.folder = plan, Path(folder)
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        self._own: TrainingRun | None = None
        self._check_agreed([plan.digest, about])

        def opened() -> dict[str, Any]:
            self._own = begin()
            secret = hmac.new(self._own._secret, b"galton ranks", hashlib.sha256).digest()
            return {"batches": self._own._batches.state(), "secret": secret, "clipping": self._own.clipping}

        facts = self.on_first(opened)
        self._ranks_secret: bytes = facts["secret"]
        self._clipping: Clipping = facts["clipping"]
        self._batches = Batches.resume(plan.scheme, facts["batches"])
        self._follow()

    def _check_agreed(self, about: Any) -> None:
        everyone = self.gathered(about)
        differ = [rank for rank, other in enumerate(everyone) if other != everyone[FIRST]]
        if differ:
            raise PlanViolated(f"ranks {differ}: have another plan or other trainable parameters than rank {FIRST}")

    def on_first(self, work: Callable[[], Result]) -> Result:
        """Returns what a function returns on rank 0, on all ranks; an error there is raised everywhere.

        Args:
          work: called on rank 0 only; its result must be of what pickle knows.

        Returns:
          Its result.
        """
        outcome: list[Any] = [None, None]
        failure: Exception | None = None
        if self.rank == FIRST:
            try:
                outcome[0] = work()
            except Exception as error:
                failure, outcome[1] = error, f"rank {FIRST}: {type(error).__name__}: {error}"
        dist.broadcast_object_list(outcome, FIRST)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise GaltonError(outcome[1])
        result: Result = outcome[0]
        return result

    @property
    def own(self) -> TrainingRun:
        """The run itself; on rank 0 only."""
        if self._own is None:
            raise PlanViolated(f"rank {self.rank}: only rank {FIRST} has the folder of the run")
        return self._own

    def _follow(self) -> None:
        """Learns from rank 0 how far the run is."""
        facts = self.on_first(lambda: (self.own.round, self.own.released, self.own.stopped, self.own.begun))
        self._round, self._released, self._stopped, self._begun = facts

    @property
    def round(self) -> int:
        """The next round, counted from 0."""
        return self._round

    @property
    def released(self) -> int:
        """Number of rounds that have had their noise, saved or not."""
        return self._released

    @property
    def clipping(self) -> Clipping:
        """How gradients are clipped, of the kind that the plan says."""
        return self._clipping

    @property
    def begun(self) -> bool:
        """Whether rounds were saved, so that training has to go on from the model that was saved with them."""
        return self._begun

    @property
    def stopped(self) -> bool:
        """Whether the run was ended for good (`stop_run`)."""
        return self._stopped

    @property
    def _secret(self) -> bytes:
        return self._ranks_secret

    @property
    def rows(self) -> int:
        """Rows of a batch, padding included, that this rank computes if it does not cut them."""
        return -(-self.plan.padded_batch_size // self.processes)

    def check_micro_batch_size(self, size: int) -> None:
        """Allows any size: the part of a rank is padded to a multiple of it.

        Args:
          size: rows of a micro-batch.
        """

    def cut(self, batch: Batch, size: int) -> list[Batch]:
        """Returns the micro-batches that this rank computes of a batch: every so-manieth example, then padding.

        Args:
          batch: of the run.
          size: rows of a micro-batch.

        Returns:
          The micro-batches in order, as many on every rank.
        """
        members = batch.examples[self.rank :: self.processes]
        rows = -(-self.rows // size) * size
        indices = np.full(rows, self.plan.examples, batch.indices.dtype)
        indices[: len(members)] = members
        return Batch(batch.round, indices, np.arange(rows) < len(members), 0).micro_batches(size)

    def round_seed(self, turn: int, part: int = 0) -> int:
        """Returns a seed for what else is random in a round on this rank; see `TrainingRun.round_seed`.

        Args:
          turn: the round.
          part: number of the micro-batch, if each has a seed of its own.

        Returns:
          A whole number below 2^63; a secret.
        """
        return super().round_seed(turn, part * self.processes + self.rank)

    def noisy(self, total: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all ranks, adds the noise of the next round, and moves on; see `TrainingRun.noise`.

        Raises `RoundsSkipped` on all ranks for a round that was computed before and does not come out the same.

        Args:
          total: this rank's sum of clipped gradients, by name of the parameter.

        Returns:
          The noisy sum, the same on all ranks.
        """
        vectors = _flattened(total)
        for vector in vectors.values():
            dist.reduce(vector, FIRST)

        def add() -> str:
            sums = _cut(vectors, total)
            try:
                noise = self.own.noise({name: part.cpu().numpy() for name, part in sums.items()})
            except RoundsSkipped as lost:
                return str(lost)
            for name, part in sums.items():
                part += from_dlpack(noise[name]).to(part.device)
            return ""

        skipped = self.on_first(add)
        self._follow()
        if skipped:
            raise RoundsSkipped(skipped)
        for vector in vectors.values():
            dist.broadcast(vector, FIRST)
        return _cut(vectors, total)

    def gathered(self, value: Result) -> list[Result]:
        """Returns the values of all ranks, in their order, on all ranks.

        Args:
          value: of this rank.

        Returns:
          All of them.
        """
        values: list[Any] = [None] * self.processes
        dist.all_gather_object(values, value)
        return values

    def save(self, write: Callable[[Path], object] | None = None) -> None:
        """Saves the run on rank 0; see `TrainingRun.save`.

        Args:
          write: write(path) writes model and optimiser; called on rank 0 only.
        """
        self.on_first(lambda: self.own.save(write))
        self._follow()

    def publish(self, write: Callable[[Path], object], suffix: str) -> None:
        """Writes the model alone on rank 0; see `TrainingRun.publish`.

        Args:
          write: write(path) writes the model; called on rank 0 only.
          suffix: of the file.
        """
        self.on_first(lambda: self.own.publish(write, suffix))

    def state(self) -> dict[str, Any]:
        """Returns the state of the run before the next round, on all ranks; see `TrainingRun.state`."""
        return self.on_first(lambda: self.own.state())

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state of this run; see `TrainingRun.restore`.

        Args:
          state: what `state` returned.
        """
        self.on_first(lambda: self.own.restore(state))
        self._follow()

    def record(self) -> dict[str, Any]:
        """Writes the record on rank 0, and returns it on all ranks."""
        return self.on_first(lambda: self.own.record())

    def load(self, read: Callable[[Path], Result]) -> Result | None:
        """Returns the content of the last checkpoint on all ranks; None before the first.

        Args:
          read: read(path) reads it; called on rank 0 only.

        Returns:
          What was saved.
        """
        return self.on_first(lambda: None if self.own.checkpoint is None else read(self.own.checkpoint))

    def close(self) -> None:
        """Writes the record and unlocks the folder, on rank 0."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.__exit__(kind, error, trace)


def _flattened(total: dict[str, Tensor]) -> dict[torch.dtype, Tensor]:
    """Copies tensors into one vector for each precision, so that one message carries them."""
    kinds = sorted({part.dtype for part in total.values()}, key=str)
    return {
        kind: torch.cat([part.detach().reshape(-1) for part in total.values() if part.dtype == kind]) for kind in kinds
    }


def _cut(vectors: dict[torch.dtype, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns views of vectors in the shapes of the tensors that they were made from."""
    starts = dict.fromkeys(vectors, 0)
    parts = {}
    for name, part in like.items():
        start = starts[part.dtype]
        parts[name] = vectors[part.dtype][start : start + part.numel()].view(part.shape)
        starts[part.dtype] += part.numel()
    return parts


def same_start(model: nn.Module) -> None:
    """Gives all ranks the parameters and buffers of rank 0, those aside that each has a part of.

    Args:
      model: changed in place.
    """
    with torch.no_grad():
        for part in (*model.parameters(), *model.buffers()):
            if isinstance(part.data, DTensor):
                continue
            values = part.data.contiguous()
            dist.broadcast(values, FIRST)
            part.data.copy_(values)
