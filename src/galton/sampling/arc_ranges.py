"""The largest average over strata of what bounds V below the cut of an arc, and above it (docs/math.md, 18.9)."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from galton.errors import FloatArray
from galton.sampling.strata import STRATA, WIDER

_FARTHEST = 8.0
_FINE, _COARSE = 0.05, 0.25
"""Widths of cells: of the bound that holds, and of what a search compares."""
_LEAST_SHARE = 0.02
"""Share of samples of either kind, at least."""
_MARGIN = 1e-9


def _cells(step: float) -> tuple[FloatArray, FloatArray]:
    """Left and right ends of cells that cover the line."""
    ends = np.concatenate(([-np.inf], np.arange(-_FARTHEST, _FARTHEST + step / 2, step), [np.inf]))
    return ends[:-1], ends[1:]


class ArcRange:
    """Bounds on averages over strata of V, whose bound depends on where along a line two things happen.

    Below the cut V is at most h(x) = x exp(1 - x) times a factor, x = strength (exp(L - epsilon) - 1); above it, which
    begins at w_c, at most exp(-power slope (w - w_c)) times another. All grows along the line at least by `slope`.

    Args:
      strength: theta b exp(epsilon).
      power: n.
      slope: by how much L and the logarithms of all sums grow at least with the coordinate.
    """

    def __init__(self, strength: float, power: int, slope: float) -> None:
        edges = ndtri(np.arange(STRATA + 1) / STRATA)
        self._low, self._high = edges[:-1] - WIDER, edges[1:] + WIDER
        self._strength, self._steepness, self._slope = strength, power * slope, slope

    def _below(self, low: FloatArray, high: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
        """The largest h for w in [low, high] if its peak is in [left, right]; 0 for no such w."""
        peak = math.log1p(1 / self._strength)
        with np.errstate(invalid="ignore"):
            away = np.where(low > right, low - right, np.where(high < left, high - left, 0.0))
        x = self._strength * np.maximum(np.expm1(np.minimum(peak + self._slope * away, 50.0)), 0.0)
        return np.where(low < high, x * np.exp(1 - x), 0.0)

    def _above(self, low: FloatArray, high: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
        """The largest value above the cut for w in [low, high] if it begins in [left, right]."""
        beyond = np.maximum(low - right, 0.0)
        return np.where(high > left, np.exp(-self._steepness * beyond), 0.0)

    def _tables(self, step: float) -> tuple[FloatArray, FloatArray]:
        """Bounds for every stratum (last axis): below, by cells of the peak and the cut; above, by those of the cut."""
        left, right = _cells(step)
        cut_left, cut_right = left[:, None], right[:, None]
        below = self._below(self._low, np.minimum(self._high, cut_right), left[:, None, None], right[:, None, None])
        return below, self._above(self._low, self._high, cut_left, cut_right)

    def _largest(self, log_above: float, log_below: float, tables: tuple[FloatArray, FloatArray]) -> float:
        """The logarithm of the largest average, for the logarithms of both factors."""
        below, above = tables
        top = max(log_above, log_below)
        larger = np.maximum(below * math.exp(log_below - top), above * math.exp(log_above - top))
        return top + math.log(float(larger.mean(axis=-1).max())) + _MARGIN

    @cached_property
    def log_shapes(self) -> tuple[float, float]:
        """Logarithms of the largest average if all is below the cut, and if only what is above it counts; roughly."""
        below, above = self._tables(_COARSE)
        return math.log(float(below[:, -1].mean(axis=-1).max())), math.log(float(above.mean(axis=-1).max()))

    def best_share(self, log_above: float, log_below: float) -> float:
        """Returns about the share of samples around tuples for which the range is smallest."""
        tables = self._tables(_COARSE)

        def log_range(share: float) -> float:
            return self._largest(log_above - math.log(share), log_below - math.log1p(-share), tables)

        limits = (_LEAST_SHARE, 1 - _LEAST_SHARE)
        return float(minimize_scalar(log_range, bounds=limits, method="bounded", options={"xatol": 1e-3}).x)

    def log_range(self, log_above: float, log_below: float, share: float) -> float:
        """Returns the logarithm of a bound on every average.

        Args:
          log_above: logarithm of the largest V above the cut but for 1 / share.
          log_below: that of the largest V below it but for 1 / (1 - share).
          share: of samples around tuples.
        """
        above, below = log_above - math.log(share), log_below - math.log1p(-share)
        return self._largest(above, below, self._tables(_FINE))
