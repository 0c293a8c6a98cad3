"""The noise multiplier by frozen draws alone: quick, good to about 0.2%, and not certified."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.accounting.deterministic import multiplier_upper_bound
from galton.accounting.options import Options, derived_seed
from galton.accounting.solve import walk
from galton.gaussian import gaussian_mu
from galton.pair import Pair
from galton.sampling.frozen import blocks_for, frozen_estimator
from galton.threads import one_blas_thread


def multiplier_bracket(pair: Pair, epsilon: float, target: float, adjacency: str) -> tuple[float, float]:
    """Returns multipliers between which delta(epsilon) = target: least entry of G everywhere, and unamplified."""
    sides = 2 if adjacency == "replace" else 1
    highest = sides * pair.at(1.0).mu_upper / gaussian_mu(epsilon, target) * (1 + 1e-9)
    lowest = math.sqrt(float(pair.unit.min())) / gaussian_mu(epsilon, target) * 0.99
    return max(highest * 1e-4, lowest), highest


def quick_multiplier(
    pair: Pair, epsilon: float, target: float, options: Options, seed: int, blocks: int | None = None
) -> tuple[float, int]:
    """Returns an estimate of the multiplier at which delta(epsilon) = target, and the number of designs it took.

    Starts at the deterministic bound and walks down on frozen draws. Not a guarantee: `calibrate` checks it.
    """
    bracket = multiplier_bracket(pair, epsilon, target, options.adjacency)
    guess = min(bracket[1], multiplier_upper_bound(pair, epsilon, target, options.adjacency))

    def design(multiplier: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        at = pair.at(multiplier)
        estimators = [frozen_estimator(at, one, epsilon, blocks, fit) for one in options.directions]
        return lambda other: max(one(other, epsilon).delta for one in estimators)

    with one_blas_thread():
        return walk(design, target, guess, bracket, blocks or blocks_for(pair.modes), options.progress)
