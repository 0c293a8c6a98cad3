"""What merging bins costs, estimated by merging twice as many (docs/math.md, section 5)."""

from __future__ import annotations

import math

from galton.guarantee import Adjacency
from galton.pair import Pair, dominating_pair
from galton.sampling.toolkits import blocks_for, frozen_estimator
from galton.strategies.base import Strategy


def merge_loss(strategy: Strategy, pair: Pair, epsilon: float, adjacency: Adjacency) -> float | None:
    """Returns an estimate of the factor by which merging bins raises delta; extrapolated and not certified.

    With f bins merged, the cost of merging 2f is measured, and every doubling up to f is taken to cost as much. That
    overestimates the factor where C has memory, since doublings cost more and more, and underestimates it for the
    identity (docs/benchmarks.md), for which merging is no good. None if merging 2f is impossible or if delta is too
    small to estimate.
    """
    if pair.modes % 2:
        return None
    coarser = dominating_pair(strategy, pair.bins, pair.noise_multiplier, 2 * pair.merged)
    fine, coarse = (_quick_delta(merged, epsilon, adjacency) for merged in (pair, coarser))
    return (coarse / fine) ** math.log2(pair.merged) if fine > 0 else None


def _quick_delta(pair: Pair, epsilon: float, adjacency: Adjacency) -> float:
    estimators = [frozen_estimator(pair, direction, epsilon, blocks_for(pair), 0) for direction in adjacency.directions]
    return max(estimator(pair.noise_multiplier, epsilon).delta for estimator in estimators)
