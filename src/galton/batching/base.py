"""The one shape of a batching scheme: who takes part in which round, as a pure function of a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.batching.words import Words
from galton.errors import InvalidArgument, choice, count
from galton.pair import ADJACENCIES

IndexArray = NDArray[np.int32]

ACCOUNTANTS = ("balls-in-bins", "allocation", "unamplified", "poisson", "cyclic-poisson", "mmcc")
"""Analyses by the sampling they assume."""

LARGEST = 2**31 - 1
"""Examples that int32 indices can tell apart, with one to spare for padding."""


class Members(Protocol):
    """One realisation of a scheme."""

    def members(self, turn: int) -> IndexArray:
        """Returns the indices of the examples of one round, before padding or truncation."""


class Scheme(ABC):
    """A batching scheme: a frozen dataclass with the public numbers only; `open` makes a realisation.

    A new scheme implements the abstract members and is registered in `batching/codec.py`. Batch sizes are either fixed
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
    def covered_by(self) -> tuple[str, ...]:
        """Accountants (names of ACCOUNTANTS) whose guarantee holds for batches of this scheme."""

    @property
    @abstractmethod
    def nominal_size(self) -> float:
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

    def check_covered(self, accountant: str) -> None:
        """Refuses an accountant whose analysis does not hold for this scheme."""
        choice("accountant", accountant, ACCOUNTANTS)
        if accountant not in self.covered_by:
            right = ", ".join(self.covered_by) or "none that galton has"
            raise InvalidArgument("accountant", accountant, f"does not cover {self.kind} batches; covered by: {right}")

    def check_adjacency(self, adjacency: str) -> None:
        """Refuses an adjacency for which no analysis holds: sizes that are fixed do not survive adding an example."""
        choice("adjacency", adjacency, tuple(ADJACENCIES))
        if self.inclusion is None and adjacency not in ("replace", "zero-out"):
            raise InvalidArgument("adjacency", adjacency, f"must be zero-out or replace for {self.kind} batches")

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
