"""The smallest noise for a target when delta falls with it, erring towards more noise."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.errors import GaltonError

WIDTH = 2e-4
"""Relative width to which a noise level is found."""


def least_noise(
    delta: Callable[[float], float], target: float, guess: float, width: float = WIDTH, step: float = 0.1
) -> float:
    """Returns a noise level with delta(level) <= target, within `width` of the least, for a decreasing function.

    Regula falsi on logarithms within a bracket (Illinois), which takes few evaluations since log delta is smooth; only
    a level at which the function was seen to be low enough is returned. `step` is how far from the guess, in
    logarithms, to look first.
    """
    low, low_excess, high, high_excess = _bracket(delta, target, guess, step)
    side = 0
    while high - low > width:
        if math.isfinite(low_excess) and math.isfinite(high_excess):
            middle = high - high_excess * (high - low) / (high_excess - low_excess)
            edge = min(width / 3, (high - low) / 8)
            middle = min(max(middle + (edge if side >= 0 else -edge) / 2, low + edge), high - edge)
        else:
            middle = (low + high) / 2
        excess = _excess(delta, target, middle)
        if excess <= 0:
            high, high_excess = middle, excess
            low_excess = low_excess / 2 if side == 1 else low_excess
            side = 1
        else:
            low, low_excess = middle, excess
            high_excess = high_excess / 2 if side == -1 else high_excess
            side = -1
    return math.exp(high)


def _excess(delta: Callable[[float], float], target: float, log_level: float) -> float:
    value = delta(math.exp(log_level))
    return math.log(value / target) if value > 0 else -math.inf


def _bracket(
    delta: Callable[[float], float], target: float, guess: float, step: float
) -> tuple[float, float, float, float]:
    """Doubles or halves the step from `guess` until the target lies between."""
    low = high = math.log(guess)
    low_excess = high_excess = _excess(delta, target, low)
    while high_excess > 0:
        low, low_excess = high, high_excess
        high, step = high + step, 2 * step
        high_excess = _excess(delta, target, high)
        if high > math.log(guess) + 100:
            raise GaltonError(f"calibration: delta stays above {target:g} whatever the noise")
    while low_excess <= 0:
        if low < high:
            high, high_excess = low, low_excess
        low, step = low - step, 2 * step
        low_excess = _excess(delta, target, low)
        if low < math.log(guess) - 100:
            raise GaltonError(f"calibration: delta stays below {target:g} with no noise to speak of")
    return low, low_excess, high, high_excess
