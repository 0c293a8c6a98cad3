"""The claim, as values: which data sets are neighbours (`Adjacency`), how much they may differ (`Guarantee`).

What depends on an adjacency is asked of it. A new adjacency is one more member here, with its answers.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from galton.errors import InvalidArgument, non_negative, positive, probability
from galton.fields import Fields
from galton.typechecking import typechecked

LARGEST_EPSILON = 1e4
"""The largest epsilon of a guarantee."""


def no_less(value: float, digits: int = 6) -> str:
    """Returns a limit in few digits, rounded up: what is stated must not be less than what was proved.

    >>> no_less(2.02734375), no_less(1e-5), no_less(2.0), no_less(float("inf"))
    ('2.02735', '1e-05', '2', 'inf')
    """
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))
    return f"{float(up):.{digits}g}"


class Direction(enum.Enum):
    """Which hockey-stick divergence is meant: P is the run with the example, Q the run without it.

    Example:
      >>> [direction.value for direction in Adjacency.ADD_OR_REMOVE.directions]
      ['mixture-first', 'noise-first']
      >>> Direction.MIXTURE_FIRST.reverse
      <Direction.NOISE_FIRST: 'noise-first'>
    """

    MIXTURE_FIRST = "mixture-first"
    """H(P || Q): REMOVE in the words of dp-accounting."""
    NOISE_FIRST = "noise-first"
    """H(Q || P): ADD in the words of dp-accounting."""
    REPLACE = "replace"
    """H(P || P mirrored): one example exchanged for another."""

    @property
    def stream(self) -> int:
        """Number that seeds are derived with; it never changes, whatever the order of the members."""
        return _STREAMS[self]

    @property
    def sides(self) -> int:
        """How far apart the two runs are, in units of what one example contributes."""
        return 2 if self is Direction.REPLACE else 1

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency whose only divergence this is."""
        return next(member for member in Adjacency if member.directions == (self,))

    @property
    def reverse(self) -> Direction:
        """The divergence with the two runs exchanged."""
        return _REVERSES[self]

    @property
    def with_first(self) -> bool:
        """Whether it bounds how much likelier an event is with the example than without it."""
        return self is not Direction.NOISE_FIRST

    @property
    def without_first(self) -> bool:
        """Whether it bounds how much likelier an event is without the example than with it."""
        return self is not Direction.MIXTURE_FIRST


_STREAMS = {Direction.MIXTURE_FIRST: 0, Direction.NOISE_FIRST: 1, Direction.REPLACE: 2}
_REVERSES = {
    Direction.MIXTURE_FIRST: Direction.NOISE_FIRST,
    Direction.NOISE_FIRST: Direction.MIXTURE_FIRST,
    Direction.REPLACE: Direction.REPLACE,
}


@dataclass(frozen=True)
class Wording:
    """How an adjacency is explained to people.

    Attributes:
      neighbours: which data sets are compared, and what is claimed of them.
      world: the training with somebody's example, as in "one ...".
      other_world: the training that it is compared with.
      more_likely: between which of them no event is much more likely, as in "no event is ... times as likely".
      question: what an attacker wants to know.
    """

    neighbours: str
    world: str = "with your example"
    other_world: str = "without it"
    more_likely: str = "in one as in the other"
    question: str = "“was this example used?”"


class Adjacency(enum.Enum):
    """Which data sets are neighbours. Members are made from their names too: `Adjacency("replace")`.

    Example:
      >>> Adjacency("replace").sides, Adjacency.ZERO_OUT.equal_sizes
      (2, True)
    """

    ADD_OR_REMOVE = "add-or-remove"
    """One data set has an example more than the other."""
    ADD = "add"
    """The same, one way only: an example is added."""
    REMOVE = "remove"
    """The same, one way only: an example is removed."""
    REPLACE = "replace"
    """An example is exchanged for any other, in the same place."""
    ZERO_OUT = "zero-out"
    """An example is exchanged for one that contributes nothing, in the same place: the divergences of add-or-remove."""

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise InvalidArgument("adjacency", value, "must be one of " + ", ".join(cls.names()))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all adjacencies.

        >>> Adjacency.names()
        ('add-or-remove', 'add', 'remove', 'replace', 'zero-out')
        """
        return tuple(member.value for member in cls)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The divergences whose maximum is delta."""
        return _ANSWERS[self].directions

    @property
    def equal_sizes(self) -> bool:
        """Whether neighbours have the same number of examples, the others in the same places.

        Batches of fixed sizes are then covered, and truncation costs nothing (docs/math.md, section 9).
        """
        return _ANSWERS[self].equal_sizes

    @property
    def both_ways(self) -> bool:
        """Whether events are bounded both ways, so that delta(epsilon) is a whole trade-off curve."""
        with_first = any(direction.with_first for direction in self.directions)
        return with_first and any(direction.without_first for direction in self.directions)

    @property
    def wording(self) -> Wording:
        """How it is explained to people."""
        return _ANSWERS[self].wording

    @property
    def sides(self) -> int:
        """How far one example moves a sum, in units of the clip norm: 2 where it may become its opposite, else 1."""
        return max(direction.sides for direction in self.directions)

    def truncation_delta(self, displacement: float, epsilon: float) -> float:
        """Returns what truncation adds to delta at this epsilon (docs/math.md, section 9).

        Args:
          displacement: probability that the example pushes another one out of a batch.
          epsilon: where delta is wanted.
        """
        growth = math.exp(min(non_negative("epsilon", epsilon), 700.0))
        if self.equal_sizes:
            return 0.0
        adds = any(direction.without_first for direction in self.directions)
        return min(1.0, displacement * (growth if adds else 1.0))

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class _Answers:
    directions: tuple[Direction, ...]
    equal_sizes: bool
    wording: Wording


