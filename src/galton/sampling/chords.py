"""A convex function bounded by chords: computed at the points of a grid, when they are first needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from galton.errors import FloatArray

_STEP = math.log(1.08)
"""Distance of the points, in the logarithm of the argument."""


class Chords(ABC):
    """Upper bounds on a convex function of a positive number, by upper bounds at the points of a grid.

    A chord between upper bounds is nowhere below the chord of the function, which is nowhere below the function.
    """

    batch: ClassVar[int] = 1
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
