"""Workloads: lower-triangular matrices A, for which the error of C is A C^-1 z (docs/math.md, section 7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from galton.errors import FloatArray, InvalidArgument, InvalidFile, array, count_rounds, positive, real
from galton.files import read_npy
from galton.typechecking import typechecked


class Workload(ABC):
    """A lower-triangular matrix A that says what the noisy gradients are used for; the error of C is A C^-1 z.

    Attributes:
      rounds: rounds of the run, the size of A.

    Example:
      >>> workload = prefix_sums(3)
      >>> isinstance(workload, Workload)
      True
      >>> workload.matrix()
      array([[1., 0., 0.],
             [1., 1., 0.],
             [1., 1., 1.]])
    """

    rounds: int

    @abstractmethod
    def apply(self, values: FloatArray) -> FloatArray:
        """Returns A @ values.

        Args:
          values: of shape (rounds, k).
        """

    @property
    @abstractmethod
    def is_toeplitz(self) -> bool:
        """Whether A is Toeplitz; the error of a Toeplitz strategy then needs one column only."""

    def matrix(self) -> FloatArray:
        """Returns A as a dense matrix."""
        return self.apply(np.eye(self.rounds))


@typechecked
@dataclass(frozen=True, eq=False)
class Training(Workload):
    """The iterates of SGD, with or without momentum: A = prefix sums x diag(learning rates) x momentum.

    With momentum 0 and constant learning rate 1 this is the prefix-sum workload.

    Attributes:
      rounds: rounds of the run.
      momentum: at least 0 and below 1.
      learning_rates: a non-negative number per round; None for a constant learning rate of 1.

    Example:
      >>> Training(3, momentum=0.5).matrix()
      array([[1.  , 0.  , 0.  ],
             [1.5 , 1.  , 0.  ],
             [1.75, 1.5 , 1.  ]])
    """

    rounds: int
    momentum: float = 0.0
    learning_rates: FloatArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", count_rounds(self.rounds))
        real("momentum", self.momentum)
        if not 0 <= self.momentum < 1:
            raise InvalidArgument("momentum", self.momentum, "must be at least 0 and below 1")
        if self.learning_rates is not None:
            rates = array("learning_rates", self.learning_rates, 1)
            if rates.shape != (self.rounds,):
                raise InvalidArgument(
                    "learning_rates", rates.shape, f"must have one entry per round, shape ({self.rounds},)"
                )
            if not (rates >= 0).all() or not (rates > 0).any():
                raise InvalidArgument("learning_rates", float(rates.min()), "must be non-negative and not all zero")
            object.__setattr__(self, "learning_rates", rates)

    @property
    def is_toeplitz(self) -> bool:
        return self.learning_rates is None

    def apply(self, values: FloatArray) -> FloatArray:
        from scipy.signal import lfilter

        steps = values
        if self.momentum:
            steps = lfilter([1.0], [1.0, -self.momentum], steps, axis=0)
        if self.learning_rates is not None:
            steps = steps * self.learning_rates[:, None]
        return np.cumsum(steps, axis=0)


@typechecked
@dataclass(frozen=True, eq=False)
class MatrixWorkload(Workload):
    """A workload given as a matrix.

    Attributes:
      entries: A, lower-triangular, of shape (rounds, rounds).

    Example:
      >>> import numpy as np
      >>> MatrixWorkload(np.eye(4)).rounds
      4
    """

    entries: FloatArray

    def __post_init__(self) -> None:
        entries = array("workload", self.entries)
        if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
            raise InvalidArgument("workload", entries.shape, "must be a square matrix (this is its shape)")
        if np.triu(entries, 1).any():
            raise InvalidArgument("workload", entries.shape, "must be lower-triangular")
        if not entries.any():
            raise InvalidArgument("workload", 0.0, "must not be all zero")
        object.__setattr__(self, "entries", entries)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Rounds of the run."""
        return self.entries.shape[0]

    @property
    def is_toeplitz(self) -> bool:
        return False

    def apply(self, values: FloatArray) -> FloatArray:
        return self.entries @ values


