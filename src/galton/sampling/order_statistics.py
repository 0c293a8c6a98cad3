"""Order statistics instead of all normals, for many orthogonal modes (Chua et al., 2025): pessimistic and quick.

Of the b normals only those at some ranks from the top are drawn. Every other normal is rounded up to the next one drawn
above it (for limits from below: down to the next one below). A sample costs O(log b) instead of O(b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from galton.errors import FloatArray, count, positive
from galton.guarantee import Direction
from galton.pair import Pair
from galton.sampling.base import Draw, Layout, Sampler
from galton.sampling.maximum import top_event
from galton.sampling.orthogonal import COMMON_LOST, orthogonal

_SAMPLES = 1 << 14
GROWTH = 1.05


@dataclass(frozen=True, eq=False)
class BracketedDraw(Draw):
    """Samples whose losses are known up to a bracket: `loss` is its upper end, `low` its lower end."""

    low: FloatArray

    def room(self, slack: float, steepness: int) -> dict[str, float | FloatArray]:
        return super().room(slack, steepness) | {"low": slack}

    def first(self, size: int) -> BracketedDraw:
        return BracketedDraw(self.loss[:size], self.log_weight[:size], self.low[:size])


def ranks(size: int, growth: float = GROWTH) -> list[int]:
    """Returns ranks from 1 to `size`: every rank at first, then farther and farther apart, by the factor `growth`.

    >>> ranks(12, 1.5)
    [1, 2, 3, 5, 8, 12]
    """
    count("size", size)
    positive("growth", growth)
    kept = [1]
    while kept[-1] < size:
        kept.append(min(size, max(kept[-1] + 1, math.ceil(kept[-1] * growth))))
    return kept


class OrderStatisticsSampler(Sampler):
    """Draws the largest A_k and some below it, given the event of `MaximumSampler`; the range is the same.

    Limits from above come from the upper ends of the brackets and limits from below from the lower ends: both are
    valid, and the mean of V with rounding 0 or +1 is not below delta (pessimistic). Beta variates come from NumPy's
    generator, whose law is taken to be exact (docs/mechanisms.md).
    """

    name: ClassVar[str] = "order-statistics"

    def __init__(self, pair: Pair, direction: Direction, epsilon: float, growth: float = GROWTH) -> None:
        self.modes = orthogonal(pair, direction, self.name)
        self.direction = direction
        self.least_epsilon = epsilon
        rough = top_event(self.modes, direction, epsilon, 0.0)
        self.slack = self.modes.slack(abs(rough.own) + abs(rough.other) + 10.0)
        self.event = top_event(self.modes, direction, epsilon, self.slack.epsilon)
        self.layout = Layout(_SAMPLES, 1)
        self._others = self.modes.modes - (1 if direction is Direction.MIXTURE_FIRST else 0)
        self._ranks = np.array(ranks(self._others, growth) if self._others else [], np.int64)

    def _range_at(self, epsilon: float) -> float:
        return min(1.0, math.exp(self.event.log_mass) * (1 + 1e-9))

    def lost_delta(self, epsilon: float) -> float:
        return super().lost_delta(epsilon) + COMMON_LOST

    def values(self, draw: Draw, epsilon: float, rounding: int = 0) -> FloatArray:
        if rounding < 0 and isinstance(draw, BracketedDraw):
            draw = Draw(draw.low, draw.log_weight)
        return super().values(draw, epsilon, rounding)

    def draw(self, seed: int, index: int) -> Draw:
        random = np.random.Generator(np.random.Philox([seed, self.direction.stream, index]))
        if self.direction is Direction.MIXTURE_FIRST:
            low, high = self._given_exceeded(random)
        else:
            high, low = (-end for end in self._given_bounded(random))
        return BracketedDraw(high, np.broadcast_to(self.event.log_mass, high.shape), low)

    def _given_exceeded(self, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Either the bin in use exceeds its level and the others are free, or it does not and their maximum does."""
        own, other = float(ndtr(-self.event.own)), float(ndtr(-self.event.other))
        exceeded = random.random(_SAMPLES) * math.exp(self.event.log_mass) <= own
        uniform = 1.0 - random.random((2, _SAMPLES))
        tail = np.where(exceeded, own * uniform[0], own + (1 - own) * uniform[0])
        first = self.modes.spread * -ndtri(np.clip(tail, 1e-300, 1 - 2.0**-53)) + self.modes.energy / 2
        if not self._others:
            return self._bracket(first, np.empty((_SAMPLES, 0)))
        mass = -math.expm1(self._others * math.log1p(-min(other, 1 - 2.0**-53)))
        reached = np.where(exceeded, 1.0, mass) * uniform[1]
        top = -np.expm1(np.log1p(-np.minimum(reached, 1 - 2.0**-53)) / self._others)
        tails = self._tail_masses(top, random)
        return self._bracket(first, -ndtri(np.clip(tails, 1e-300, 1 - 2.0**-53)))

    def _given_bounded(self, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """All normals below one level: the uniforms that they come from, scaled by the level's mass."""
        mass = float(ndtr(self.event.other))
        top = -np.expm1(np.log(1.0 - random.random(_SAMPLES)) / self._others)
        below = mass * (1 - self._tail_masses(top, random))
        return self._bracket(None, ndtri(np.clip(below, 1e-300, 1 - 2.0**-53)))

    def _tail_masses(self, top: FloatArray, random: np.random.Generator) -> FloatArray:
        """Tail masses at the ranks: 1 - u falls from rank r to r' by a factor with law Beta(n - r' + 1, r' - r)."""
        tails = np.empty((_SAMPLES, self._ranks.size))
        tails[:, 0] = top
        for column in range(1, self._ranks.size):
            before, rank = int(self._ranks[column - 1]), int(self._ranks[column])
            step = random.beta(rank - before, self._others - rank + 1, _SAMPLES)
            tails[:, column] = tails[:, column - 1] + (1 - tails[:, column - 1]) * step
        return tails

    def _bracket(self, own: FloatArray | None, normals: FloatArray) -> tuple[FloatArray, FloatArray]:
        """L with every normal that was not drawn rounded down, and up, to its nearest neighbour that was."""
        exponents = self.modes.spread * normals - self.modes.energy / 2
        gaps = np.diff(self._ranks)
        ends = []
        for weights in (np.concatenate(([1], gaps)), np.concatenate((gaps, [1]))):
            terms = exponents + np.log(weights[: normals.shape[1]])
            if own is not None:
                terms = np.concatenate((own[:, None], terms), axis=1)
            ends.append(np.asarray(logsumexp(terms, axis=1)) - math.log(self.modes.modes))
        return ends[0], ends[1]
