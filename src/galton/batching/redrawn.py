"""Balls-in-bins whose bins are redrawn in every epoch: with random access, and as a stream of reshuffled data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np

from galton.batching.balls_in_bins import BallsInBins, Grouped, bin_sizes, grouped
from galton.batching.base import IndexArray, Members
from galton.batching.batch import Batch
from galton.batching.batches import Batches
from galton.batching.laws import Law, RedrawnBins
from galton.batching.randomness import Words
from galton.batching.streaming import Slices, read_slices
from galton.errors import InvalidArgument
from galton.strategies.base import Strategy
from galton.strategies.sensitivity import redrawn_sensitivity
from galton.typechecking import typechecked

Item = TypeVar("Item")
Part = TypeVar("Part", bound=Members)


@typechecked
@dataclass(frozen=True)
class RedrawnBallsInBins(BallsInBins):
    """Balls-in-bins whose bins are redrawn: in every epoch each example falls into a uniformly random bin, afresh.

    Round t has the examples of bin t mod bins of epoch t // bins. Memory is that of one epoch at a time.

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run. The last epoch may be partial: examples whose bin lies beyond its end sit out.

    Formal guarantee: the bin of an example in an epoch is exactly uniform, independent of its bins in other epochs, and
    a function of (seed, epoch, index of the example) alone: adding or removing other examples does not move it. What
    truncation costs is paid in every epoch (docs/math.md, section 9); `Truncation` says how much.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(RedrawnBallsInBins(examples=10, bins=3, rounds=6), seed=1)
      >>> [sum(batches.at(epoch * 3 + t).examples.size for t in range(3)) for epoch in range(2)]
      [10, 10]
      >>> batches.at(0).examples.tolist() == batches.at(3).examples.tolist()  # the next epoch has other batches
      False
    """

    kind: ClassVar[str] = "balls-in-bins-redrawn"

    @property
    def law(self) -> Law:
        return RedrawnBins(self.bins)

    @property
    def description(self) -> str:
        return (
            f"in every epoch every example falls into one of {self.bins:,} batches, uniformly and independently of all "
            "others and of its batches in other epochs. Shuffling into equal batches is something else and is not "
            "covered"
        )

    @property
    def period(self) -> None:
        return None

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return redrawn_sensitivity(strategy, self.bins)

    @property
    def meetings(self) -> float:
        return self.rounds / self.bins

    @property
    def distinct(self) -> int:
        return self.rounds

    def open(self, words: Words) -> Members:
        return Epochs(self, lambda epoch: Grouped(self, *grouped(words, self.examples, self.bins, _purpose(epoch))))


@typechecked
@dataclass(frozen=True)
class StreamingRedrawnBallsInBins(RedrawnBallsInBins):
    """Redrawn balls-in-bins read as a stream from data that is shuffled anew, in secret, for every epoch.

    In every epoch bin i has the next N_i examples of that epoch's shuffled data, N multinomial and fresh. Indices are
    positions in the shuffled data of the epoch, which `stream_epochs` reads. Memory is O(bins).

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run. The last epoch may be partial: examples whose bin lies beyond its end sit out.

    Formal guarantee: if the order of every epoch is uniformly random, independent of the other orders and of N, and
    secret, examples take part as in `RedrawnBallsInBins`: given the counts of independent uniform bins, every
    arrangement is equally likely. The orders are the caller's responsibility. One order for several epochs, or a
    shuffle with a buffer smaller than the data, is not covered.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(StreamingRedrawnBallsInBins(examples=10, bins=3, rounds=6), seed=1)
      >>> [index for t in range(3, 6) for index in batches.at(t).examples.tolist()]
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    kind: ClassVar[str] = "balls-in-bins-redrawn-streaming"

    @property
    def description(self) -> str:
        return (
            f"in every epoch every example falls into one of {self.bins:,} batches, uniformly and independently of all "
            "others and of its batches in other epochs, read as a stream that is shuffled anew for every epoch"
        )

    @property
    def shuffled_data(self) -> bool:
        return True

    @property
    def reshuffled_data(self) -> bool:
        return True

    def open(self, words: Words) -> Members:
        def draw(epoch: int) -> Slices:
            sizes = bin_sizes(words, self.examples, self.bins, _purpose(epoch))
            return Slices(self, np.concatenate(([0], np.cumsum(sizes))))

        return Epochs(self, draw)


def _purpose(epoch: int) -> str:
    return f"bins of epoch {epoch}"


class Epochs(Generic[Part]):
    """Batches that are drawn anew for every epoch, from the seed and the epoch alone; holds those of one epoch."""

    def __init__(self, scheme: RedrawnBallsInBins, draw: Callable[[int], Part]) -> None:
        self.scheme, self._draw = scheme, draw
        self._epoch = -1
        self._part: Part | None = None

    def of(self, turn: int) -> Part:
        """Returns the batches of the epoch that a round belongs to."""
        epoch = self.scheme.check_turn(turn) // self.scheme.bins
        if self._part is None or epoch != self._epoch:
            self._part = None  # two epochs are never held at once
            self._epoch, self._part = epoch, self._draw(epoch)
        return self._part

    def members(self, turn: int) -> IndexArray:
        return self.of(turn).members(turn)


def stream_epochs(
    batches: Batches, open_epoch: Callable[[int], Callable[[int], Iterator[Item]]]
) -> Iterator[tuple[Batch, list[Item]]]:
    """Yields the remaining batches with their items, reading the reshuffled data of each epoch from front to back.

    `batches` moves on before a batch is yielded, so that its state, saved after the batch was used, resumes with the
    next one.

    Args:
      batches: batches of a `StreamingRedrawnBallsInBins` scheme, at any round, in the middle of an epoch too.
      open_epoch: open_epoch(epoch) returns an `open_pass`, as `stream` takes it, over the data in the order of this
        epoch. Every epoch has an order of its own, uniformly random and independent of the others; asked again for the
        same epoch, after a resumption too, it has the same order: keep the shuffled data until the epoch is over.

    Yields:
      A batch and the list of its items in the order of `batch.indices`; padding has no item.
    """
    epochs = batches.realisation
    if not (isinstance(epochs, Epochs) and epochs.scheme.reshuffled_data):
        raise InvalidArgument("batches", batches.scheme.kind, "must be of a balls-in-bins-redrawn-streaming scheme")
    bins = epochs.scheme.bins
    return read_slices(batches, lambda turn: epochs.of(turn).span(turn), lambda turn: open_epoch(turn // bins))
