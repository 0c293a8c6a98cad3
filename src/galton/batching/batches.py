"""The batches of one run: from a scheme and a seed, for any round, with a state that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from galton.batching.base import Members, Scheme
from galton.batching.batch import Batch, fixed_batch
from galton.batching.overflow import smallest_padded_batch_size
from galton.batching.randomness import Words, check_seed
from galton.errors import InvalidArgument, count
from galton.typechecking import typechecked

FORMAT = "galton-batches"
VERSION = 1
DEFAULT_TRUNCATION = 1e-12
"""Bound on the probability that any batch of the run is truncated, at the default padded batch size."""


@typechecked
class Batches:
    """Iterates over the batches of a run, all of the same padded batch size.

    Batch t is a pure function of (scheme, seed, padded_batch_size, t). For balls-in-bins it is the same on every
    machine, bit for bit; Poisson schemes depend on the platform's logarithm.

    Args:
      scheme: how batches are drawn.
      padded_batch_size: size that every batch is padded to. Larger batches are truncated; `Truncation` says what that
        costs. By default it is so large that any truncation in the run has probability below 1e-12.
      seed: whole number or 64 hexadecimal digits; by default 256 bits from the operating system. The seed is a secret,
        and part of `state()`: amplification holds only against those who do not know the batches.

    Attributes:
      scheme: as given.
      padded_batch_size: size of every batch.

    Example:
      >>> from galton import BallsInBins
      >>> batches = Batches(BallsInBins(examples=100, bins=5, rounds=10), padded_batch_size=32, seed=7)
      >>> batch = next(batches)
      >>> batch.indices.shape, batches.round
      ((32,), 1)
      >>> resumed = Batches.resume(batches.scheme, batches.state())
      >>> bool((next(resumed).indices == next(batches).indices).all())
      True
    """

    def __init__(self, scheme: Scheme, padded_batch_size: int | None = None, seed: str | int | None = None) -> None:
        if padded_batch_size is None:
            padded_batch_size = smallest_padded_batch_size(scheme, DEFAULT_TRUNCATION)
        self.scheme = scheme
        self.padded_batch_size = count("padded_batch_size", padded_batch_size, at_most=2 * scheme.examples + 1)
        if scheme.inclusion is None and padded_batch_size < scheme.largest:
            remedy = f"must be at least {scheme.largest}, the size of every batch"
            raise InvalidArgument("padded_batch_size", padded_batch_size, remedy)
        self._words = Words(check_seed(seed))
        self._round = 0

    @property
    def seed(self) -> str:
        """The seed as 64 hexadecimal digits; a secret."""
        return self._words.seed

    @property
    def round(self) -> int:
        """The round whose batch comes next, counted from 0."""
        return self._round

    @cached_property
    def realisation(self) -> Members:
        """Who takes part when, before padding and truncation; drawn on first use."""
        return self.scheme.open(self._words)

    def at(self, turn: int) -> Batch:
        """Returns the batch of any round, without moving the iteration.

        Args:
          turn: the round, counted from 0.

        Returns:
          The batch, the same one that iteration gives for this round.
        """
        members = self.realisation.members(turn)
        return fixed_batch(self._words, turn, members, self.padded_batch_size, self.scheme.examples)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._round >= self.scheme.rounds:
            raise StopIteration
        batch = self.at(self._round)
        self._round += 1
        return batch

    def __len__(self) -> int:
        return self.scheme.rounds - self._round

    def state(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `resume` goes on with the next round. It has the secret seed."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "scheme": self.scheme.digest,
            "physical": self.padded_batch_size,
            "seed": self.seed,
            "round": self._round,
        }

    @classmethod
    def resume(cls, scheme: Scheme, state: dict[str, Any]) -> Batches:
        """Returns batches that go on where a state was taken.

        Args:
          scheme: the scheme of the run; any other is refused.
          state: what `state()` returned.

        Returns:
          The batches; the next one is that of the state's round.
        """
        if state.get("format") != FORMAT or state.get("version") != VERSION:
            raise InvalidArgument("state", state.get("format"), f"must be a {FORMAT} state of version {VERSION}")
        if state.get("scheme") != scheme.digest:
            raise InvalidArgument("state", state.get("scheme"), f"must belong to this scheme, {scheme.digest}")
        seed = state.get("seed")
        if not isinstance(seed, str):
            raise InvalidArgument("state", "(not shown)", "must have a seed")
        batches = cls(scheme, count("padded_batch_size", state.get("physical")), seed)  # type: ignore[arg-type]
        batches._round = count("round", state.get("round"), at_least=0, at_most=scheme.rounds)  # type: ignore[arg-type]
        return batches
