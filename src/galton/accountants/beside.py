"""Samples of a run beside other releases, each worth the others' delta at what it leaves of epsilon (math.md, 13.5)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.loss_grids import Atoms
from galton.pair import DominatingPair
from galton.sampling import Choice
from galton.sampling.base import Draw, Sampler
from galton.sampling.toolkits import toolkit_for

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
"""Of epsilon, for which tilts are tried: the more the others take of it, the less tilt is best."""
_MARGIN, _SHIFT = 1e-9, 1e-10
"""For rounding: relative, of values and ranges; and of the argument of the curve."""


class BesideSampler(Sampler):
    """Samples of a run, whose values have the mean E delta'(epsilon - L): delta of the run and the others together.

    delta' is the curve of the others' finite losses; the probability of an infinite one is to be added. It is straight
    in e^epsilon between the others' losses, so that values are exact up to rounding.

    Args:
      run: a plain or tilted sampler of the run, for mixture-first or replace: one that has `tilts`.
      others: a loss that dominates the other releases together, in the same direction.
    """

    name: ClassVar[str] = "beside"

    def __init__(self, run: Sampler, others: Atoms) -> None:
        if run.direction is Direction.NOISE_FIRST:
            raise InvalidArgument("direction", run.direction.value, "has no tilt that is valid at every epsilon")
        if not run.tilts:
            raise InvalidArgument("run", run.name, "samples have a range that grows too fast as epsilon falls")
        self.run, self.direction, self.slack, self.layout = run, run.direction, run.slack, run.layout
        self.order, self.strata = run.order, run.strata
        there = others.masses > 0
        ratios, masses = np.exp(others.points[there]), others.masses[there]
        self._knots = np.concatenate(([0.0], ratios))
        falls = np.diff(self._knots) * np.cumsum((masses / ratios)[::-1])[::-1]
        self._heights = np.append(np.cumsum(falls[::-1])[::-1], 0.0)
        self._factor = self._growth(np.log(ratios), masses) if masses.size else 0.0

    @property
    def steepness(self) -> int:
        return self.run.steepness

    def _growth(self, losses: FloatArray, masses: FloatArray) -> float:
        """By what factor the range is larger than that of the run alone, at every epsilon."""
        peak = self.order * float(losses[-1])
        chernoff = peak + math.log(float(masses @ np.exp(self.order * losses - peak)))
        return math.exp(min(chernoff + _MARGIN, 700.0))

    def _range_at(self, epsilon: float) -> float:
        return min(self.run.value_range(epsilon) * self._factor, 1e300)

    def draw(self, seed: int, index: int) -> Draw:
        return self.run.draw(seed, index)

    def values(self, draw: Draw, epsilon: float, rounding: int = 0) -> FloatArray:
        value_range = self.value_range(epsilon)
        slack = rounding * (self.slack.epsilon + _SHIFT)
        with np.errstate(over="ignore"):
            left = np.exp(epsilon - slack - draw.loss)
            weights = np.exp(draw.log_weight + self.steepness * slack) * (1 + rounding * _MARGIN)
        values = weights * np.interp(left, self._knots, self._heights)
        return np.minimum(values.mean(axis=1) if self.strata else values, value_range)


def beside(pair: DominatingPair, direction: Direction, others: Atoms, epsilon: float) -> Choice:
    """Returns the sampler with the least range times cost: tilted for some part of epsilon, or plain.

    Args:
      pair: the run.
      direction: mixture-first or replace.
      others: a loss that dominates the other releases.
      epsilon: of all together; above 0.

    Returns:
      The sampler; no sample was drawn to choose it.
    """
    toolkit = toolkit_for(pair)
    best = BesideSampler(toolkit.plain(pair, direction), others)
    least = best.value_range(epsilon)
    if toolkit.resolvable(pair, direction):
        tilted = math.inf
        for share in _SHARES:
            sampler = BesideSampler(toolkit.tilting(pair, direction, share * epsilon), others)
            cost = sampler.value_range(epsilon) * (1.1 + 0.3 * sampler.order)
            if cost < least:
                best, least = sampler, cost
            if cost > tilted:
                break
            tilted = cost
    return Choice(best, f"{best.run.name} samples of the run, order {best.order}, beside the other releases")
