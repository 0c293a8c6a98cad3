"""The rows of a batch for JAX: read from arrays in memory or on disk, with keys where a loss wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from galton.batching import Batch, Users
from galton.errors import InvalidArgument, InvalidFile
from galton.noise.layout import Tree
from galton.plan import Plan
from galton.training.jax_clipping import example_keys
from galton.training.jax_devices import cut_batch
from galton.training.rounds import PlanViolated
from galton.training.streams import InOrder, check_streaming


class MappedFiles:
    """Rows that are spread over several .npy files, one after the other; only rows that are asked for are read.

    Args:
      paths: of the files, whose arrays differ in their first axis only.

    Attributes:
      shape: of all rows together.
      dtype: of all files.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for name, part in (("a", np.arange(3)), ("b", np.arange(3, 5))):
      ...         np.save(f"{folder}/{name}.npy", part)
      ...     MappedFiles([f"{folder}/a.npy", f"{folder}/b.npy"])[np.array([4, 0, 2])].tolist()
      [4, 0, 2]
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        try:
            self._files = [np.load(path, mmap_mode="r") for path in paths]
        except (OSError, ValueError) as error:
            raise InvalidFile(f"paths: not all are files of NumPy arrays that can be mapped ({error})") from None
        kinds = {(str(part.dtype), part.shape[1:]) for part in self._files if part.ndim}
        if len(kinds) != 1 or not all(part.ndim for part in self._files):
            raise InvalidArgument("paths", sorted(kinds), "must have rows of one type and shape")
        self._starts = np.cumsum([0, *(len(part) for part in self._files)])
        self.dtype = self._files[0].dtype
        self.shape = (int(self._starts[-1]), *self._files[0].shape[1:])
        self.ndim = len(self.shape)

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Returns the rows of these numbers."""
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        of = np.searchsorted(self._starts, numbers, side="right") - 1
        for number in np.unique(of):
            rows[of == number] = self._files[number][numbers[of == number] - self._starts[number]]
        return rows


class Stream:
    """Examples that can only be read in order, for plans of streaming batches: each epoch is read once.

    Args:
      open_epoch: open_epoch(epoch) returns the examples of an epoch, trees of arrays without a batch axis, in the order
        in which they were shuffled: the same in every epoch, or another in each where the plan's bins are redrawn.
        Asked again for an epoch, after a crash too, it has the same order.

    Example:
      >>> stream = Stream(lambda epoch: (np.full(2, number, np.float32) for number in range(64)))
      >>> next(iter(stream.open_epoch(0))).tolist()
      [0.0, 0.0]
    """

    def __init__(self, open_epoch: Callable[[int], Iterable[Tree]]) -> None:
        self.open_epoch = open_epoch


class _Batchwise:
    """The rows of a stream: those of a batch are read together, then dealt out."""

    def __init__(self, stream: Stream) -> None:
        self._reader = InOrder(stream.open_epoch)
        self._items: dict[int, Tree] = {}
        self._like: Tree = None

    def read(self, batch: Batch, epoch: int) -> None:
        """Reads the examples of a batch; those of the one before are forgotten."""
        positions = batch.examples.tolist()
        items = self._reader.take(positions, epoch)
        if self._like is None:  # of an empty batch shapes are wanted too
            first = items[0] if items else self._reader.take([0], epoch)[0]
            self._like = jax.tree.map(np.asarray, first)
        self._items = dict(zip(positions, items, strict=True))

    def rows(self, batch: Batch) -> Tree:
        """The rows of the batch that was read, or of a part of it, zero where there is padding."""
        chosen = [self._items[position] for position in batch.examples.tolist()]

        def stacked(like: NDArray[Any], *leaves: Any) -> NDArray[Any]:
            rows = np.zeros((batch.padded_batch_size, *like.shape), like.dtype)
            for place, leaf in zip(np.flatnonzero(batch.mask), map(np.asarray, leaves), strict=True):
                if (leaf.dtype, leaf.shape) != (like.dtype, like.shape):
                    raise PlanViolated(
                        f"data: has examples of {leaf.dtype}{list(leaf.shape)} and of {like.dtype}{list(like.shape)}; "
                        "they must all be of one type and shape"
                    )
                rows[place] = leaf
            return rows

        return jax.tree.map(stacked, self._like, *chosen)


class Rows:
    """The data of a run, of which each round takes the rows of its batch.

    Args:
      data: a tree of arrays whose first axis is the examples, of NumPy, mapped from a file, or `MappedFiles`; all else
        is made an array. Or a `Stream`.
      plan: of the run.
      users: which examples are whose, if the unit is a user.
      keyed: whether a key comes with every example.

    Attributes:
      users: as given.
      keyed: as given.
      units: number of examples, or of users.
    """

    def __init__(self, data: Tree | Stream, plan: Plan, users: Users | None, keyed: bool) -> None:
        self._bins, self.users, self.keyed = plan.bins, users, keyed
        self._stream: _Batchwise | None = None
        if isinstance(data, Stream):
            check_streaming(plan, "Stream", users)
            self._stream, self.units = _Batchwise(data), plan.examples
            return
        self._data = jax.tree.map(
            lambda part: part if isinstance(part, np.ndarray | MappedFiles) else np.asarray(part), data
        )
        sizes = {part.shape[0] if part.ndim else 0 for part in jax.tree.leaves(self._data)}
        if len(sizes) != 1:
            raise InvalidArgument("data", sorted(sizes), "all arrays must have the examples as their first axis")
        size = int(sizes.pop())
        if users is not None and users.examples != size:
            remedy = f"must say to whom each example belongs, and there are {size}"
            raise InvalidArgument("users", users.examples, remedy)
        self.units = size if users is None else users.number

    def of(self, batch: Batch, run: Any, sharding: NamedSharding | None) -> tuple[Tree, Any]:
        """Returns the rows of a batch and their mask, on devices if they are to be cut.

        Args:
          batch: of the run.
          run: for the seed of the round.
          sharding: of rows; None for a single device.

        Returns:
          Rows and mask.
        """
        seed = run.round_seed(batch.round) if self.keyed else 0
        if self._stream is not None:
            self._stream.read(batch, batch.round // self._bins)
        if sharding is not None:
            return cut_batch(batch, lambda part: self._rows(part, seed), sharding)
        return self._rows(batch, seed), batch.mask

    def _rows(self, batch: Batch, seed: int) -> Tree:
        """The rows of a batch of examples; of one of users, the rows of each with their mask."""
        users = self.users
        if users is None:
            rows = self._taken(batch)
            return (rows, np.asarray(example_keys(seed, batch.indices))) if self.keyed else rows
        if any(isinstance(part, MappedFiles) for part in jax.tree.leaves(self._data)):
            raise InvalidArgument("data", "MappedFiles", "must be one file, mapped, where the unit is a user")
        rows = jax.tree.map(lambda part: users.take(batch, self._bins, part)[0], self._data)
        mask = np.zeros((batch.padded_batch_size, users.per_user), bool)
        numbers, mask[batch.mask] = users.rows(batch.examples, batch.round // self._bins)
        if self.keyed:
            all_numbers = np.zeros(mask.shape, np.uint32)
            all_numbers[batch.mask] = numbers
            rows = (rows, np.asarray(example_keys(seed, all_numbers)))
        return rows, mask

    def _taken(self, batch: Batch) -> Tree:
        """The rows of a batch, zero where there is padding."""
        if self._stream is not None:
            return self._stream.rows(batch)

        def taken(part: Any) -> NDArray[Any]:
            rows = np.zeros((batch.padded_batch_size, *part.shape[1:]), part.dtype)
            rows[batch.mask] = part[batch.examples]
            return rows

        return jax.tree.map(taken, self._data)
