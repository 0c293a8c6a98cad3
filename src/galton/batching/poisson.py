"""Poisson batches: whether an example takes part is decided independently for each example and each round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from galton.batching.balls_in_bins import MOST_BINS, grouped
from galton.batching.base import ROUNDING, IndexArray, Scheme, check_examples
from galton.batching.laws import Coins, GroupCoins, Law
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count, count_rounds, positive
from galton.strategies.base import Strategy
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True)
class CyclicPoisson(Scheme):
    """Cyclic Poisson sampling: examples fall into `cycle` groups, and round t Poisson-samples from group t mod cycle.

    Attributes:
      examples: number of examples in the data set; public.
      batch_size: expected batch size, at most examples / cycle.
      cycle: number of groups.
      rounds: batches in the whole run.

    Formal guarantee: the group of an example is uniform and a function of (seed, index of the example) alone. In each
    round of its group the example takes part with probability batch_size * cycle / examples, independently (up to the
    53 bits of a uniform number). Covered under add-or-remove adjacency, where neighbours are sampled with the same
    probability.

    Example:
      >>> from galton import Batches
      >>> scheme = CyclicPoisson(examples=1000, batch_size=50, cycle=4, rounds=8)
      >>> scheme.sampling_probability, scheme.inclusion
      (0.2, 0.05)
      >>> batches = Batches(scheme, seed=1)
      >>> set(batches.at(0).examples) & set(batches.at(1).examples)  # different groups
      set()
    """

    kind: ClassVar[str] = "cyclic-poisson"
    examples: int
    batch_size: float
    cycle: int
    rounds: int

    def __post_init__(self) -> None:
        check_examples(self.examples)
        positive("batch_size", self.batch_size)
        count("cycle", self.cycle, at_most=MOST_BINS)
        count_rounds(self.rounds)
        if self.batch_size * self.cycle > self.examples * ROUNDING:
            raise InvalidArgument("batch_size", self.batch_size, f"must be at most {self.examples / self.cycle:g}")

    @property
    def law(self) -> Law:
        return GroupCoins(self.cycle, self.sampling_probability)

    @property
    def description(self) -> str:
        return (
            f"the examples are split into {self.cycle:,} groups that take turns, and every example of the group whose "
            f"turn it is takes part with probability {self.sampling_probability:.6g}, independently"
        )

    @property
    def period(self) -> int:
        return self.cycle

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return strategy.sensitivity(self.cycle)  # with known coins an example may be in every round of its group

    def check_bins(self, bins: int) -> None:
        if self.inclusion > ROUNDING / bins:
            raise InvalidArgument("batch_size", self.batch_size, f"must be at most examples / bins for {bins} bins")

    @property
    def sampling_probability(self) -> float:
        """Probability that an example takes part in a given round of its group."""
        return min(1.0, self.batch_size * self.cycle / self.examples)

    @property
    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    @property
    def inclusion(self) -> float:
        return self.sampling_probability / self.cycle

    @property
    def meetings(self) -> float:
        return math.ceil(self.rounds / self.cycle) * self.sampling_probability

    @property
    def distinct(self) -> int:
        return self.rounds

    def open(self, words: Words) -> Groups:
        if self.cycle == 1:
            return Groups(self, words, None, np.array([0, self.examples]))
        return Groups(self, words, *grouped(words, self.examples, self.cycle))


@typechecked
@dataclass(frozen=True)
class Poisson(CyclicPoisson):
    """Poisson sampling: in every round each example takes part with probability batch_size / examples, independently.

    Attributes:
      examples: number of examples in the data set; public.
      batch_size: expected batch size, at most `examples`.
      cycle: 1; there is a single group.
      rounds: batches in the whole run.

    Formal guarantee: that of `CyclicPoisson` with one group. Nothing bounds how often an example takes part, so the
    unamplified analysis of a fixed order does not cover these batches.

    Example:
      >>> from galton import Batches
      >>> scheme = Poisson(examples=1000, batch_size=50, rounds=8)
      >>> scheme.sampling_probability, Batches(scheme, seed=1).padded_batch_size
      (0.05, 108)
    """

    kind: ClassVar[str] = "poisson"

    def __init__(self, examples: int, batch_size: float, rounds: int) -> None:
        super().__init__(examples, batch_size, 1, rounds)

    @property
    def law(self) -> Coins:
        return Coins(self.sampling_probability)

    @property
    def description(self) -> str:
        return (
            f"every example takes part in every round with probability {self.sampling_probability:.6g}, independently "
            "of all others and of other rounds"
        )

    @property
    def independent_batches(self) -> bool:
        return True

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in super().to_json().items() if name != "cycle"}


@dataclass(frozen=True, eq=False)
class Groups:
    """The batches of Poisson schemes: examples sorted by group, sampled anew in every round."""

    scheme: CyclicPoisson
    words: Words
    order: IndexArray | None
    starts: NDArray[np.int64]

    def members(self, turn: int) -> IndexArray:
        group = self.scheme.check_turn(turn) % self.scheme.cycle
        start, stop = int(self.starts[group]), int(self.starts[group + 1])
        chosen = successes(self.words, "poisson", turn, stop - start, self.scheme.sampling_probability)
        if self.order is None:
            return chosen.astype(np.int32)
        return self.order[start + chosen]


def successes(words: Words, purpose: str, number: int, trials: int, chance: float) -> NDArray[np.int64]:
    """Returns which of `trials` independent trials succeed, in time proportional to the number of successes."""
    if chance >= 1:
        return np.arange(trials)
    expected = trials * chance
    size, chunk, chunks, last = int(expected + 6 * math.sqrt(expected) + 16), 0, [], -1
    while last < trials:
        steps = gaps(words.uniforms(f"{purpose} {chunk}", number, size), chance)
        places = last + np.cumsum(np.minimum(steps, trials + 1))
        chunks.append(places[places < trials])
        last, chunk = int(places[-1]), chunk + 1
    return np.concatenate(chunks)


def gaps(uniforms: NDArray[np.float64], chance: float) -> NDArray[np.int64]:
    """Returns one geometric number 1, 2, ... per uniform: the trials up to and including the next success."""
    if chance >= 1:
        return np.ones(uniforms.size, np.int64)
    steps = np.floor(np.log(uniforms) / math.log1p(-chance)) + 1
    return np.minimum(steps, 2.0**40).astype(np.int64)
