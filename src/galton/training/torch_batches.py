"""The batches of a run for PyTorch: padded, cut into micro-batches, loaded by workers, recognised when they return."""

from __future__ import annotations

import hmac
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, default_collate

from galton.batching import Batch, Users
from galton.errors import InvalidArgument, count
from galton.training.rounds import PlanViolated, Rounds, check_same
from galton.training.streams import InOrder, check_streaming
from galton.training.torch_workers import ByValue, worker_context


class PaddedBatch(NamedTuple):
    """A batch of a run, or one of its micro-batches, as tensors of fixed shapes; `plan_loader` yields them.

    Attributes:
      inputs: the collated items of the data set; zero where there is padding.
      mask: True where there is an example.
      round: the round of the run.
      part: number of the micro-batch within its round, from 0 to `parts` - 1.
      parts: number of micro-batches in a round.
      token: by which the run recognises the examples, see `TrainingRun.token`.

    Example:
      >>> import tempfile
      >>> import galton
      >>> from torch import nn
      >>> from galton.training.torch import open_run
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> data = TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
      >>> with (
      ...     tempfile.TemporaryDirectory() as folder,
      ...     open_run(plan, folder, nn.Linear(2, 1), examples=64, clip_norm=1.0) as run,
      ... ):
      ...     batch = next(iter(plan_loader(run, data, micro_batch_size=16)))
      >>> int(batch.mask.sum()), batch.part, batch.parts, batch.last
      (16, 0, 2, False)
    """

    inputs: Any
    mask: Tensor
    round: int
    part: int = 0
    parts: int = 1
    token: str = ""

    @property
    def last(self) -> bool:
        """Whether this is the last micro-batch of its round."""
        return self.part == self.parts - 1


def plan_loader(
    run: Rounds,
    data: Dataset[Any],
    micro_batch_size: int | None = None,
    users: Users | None = None,
    **options: Any,
) -> DataLoader[PaddedBatch]:
    """Returns a data loader for a run: each pass yields the batches from the next round to the end of its epoch.

    All batches have the same shapes: as many rows as the padded batch size, of which padding is zero and masked. A pass
    after the last planned round raises `PlanViolated`. The random numbers of Python, NumPy and PyTorch that a data set
    draws (augmentation) are seeded for each micro-batch, so that one that is loaded again after a crash is the same.

    Args:
      run: the run; the loader reads ahead of it.
      data: a data set with as many examples as the plan, all of the same shapes. For a plan of streaming batches it may
        be an `IterableDataset`, read in order: it has the data as it was shuffled, and where that is done anew for
        every epoch, `set_epoch(epoch)` is called before each. With workers, each of them reads all of it.
      micro_batch_size: yield micro-batches of this size; must divide the padded batch size. By default whole batches.
      users: which examples are whose, for a plan whose unit is a user. `inputs` of a batch are then the rows of users,
        of shape (users, per_user, ...), and a mask of them.
      options: of the `DataLoader`, such as `num_workers`, `pin_memory` and `collate_fn`. The latter must return
        tensors, in any nesting, with one row per example, in their order, as their first axis; by default see
        `collate_examples`.
        Workers are started without forking, for a process that uses JAX should not be forked, and without importing
        the script that runs, unless `multiprocessing_context` says otherwise.

    Returns:
      The loader; it yields `PaddedBatch`.

    Example:
      >>> import tempfile
      >>> import galton
      >>> from torch import nn
      >>> from galton.training.torch import open_run
      >>> guarantee = galton.Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> data = TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
      >>> with (
      ...     tempfile.TemporaryDirectory() as folder,
      ...     open_run(plan, folder, nn.Linear(2, 1), examples=64, clip_norm=1.0) as run,
      ... ):
      ...     for batch in plan_loader(run, data, micro_batch_size=16):  # the first epoch
      ...         print(batch.round, batch.part, batch.inputs[0].shape)
      0 0 torch.Size([16, 2])
      0 1 torch.Size([16, 2])
      1 0 torch.Size([16, 2])
      1 1 torch.Size([16, 2])
    """
    if isinstance(data, IterableDataset):
        check_streaming(run.plan, type(data).__name__, users)
    size = size_of(data, run.plan.examples)
    if users is None:
        check_same("examples", size, run.plan.examples)
        check_same("per_user", None, run.plan.per_user)
    else:
        check_same("users", users.number, run.plan.examples)
        check_same("per_user", users.per_user, run.plan.per_user)
        check_users(users, size)
    padded = _PaddedData(data, options.pop("collate_fn", None) or collate_examples, users, run.plan.bins)
    if micro_batch_size is not None:
        run.check_micro_batch_size(count("micro_batch_size", micro_batch_size))
    options["multiprocessing_context"] = worker_context(
        options.get("num_workers", 0), options.get("multiprocessing_context")
    )
    # Any: it yields no lists of indices, as the type of `batch_sampler` says, but what `_PaddedData` takes.
    sampler: Any = _MicroBatchSampler(run, micro_batch_size)
    return DataLoader(padded, batch_sampler=sampler, collate_fn=_unchanged, **options)


