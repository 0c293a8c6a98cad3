"""Batches of fixed sizes: in the order of the data, or shuffled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from galton.batching.base import IndexArray, Scheme, check_examples, check_same_bins
from galton.batching.laws import KnownBin, Law, OncePerEpoch
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count
from galton.strategies.base import Strategy


@dataclass(frozen=True)
class FixedOrder(Scheme):
    """The data in its own order, cut into `bins` batches whose sizes differ by at most one, again in every epoch.

    Args:
      examples: number of examples.
      bins: batches per epoch.
      rounds: batches in the whole run.

    Formal guarantees:
      - Example k is in the batch of bin floor(k * bins / examples) of every epoch. Covered by the unamplified analysis
        if the neighbouring data set has another example, or none, in the same place, the others staying where they
        are (replace-one and zero-out adjacency); taking an example out so that the others move up is not covered.
    """

    kind: ClassVar[str] = "fixed-order"
    examples: int
    bins: int
    rounds: int

    def __post_init__(self) -> None:
        check_examples(self.examples)
        count("bins", self.bins, at_most=self.examples)
        count("rounds", self.rounds)

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
        """Positions of a round's batch."""
        group = self.check_turn(turn) % self.bins
        return slice(-(-group * self.examples // self.bins), -(-(group + 1) * self.examples // self.bins))

    def open(self, words: Words) -> InOrder | Shuffled:
        return InOrder(self)


@dataclass(frozen=True)
class Shuffle(FixedOrder):
    """The data in random order, cut into batches: shuffled once, or anew in every epoch.

    Args:
      examples: number of examples.
      bins: batches per epoch.
      rounds: batches in the whole run.
      reshuffle: shuffle anew in every epoch.

    Formal guarantees:
      - Shuffled once: whatever the order, that of `FixedOrder`. Shuffling is not balls-in-bins (sizes are fixed, so
        examples are not independent) and no amplification is claimed for it. Shuffled anew, an example may return
        after one round or after 2 * bins - 1: no accountant of galton covers that beyond one epoch.
    """

    kind: ClassVar[str] = "shuffle"
    reshuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reshuffle, bool):
            raise InvalidArgument("reshuffle", self.reshuffle, "must be true or false")

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
        return strategy.sensitivity(1 if self._reshuffles else self.bins)  # anew: at most what every round would do

    def open(self, words: Words) -> Shuffled:
        return Shuffled(self, words)


@dataclass(frozen=True, eq=False)
class InOrder:
    """Positions are indices."""

    scheme: FixedOrder

    def members(self, turn: int) -> IndexArray:
        span = self.scheme.span(turn)
        return np.arange(span.start, span.stop, dtype=np.int32)


class Shuffled:
    """The permutation of the current epoch."""

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
