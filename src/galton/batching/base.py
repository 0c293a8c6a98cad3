"""The interface of all batching schemes: who takes part in which round, as a pure function of a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.batching.laws import Law
from galton.batching.randomness import Words
from galton.errors import InvalidArgument, count
from galton.guarantee import Adjacency
from galton.strategies.base import Strategy

IndexArray = NDArray[np.int32]

LARGEST = 2**31 - 1
"""The most examples that int32 indices can tell apart, with one index to spare for padding."""
ROUNDING = 1 + 1e-12
"""examples / bins, a batch size, times bins may exceed `examples` by rounding."""


class Members(Protocol):
    """One realisation of a scheme: the batches that belong to one seed."""

    def members(self, turn: int) -> IndexArray:
        """Returns the indices of the examples of one round, before padding or truncation."""


class Scheme(ABC):
    """How batches are drawn: the base class of all batching schemes. `Batches` draws the batches of a scheme.

    A scheme is a frozen dataclass that holds public numbers only, no seed and no data. Batch sizes are either fixed
    (`inclusion` is None, `largest` is known) or binomial: every example is in the batch of a given round with
    probability `inclusion`, independently of the others. That independence is what makes add-or-remove adjacency, and
    the prediction of truncation, exact.

    A new scheme implements the abstract members and is registered in `batching/registry.py`. Code elsewhere never asks
    for a scheme's type: accountants read its `law`, all else its properties.

    Attributes:
      kind: name of the scheme in JSON, one per class.
      examples: number of examples in the data set; public.
      rounds: number of batches in the whole run.

    Example:
      >>> from galton import BallsInBins
      >>> scheme = BallsInBins(examples=64, bins=4, rounds=8)
      >>> isinstance(scheme, Scheme), scheme.name, scheme.expected_batch_size
      (True, 'balls-in-bins', 16.0)
    """

    kind: ClassVar[str]
    examples: int
    rounds: int

    @property
    def name(self) -> str:
        """What people call such batches, as in `make_plan(batching=...)` where plans can use them."""
        return self.kind

    @property
    @abstractmethod
    def law(self) -> Law:
        """The distribution of the rounds that one example takes part in: what an accountant has to cover."""

    @property
    @abstractmethod
    def description(self) -> str:
        """How batches are made, in words that follow "Batches are made as analysed: "."""

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Number of rounds after which an example's turn comes again; None if turns do not come in cycles."""

    @property
    def sampling_probability(self) -> float:
        """Probability that an example takes part when its turn comes; 1 unless a scheme samples."""
        return 1.0

    @property
    def independent_batches(self) -> bool:
        """Whether the sizes of different batches are independent or negatively associated."""
        return False

    @property
    def shuffled_data(self) -> bool:
        """Whether indices are positions in data that was shuffled in secret, rather than in the original data."""
        return False

    @property
    def reshuffled_data(self) -> bool:
        """Whether that data is shuffled anew for every epoch, rather than once."""
        return False

    @abstractmethod
    def sensitivity_if_known(self, strategy: Strategy) -> float:
        """Returns the sensitivity of C x to one example of norm 1 if its rounds are known: what counts after a leak.

        Args:
          strategy: C.

        Returns:
          The largest l2 distance by which adding the example can move C x.
        """

    @abstractmethod
    def check_bins(self, bins: int) -> None:
        """Raises `InvalidArgument` unless an analysis for `bins` batches per epoch covers these batches.

        Args:
          bins: batches per epoch that were analysed.
        """

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """Expected number of examples in a batch; sums are divided by it, whatever the actual size of the batch."""

    @property
    @abstractmethod
    def inclusion(self) -> float | None:
        """Probability that a given example is in the batch of a given round; None for batches of fixed size."""

    @property
    @abstractmethod
    def meetings(self) -> float:
        """Expected number of distinct batches that a given example is in; a batch that recurs counts once."""

    @property
    @abstractmethod
    def distinct(self) -> int:
        """Number of distinct batches in the run; a batch that recurs in every epoch counts once."""

    @property
    def largest(self) -> int:
        """Size of the largest batch that can occur."""
        return self.examples

    @abstractmethod
    def open(self, words: Words) -> Members:
        """Returns the realisation that belongs to a seed; `Batches` calls this.

        Args:
          words: the random words of the seed.

        Returns:
          An object whose `members(turn)` are the indices of the examples of that round.
        """

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raises `InvalidArgument` for an adjacency under which no analysis of these batches holds.

        Batches of fixed size need an adjacency whose neighbours have equally many examples.

        Args:
          adjacency: of the guarantee.
        """
        if self.inclusion is None and not adjacency.equal_sizes:
            fitting = " or ".join(member.value for member in Adjacency if member.equal_sizes)
            raise InvalidArgument("adjacency", adjacency.value, f"must be {fitting} for {self.name} batches")

    @property
    def digest(self) -> str:
        """Content hash of `to_json()`."""
        return files.digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `scheme_from_json` rebuilds this scheme."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}  # type: ignore[arg-type]

    def check_turn(self, turn: int) -> int:
        """Returns the round's number; raises `InvalidArgument` unless it lies within the run.

        Args:
          turn: the round, counted from 0.

        Returns:
          `turn`.
        """
        return count("round", turn, at_least=0, at_most=self.rounds - 1)


def check_examples(examples: int) -> int:
    """Returns the number of examples; raises `InvalidArgument` if int32 cannot index so many."""
    return count("examples", examples, at_most=LARGEST)


def check_same_bins(bins: int, analysed: int) -> None:
    """Raises `InvalidArgument` unless the batches per epoch are those that were analysed."""
    if bins != analysed:
        raise InvalidArgument("bins", bins, f"must be the batches per epoch that were analysed, {analysed}")
