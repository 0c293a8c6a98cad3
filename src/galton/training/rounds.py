"""The rounds of a run as training code sees them: whose turn is next, its batch, and seeds for what else is random."""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from galton.batching import Batch, Batches
from galton.errors import GaltonError, InvalidArgument
from galton.plan import Plan


class PlanViolated(GaltonError):
    """Raised when training departs from the plan; train as it says, or make another plan.

    Example:
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> try:
      ...     TrainingRun(plan, "run", {"w": np.zeros(2, np.float32)}, examples=63, clip_norm=1.0)
      ... except PlanViolated as error:
      ...     print(error)
      examples = 63: the plan was made for 64; train with that, or make another plan
    """


def check_same(name: str, value: Any, planned: Any) -> None:
    """Raises `PlanViolated` unless a value is the plan's.

    Args:
      name: of the value, for the error.
      value: what the run has.
      planned: what the plan says.
    """
    if value != planned:
        raise PlanViolated(f"{name} = {value}: the plan was made for {planned}; train with that, or make another plan")


class Rounds(ABC):
    """The rounds of a plan, one after the other: what runs in one process and in several have in common.

    Attributes:
      plan: the plan.
      folder: of the run.
    """

    plan: Plan
    folder: Path
    _batches: Batches

    @property
    @abstractmethod
    def round(self) -> int:
        """The next round, counted from 0."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether the run was ended for good (`stop_run`)."""

    @property
    @abstractmethod
    def _secret(self) -> bytes:
        """What tokens and seeds are made from."""

    @property
    def rounds(self) -> int:
        """Number of rounds that were planned."""
        return self.plan.rounds

    @property
    def done(self) -> bool:
        """Whether all rounds have had their noise, or the run was stopped (`stop_run`)."""
        return self.round >= self.rounds or self.stopped

    @property
    def batch(self) -> Batch:
        """The batch of the next round."""
        self._check_not_done()
        return self._batches.at(self.round)

    def epoch(self) -> Iterator[Batch]:
        """Yields the batches from the next round to the end of its epoch, for loaders that read ahead.

        The run itself moves on with `noise` only. It does no harm to stop early: another call begins with the round
        that is next by then.

        Yields:
          The batches in order.
        """
        self._check_not_done()
        start, size = self.round, self.plan.bins
        for turn in range(start, min(self.rounds, (start // size + 1) * size)):
            if turn >= self.round:  # else it was skipped meanwhile
                yield self._batches.at(turn)

    @property
    def rows(self) -> int:
        """Rows of a batch, padding included, that this process computes if it does not cut them."""
        return self.plan.padded_batch_size

    def check_micro_batch_size(self, size: int) -> None:
        """Raises `InvalidArgument` if batches cannot be cut into micro-batches of this size.

        Args:
          size: rows of a micro-batch.
        """
        if self.rows % size:
            raise InvalidArgument("micro_batch_size", size, f"must divide the padded batch size, {self.rows}")

    def cut(self, batch: Batch, size: int) -> list[Batch]:
        """Returns the micro-batches that this process computes of a batch.

        Args:
          batch: of the run.
          size: rows of a micro-batch.

        Returns:
          The micro-batches in order.
        """
        return batch.micro_batches(size)

    def token(self, batch: Batch) -> str:
        """Returns a keyed hash of a batch or micro-batch, by which an optimiser recognises what a loader delivered.

        Args:
          batch: a batch or micro-batch of this run.

        Returns:
          64 hexadecimal digits.
        """
        content = f"{self.plan.digest} {batch.round} ".encode() + batch.indices.tobytes()
        return hmac.new(b"galton batch" + self._secret, content, hashlib.sha256).hexdigest()

    def round_seed(self, turn: int, part: int = 0) -> int:
        """Returns a seed for what else is random in a round (dropout, augmentation), the same if it is computed again.

        Args:
          turn: the round.
          part: number of the micro-batch, if each has a seed of its own.

        Returns:
          A whole number below 2^63; a secret.
        """
        content = f"{turn} {part}".encode()
        digest = hmac.new(b"galton randomness" + self._secret, content, hashlib.sha256).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def _check_not_done(self) -> None:
        if self.stopped:
            raise PlanViolated(f"round = {self.round}: the run was stopped for good, and its record says so")
        if self.done:
            raise PlanViolated(f"round = {self.round}: the plan has {self.rounds} rounds, and all are done")
