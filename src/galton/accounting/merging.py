"""What merging bins costs, estimated by merging twice as many (docs/math.md, section 5)."""

from __future__ import annotations

from galton.pair import Pair, directions, dominating_pair
from galton.sampling.frozen import blocks_for, frozen_estimator
from galton.strategies.base import Strategy


def merge_loss(strategy: Strategy, pair: Pair, epsilon: float, adjacency: str) -> float | None:
    """Returns delta with twice the merging over delta with this one: by experience more than the loss itself.

    Merging 2f bins instead of f loses at least what merging f instead of 1 did, for every strategy measured
    (benchmarks/many_bins.py). None where twice the merging is not possible or delta is too small to estimate.
    """
    if pair.modes % 2:
        return None
    coarser = dominating_pair(strategy, pair.bins, pair.noise_multiplier, 2 * pair.merged)
    found = []
    for one in (pair, coarser):
        estimators = [
            frozen_estimator(one, direction, epsilon, blocks_for(one.modes), 0) for direction in directions(adjacency)
        ]
        found.append(max(estimator(one.noise_multiplier, epsilon).delta for estimator in estimators))
    return found[1] / found[0] if found[0] > 0 else None
