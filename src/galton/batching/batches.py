"""The batches of one run: from a scheme and a seed, at any round, with a state that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from galton.batching.base import Members, Scheme
from galton.batching.batch import Batch, fixed_batch
from galton.batching.overflow import smallest_padded_batch_size
from galton.batching.randomness import Words, check_seed
from galton.errors import InvalidArgument, count

FORMAT = "galton-batches"
VERSION = 1
DEFAULT_TRUNCATION = 1e-12
"""Probability of any truncation in the run at the default padded batch size."""


class Batches:
    """Iterates over the batches of a run, each of the same padded batch size.

    Batch t is a pure function of (scheme, seed, padded_batch_size, t), bit for bit the same on every machine for
    balls-in-bins (Poisson schemes lean on the platform's logarithm).

    Args:
      scheme: how batches are drawn.
      padded_batch_size: size that every batch is padded to; by default so large that truncation anywhere in the run
        has probability below 1e-12.
        Larger batches are truncated: see `batching/overflow.py` for what that costs.
      seed: None takes the operating system's entropy; it is kept in the state. It is a secret: amplification holds
        against those who do not know the batches.

    >>> from galton.batching import BallsInBins
    >>> batches = Batches(BallsInBins(examples=100, bins=5, rounds=10), padded_batch_size=32, seed=7)
    >>> first = next(batches)
    >>> first.indices.shape, batches.round
    ((32,), 1)
    >>> again = Batches.resume(batches.scheme, batches.state())
    >>> bool((next(again).indices == next(batches).indices).all())
    True
    """

    def __init__(self, scheme: Scheme, padded_batch_size: int | None = None, seed: str | int | None = None) -> None:
        if padded_batch_size is None:
            padded_batch_size = smallest_padded_batch_size(scheme, DEFAULT_TRUNCATION)
        self.scheme, self.padded_batch_size = scheme, count("padded_batch_size", padded_batch_size)
        if scheme.inclusion is None and padded_batch_size < scheme.largest:
            remedy = f"must be at least {scheme.largest}, the size of every batch"
            raise InvalidArgument("padded_batch_size", padded_batch_size, remedy)
        self._words = Words(check_seed(seed))
        self._round = 0

    @property
    def seed(self) -> str:
        """The seed, 64 hexadecimal digits; a secret."""
        return self._words.seed

    @property
    def round(self) -> int:
        """The coming round."""
        return self._round

    @cached_property
    def realisation(self) -> Members:
        """Who takes part when; made on first use."""
        return self.scheme.open(self._words)

    def at(self, turn: int) -> Batch:
        """Returns the batch of any round; the iteration does not move."""
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
        """Returns a JSON-ready dictionary from which `resume` continues with the coming round. It has the seed."""
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
        """Continues where `state` was taken; a state of another scheme is refused."""
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
