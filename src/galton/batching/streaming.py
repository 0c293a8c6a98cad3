"""Balls-in-bins without random access: shuffle the data once, draw the batch sizes, then read it epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from galton.batching.balls_in_bins import BallsInBins, bin_sizes
from galton.batching.base import IndexArray
from galton.batching.batches import Batches
from galton.batching.batch import Batch
from galton.batching.randomness import Words
from galton.errors import InvalidArgument

Item = TypeVar("Item")


@dataclass(frozen=True)
class StreamingBallsInBins(BallsInBins):
    """Balls-in-bins over data that was shuffled once: bin i has the next N_i examples, N multinomial.

    Indices are positions in the shuffled data. Memory is O(bins).

    Formal guarantees:
      - Given a uniformly random order that is independent of N and stays secret, the bins of the examples are
        independent and uniform: the law is that of `BallsInBins`. (A sequence of independent uniform bins is a
        multinomial count, and given the counts every arrangement is equally likely.)
      - The order is the caller's: `batching/records.py` makes one for files. A shuffle with a buffer smaller than the
        data is not uniform and not covered.
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

    def open(self, words: Words) -> Slices:  # type: ignore[override]
        return Slices(self, np.concatenate(([0], np.cumsum(bin_sizes(words, self.examples, self.bins)))))


@dataclass(frozen=True, eq=False)
class Slices:
    """Where every bin starts in the shuffled data."""

    scheme: StreamingBallsInBins
    starts: NDArray[np.int64]

    def span(self, turn: int) -> tuple[int, int]:
        """Returns the first position of a round and the one after its last."""
        group = self.scheme.check_turn(turn) % self.scheme.bins
        return int(self.starts[group]), int(self.starts[group + 1])

    def members(self, turn: int) -> IndexArray:
        return np.arange(*self.span(turn), dtype=np.int32)


def skipping(source: Callable[[], Iterator[Item]]) -> Callable[[int], Iterator[Item]]:
    """Makes an `open_pass` for `stream` from data that can only be read from its beginning."""
    return lambda start: islice(source(), start, None)


def stream(batches: Batches, open_pass: Callable[[int], Iterator[Item]]) -> Iterator[tuple[Batch, list[Item]]]:
    """Yields every coming batch with its items, reading each epoch's data once from front to back.

    Args:
      batches: batches of a StreamingBallsInBins scheme, at any round: it continues in the middle of an epoch.
      open_pass: open_pass(start) returns an iterator over the shuffled data from position `start` on.

    The items of a batch stand in the order of its indices; padding has no item. `batches` moves on before a batch is
    yielded, so that its state, saved after the batch was used, resumes with the next.
    """
    places = batches.realisation
    if not isinstance(places, Slices):
        raise InvalidArgument("batches", batches.scheme.kind, "must be of a balls-in-bins-streaming scheme")
    scheme, position = places.scheme, -1
    data: Iterator[Item] = iter(())
    for batch in batches:
        start, stop = places.span(batch.round)
        if start != position:
            data = open_pass(start)
        items: list[Any] = list(islice(data, stop - start))
        if len(items) < stop - start:
            raise InvalidArgument("examples", scheme.examples, f"the data ends after {start + len(items)} examples")
        position = stop
        if stop == scheme.examples:
            position = -1
            if next(data, position) is not position:
                raise InvalidArgument("examples", scheme.examples, "the data has more examples than that")
        yield batch, [items[index - start] for index in batch.indices[batch.mask]]
