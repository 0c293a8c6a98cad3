"""Batches of a fixed shape: indices and a mask, padded or truncated to the padded batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galton.batching.base import IndexArray
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch, always of the padded batch size.

    Attributes:
      round: which round of the run it is for.
      indices: int32, shape (padded_batch_size,); padding holds the number of examples, one past the last index:
        indexing with it fails, and JAX's `take(..., mode="fill", fill_value=0)` gives zeros.
      mask: bool, shape (padded_batch_size,); True where there is an example. The gradient of padding must be zero.
      truncated: how many members of the batch were left out.

    Sums over a batch are divided by the scheme's expected batch size, never by the number of examples in it.
    """

    round: int
    indices: IndexArray
    mask: NDArray[np.bool_]
    truncated: int

    @property
    def padded_batch_size(self) -> int:
        """Number of examples and padding together."""
        return self.indices.size

    @property
    def examples(self) -> IndexArray:
        """Indices of the examples that take part, without padding."""
        return self.indices[self.mask]

    def take(self, data: NDArray[Any]) -> NDArray[Any]:
        """Returns the rows of `data` for this batch, zeros where there is padding."""
        rows = np.zeros((self.padded_batch_size, *data.shape[1:]), data.dtype)
        rows[self.mask] = data[self.examples]
        return rows

    def micro_batches(self, size: int) -> list[Batch]:
        """Cuts the batch into micro-batches of one fixed size, to be summed; `truncated` stays with the first.

        Examples stand in front, so trailing micro-batches may be all padding; they are kept, for the number of
        micro-batches must not tell how large the batch was where shapes or times can be seen.
        """
        if self.padded_batch_size % count("size", size):
            raise InvalidArgument("size", size, f"must divide the padded batch size, {self.padded_batch_size}")
        parts = (slice(start, start + size) for start in range(0, self.padded_batch_size, size))
        return [
            Batch(self.round, self.indices[part], self.mask[part], 0 if part.start else self.truncated)
            for part in parts
        ]


def fixed_batch(words: Words, turn: int, members: IndexArray, padded_batch_size: int, padding: int) -> Batch:
    """Pads to the padded batch size, or keeps a uniformly random choice of so many members, drawn anew every round.

    Which are kept depends on the seed, the round and the positions in `members` only, never on data.
    """
    truncated = max(0, members.size - padded_batch_size)
    if truncated:
        priority = words.draw("keep", turn, members.size, np.uint64)
        members = members[np.sort(np.argsort(priority, kind="stable")[:padded_batch_size])]
    indices = np.full(padded_batch_size, padding, np.int32)
    indices[: members.size] = members
    return Batch(turn, indices, np.arange(padded_batch_size) < members.size, truncated)
