"""The one shape of a batching scheme: who takes part in which round, as a pure function of a seed."""

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
"""Examples that int32 indices can tell apart, with one to spare for padding."""


class Members(Protocol):
    """One realisation of a scheme."""

    def members(self, turn: int) -> IndexArray:
        """Returns the indices of the examples of one round, before padding or truncation."""


class Scheme(ABC):
    """A batching scheme: a frozen dataclass with the public numbers only; `open` makes a realisation.

    A new scheme implements the abstract members and is registered in `batching/registry.py`. Code elsewhere asks the
    scheme, never for its type; accountants read its law. Batch sizes are either fixed
    (`inclusion` is None, `largest` is known) or binomial: every example is in the batch of a given round with
    probability `inclusion`, independently of the others. That independence is what makes add-or-remove adjacency, and
    the prediction of truncation, exact.

    Attributes:
      examples: number of examples; public.
      rounds: number of batches in the whole run.
    """

    kind: ClassVar[str]
    examples: int
    rounds: int

    @property
    @abstractmethod
    def law(self) -> Law:
        """How one example takes part: what an accountant has to cover."""

    @property
    @abstractmethod
    def description(self) -> str:
        """How batches are made, in words that follow "Batches are made as analysed: "."""

    @property
    @abstractmethod
    def period(self) -> int | None:
        """After how many rounds an example's turn comes again; None where turns do not come in cycles."""

    @property
    def sampling_probability(self) -> float:
        """Probability that an example takes part when its turn comes."""
        return 1.0

    @property
    def independent_batches(self) -> bool:
        """Whether different batches overflow independently of each other, or negatively associated."""
        return False

    @property
    def shuffled_data(self) -> bool:
        """Whether indices are positions in data that was shuffled in secret, instead of examples."""
        return False

    @abstractmethod
    def sensitivity_if_known(self, strategy: Strategy) -> float:
        """Returns how far one example of norm 1 can move C x if everybody knows its rounds: what a leak leaves."""

    @abstractmethod
    def check_bins(self, bins: int) -> None:
        """Refuses a number of batches per epoch other than that of these batches."""

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """What sums over a batch are divided by, whatever size the batch happens to have."""

    @property
    @abstractmethod
    def inclusion(self) -> float | None:
        """Probability that a given example is in a given round, or None for fixed sizes."""

    @property
    @abstractmethod
    def meetings(self) -> float:
        """Expected number of batches, counted once if they return unchanged, that a given example is in."""

    @property
    @abstractmethod
    def distinct(self) -> int:
        """Number of batches in the run, counted once if they return unchanged."""

    @property
    def largest(self) -> int:
        """The largest batch there can be."""
        return self.examples

    @abstractmethod
    def open(self, words: Words) -> Members:
        """Returns the realisation that belongs to a seed."""

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Refuses an adjacency for which no analysis holds: sizes that are fixed do not survive adding an example."""
        if self.inclusion is None and not adjacency.equal_sizes:
            fitting = " or ".join(member.value for member in Adjacency if member.equal_sizes)
            raise InvalidArgument("adjacency", adjacency.value, f"must be {fitting} for {self.kind} batches")

    @property
    def digest(self) -> str:
        """A content hash of kind and numbers."""
        return files.digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `scheme_from_json` rebuilds this scheme."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}  # type: ignore[arg-type]

    def check_turn(self, turn: int) -> int:
        """Refuses a round outside the run."""
        return count("round", turn, at_least=0, at_most=self.rounds - 1)


def check_examples(examples: int) -> int:
    """Refuses numbers of examples that int32 cannot index."""
    return count("examples", examples, at_most=LARGEST)


def check_same_bins(bins: int, analysed: int) -> None:
    """Refuses batches per epoch that were not analysed."""
    if bins != analysed:
        raise InvalidArgument("bins", bins, f"must be the batches per epoch that were analysed, {analysed}")
