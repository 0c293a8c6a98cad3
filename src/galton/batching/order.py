"""Batches of fixed sizes: in the order of the data, or shuffled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from galton.batching.base import IndexArray, Scheme, check_examples, check_same_bins
from galton.batching.laws import KnownBin, Law, OncePerEpoch
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count, count_rounds
from galton.strategies.base import Strategy
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True)
class FixedOrder(Scheme):
    """The data in its own order, cut into `bins` batches whose sizes differ by at most one; the same in every epoch.

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run; the last epoch may be partial.

    Formal guarantee: example k is in batch floor(k * bins / examples) of every epoch. The unamplified analysis covers
    neighbours that have another example, or none, in the same place while all others stay where they are (replace-one
    and zero-out adjacency). Removing an example so that later ones move up is not covered.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(FixedOrder(examples=5, bins=2, rounds=4), seed=1)
      >>> [batch.examples.tolist() for batch in batches]
      [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]
    """

    kind: ClassVar[str] = "fixed-order"
    examples: int
    bins: int
    rounds: int

    def __post_init__(self) -> None:
        check_examples(self.examples)
        count("bins", self.bins, at_most=self.examples)
        count_rounds(self.rounds)

    @property
    def law(self) -> Law:
        return KnownBin(self.bins)

    @property
    def description(self) -> str:
        return "an example is used in the same place of every epoch, in batches of a fixed size"

    @property
    def period(self) -> int | None:
        return self.bins

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return strategy.sensitivity(self.bins)

    def check_bins(self, bins: int) -> None:
        check_same_bins(self.bins, bins)

    @property
    def expected_batch_size(self) -> float:
        return self.examples / self.bins

    @property
    def inclusion(self) -> None:
        return None

    @property
    def meetings(self) -> float:
        return 1.0

    @property
    def distinct(self) -> int:
        return self.bins

    @property
    def largest(self) -> int:
        return math.ceil(self.examples / self.bins)

    def span(self, turn: int) -> slice:
        """Returns the positions of a round's batch in the order of the data.

        Args:
          turn: the round, counted from 0.

        Returns:
          The slice of positions.
        """
        group = self.check_turn(turn) % self.bins
        return slice(-(-group * self.examples // self.bins), -(-(group + 1) * self.examples // self.bins))

    def open(self, words: Words) -> InOrder | Shuffled:
        return InOrder(self)


@typechecked
@dataclass(frozen=True)
class Shuffle(FixedOrder):
    """The data in random order, cut into batches of fixed size: shuffled once, or again in every epoch.

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run; the last epoch may be partial.
      reshuffle: shuffle again at the start of every epoch.

    Formal guarantee: shuffled once, that of `FixedOrder`, whatever the order is. No amplification is claimed:
    shuffling is not balls-in-bins, for sizes are fixed and so examples are not independent. With `reshuffle` an
    example may return after one round or after 2 * bins - 1; no accountant of galton covers that beyond one epoch.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(Shuffle(examples=6, bins=2, rounds=2), seed=1)
      >>> sorted(index for batch in batches for index in batch.examples.tolist())
      [0, 1, 2, 3, 4, 5]
    """

    kind: ClassVar[str] = "shuffle"
    reshuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reshuffle, bool):
            raise InvalidArgument("reshuffle", self.reshuffle, "must be true or false")

    @property
    def name(self) -> str:
        return "reshuffled" if self.reshuffle else "shuffle-once"

    @property
    def _reshuffles(self) -> bool:
        return self.reshuffle and self.rounds > self.bins

    @property
    def law(self) -> Law:
        return OncePerEpoch(self.bins) if self._reshuffles else KnownBin(self.bins)

    @property
    def description(self) -> str:
        if self._reshuffles:
            return "the examples are shuffled anew in every epoch and cut into batches of a fixed size"
        return super().description

    @property
    def period(self) -> int | None:
        return None if self._reshuffles else self.bins

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return strategy.sensitivity(1 if self._reshuffles else self.bins)  # reshuffled: at most every round

    def open(self, words: Words) -> Shuffled:
        return Shuffled(self, words)


@dataclass(frozen=True, eq=False)
class InOrder:
    """The batches of a `FixedOrder`: positions are indices."""

    scheme: FixedOrder

    def members(self, turn: int) -> IndexArray:
        span = self.scheme.span(turn)
        return np.arange(span.start, span.stop, dtype=np.int32)


class Shuffled:
    """The batches of a `Shuffle`; holds the permutation of the current epoch."""

    def __init__(self, scheme: Shuffle, words: Words) -> None:
        self._scheme, self._words = scheme, words
        self._epoch, self._order = -1, np.zeros(0, np.int32)

    def members(self, turn: int) -> IndexArray:
        span = self._scheme.span(turn)
        epoch = turn // self._scheme.bins if self._scheme.reshuffle else 0
        if epoch != self._epoch:
            keys = self._words.draw("shuffle", epoch, self._scheme.examples, np.uint64)
            self._epoch, self._order = epoch, np.argsort(keys, kind="stable").astype(np.int32)
        return self._order[span]
