"""Balls-in-bins batches with random access: every example falls into one bin and returns with it in every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from galton.batching.base import IndexArray, Members, Scheme, check_examples, check_same_bins
from galton.batching.laws import Law, RandomBin
from galton.batching.randomness import BLOCK, Words
from galton.errors import count, count_rounds
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

MOST_BINS = 2**24
"""The most bins: one count per bin is held in memory."""


@typechecked
@dataclass(frozen=True)
class BallsInBins(Scheme):
    """Balls-in-bins batches: each example falls into one uniformly random bin; round t has those of bin t mod bins.

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run; the last epoch may be partial.

    Formal guarantee: the bin of an example is exactly uniform, and a function of (seed, index of the example) alone:
    adding or removing other examples does not move it. This is the sampling of docs/math.md, section 1, for
    add-or-remove and replace adjacency, without truncation; `Truncation` says what truncation costs.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(BallsInBins(examples=10, bins=3, rounds=6), seed=1)
      >>> sum(batches.at(t).examples.size for t in range(3))
      10
      >>> bool((batches.at(1).examples == batches.at(4).examples).all())  # the next epoch has the same batches
      True
    """

    kind: ClassVar[str] = "balls-in-bins"
    examples: int
    bins: int
    rounds: int

    def __post_init__(self) -> None:
        check_examples(self.examples)
        count("bins", self.bins, at_most=MOST_BINS)
        count_rounds(self.rounds, at_least=self.bins)

    @property
    def law(self) -> Law:
        return RandomBin(self.bins)

    @property
    def description(self) -> str:
        return (
            f"every example falls into one of {self.bins:,} batches, uniformly and independently of all others, and "
            "returns with that batch in every epoch. Shuffling into equal batches is something else and is not covered"
        )

    @property
    def period(self) -> int | None:
        return self.bins

    @property
    def independent_batches(self) -> bool:
        return True  # counts of a multinomial are negatively associated

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return strategy.sensitivity(self.bins)

    def check_bins(self, bins: int) -> None:
        check_same_bins(self.bins, bins)

    @property
    def expected_batch_size(self) -> float:
        return self.examples / self.bins

    @property
    def inclusion(self) -> float:
        return 1 / self.bins

    @property
    def meetings(self) -> float:
        return 1.0

    @property
    def distinct(self) -> int:
        return self.bins

    def open(self, words: Words) -> Members:
        return Grouped(self, *grouped(words, self.examples, self.bins))


@dataclass(frozen=True, eq=False)
class Grouped:
    """Examples sorted by bin; memory is one int32 per example."""

    scheme: BallsInBins
    order: IndexArray
    starts: NDArray[np.int64]

    def members(self, turn: int) -> IndexArray:
        group = self.scheme.check_turn(turn) % self.scheme.bins
        return self.order[self.starts[group] : self.starts[group + 1]]


def bin_blocks(
    words: Words, examples: int, bins: int, purpose: str = "bins"
) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yields (index of the first example, bins of a block of examples); another purpose has other bins."""
    for start in range(0, examples, BLOCK):
        yield start, words.below(bins, purpose, start // BLOCK, min(BLOCK, examples - start))


def bin_sizes(words: Words, examples: int, bins: int, purpose: str = "bins") -> NDArray[np.int64]:
    """Returns how many examples each bin has, a multinomial draw, in O(bins) memory."""
    sizes = np.zeros(bins, np.int64)
    for _, block in bin_blocks(words, examples, bins, purpose):
        if bins <= BLOCK:
            sizes += np.bincount(block, minlength=bins)
        else:
            occupied, counts = np.unique(block, return_counts=True)
            sizes[occupied] += counts
    return sizes


def grouped(words: Words, examples: int, bins: int, purpose: str = "bins") -> tuple[IndexArray, NDArray[np.int64]]:
    """Returns the examples sorted by bin, by index within a bin, and the position at which each bin starts.

    This is a counting sort whose blocks are sorted by themselves first, so that it writes to memory in runs.
    """
    narrow = bins <= 1 << 16
    place = np.empty(examples, np.uint16 if narrow else np.uint32)
    for start, block in bin_blocks(words, examples, bins, purpose):
        place[start : start + block.size] = block
    local = min(20, 32 - (bins - 1).bit_length()) if narrow else 22  # bits of a key that hold the place in its block
    key: Any = np.uint32 if narrow else np.uint64
    step, shift = 1 << local, key(local)
    sizes = np.zeros(bins, np.int64)
    for start in range(0, examples, step):
        sizes += np.bincount(place[start : start + step], minlength=bins)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    order, cursor, ramp = np.empty(examples, np.int32), starts[:-1].copy(), np.arange(min(step, examples))
    for start in range(0, examples, step):
        block = place[start : start + step].astype(key)
        counts = np.bincount(block.astype(np.intp), minlength=bins)
        ranked = np.sort((block << shift) | ramp[: block.size].astype(key))
        target = (cursor - (np.cumsum(counts) - counts)).take(ranked >> shift) + ramp[: block.size]
        order[target] = (ranked & key(step - 1)).astype(np.int32) + np.int32(start)
        cursor += counts
    return order, starts
