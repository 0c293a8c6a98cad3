"""All batching schemes: by kind, for JSON, and by the name under which a plan makes them. Add new schemes here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from galton.batching.balls_in_bins import BallsInBins
from galton.batching.base import Scheme
from galton.batching.order import FixedOrder, Shuffle
from galton.batching.poisson import CyclicPoisson, Poisson
from galton.batching.redrawn import RedrawnBallsInBins, StreamingRedrawnBallsInBins
from galton.batching.separation import MinSeparation
from galton.batching.streaming import StreamingBallsInBins
from galton.errors import InvalidArgument
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

_SCHEMES: tuple[type[Scheme], ...] = (
    *(BallsInBins, StreamingBallsInBins, RedrawnBallsInBins, StreamingRedrawnBallsInBins),
    *(Poisson, CyclicPoisson, MinSeparation, Shuffle, FixedOrder),
)
SCHEMES: dict[str, type[Scheme]] = {scheme.kind: scheme for scheme in _SCHEMES}

PLANNED: dict[str, Callable[[int, int, int, Strategy], Scheme]] = {
    "balls-in-bins": lambda examples, bins, rounds, strategy: BallsInBins(examples, bins, rounds),
    "balls-in-bins-streaming": lambda examples, bins, rounds, strategy: StreamingBallsInBins(examples, bins, rounds),
    "balls-in-bins-redrawn": lambda examples, bins, rounds, strategy: RedrawnBallsInBins(examples, bins, rounds),
    "balls-in-bins-redrawn-streaming": lambda examples, bins, rounds, strategy: StreamingRedrawnBallsInBins(
        examples, bins, rounds
    ),
    "poisson": lambda examples, bins, rounds, strategy: Poisson(examples, examples / bins, rounds),
    "cyclic-poisson": lambda examples, bins, rounds, strategy: CyclicPoisson(
        examples, examples / bins, strategy.bands, rounds
    ),
    "min-separation": lambda examples, bins, rounds, strategy: MinSeparation(
        examples, examples / bins, strategy.bands, rounds
    ),
    "shuffle-once": lambda examples, bins, rounds, strategy: Shuffle(examples, bins, rounds, reshuffle=False),
    "fixed-order": lambda examples, bins, rounds, strategy: FixedOrder(examples, bins, rounds),
}
"""Schemes that a plan can use: make(examples, bins, rounds, strategy) returns one with `bins` batches per epoch."""


@typechecked
def scheme_from_json(value: dict[str, Any]) -> Scheme:
    """Rebuilds a batching scheme from `Scheme.to_json()`.

    Args:
      value: what `to_json` returned; unknown or missing numbers are refused.

    Returns:
      The scheme.

    Example:
      >>> scheme_from_json({"kind": "balls-in-bins", "examples": 10, "bins": 2, "rounds": 4})
      BallsInBins(examples=10, bins=2, rounds=4)
    """
    numbers = dict(value)
    kind = numbers.pop("kind", None)
    if not isinstance(kind, str) or kind not in SCHEMES:
        raise InvalidArgument("kind", kind, "must be one of " + ", ".join(SCHEMES))
    try:
        scheme = SCHEMES[kind](**numbers)
    except TypeError:
        raise InvalidArgument("scheme", sorted(numbers), f"are not the numbers of {kind} batches") from None
    if scheme.to_json() != value:
        raise InvalidArgument("scheme", sorted(numbers), f"are not the numbers of {kind} batches")
    return scheme
