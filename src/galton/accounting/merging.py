"""What merging bins costs, estimated by merging twice as many (docs/math.md, section 5)."""

from __future__ import annotations

import math

from galton.guarantee import Adjacency
from galton.pair import Pair, dominating_pair
from galton.sampling.frozen import blocks_for, frozen_estimator
from galton.strategies.base import Strategy


def merge_loss(strategy: Strategy, pair: Pair, epsilon: float, adjacency: Adjacency) -> float | None:
    """Returns an estimate of delta with these bins merged over delta with none, extrapolated and not certified.

    It takes every doubling up to f to cost as much as the one from f to 2f does, which is measured: too much where C
    has memory, since doublings cost more and more, too little for identity (docs/benchmarks.md), for which merging is
    no good. None where twice the merging is not possible or delta is too small to estimate.
    """
    if pair.modes % 2:
        return None
    coarser = dominating_pair(strategy, pair.bins, pair.noise_multiplier, 2 * pair.merged)
    fine, coarse = (_quick_delta(merged, epsilon, adjacency) for merged in (pair, coarser))
    return (coarse / fine) ** math.log2(pair.merged) if fine > 0 else None


def _quick_delta(pair: Pair, epsilon: float, adjacency: Adjacency) -> float:
    estimators = [
        frozen_estimator(pair, direction, epsilon, blocks_for(pair.modes), 0) for direction in adjacency.directions
    ]
    return max(estimator(pair.noise_multiplier, epsilon).delta for estimator in estimators)
