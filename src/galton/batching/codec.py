"""Schemes as JSON. New kinds are registered here."""

from __future__ import annotations

from typing import Any

from galton.batching.balls_in_bins import BallsInBins
from galton.batching.base import Scheme
from galton.batching.order import FixedOrder, Shuffle
from galton.batching.poisson import CyclicPoisson, Poisson
from galton.batching.separation import MinSeparation
from galton.batching.streaming import StreamingBallsInBins
from galton.errors import InvalidArgument

_SCHEMES: tuple[type[Scheme], ...] = (
    *(BallsInBins, StreamingBallsInBins, Poisson, CyclicPoisson, MinSeparation),
    *(Shuffle, FixedOrder),
)
SCHEMES: dict[str, type[Scheme]] = {scheme.kind: scheme for scheme in _SCHEMES}


def scheme_from_json(value: dict[str, Any]) -> Scheme:
    """Rebuilds a scheme from `Scheme.to_json()`.

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
