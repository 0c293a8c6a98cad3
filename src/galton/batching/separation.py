"""b-min-separation batches: Poisson sampling in which an example that has just taken part rests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from galton.batching.base import ROUNDING, IndexArray, Scheme, check_examples
from galton.batching.laws import Renewal
from galton.batching.poisson import gaps
from galton.batching.randomness import Words
from galton.errors import MOST_ROUNDS, InvalidArgument, count, count_rounds, positive
from galton.strategies.base import Strategy
from galton.strategies.sensitivity import min_separation_sensitivity
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True)
class MinSeparation(Scheme):
    """Poisson sampling with rests: after taking part an example sits out the next `separation` - 1 rounds.

    After its rest an example takes part in each round with the same probability. The process is stationary from the
    first round on. With batch_size = examples / separation it is balls-in-bins. The accountant min-separation covers it
    for C with as many bands as the separation. (arXiv 2602.09338, which jax-privacy follows, analyses it by plain Monte
    Carlo.)

    Attributes:
      examples: number of examples in the data set; public.
      batch_size: expected batch size, at most examples / separation.
      separation: least number of rounds between two participations of an example.
      rounds: batches in the whole run.

    Formal guarantee: examples are independent of each other.

    Example:
      >>> from galton import Batches
      >>> batches = Batches(MinSeparation(examples=100, batch_size=20, separation=4, rounds=8), seed=1)
      >>> set(batches.at(0).examples) & set(batches.at(3).examples)  # three rounds later all still rest
      set()
    """

    kind: ClassVar[str] = "min-separation"
    examples: int
    batch_size: float
    separation: int
    rounds: int

    def __post_init__(self) -> None:
        check_examples(self.examples)
        positive("batch_size", self.batch_size)
        count("separation", self.separation, at_most=MOST_ROUNDS)
        count_rounds(self.rounds)
        if self.batch_size * self.separation > self.examples * ROUNDING:
            raise InvalidArgument("batch_size", self.batch_size, f"must be at most {self.examples / self.separation:g}")

    @property
    def law(self) -> Renewal:
        return Renewal(self.separation, self.sampling_probability)

    @property
    def description(self) -> str:
        return (
            f"an example that took part rests for {self.separation - 1:,} rounds, then takes part in every round with "
            f"probability {self.sampling_probability:.6g}, independently of all others"
        )

    @property
    def period(self) -> None:
        return None

    def sensitivity_if_known(self, strategy: Strategy) -> float:
        return min_separation_sensitivity(strategy, self.separation)

    def check_bins(self, bins: int) -> None:
        # a smaller batch size has fewer, but other, patterns of rounds: no analysis for `bins` covers it
        if not 1 / ROUNDING <= self.inclusion * bins <= ROUNDING:
            raise InvalidArgument("batch_size", self.batch_size, f"must be examples / bins for {bins} bins")

    @property
    def interval(self) -> float:
        """Rounds between two participations of an example on average; a whole number where that was meant."""
        interval = self.examples / self.batch_size
        return round(interval) if abs(interval - round(interval)) <= 1e-12 * interval else interval

    @property
    def sampling_probability(self) -> float:
        """Probability that an example that is not resting takes part in a given round."""
        return min(1.0, 1 / (self.interval - self.separation + 1))

    @property
    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    @property
    def inclusion(self) -> float:
        return self.batch_size / self.examples

    @property
    def meetings(self) -> float:
        return self.rounds * self.inclusion

    @property
    def distinct(self) -> int:
        return self.rounds

    def open(self, words: Words) -> Renewals:
        return Renewals(self, words)


@dataclass(eq=False)
class Renewals:
    """A calendar of every example's next round: O(examples) memory. Going back replays from the start."""

    scheme: MinSeparation
    words: Words
    _calendar: dict[int, list[IndexArray]] = field(default_factory=dict)
    _turn: int = -1
    _members: IndexArray = field(default_factory=lambda: np.zeros(0, np.int32))

    def members(self, turn: int) -> IndexArray:
        self.scheme.check_turn(turn)
        if self._turn < 0 or turn < self._turn:
            self._start()
        while self._turn < turn:
            self._advance()
        return self._members

    def _start(self) -> None:
        """Draws the first round of every example from the stationary law.

        The gap between two rounds is L = separation - 1 + geometric, so the first is k with probability
        P(L > k) * inclusion: uniform on 0..separation-2, or separation - 1 and a geometric number of failures.
        """
        scheme, rest = self.scheme, self.scheme.separation - 1
        uniforms = self.words.uniforms("renewal", 0, 3 * scheme.examples).reshape(3, -1)
        early = np.minimum(np.floor(uniforms[1] * rest), rest - 1).astype(np.int64)
        late = rest + gaps(uniforms[2], scheme.sampling_probability) - 1
        first = np.where(uniforms[0] <= rest / scheme.interval, early, late)
        self._calendar, self._turn = {}, -1
        self._members = np.zeros(0, np.int32)
        self._schedule(np.arange(scheme.examples, dtype=np.int32), first)

    def _schedule(self, examples: IndexArray, rounds: NDArray[np.int64]) -> None:
        """Writes the next round of each of these examples into the calendar, unless the run is over by then."""
        within = rounds < self.scheme.rounds
        examples, rounds = examples[within], rounds[within]
        if not examples.size:
            return
        order = np.argsort(rounds, kind="stable")
        turns, starts = np.unique(rounds[order], return_index=True)
        for turn, group in zip(turns.tolist(), np.split(examples[order], starts[1:]), strict=True):
            self._calendar.setdefault(turn, []).append(group)

    def _advance(self) -> None:
        """Moves to the next round and draws when its members take part again."""
        self._turn += 1
        groups = self._calendar.pop(self._turn, [])
        self._members = np.sort(np.concatenate(groups)) if groups else np.zeros(0, np.int32)
        uniforms = self.words.uniforms("renewal", 1 + self._turn, self._members.size)
        jump = self.scheme.separation - 1 + gaps(uniforms, self.scheme.sampling_probability)
        self._schedule(self._members, self._turn + jump)
