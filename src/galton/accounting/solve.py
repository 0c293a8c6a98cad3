"""Solving delta(x) = target for a noise multiplier or an epsilon on frozen draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scipy.optimize import brentq

from galton.sampling.schedule import Progress

Design = Callable[[float, int, int], Callable[[float], float]]
"""design(x, blocks, step) freezes draws designed for x and returns delta on them as a function of x."""

_TRUST = 1.15
"""How far from its design, as a factor, an estimate on frozen draws is trusted."""

_PRECISION = 1e-5
"""How close, as a factor, a solution is to that of the frozen draws, whose own error is a hundred times this."""

_ROUGH_PRECISION = 1e-3
"""The same while the draws are few and will be designed anew."""

_APART = 1.02
"""How far apart, as a factor, two points are between which a slope is measured."""
_SLOPES = (0.01, 0.3)


@dataclass(frozen=True)
class Solution:
    """Where delta(x) is the target, on frozen draws.

    Attributes:
      value: x.
      designs: how often draws were designed.
      delta: delta on the last of them, as a function of x.
    """

    value: float
    designs: int
    delta: Callable[[float], float]

    def slope(self) -> float:
        """Returns by how much log x falls where log delta rises by 1; within bounds, as the draws may say anything."""
        here, beyond = self.delta(self.value), self.delta(_APART * self.value)
        fallen = math.log(max(here, 1e-300) / max(beyond, 1e-300))
        return min(max(math.log(_APART) / max(fallen, 1e-3), _SLOPES[0]), _SLOPES[1])


def walk(
    design: Design,
    target: float,
    start: float,
    bracket: tuple[float, float],
    blocks: int,
    progress: Progress | None = None,
) -> Solution:
    """Finds x with delta(x) = target: solves near x, designs again at the solution, and refines at the end."""
    guess, step, final = start, 0, 0
    while step < 60 and final < 3:
        size = blocks if final else 1
        low, high = max(bracket[0], guess / _TRUST), min(bracket[1], guess * _TRUST)
        precision = _PRECISION if final else _ROUGH_PRECISION
        function = design(guess, size, step)
        before, guess = guess, solve(function, target, guess, low, max(low, high), precision)
        moved = abs(math.log(guess / before))
        step += 1
        if progress is not None:
            progress("calibrating", step, step + 3 - final)
        if final and moved < 0.02:
            break
        final += 1 if final or moved < 0.1 else 0
    return Solution(guess, step, function)


def solve(
    function: Callable[[float], float],
    target: float,
    guess: float,
    least: float,
    most: float,
    precision: float = _PRECISION,
) -> float:
    """Finds x in [least, most] with function(x) = target for a decreasing function, on a log scale from `guess`."""

    @cache
    def excess(log_x: float) -> float:
        return math.log(max(function(math.exp(log_x)), 1e-300)) - math.log(target)

    low = high = math.log(min(max(guess, least), most))
    step = 0.02
    while excess(low) < 0 and low > math.log(least):
        low, high, step = max(low - step, math.log(least)), low, 2 * step
    step = 0.02
    while excess(high) > 0 and high < math.log(most):
        low, high, step = high, min(high + step, math.log(most)), 2 * step
    if excess(low) <= 0:
        return math.exp(low)
    if excess(high) >= 0:
        return math.exp(high)
    return math.exp(float(brentq(excess, low, high, xtol=precision, rtol=1e-12)))
