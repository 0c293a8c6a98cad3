"""Binary-tree aggregation, the mechanism of DP-FTRL: one noise vector per dyadic interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from galton.errors import FloatArray, InvalidArgument, check_memory, choice, count_rounds
from galton.strategies.base import Strategy
from galton.strategies.honaker import refined_variances
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.strategies.streams import InverseStream

DECODERS = ("honaker", "full")


@typechecked
@dataclass(frozen=True, eq=False, repr=False)
class Tree(Strategy):
    """Binary-tree aggregation: C has a row for every complete dyadic interval [k 2^h, (k+1) 2^h) within the run.

    The row is 1 on the rounds of the interval. Rows are ordered by the round in which their interval completes, small
    intervals first.

    Args:
      rounds: rounds of the run; need not be a power of two.
      decoder: `honaker` combines each node with its subtree, online. `full` is the pseudo-inverse, which also uses
        nodes that complete later: it has the least error, but no stream.

    Example:
      >>> Tree(2).matrix()
      array([[1., 0.],
             [0., 1.],
             [1., 1.]])
    """

    kind: ClassVar[str] = "tree"
    rounds: int
    decoder: str = "honaker"
    allow_negative: ClassVar[bool] = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", count_rounds(self.rounds))
        choice("decoder", self.decoder, DECODERS)

    @cached_property
    def _nodes(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
        """First round and height of every node."""
        last, height = [], []
        for index in range(1, self.rounds + 1):
            for level in range((index & -index).bit_length()):
                last.append(index)
                height.append(level)
        heights = np.array(height)
        return np.array(last) - (1 << heights), heights

    @property
    def height(self) -> int:
        """Height of the largest complete interval."""
        return self.rounds.bit_length() - 1

    @property
    def rows(self) -> int:
        return 2 * self.rounds - self.rounds.bit_count()

    def columns(self, start: int, stop: int) -> FloatArray:
        first, heights = self._nodes
        rounds = np.arange(start, stop)
        inside = (rounds >= first[:, None]) & (rounds < (first + (1 << heights))[:, None])
        return inside.astype(np.float64)

    def inverse_columns(self, start: int, stop: int) -> FloatArray:
        return self._decoder_matrix[:, start:stop]

    @cached_property
    def _decoder_matrix(self) -> FloatArray:
        check_memory("rounds", self.rounds, self.rounds * self.rows)
        if self.decoder == "full":
            return np.asarray(np.linalg.pinv(self.matrix()))
        return self._honaker_matrix()

    def _honaker_matrix(self) -> FloatArray:
        """Row t: noise of round t as a combination of node noises, by the recursion that the stream runs."""
        variances = refined_variances(self.height)
        result = np.zeros((self.rounds, self.rows))
        left = np.zeros((self.height + 1, self.rows))
        node = 0
        for index in range(self.rounds):
            current = np.zeros(self.rows)
            current[node] = 1.0
            finished = np.zeros(self.rows)
            completed = ((index + 1) & -(index + 1)).bit_length()
            for level in range(1, completed):
                own = variances[level]
                finished += left[level - 1]
                current = (1 - own) * (left[level - 1] + current)
                current[node + level] = own
            node += completed
            left[completed - 1] = current
            result[index] = current - finished
        return result

    def stream(self) -> InverseStream:
        from galton.strategies.streams import TreeStream

        if self.decoder != "honaker":
            raise InvalidArgument("decoder", self.decoder, "has no stream: it uses later nodes; take honaker")
        return TreeStream(self.rounds, self.height)

    def _leading(self, rounds: int) -> Tree:
        if self.decoder != "honaker":
            raise InvalidArgument("decoder", self.decoder, "has no prefix: it uses later nodes; take honaker")
        return Tree(rounds, self.decoder)

    def parameters(self) -> dict[str, Any]:
        return {"decoder": self.decoder}

    @classmethod
    def from_parameters(cls, rounds: int, parameters: dict[str, Any]) -> Tree:
        if parameters["allow_negative"] is not False:
            raise InvalidArgument("allow_negative", parameters["allow_negative"], "must be false for a tree")
        return cls(rounds, parameters["decoder"])