def check_users(users: Users, size: int) -> None:
    """Raises `InvalidArgument` unless the users' examples are as many as there are.

    Args:
      users: which examples are whose.
      size: number of examples.
    """
    if users.examples != size:
        raise InvalidArgument("users", users.examples, f"must say to whom each example belongs, and there are {size}")


def collate_examples(items: list[Any]) -> Any:
    """Makes tensors of items as PyTorch does, or of dictionaries of numbers and texts as Hugging Face's data sets have.

    Texts are left out, for no model can be given them: a `collate_fn` of your own can make numbers of them.

    Args:
      items: of a data set.

    Returns:
      Tensors with one row for each item.
    """
    if not isinstance(items[0], Mapping):
        return default_collate(items)
    columns = {}
    for name in items[0]:
        try:
            rows = [value if isinstance(value, Tensor) else np.asarray(value) for value in (row[name] for row in items)]
            if all(isinstance(row, Tensor) or row.dtype.kind in "biuf" for row in rows):
                columns[name] = torch.stack([torch.as_tensor(row) for row in rows])
        except (RuntimeError, ValueError):
            raise PlanViolated(
                f"data: the examples of {name} differ in shape; pad them all to the same, in the data set or by "
                "collate_fn"
            ) from None
    if not columns:
        raise PlanViolated(f"data: has no numbers in its columns ({', '.join(items[0])}); give a collate_fn")
    return columns


