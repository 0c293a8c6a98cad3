"""The interface of a strategy: a lower-triangular matrix C that says how the noise is correlated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from galton import files
from galton.errors import FloatArray, InvalidArgument, check_memory, count
from galton.workloads import Workload, prefix_sums

if TYPE_CHECKING:
    from galton.strategies.modes import Modes
    from galton.strategies.streams import InverseStream

BLOCK = 256
"""Columns handled at a time where a whole n x n matrix would take too much memory."""


_FEW_BINS = 512
"""Up to so many bins the Gram matrix is small."""


class Strategy(ABC):
    """A correlation matrix C with one column per round; training sees x + C^-1 z.

    Strategies are immutable. Entries of C are non-negative unless `allow_negative` was given.

    A new kind of strategy implements `columns`, `inverse_columns`, `stream`, `parameters` and `from_parameters`, and
    is registered in `strategies/codec.py`. Everything else has a default that kinds with more structure override.

    Attributes:
      kind: name of the kind in strategy files.
      rounds: rounds of the run.
      allow_negative: whether C may have negative entries.

    Example:
      >>> from galton import Blt, identity
      >>> [strategy.kind for strategy in (identity(8), Blt(8, [0.9], [0.3])) if isinstance(strategy, Strategy)]
      ['toeplitz', 'blt']
      >>> identity(8).sensitivity(bins=2)
      2.0
    """

    kind: ClassVar[str]
    rounds: int
    allow_negative: bool

    @property
    def rows(self) -> int:
        """Number of rows of C: the noise vectors of a whole run (`rounds` unless C is rectangular)."""
        return self.rounds

    @property
    def has_negative(self) -> bool:
        """Whether C has a negative entry. The pair of |C| is then analysed: valid, but looser."""
        return False

    @property
    def bands(self) -> int:
        """Number of non-zero diagonals of C, the main diagonal included."""
        if self.rows != self.rounds:
            raise InvalidArgument(
                "strategy", self.kind, "has no bands, for C is not square; take a strategy with bands, such as sqrt:4"
            )
        most = 1
        for column in range(self.rounds):
            filled = self.columns(column, column + 1)[column:, 0].nonzero()[0]
            most = max(most, int(filled[-1]) + 1)
        return most

    @abstractmethod
    def columns(self, start: int, stop: int) -> FloatArray:
        """Returns C[:, start:stop].

        Args:
          start: the first column.
          stop: the column after the last.
        """

    @abstractmethod
    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        """Returns C^-1[:, start:stop] (a left inverse where C is rectangular).

        Args:
          start: the first column.
          stop: the column after the last.
        """

    @abstractmethod
    def stream(self) -> InverseStream:
        """Returns C^-1 as a stream: one round of noise at a time, with explicit state."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Returns what JSON has to hold, besides kind and rounds, to rebuild this strategy exactly."""

    @classmethod
    @abstractmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Strategy:
        """Rebuilds a strategy from `parameters()`.

        Args:
          rounds: rounds of the run.
          parameters: as `parameters()` returns them, with `allow_negative`; nested strategies are rebuilt already.

        Returns:
          The strategy.
        """

    def prefix(self, rounds: int) -> Strategy:
        """Returns C of the first rounds of the run alone: its leading block (docs/math.md, section 15).

        Args:
          rounds: how many, at most all.

        Returns:
          A strategy of so many rounds; their noise is that of the first rounds of this one.

        Example:
          >>> from galton import square_root
          >>> square_root(8).prefix(3).rounds
          3
        """
        if count("rounds", rounds) > self.rounds:
            raise InvalidArgument("rounds", rounds, f"must be at most those of the strategy, {self.rounds}")
        return self if rounds == self.rounds else self._leading(rounds)

    def _leading(self, rounds: int) -> Strategy:
        raise InvalidArgument("strategy", self.kind, "does not say what its first rounds are by themselves")

    def matrix(self) -> FloatArray:
        """Returns C as a dense matrix."""
        return self.columns(0, self.rounds)

    def inverse(self) -> FloatArray:
        """Returns C^-1 as a dense matrix (a left inverse where C is rectangular)."""
        return self.inverse_columns(0, self.rows)

    def modes(self, bins: int) -> FloatArray:
        """Returns the (rows, bins) matrix with columns m_i = sum_j |C|[:, i + j*bins] (docs/math.md, section 1).

        It is computed by sums of non-negative numbers only, never by a transform, so that every entry has a small
        relative error.

        Args:
          bins: batches per epoch.
        """
        check_memory("bins", self.check_bins(bins), 2 * self.rows * bins)
        result = np.zeros((self.rows, bins))
        for start in range(0, self.rounds, bins):
            stop = min(start + bins, self.rounds)
            result[:, : stop - start] += np.abs(self.columns(start, stop))
        return result

    def gram(self, bins: int) -> FloatArray:
        """Returns M^T M for the modes M: the (bins, bins) matrix that is all the accountant needs.

        Args:
          bins: batches per epoch.
        """
        modes = self.modes(bins)
        return modes.T @ modes

    def linear_modes(self, bins: int, weights: FloatArray | None = None) -> Modes | None:
        """Returns the modes of |C| diag(weights) as a linear map, where C has the structure for it; else None.

        Args:
          bins: batches per epoch.
          weights: a positive number for every round; None for ones.
        """
        return None

    def sensitivity(self, bins: int) -> float:
        """Returns max_i ||m_i||: how far an example of norm 1 moves C x over the whole run.

        Args:
          bins: batches per epoch; an example takes part in every bins-th round.

        Example:
          >>> from galton import identity
          >>> identity(8).sensitivity(bins=2)  # each example takes part in four rounds
          2.0
        """
        modes = self.linear_modes(bins) if bins > _FEW_BINS else None
        with np.errstate(all="ignore"):  # what overflows is not moderate
            if modes is not None and modes.moderate:
                return modes.sensitivity
        return float(np.sqrt(self.gram(bins).diagonal().max()))

    def column_norm(self) -> float:
        """Returns the largest column norm: how far a single participation moves C x."""
        blocks = range(0, self.rounds, BLOCK)
        squares = [np.square(self.columns(i, min(i + BLOCK, self.rounds))).sum(axis=0).max() for i in blocks]
        return float(np.sqrt(max(squares)))

    def row_errors(self, workload: Workload | None = None) -> FloatArray:
        """Returns the standard deviation of every entry of A C^-1 z for unit noise z.

        Args:
          workload: A; default prefix sums.
        """
        workload = self.check_workload(workload)
        squares = np.zeros(self.rounds)
        for start in range(0, self.rows, BLOCK):
            stop = min(start + BLOCK, self.rows)
            with np.errstate(all="ignore"):  # what overflows is refused below
                squares += np.square(workload.apply(self.inverse_columns(start, stop))).sum(axis=1)
        return self.check_errors(np.sqrt(squares))

    def check_errors(self, errors: FloatArray) -> FloatArray:
        """Returns the errors of all rounds; refuses a C whose inverse is too large for them.

        Args:
          errors: their standard deviations.
        """
        if not np.isfinite(errors).all():
            raise self.nearly_singular()
        return errors

    def nearly_singular(self) -> InvalidArgument:
        """Returns the refusal of a C that has no inverse in floating point."""
        return InvalidArgument("strategy", self.kind, "its inverse is too large for float64: C is nearly singular")

    def rmse(self, workload: Workload | None = None) -> float:
        """Returns ||A C^-1||_F / sqrt(n): the root-mean-square error for unit noise.

        Args:
          workload: A; default prefix sums.
        """
        return float(np.sqrt(np.mean(np.square(self.row_errors(workload)))))

    def max_error(self, workload: Workload | None = None) -> float:
        """Returns the largest row norm of A C^-1: the worst round's error for unit noise.

        Args:
          workload: A; default prefix sums.
        """
        return float(self.row_errors(workload).max())

    @property
    def digest(self) -> str:
        """A content hash: equal exactly when kind, rounds and all coefficients are."""
        return files.digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `strategy_from_json` rebuilds this strategy bit for bit."""
        return {"kind": self.kind, "rounds": self.rounds, "allow_negative": self.allow_negative, **self.parameters()}

    def check_bins(self, bins: int) -> int:
        """Returns `bins`, refusing more bins than rounds.

        Args:
          bins: batches per epoch.
        """
        count("bins", bins)
        if bins > self.rounds:
            raise InvalidArgument("bins", bins, f"must be at most the number of rounds, {self.rounds}")
        return bins

    def check_workload(self, workload: Workload | None) -> Workload:
        """Returns the workload, refusing one with another number of rounds.

        Args:
          workload: A; default prefix sums.
        """
        if workload is None:
            return prefix_sums(self.rounds)
        if workload.rounds != self.rounds:
            raise InvalidArgument(
                "workload", workload.rounds, f"must have as many rounds as the strategy, {self.rounds}"
            )
        return workload

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.rounds} rounds, {self.digest[:15]}>"
