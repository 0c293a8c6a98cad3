"""The order of a tilt with the smallest range, where every order has to be computed by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar


class Ranged(Protocol):
    """A tilt."""

    @property
    def order(self) -> int:
        """t."""

    def log_range(self, epsilon: float) -> float:
        """Returns the logarithm of the range of values at this epsilon."""


Tilt = TypeVar("Tilt", bound=Ranged)


def search_by_halving(tilt: Callable[[int], Tilt], epsilon: float, largest: int, start: int = 1) -> Tilt:
    """Returns the tilt with about the smallest range: steps that double as long as it falls, then halve.

    Args:
      tilt: tilt(order) is the tilt of an order from 1 on.
      epsilon: where its range is wanted.
      largest: order.
      start: order to begin at.
    """
    best, step = tilt(start), 1
    for sign in (1, -1):
        while 1 <= best.order + sign * step <= largest:
            further = tilt(best.order + sign * step)
            if further.log_range(epsilon) >= best.log_range(epsilon):
                break
            best, step = further, 2 * step
        if best.order != start:
            break
    while step:
        for order in (best.order - step, best.order + step):
            if 1 <= order <= largest:
                other = tilt(order)
                best = other if other.log_range(epsilon) < best.log_range(epsilon) else best
        step //= 2
    return best
