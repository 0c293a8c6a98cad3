"""What merging bins costs, estimated by merging twice as many (docs/math.md, section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from galton.guarantee import Adjacency
from galton.pair import Pair, dominating_pair
from galton.sampling.toolkits import blocks_for, frozen_estimator
from galton.strategies.base import Strategy

_STEP = 1.02
"""How far apart, as a factor, two noise multipliers are between which delta's fall is measured."""
_LEAST_FALL = 1e-3


@dataclass(frozen=True)
class MergeLoss:
    """What merging costs, as factors; extrapolated and not certified.

    Attributes:
      delta: by how much delta is larger at the same noise.
      noise: by how much noise is larger at the same delta.
    """

    delta: float
    noise: float


def merge_loss(strategy: Strategy, pair: Pair, epsilon: float, adjacency: Adjacency) -> MergeLoss | None:
    """Returns an estimate of what merging bins costs.

    With f bins merged, the cost of merging 2f is measured, and every doubling up to f is taken to cost as much. That
    overestimates the factor where C has memory, since doublings cost more and more, and underestimates it for the
    identity (docs/benchmarks.md), for which merging is no good. Noise makes up for it as fast as delta falls with noise
    there. None if merging 2f is impossible or if delta is too small to estimate.
    """
    if pair.modes % 2:
        return None
    multiplier = pair.noise_multiplier
    coarser = dominating_pair(strategy, pair.bins, multiplier, 2 * pair.merged)
    fine, coarse = (_quick_delta(merged, epsilon, adjacency) for merged in (pair, coarser))
    here, beyond = fine(multiplier), fine(_STEP * multiplier)
    if not here > 0:
        return None
    factor = (coarse(multiplier) / here) ** math.log2(pair.merged)
    fall = max(math.log(here / max(beyond, 1e-300)), _LEAST_FALL) / math.log(_STEP)
    return MergeLoss(factor, factor ** (1 / fall))


def _quick_delta(pair: Pair, epsilon: float, adjacency: Adjacency) -> Callable[[float], float]:
    """Delta on frozen draws as a function of the noise multiplier."""
    estimators = [frozen_estimator(pair, direction, epsilon, blocks_for(pair), 0) for direction in adjacency.directions]
    return lambda multiplier: max(estimator(multiplier, epsilon).delta for estimator in estimators)
