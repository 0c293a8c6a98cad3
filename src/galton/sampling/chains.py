"""Tuples of modes drawn exactly where only neighbouring bins attract each other (docs/math.md, section 18.1).

The tilted sampler draws its modes one by one, and pays for every step the largest normaliser there may be. If G is
banded, the number of modes in each group of neighbouring bins is a chain with a short memory: a recursion over groups
gives the normaliser of all tuples together, and exact draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from galton.errors import FloatArray

IntArray = NDArray[np.int64]
_FARTHEST = 8
"""Memory of a chain, in groups, at most."""
_NEGLIGIBLE = 1e-9
"""Entries of G below this share of the largest belong to no lag; they are bounded all the same."""
_MOST_NUMBERS = 1 << 24
"""Numbers in the tables of a chain."""
_MOST_WORK = 1 << 27
"""Products in one pass over a chain."""
_LARGEST_EXPONENT = 500.0
_LEAST_GROUPS = 16
"""Fewer groups are nearly one mode, and their range is large."""


@dataclass(frozen=True, eq=False)
class Ring:
    """Bins in groups of neighbours on a circle; G between two groups is at most that of their distance.

    Attributes:
      size: bins in a group.
      groups: how many.
      lags: bounds on entries of G between groups at distance 0, 1, ..., as far as the chain remembers.
      beyond: a bound on all other entries of G.
    """

    size: int
    groups: int
    lags: FloatArray
    beyond: float

    @property
    def memory(self) -> int:
        """How many groups back a group is attracted."""
        return self.lags.size - 1

    def log_cut(self, order: int) -> float:
        """Bounds what cutting the circle open at a random place costs, in the logarithm of a tuple's weight."""
        pairs = order * (order + 1) / 2
        return pairs * float((np.arange(self.lags.size) * self.lags).max()) / self.groups + pairs * self.beyond


def ring(gram: FloatArray, size: int, farthest: int = _FARTHEST) -> Ring | None:
    """Returns the bins in groups of this size; None if entries more than `farthest` groups off the diagonal count."""
    groups = gram.shape[0] // size
    blocks = gram.reshape(groups, size, groups, size).max(axis=(1, 3))
    by_lag = [float(blocks[np.arange(groups), (np.arange(groups) + lag) % groups].max()) for lag in range(groups)]
    lags = np.array(by_lag[: groups // 2 + 1])
    memory = int(np.flatnonzero(lags > _NEGLIGIBLE * lags[0]).max())
    if not 1 <= memory <= farthest or groups <= 2 * memory:
        return None
    return Ring(size, groups, lags[: memory + 1], float(lags[memory + 1 :].max(initial=0.0)))


@dataclass(frozen=True, eq=False)
class Chain:
    """States and moves of the recursion over groups, for up to `most` modes in a tuple.

    A state is how many modes are still to be placed and how many are in each of the last groups. State number s may
    move by c = 0, 1, ... modes in the next group; its moves have numbers starts[s] + c.

    Attributes:
      ring: the bins.
      most: modes in a tuple, at most.
    """

    ring: Ring
    most: int

    @cached_property
    def _states(self) -> IntArray:
        """All states, one a row, in lexicographic order."""
        states, left = np.zeros((1, 0), np.int64), np.array([self.most])
        for _ in range(self.ring.memory + 1):
            choices = left + 1
            rows = np.repeat(np.arange(left.size), choices)
            added = np.arange(rows.size) - np.repeat(np.cumsum(choices) - choices, choices)
            states, left = np.column_stack((states[rows], added)), left[rows] - added
        return states

    @cached_property
    def starts(self) -> IntArray:
        """Number of the first move of every state."""
        choices = self._states[:, 0] + 1
        return np.asarray(np.cumsum(choices) - choices)

    @cached_property
    def moves(self) -> tuple[IntArray, FloatArray]:
        """For every move, the state that it leads to and its weight."""
        states = self._states
        rows = np.repeat(np.arange(states.shape[0]), states[:, 0] + 1)
        added = np.arange(rows.size) - self.starts[rows]
        after = np.column_stack((states[rows, 0] - added, added, states[rows, 1:-1]))
        targets = np.searchsorted(self._keys(states), self._keys(after))
        lags = self.ring.lags
        factorials = np.array([math.lgamma(count + 1) for count in range(self.most + 1)])
        logs = added * math.log(self.ring.size) - factorials[added] + lags[0] * added * (added - 1) / 2
        return targets, np.exp(logs + added * (states[:, 1:] @ lags[1:])[rows])

    def _keys(self, states: IntArray) -> IntArray:
        return np.asarray(states @ (self.most + 1) ** np.arange(self.ring.memory, -1, -1))

    def first_state(self, modes: int) -> int:
        """Returns the number of the state before the first group, `modes` still to be placed."""
        start = np.zeros(self.ring.memory + 1, np.int64)
        start[0] = modes
        return int(np.searchsorted(self._keys(self._states), self._keys(start)))

    def futures(self, keep: bool) -> FloatArray:
        """Returns, for every state, the total weight of all that may follow: before the first group, or before each.

        Args:
          keep: whether to return a row for every group, and one after the last.
        """
        targets, weights = self.moves
        future = (self._states[:, 0] == 0).astype(np.float64)
        rows = [future]
        for _ in range(self.ring.groups):
            future = np.add.reduceat(weights * future[targets], self.starts)
            rows = [*rows, future] if keep else [future]
        return np.array(rows[::-1])

    def log_normalisers(self) -> FloatArray:
        """Returns the logarithm of the mean weight of all tuples of 0, 1, ..., `most` modes."""
        future = self.futures(keep=False)[0]
        bins = self.ring.size * self.ring.groups
        counts = range(self.most + 1)
        logs = [math.log(future[self.first_state(count)]) + math.lgamma(count + 1) for count in counts]
        return np.array(logs) - np.arange(self.most + 1) * math.log(bins)


def affordable(ring: Ring, wanted: int) -> int:
    """Returns how many modes, up to `wanted`, a chain on this ring can have for its tables to be small enough."""
    memory, most = ring.memory, wanted
    while most > 1 and (
        math.comb(most + memory + 1, memory + 1) * ring.groups > _MOST_NUMBERS
        or math.comb(most + memory + 2, memory + 2) * ring.groups > _MOST_WORK
        or most**2 * float(ring.lags[0]) / 2 + most * math.log(ring.size + 1) > _LARGEST_EXPONENT
    ):
        most -= 1
    return most


def rings(gram: FloatArray, wanted: int) -> list[tuple[Ring, int]]:
    """Returns the groupings worth a try, fine ones first, each with the number of modes that it can afford.

    Args:
      gram: G.
      wanted: modes that a tuple should be able to have.
    """
    groupings = []
    for size in range(1, gram.shape[0] // _LEAST_GROUPS + 1):
        if gram.shape[0] % size:
            continue
        grouped = ring(gram, size)
        if grouped is None:
            continue
        most = affordable(grouped, wanted)
        groupings.append((grouped, most))
        if most == wanted:  # coarser groups could only do worse
            break
    return groupings
