"""Which examples took part in which rounds, in several realisations of the real batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from galton.batching import Batch
from galton.errors import InvalidArgument

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Participation:
    """Several realisations side by side; an example of realisation r has the number r * examples + index.

    Attributes:
      examples, rounds: of one realisation.
      member, turn: one entry per participation, in no order.
      sizes: (realisations, rounds), those left out included.
      truncated: (realisations, rounds), how many were left out.
      in_order: whether the batches were those of rounds 0, 1, 2, ..., by their own account.
    """

    examples: int
    rounds: int
    member: Ints
    turn: Ints
    sizes: Ints
    truncated: Ints
    in_order: bool

    @property
    def total(self) -> int:
        """Number of examples of all realisations."""
        return self.examples * self.sizes.shape[0]

    def counts(self) -> Ints:
        """Returns in how many batches every example is."""
        return np.bincount(self.member, minlength=self.total)

    def places(self, cycle: int) -> Ints:
        """Returns, for every example, the round modulo `cycle` of one of its participations; -1 if it has none."""
        places = np.full(self.total, -1)
        places[self.member] = self.turn % cycle
        return places

    def matrix(self, watched: Ints) -> Any:
        """Returns the sparse matrix (watched, rounds) of how often each watched example is in each batch."""
        slot = np.full(self.total, -1)
        slot[watched] = np.arange(watched.size)
        rows = slot[self.member]
        kept = rows >= 0
        ones = np.ones(int(kept.sum()), np.float32)
        return sparse.csr_array((ones, (rows[kept], self.turn[kept])), shape=(watched.size, self.rounds))


def read(
    runs: Iterable[Iterable[Batch]], examples: int, rounds: int, orders: Iterable[Sequence[Ints] | None]
) -> Participation:
    """Reads realisations to their end.

    Args:
      runs: the batches of each.
      examples, rounds: what the plan says.
      orders: for each, round by round, the example at every position of the shuffled data; or None where indices are
        examples.
    """
    members, turns, sizes, truncated, in_order = [], [], [], [], True
    for number, (run, order) in enumerate(zip(runs, orders, strict=False)):
        batches = list(run)
        if len(batches) != rounds:
            raise InvalidArgument("batches", len(batches), f"must be as many as the plan has rounds, {rounds}")
        present = [batch.examples for batch in batches]
        kept = np.array([indices.size for indices in present])
        index = np.concatenate(present).astype(np.int64)
        if index.size and not 0 <= index.min() <= index.max() < examples:
            raise InvalidArgument("batches", int(index.max()), f"must hold indices from 0 to {examples - 1}")
        if order is not None:
            index = np.concatenate([order[turn][indices] for turn, indices in enumerate(present)])
        members.append(index + number * examples)
        turns.append(np.repeat(np.arange(len(batches)), kept))
        truncated.append([batch.truncated for batch in batches])
        sizes.append(kept + truncated[-1])
        in_order = in_order and [batch.round for batch in batches] == list(range(rounds))
    return Participation(
        examples, rounds, np.concatenate(members), np.concatenate(turns), np.array(sizes), np.array(truncated), in_order
    )
