"""One batch in a fixed shape: indices and a mask, padded or truncated to the padded batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galton.batching.base import IndexArray
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True, eq=False)
class Batch:
    """The examples of one round, padded or truncated to the padded batch size.

    Divide sums over a batch by the scheme's expected batch size, never by the number of examples in the batch.

    Attributes:
      round: the round of the run that the batch belongs to.
      indices: indices of the examples, then padding; int32, shape (padded_batch_size,). Padding is the number of
        examples in the data set, one past the last index: NumPy refuses to index with it, and JAX's
        `take(..., mode="fill", fill_value=0)` gives zeros.
      mask: True where there is an example; bool, shape (padded_batch_size,). The gradient of padding must be zero.
      truncated: number of examples left out of the batch by truncation.

    Example:
      >>> from galton import Batches, FixedOrder
      >>> batch = next(Batches(FixedOrder(examples=6, bins=2, rounds=4), padded_batch_size=4, seed=1))
      >>> batch.indices.tolist(), batch.mask.tolist()
      ([0, 1, 2, 6], [True, True, True, False])
      >>> batch.take(np.array([10, 11, 12, 13, 14, 15])).tolist()
      [10, 11, 12, 0]
    """

    round: int
    indices: IndexArray
    mask: NDArray[np.bool_]
    truncated: int

    @property
    def padded_batch_size(self) -> int:
        """Number of rows, examples and padding together."""
        return self.indices.size

    @property
    def examples(self) -> IndexArray:
        """Indices of the examples that take part, without padding."""
        return self.indices[self.mask]

    def take(self, data: NDArray[Any]) -> NDArray[Any]:
        """Returns the rows of `data` for this batch.

        Args:
          data: array whose first axis is the examples.

        Returns:
          An array with `padded_batch_size` rows, zero where there is padding.
        """
        rows = np.zeros((self.padded_batch_size, *data.shape[1:]), data.dtype)
        rows[self.mask] = data[self.examples]
        return rows

    def micro_batches(self, size: int) -> list[Batch]:
        """Cuts the batch into micro-batches of one size, whose sums of clipped gradients add up to that of the batch.

        Examples come first, so the last micro-batches may be all padding. They are kept: where shapes or times can be
        observed, the number of micro-batches must not reveal the size of the batch.

        Args:
          size: rows of a micro-batch; must divide the padded batch size.

        Returns:
          The micro-batches in order. `truncated` stays with the first.
        """
        if self.padded_batch_size % count("size", size):
            raise InvalidArgument("size", size, f"must divide the padded batch size, {self.padded_batch_size}")
        parts = (slice(start, start + size) for start in range(0, self.padded_batch_size, size))
        return [
            Batch(self.round, self.indices[part], self.mask[part], 0 if part.start else self.truncated)
            for part in parts
        ]


def fixed_batch(words: Words, turn: int, members: IndexArray, padded_batch_size: int, padding: int) -> Batch:
    """Pads the members of a round to the padded batch size, or keeps a uniformly random choice of so many of them.

    The choice is drawn anew in every round. It depends on the seed, the round and the positions in `members` only,
    never on data.
    """
    truncated = max(0, members.size - padded_batch_size)
    if truncated:
        priority = words.draw("keep", turn, members.size, np.uint64)
        members = members[np.sort(np.argsort(priority, kind="stable")[:padded_batch_size])]
    indices = np.full(padded_batch_size, padding, np.int32)
    indices[: members.size] = members
    return Batch(turn, indices, np.arange(padded_batch_size) < members.size, truncated)
