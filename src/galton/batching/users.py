"""Users as the unit: which examples of a user take part when the user does, in arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from galton.batching.batch import Batch
from galton.errors import InvalidArgument, count
from galton.typechecking import typechecked


@typechecked
@dataclass(frozen=True, eq=False)
class Users:
    """The examples of every user; `group_by_user` makes it. A plan's batches are then batches of users.

    Formal guarantee: which examples of a user take part in a round depends on that user's own examples, in the order of
    the data, and on the round; not on other users. With the gradients of the examples summed and clipped together to
    norm 1, a user is to the analysis what an example is otherwise (docs/math.md, section 16).

    Attributes:
      order: indices of the examples, user by user, each user's in the order of the data.
      starts: where each user's examples begin in `order`; one entry more than users.
      per_user: the most examples of a user in a round.

    Example:
      >>> users = group_by_user(["ann", "bob", "ann", "ann"], per_user=2)
      >>> users.number, users.counts.tolist()
      (2, [3, 1])
      >>> [part.tolist() for part in users.rows(np.array([0, 1]), epoch=1)]
      [[[3, 0], [1, 1]], [[True, True], [True, False]]]
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    per_user: int

    @property
    def number(self) -> int:
        """How many users there are."""
        return self.starts.size - 1

    @property
    def examples(self) -> int:
        """How many examples all users have together."""
        return self.order.size

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many examples each user has."""
        return np.diff(self.starts)

    def rows(self, users: NDArray[Any], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the examples with which users take part in an epoch.

        A user with more than `per_user` takes part with the next so many in every epoch, beginning anew after the last.

        Args:
          users: numbers of users.
          epoch: number of the epoch, from 0.

        Returns:
          Indices of examples, of shape (users, per_user), and a mask that is False where a user has fewer; the index
          there is one of the user's own.
        """
        counts = self.counts[users][:, None]
        places = np.arange(self.per_user)[None, :]
        shift = np.where(counts > self.per_user, epoch * self.per_user, 0)
        return self.order[self.starts[users][:, None] + (places + shift) % counts], places < counts

    def take(self, batch: Batch, bins: int, data: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Returns the rows of `data` for a batch of users.

        Args:
          batch: of the plan; its indices are users.
          bins: batches per epoch.
          data: array whose first axis is the examples.

        Returns:
          Rows of shape (padded_batch_size, per_user, ...), zero where there is padding, and their mask.
        """
        indices, present = self.rows(batch.examples, batch.round // bins)
        rows = np.zeros((batch.padded_batch_size, self.per_user, *data.shape[1:]), data.dtype)
        mask = np.zeros((batch.padded_batch_size, self.per_user), bool)
        rows[batch.mask] = np.where(present.reshape(*present.shape, *[1] * (data.ndim - 1)), data[indices], 0)
        mask[batch.mask] = present
        return rows, mask


@typechecked
def group_by_user(users: ArrayLike | Sequence[Any], per_user: int) -> Users:
    """Groups examples by the user that each belongs to.

    Args:
      users: for every example, the user it belongs to: numbers or texts. Users are numbered in sorted order.
      per_user: the most examples of a user in a round.

    Returns:
      The groups. An example of several users is refused: all of them would be protected only if it is left out.

    Example:
      >>> group_by_user(["ann", "bob", "ann"], per_user=2).counts.tolist()
      [2, 1]
    """
    try:
        names = np.asarray(users)
    except ValueError:
        names = np.empty((0, 0))
    if names.ndim != 1 or names.dtype == object:
        each = users if isinstance(users, list | tuple) else ()
        raise InvalidArgument(
            "users",
            next(
                (f"{owners!r} for one example" for owners in each if np.ndim(owners)), f"array of shape {names.shape}"
            ),
            "must have one user per example; leave out examples that belong to several, which none of them could have "
            "removed alone",
        )
    if not names.size:
        raise InvalidArgument("users", "nothing", "must have one user per example")
    _, numbers = np.unique(names, return_inverse=True)
    order = np.argsort(numbers, kind="stable").astype(np.int64)
    counts = np.bincount(numbers)
    return Users(order, np.concatenate(([0], np.cumsum(counts))).astype(np.int64), count("per_user", per_user))