@typechecked
def prefix_sums(rounds: int) -> Training:
    """Returns the default workload, the iterates of SGD: A[t, s] = 1 for s <= t.

    Args:
      rounds: rounds of the run.

    Returns:
      The workload.

    Example:
      >>> prefix_sums(2).matrix()
      array([[1., 0.],
             [1., 1.]])
    """
    return Training(rounds)


@typechecked
def momentum(rounds: int, beta: float, learning_rates: ArrayLike | None = None) -> Training:
    """Returns the workload of SGD with momentum: its error is that of the iterates.

    Args:
      rounds: rounds of the run.
      beta: the momentum, at least 0 and below 1.
      learning_rates: a learning rate per round, such as `cooldown(rounds)`; default constant.

    Returns:
      The workload.

    Example:
      >>> from galton import square_root
      >>> square_root(16).rmse(momentum(16, 0.9)) > square_root(16).rmse(momentum(16, 0.0))
      True
    """
    rates = None if learning_rates is None else array("learning_rates", learning_rates, 1)
    return Training(rounds, beta, rates)


@typechecked
def cooldown(rounds: int, start: float = 0.25, final: float = 0.05) -> FloatArray:
    """Returns learning rates that are 1 up to a fraction `start` of the run, then fall linearly to `final`.

    The defaults are the schedule of the paper's CIFAR-10 runs: 2000 rounds, cooling down from round 500 to a
    twentieth.

    Args:
      rounds: rounds of the run.
      start: the fraction of the run after which the learning rate falls, at least 0 and below 1.
      final: the learning rate of the last round.

    Returns:
      A learning rate per round, for `momentum`.

    Example:
      >>> cooldown(5, start=0.5, final=0.4).round(2).tolist()
      [1.0, 1.0, 1.0, 0.8, 0.4]
    """
    count_rounds(rounds)
    positive("final", final)
    if not 0 <= real("start", start) < 1:
        raise InvalidArgument("start", start, "must be at least 0 and below 1")
    first = min(start * rounds, rounds - 1 - 1e-9)
    progress = np.clip((np.arange(rounds) - first) / (rounds - 1 - first), 0.0, 1.0)
    return 1.0 + (final - 1.0) * progress


def parse_workload(text: str, rounds: int) -> Workload:
    """Reads `prefix`, `momentum:0.95`, `momentum:0.95+cooldown`, or the path of a .npy file with a matrix.

    Args:
      text: the name, or the path.
      rounds: rounds of the run.

    Returns:
      The workload.
    """
    if text == "prefix":
        return prefix_sums(rounds)
    if text.startswith("momentum:"):
        beta, plus, schedule = text.removeprefix("momentum:").partition("+")
        if plus and schedule != "cooldown":
            raise InvalidArgument("workload", text, "the only schedule with a name is cooldown: momentum:0.95+cooldown")
        try:
            value = float(beta)
        except ValueError:
            raise InvalidArgument("workload", text, "momentum must be a number, as in momentum:0.95") from None
        if not 0 <= value < 1:
            raise InvalidArgument("workload", text, "momentum must be at least 0 and below 1")
        return momentum(rounds, value, cooldown(rounds) if plus else None)
    if text.endswith(".npy"):
        try:
            workload = MatrixWorkload(read_npy(text))
        except InvalidArgument as error:
            held = f"a workload file holds a lower-triangular matrix with a row per round, here {rounds} x {rounds}"
            raise InvalidFile(f"{text}: {error}; {held}") from None
        if workload.rounds != rounds:
            raise InvalidArgument(
                "workload", text, f"is for {workload.rounds} rounds, not for the {rounds} of this run"
            )
        return workload
    raise InvalidArgument("workload", text, "must be prefix, momentum:BETA, momentum:BETA+cooldown or a .npy file")
