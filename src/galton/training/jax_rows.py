"""The rows of a batch for JAX: read from arrays in memory or on disk, with keys where a loss wants them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from galton.batching import Batch, Users
from galton.errors import InvalidArgument
from galton.noise.layout import Tree
from galton.training.jax_clipping import example_keys
from galton.training.jax_devices import cut_batch


class Rows:
    """The data of a run, of which each round takes the rows of its batch.

    Args:
      data: a tree of arrays whose first axis is the examples. What has a shape, a dtype and rows at an array of indices
        stays as it is (NumPy arrays, memory-mapped ones, HDF5-like data sets); all else is made an array.
      bins: batches of an epoch.
      users: which examples are whose, if the unit is a user.
      keyed: whether a key comes with every example.

    Attributes:
      users: as given.
      keyed: as given.
      units: number of examples, or of users.
    """

    def __init__(self, data: Tree, bins: int, users: Users | None, keyed: bool) -> None:
        self._data = jax.tree.map(lambda part: part if isinstance(part, np.ndarray) else np.asarray(part), data)
        self._bins, self.users, self.keyed = bins, users, keyed
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
        if sharding is not None:
            return cut_batch(batch, lambda part: self._rows(part, seed), sharding)
        return self._rows(batch, seed), batch.mask

    def _rows(self, batch: Batch, seed: int) -> Tree:
        """The rows of a batch of examples; of one of users, the rows of each with their mask."""
        users = self.users
        if users is None:
            rows = jax.tree.map(batch.take, self._data)
            return (rows, np.asarray(example_keys(seed, batch.indices))) if self.keyed else rows
        rows = jax.tree.map(lambda part: users.take(batch, self._bins, part)[0], self._data)
        mask = np.zeros((batch.padded_batch_size, users.per_user), bool)
        numbers, mask[batch.mask] = users.rows(batch.examples, batch.round // self._bins)
        if self.keyed:
            all_numbers = np.zeros(mask.shape, np.uint32)
            all_numbers[batch.mask] = numbers
            rows = (rows, np.asarray(example_keys(seed, all_numbers)))
        return rows, mask
