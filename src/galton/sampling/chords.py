"""Convex functions bounded by chords: computed at the points of a grid, when they are first needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from galton.errors import FloatArray

_STEP = math.log(1.08)
"""Distance of the points, in the logarithm of the argument."""
_RAYS = 12
"""Intervals of a share between 0 and 1, at whose ends a function of two numbers is known along rays."""


class Chords(ABC):
    """Upper bounds on a convex function of a positive number, by upper bounds at the points of a grid.

    A chord between upper bounds is nowhere below the chord of the function, which is nowhere below the function.
    """

    batch: int = 1
    """Points that are computed at once."""

    def __init__(self) -> None:
        self._points: dict[int, float] = {}

    @abstractmethod
    def at_points(self, points: FloatArray) -> FloatArray:
        """Returns an upper bound at each of these points; infinity where there is none."""

    def __call__(self, at: float) -> float:
        """Returns an upper bound: the chord between the two nearest points."""
        low = math.floor(math.log(at) / _STEP)
        left, right = math.exp(low * _STEP), math.exp((low + 1) * _STEP)
        share = min(max((at - left) / (right - left), 0.0), 1.0)
        ends = self._point(low), self._point(low + 1)
        return (1 - share) * ends[0] + share * ends[1] if math.isfinite(ends[1]) else math.inf

    def _point(self, index: int) -> float:
        if index not in self._points:
            first = index // self.batch * self.batch
            indices = range(first, first + self.batch)
            bounds = self.at_points(np.exp(_STEP * np.array(indices)))
            self._points.update(zip(indices, bounds.tolist(), strict=True))
        return self._points[index]


class Ray(Chords):
    """A convex function of two numbers along one ray: share * number, number."""

    def __init__(self, at_points: Callable[[float, FloatArray], FloatArray], share: float, batch: int) -> None:
        super().__init__()
        self._at_points, self._share = at_points, share
        self.batch = batch

    def at_points(self, points: FloatArray) -> FloatArray:
        return self._at_points(self._share, points)


class Rays:
    """Upper bounds on a convex function of two numbers: chords along rays, and between them.

    Args:
      at_points: called as at_points(share, numbers): upper bounds at (share * number, number) for each number.
      batch: numbers that are computed at once.
    """

    def __init__(self, at_points: Callable[[float, FloatArray], FloatArray], batch: int = 1) -> None:
        self._rays = [Ray(at_points, index / _RAYS, batch) for index in range(_RAYS + 1)]

    def total(self, shares: FloatArray, number: float, weights: FloatArray | float = 1.0) -> float:
        """Returns a bound on the weighted sum of the function at (share * number, number) over shares from 0 to 1."""
        places = shares * _RAYS
        below = np.minimum(places.astype(np.intp), _RAYS - 1)
        above = np.clip(places - below, 0.0, 1.0)
        counts = np.bincount(below, weights * (1 - above), _RAYS + 1) + np.bincount(
            below + 1, weights * above, _RAYS + 1
        )
        known = [ray(number) for ray, weight in zip(self._rays, counts, strict=True) if weight > 0]
        return float(counts[counts > 0] @ known) if math.isfinite(max(known, default=0.0)) else math.inf