def size_of(data: Dataset[Any], planned: int) -> int:
    """Returns the number of examples in a data set: the plan's, where it can only be read.

    Args:
      data: the data set.
      planned: number of examples in the plan.

    Returns:
      The number.
    """
    return planned if isinstance(data, IterableDataset) else len(data)  # type: ignore[arg-type]


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Gives Python, NumPy and PyTorch random numbers of a seed inside a block, and their own again afterwards.

    Args:
      seed: a whole number below 2^63.
      device: whose random numbers are seeded too.
    """
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    own = torch.default_generator.get_state()
    try:
        with _seeded_device(seed, device):
            # not torch.manual_seed, which writes down a trace of the stack for every kind of device that is not there
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        torch.default_generator.set_state(own)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def _seeded_device(seed: int, device: torch.device | None) -> Iterator[None]:
    if device is None or device.type == "cpu":
        yield
        return
    with torch.random.fork_rng([device], device_type=device.type):
        torch.manual_seed(seed)
        yield


class _MicroBatch(NamedTuple):
    """What a worker of the loader is asked for: micro-batch `part` of `parts`, its token, and a seed."""

    batch: Batch
    part: int
    parts: int
    token: str
    seed: int


class _MicroBatchSampler(Sampler[_MicroBatch]):
    """Yields the batches of a run from the next round to the end of its epoch, cut into micro-batches."""

    def __init__(self, run: Rounds, micro_batch_size: int | None) -> None:
        self._run, self._size = run, micro_batch_size or run.rows

    def __iter__(self) -> Iterator[_MicroBatch]:
        for batch in self._run.epoch():
            parts = self._run.cut(batch, self._size)
            for number, part in enumerate(parts):
                seed = self._run.round_seed(batch.round, number)
                yield _MicroBatch(part, number, len(parts), self._run.token(part), seed)

    def __len__(self) -> int:
        return self._run.plan.bins * -(-self._run.rows // self._size)


def in_order(data: IterableDataset[Any]) -> InOrder:
    """Returns a reader of a data set that can only be read, which is told the epoch if it wants to know.

    Args:
      data: the data set; `set_epoch(epoch)` is called before each epoch if it has that.

    Returns:
      The reader.
    """

    def open_epoch(epoch: int) -> Iterator[Any]:
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        return iter(data)

    return InOrder(open_epoch)


class _PaddedData(Dataset[Any]):
    """A data set that collates and pads micro-batches, in the worker."""

    def __init__(self, data: Dataset[Any], collate: Callable[[list[Any]], Any], users: Users | None, bins: int) -> None:
        self._data, self._collate, self._users, self._bins = ByValue(data), ByValue(collate), users, bins
        self._reader: InOrder | None = None

    def __getitem__(self, index: int) -> Any:
        return self._data.content[index]

    def _take(self, indices: list[int], epoch: int) -> list[Any]:
        if not isinstance(self._data.content, IterableDataset):
            return [self._data.content[index] for index in indices]
        self._reader = self._reader or in_order(self._data.content)
        return self._reader.take(indices, epoch)

    def _collated(self, indices: NDArray[np.integer[Any]], epoch: int, seed: int) -> Any:
        data, collate = self._data.content, self._collate.content
        if type(data) is TensorDataset and collate is collate_examples:  # ten times as fast, and nothing is random
            return [tensor[torch.from_numpy(indices)] for tensor in data.tensors]
        with seeded(seed):
            return collate(self._take(indices.tolist(), epoch))

    def __getitems__(self, micro_batch: _MicroBatch) -> PaddedBatch:
        batch = micro_batch.batch
        members = len(batch.examples)
        units = batch.examples if members else np.zeros(1, np.int64)  # an empty batch takes shapes only
        indices, present = units[:, None], np.ones((len(units), 1), bool)
        if self._users is not None:
            indices, present = self._users.rows(units, batch.round // self._bins)
        collated = self._collated(indices.ravel(), batch.round // self._bins, micro_batch.seed)

        def pad(leaf: Any) -> Tensor:
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            if not isinstance(leaf, Tensor) or leaf.shape[:1] != (indices.size,):
                raise PlanViolated(
                    f"collate_fn: gave {shape} for {indices.size} examples; it must give tensors with one row for "
                    "each, as their first axis, and leave none out"
                )
            if self._users is not None:
                leaf = leaf.reshape(*present.shape, *leaf.shape[1:]).clone()
                leaf[~torch.from_numpy(present)] = 0
            fixed = leaf.new_zeros((batch.padded_batch_size, *leaf.shape[1:]))
            fixed[:members] = leaf[:members]
            return fixed

        rows = tree_map(pad, collated)
        if self._users is not None:
            known = torch.zeros((batch.padded_batch_size, present.shape[1]), dtype=torch.bool)
            known[:members] = torch.from_numpy(present)[:members]
            rows = (rows, known)
        mask = torch.from_numpy(batch.mask.copy())
        return PaddedBatch(rows, mask, batch.round, micro_batch.part, micro_batch.parts, micro_batch.token)


def _unchanged(batch: Any) -> Any:
    return batch


class Accumulated:
    """Keeps track of the micro-batches of a round that were summed, and compares them with those of the run.

    The first micro-batch fixes how the round is cut.

    Formal guarantee: once `check_complete` returns, each example of the next round's batch was in exactly one of the
    micro-batches that were added, and no other example was in any, if their tensors are those of the loader.
    """

    def __init__(self, run: Rounds) -> None:
        self._run = run
        self.forget()

    def forget(self) -> None:
        """Starts over; any round may come next."""
        self._round = -1
        self._planned: list[Batch] = []
        self._received = 0

    def check(self, batch: PaddedBatch) -> None:
        """Raises `PlanViolated` for all but the next micro-batch of the run's next round.

        Args:
          batch: the micro-batch that is about to be used.
        """
        check_same("round of the batch", batch.round, self._run.round)
        if not self._received:
            self._cut(batch)
        self._check_round()
        check_same("number of micro-batches", batch.parts, len(self._planned))
        check_same("micro-batch", batch.part, self._received)
        planned = self._planned[batch.part]
        known = hmac.compare_digest(batch.token, self._run.token(planned))
        if not known or not torch.equal(batch.mask.cpu(), torch.from_numpy(planned.mask.copy())):
            raise self._stranger(batch)

    def add(self) -> None:
        """Notes that the micro-batch which was just checked is about to be summed."""
        self._received += 1

    def check_complete(self) -> None:
        """Raises `PlanViolated` unless all micro-batches of the run's next round were added."""
        if not self._received or self._received != len(self._planned):
            raise PlanViolated(f"step: the batch of round {self._run.round} has not been accumulated, or not all of it")
        self._check_round()

    def _cut(self, batch: PaddedBatch) -> None:
        try:
            self._planned = self._run.cut(self._run.batch, len(batch.mask))
        except InvalidArgument:
            raise self._stranger(batch) from None
        self._round = self._run.round

    def _stranger(self, batch: PaddedBatch) -> PlanViolated:
        return PlanViolated(
            f"batch: is not the run's batch of round {batch.round}; it has to come from plan_loader for this run"
        )

    def _check_round(self) -> None:
        if self._round != self._run.round:
            raise PlanViolated(
                f"round = {self._round}: was accumulated, but the coming one is {self._run.round}; zero_grad forgets it"
            )
