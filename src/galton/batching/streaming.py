"""Balls-in-bins without random access: shuffle the data once, draw batch sizes, then read it in order every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from galton.batching.balls_in_bins import BallsInBins, bin_sizes
from galton.batching.base import IndexArray, Members
from galton.batching.batch import Batch
from galton.batching.batches import Batches
from galton.batching.randomness import Words
from galton.errors import InvalidArgument
from galton.typechecking import typechecked

Item = TypeVar("Item")


@typechecked
@dataclass(frozen=True)
class StreamingBallsInBins(BallsInBins):
    """Balls-in-bins batches read as a stream from data that was shuffled once, in secret, by `shuffle_records`.

    Bin i has the next N_i examples of the shuffled data, N multinomial. Indices are positions in the shuffled data.
    Memory is O(bins).

    Attributes:
      examples: number of examples in the data set; public.
      bins: batches per epoch.
      rounds: batches in the whole run; the last epoch may be partial.

    Formal guarantee: if the order of the data is uniformly random, independent of N and secret, the bins of the
    examples are independent and uniform, as for `BallsInBins`: given the counts of independent uniform bins, every
    arrangement is equally likely. The order is the caller's responsibility. A shuffle with a buffer smaller than the
    data is not uniform, and not covered.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(StreamingBallsInBins(examples=10, bins=3, rounds=6), seed=1)
      >>> [index for t in range(3) for index in batches.at(t).examples.tolist()]
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    kind: ClassVar[str] = "balls-in-bins-streaming"

    @property
    def description(self) -> str:
        return (
            f"every example falls into one of {self.bins:,} batches, uniformly and independently of all others, and "
            "returns with that batch in every epoch, read as a stream"
        )

    @property
    def shuffled_data(self) -> bool:
        return True

    def open(self, words: Words) -> Members:
        return Slices(self, np.concatenate(([0], np.cumsum(bin_sizes(words, self.examples, self.bins)))))


@dataclass(frozen=True, eq=False)
class Slices:
    """Batches that are slices of shuffled data: the position at which each bin starts in it."""

    scheme: BallsInBins
    starts: NDArray[np.int64]

    def span(self, turn: int) -> tuple[int, int]:
        """Returns the first position of a round's batch and the one after its last."""
        group = self.scheme.check_turn(turn) % self.scheme.bins
        return int(self.starts[group]), int(self.starts[group + 1])

    def members(self, turn: int) -> IndexArray:
        return np.arange(*self.span(turn), dtype=np.int32)


def skipping(source: Callable[[], Iterator[Item]]) -> Callable[[int], Iterator[Item]]:
    """Makes an `open_pass` for `stream` from data that can only be read from its beginning.

    Args:
      source: opens the shuffled data at its beginning.

    Returns:
      A function of the position to start from, which reads and drops what comes before.
    """
    return lambda start: islice(source(), start, None)


def stream(batches: Batches, open_pass: Callable[[int], Iterator[Item]]) -> Iterator[tuple[Batch, list[Item]]]:
    """Yields the remaining batches with their items, reading each epoch's data once from front to back.

    `batches` moves on before a batch is yielded, so that its state, saved after the batch was used, resumes with the
    next one.

    Args:
      batches: batches of a `StreamingBallsInBins` scheme, at any round, in the middle of an epoch too.
      open_pass: open_pass(start) returns an iterator over the shuffled data from position `start` on.

    Yields:
      A batch and the list of its items in the order of `batch.indices`; padding has no item.
    """
    places = batches.realisation
    if not isinstance(places, Slices):
        raise InvalidArgument("batches", batches.scheme.kind, "must be of a balls-in-bins-streaming scheme")
    return read_slices(batches, places.span, lambda turn: open_pass)


def read_slices(
    batches: Batches,
    span: Callable[[int], tuple[int, int]],
    passes: Callable[[int], Callable[[int], Iterator[Item]]],
) -> Iterator[tuple[Batch, list[Item]]]:
    """Yields the remaining batches with their items.

    Args:
      batches: batches whose members are slices of shuffled data.
      span: the first position of a round's batch and the one after its last.
      passes: the `open_pass` of a round.

    Yields:
      A batch and the list of its items.
    """
    examples, position = batches.scheme.examples, -1
    data: Iterator[Item] = iter(())
    for batch in batches:
        start, stop = span(batch.round)
        if start != position:
            data = passes(batch.round)(start)
        items: list[Any] = list(islice(data, stop - start))
        if len(items) < stop - start:
            raise InvalidArgument("examples", examples, f"the data ends after {start + len(items)} examples")
        position = stop
        if stop == examples:
            position = -1
            if next(data, position) is not position:
                raise InvalidArgument("examples", examples, "the data has more examples than that")
        yield batch, [items[index - start] for index in batch.indices[batch.mask]]
