"""What a figure is worth: under which adjacency, for which sampling, and in which direction it may be wrong."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

from galton import files
from galton.errors import InvalidArgument
from galton.fields import Fields
from galton.guarantee import Adjacency
from galton.typechecking import typechecked


class Standing(enum.Enum):
    """How sure a figure is, from the surest to what must never be relied on.

    Example:
      >>> from galton import ACCOUNTANTS
      >>> ACCOUNTANTS["poisson"].statement.standing
      <Standing.UPPER_BOUND: 'upper bound'>
    """

    EXACT = "exact"
    """Closed form or numerical integration; what rounding there is goes towards more noise."""
    UPPER_BOUND = "upper bound"
    """The truth needs at most this much noise: a guarantee with certainty."""
    CERTIFIED = "certified"
    """A guarantee except with a stated probability over the random numbers of the analysis."""
    ESTIMATE = "estimate"
    """Near the truth, on either side of it: no guarantee."""
    LOWER_BOUND = "lower bound"
    """The truth needs at least this much noise: NOT a guarantee, only a limit to hopes."""


GUARANTEES = (Standing.EXACT, Standing.UPPER_BOUND, Standing.CERTIFIED)


@typechecked
@dataclass(frozen=True)
class Statement:
    """The small print of one figure.

    Attributes:
      adjacency: which data sets are neighbours.
      sampling: how batches must be made for the figure to hold.
      standing: exact, upper bound, certified, estimate or lower bound.
      source: where the figure comes from.
      failure_probability: of a certified figure, over the random numbers of the analysis; 0 otherwise.

    >>> print(Statement(Adjacency.ADD_OR_REMOVE, "Poisson", Standing.UPPER_BOUND, "PLD"))
    upper bound (PLD), add-or-remove adjacency, Poisson
    """

    adjacency: Adjacency
    sampling: str
    standing: Standing
    source: str
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        failure = self.failure_probability
        if not (0 < failure < 1 if self.standing is Standing.CERTIFIED else failure == 0):
            raise InvalidArgument("failure_probability", failure, "must be in (0, 1) if certified, and 0 otherwise")

    @property
    def is_guarantee(self) -> bool:
        """Whether a run with this figure's noise is private as claimed."""
        return self.standing in GUARANTEES

    def __str__(self) -> str:
        words = self.standing.value
        if self.standing is Standing.CERTIFIED:
            words += f" except with probability {self.failure_probability:.2g}"
        if self.standing is Standing.LOWER_BOUND:
            words += ", NOT a guarantee"
        return f"{words} ({self.source}), {self.adjacency} adjacency, {self.sampling}"

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {**files.plain(asdict(self)), "is_guarantee": self.is_guarantee}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Statement:
        """Rebuilds a statement from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The statement.
        """
        body = Fields("statement", value, cls, derived=("is_guarantee",))
        statement = cls(
            adjacency=body.member("adjacency", Adjacency),
            sampling=body.text("sampling"),
            standing=body.member("standing", Standing),
            source=body.text("source"),
            failure_probability=body.real("failure_probability", 0.0, 1.0),
        )
        if body.truth("is_guarantee") is not statement.is_guarantee:
            raise InvalidArgument("is_guarantee", body.truth("is_guarantee"), "must follow from the standing")
        return statement
