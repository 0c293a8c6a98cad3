"""Data that can only be read in order: the examples of a batch, with each epoch read once from front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from galton.batching import Users
from galton.errors import InvalidArgument
from galton.plan import Plan
from galton.training.rounds import PlanViolated


class InOrder:
    """Reads examples by their positions, from data that can only be read from its beginning.

    Args:
      open_epoch: open_epoch(epoch) returns the examples of an epoch in the order in which they were shuffled.

    Example:
      >>> reader = InOrder(lambda epoch: iter("abcdef"))
      >>> reader.take([0, 2], 0), reader.take([3], 0), reader.take([1], 1)
      (['a', 'c'], ['d'], ['b'])
    """

    def __init__(self, open_epoch: Callable[[int], Iterable[Any]]) -> None:
        self._open, self._epoch, self._next = open_epoch, -1, 0
        self._items: Iterator[Any] = iter(())

    def take(self, positions: list[int], epoch: int) -> list[Any]:
        """Returns examples by their positions, which rise within an epoch; if they fall, the epoch is read anew.

        Args:
          positions: in the data as it was shuffled.
          epoch: of the plan, from 0.

        Returns:
          The examples.
        """
        return [self._at(position, epoch) for position in positions]

    def _at(self, position: int, epoch: int) -> Any:
        if epoch != self._epoch or position < self._next:
            self._items, self._epoch, self._next = iter(self._open(epoch)), epoch, 0
        for item in islice(self._items, position - self._next, None):
            self._next = position + 1
            return item
        raise PlanViolated(f"data: ends before example {position}, and the plan has more")


def check_streaming(plan: Plan, kind: str, users: Users | None) -> None:
    """Raises `InvalidArgument` unless the batches of a plan are slices of shuffled data, and the unit is an example.

    Args:
      plan: the plan.
      kind: what the data is, for the error.
      users: which examples are whose, if the unit is a user.
    """
    if users is not None:
        raise InvalidArgument("data", kind, "must have random access where the unit is a user")
    if not (plan.scheme.shuffled_data or plan.scheme.reshuffled_data):
        remedy = "can only be read in order; plan balls-in-bins-streaming for it, or give a data set with random access"
        raise InvalidArgument("data", kind, remedy)
