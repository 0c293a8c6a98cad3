"""How many bands: the power of two with the least error, found by walking downhill."""

from __future__ import annotations

from collections.abc import Callable


def best_bands(error: Callable[[int], float], most: int, start: int = 8) -> int:
    """Returns the power of two W <= most with the least error(W), for an error with one valley.

    Walks from `start` in the direction in which the error falls: three or four evaluations if the start is good.

    >>> best_bands(lambda bands: abs(bands - 16), most=128, start=2)
    16
    """
    powers = [1 << k for k in range(most.bit_length())]
    errors: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in errors:
            errors[index] = error(powers[index])
        return errors[index]

    here = min(max(start, 1).bit_length(), len(powers)) - 1
    while True:
        beside = [index for index in (here - 1, here + 1) if 0 <= index < len(powers)]
        better = min(beside, key=at, default=here)
        if at(better) >= at(here):
            return powers[here]
        here = better