_BOTH = (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)
_ONE_MORE = "Two data sets are neighbours if one has a single example more than the other. "
_ANSWERS = {
    Adjacency.ADD_OR_REMOVE: _Answers(
        _BOTH,
        False,
        Wording(
            _ONE_MORE + "The guarantee holds both ways: for the run with your example against the run without it, and "
            "the reverse."
        ),
    ),
    Adjacency.ADD: _Answers(
        (Direction.NOISE_FIRST,),
        False,
        Wording(
            _ONE_MORE + "The guarantee is one-sided: nothing that may be seen is much more likely without your example "
            "than with it. The reverse, that your presence cannot show, is NOT claimed.",
            more_likely="without it as with it",
        ),
    ),
    Adjacency.REMOVE: _Answers(
        (Direction.MIXTURE_FIRST,),
        False,
        Wording(
            _ONE_MORE + "The guarantee is one-sided: nothing that may be seen is much more likely with your example "
            "than without it. The reverse, that your absence cannot show, is NOT claimed.",
            more_likely="with it as without it",
        ),
    ),
    Adjacency.REPLACE: _Answers(
        (Direction.REPLACE,),
        True,
        Wording(
            "Two data sets are neighbours if they are of the same size and a single example of one is exchanged for "
            "any other example. That covers what your example says, rather than whether there is one.",
            world="with your example as it is",
            other_world="with any other example in its place",
            question="“was it this example, or the other?”",
        ),
    ),
    Adjacency.ZERO_OUT: _Answers(
        _BOTH,
        True,
        Wording(
            "Two data sets are neighbours if a single example of one is exchanged for an empty one, which keeps its "
            "place but adds nothing to the training. The number of examples is public.",
            other_world="with an empty one in its place",
        ),
    ),
}


@typechecked
@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-DP under an adjacency: the claim, as one value.

    Args:
      epsilon: above 0, at most 10000.
      delta: strictly between 0 and 1.
      adjacency: which data sets are neighbours; a name will do.

    >>> print(Guarantee(2.0, 1e-5))
    (2, 1e-05)-DP under add-or-remove adjacency
    >>> Guarantee(2.0, 1e-5, Adjacency.REPLACE).adjacency.sides
    2
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon("epsilon", self.epsilon))
        object.__setattr__(self, "delta", probability("delta", self.delta))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The divergences that must be at most delta."""
        return self.adjacency.directions

    @property
    def sides(self) -> int:
        """How far one example moves a sum, in units of the clip norm."""
        return self.adjacency.sides

    def with_delta(self, delta: float) -> Guarantee:
        """Returns the same guarantee with another delta.

        Args:
          delta: strictly between 0 and 1.

        Returns:
          A new guarantee.
        """
        return replace(self, delta=delta)

    def __str__(self) -> str:
        return f"({no_less(self.epsilon)}, {no_less(self.delta)})-DP under {self.adjacency} adjacency"

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Guarantee:
        """Rebuilds a guarantee from `to_json`; other keys are ignored.

        Args:
          value: a dictionary with epsilon, delta and adjacency.

        Returns:
          The guarantee.
        """
        body = Fields("guarantee", value)
        return cls(body.real("epsilon"), body.real("delta"), body.member("adjacency", Adjacency))


def check_epsilon(argument: str, value: float) -> float:
    """Returns the epsilon of a guarantee as a float, if it can be one."""
    epsilon = positive(argument, value)
    if epsilon > LARGEST_EPSILON:
        raise InvalidArgument(argument, value, f"must be at most {LARGEST_EPSILON:g}: more says nothing")
    return epsilon


def as_guarantee(epsilon: float | Guarantee, delta: float | None) -> Guarantee:
    """Returns the guarantee that a caller gave: one value, or epsilon and delta under add-or-remove adjacency.

    Args:
      epsilon: a guarantee, or its epsilon.
      delta: delta of the guarantee, unless the first argument is all of it.

    Returns:
      The guarantee.
    """
    if isinstance(epsilon, Guarantee):
        if delta is not None:
            raise InvalidArgument("delta", delta, "must be left out: the guarantee has it")
        return epsilon
    if delta is None:
        raise InvalidArgument("delta", delta, "must be a number, or give one Guarantee instead of epsilon and delta")
    return Guarantee(epsilon, delta)
