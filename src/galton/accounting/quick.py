"""The noise multiplier from frozen draws: quick, accurate to about 0.2%, and not certified."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.accounting.deterministic import multiplier_upper_bound
from galton.accounting.options import Options, derived_seed
from galton.accounting.solve import Solution, walk
from galton.gaussian import gaussian_mu, unamplified_multiplier
from galton.guarantee import Guarantee
from galton.pair import DominatingPair, Pair
from galton.sampling.choice import choose_sampler
from galton.sampling.schedule import draws
from galton.sampling.toolkits import blocks_for, frozen_estimator, toolkit_for
from galton.threads import one_blas_thread


def multiplier_bracket(pair: DominatingPair, target: Guarantee) -> tuple[float, float]:
    """Returns a bracket of the multiplier that just meets the target: G lowered to its least entry, and unamplified."""
    highest = unamplified_multiplier(target) * pair.at(1.0).mu_upper * (1 + 1e-9)
    lowest = pair.at(1.0).mu_lower / gaussian_mu(target.epsilon, target.delta) * 0.99
    return max(highest * 1e-4, lowest), highest


def quick_multiplier(
    pair: DominatingPair, target: Guarantee, options: Options, seed: int, blocks: int | None = None
) -> Solution:
    """Returns an estimate of the multiplier at which the target is just met.

    Starts at the deterministic bound, or nearer if more is known, and walks on frozen draws. No guarantee: `calibrate`
    checks it.
    """
    epsilon = target.epsilon
    bracket = multiplier_bracket(pair, target)
    usual = toolkit_for(pair).usual_multiplier(pair, epsilon, target.delta)
    guess = min(bracket[1], max(bracket[0], usual) if usual else multiplier_upper_bound(pair, target))

    def design(multiplier: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        designed = pair.at(multiplier)
        estimators = [frozen_estimator(designed, direction, epsilon, blocks, fit) for direction in target.directions]
        return lambda other: max(estimator(other, epsilon).delta for estimator in estimators)

    with one_blas_thread():
        return walk(design, target.delta, guess, bracket, blocks or blocks_for(pair), options.progress)


_COARSE, _WANTED = 0.02, 0.008
"""Relative error above which frozen draws are not relied on, and the one that samples are drawn for instead."""
_MOST_SAMPLES = 1 << 19
_CORRECTIONS = 2


def refined_multiplier(pair: DominatingPair, target: Guarantee, quick: Solution, options: Options, seed: int) -> float:
    """Returns the multiplier of `quick`, corrected by samples that a certificate would take where draws are too coarse.

    At tiny delta and with few bands the proposals of the quick estimator miss much of where delta comes from: its
    relative error is up to a quarter there, and that of the sharp sampler, whose range is small, a percent.
    """
    if not isinstance(pair, Pair):
        return quick.value
    value, direction = quick.value, target.directions[0]
    for step in range(_CORRECTIONS):
        at = pair.at(value)
        fit = derived_seed(seed, f"refine {step}")
        frozen = frozen_estimator(at, direction, target.epsilon, blocks_for(pair), fit)(value, target.epsilon)
        if frozen.relative_error <= _COARSE:
            break
        sampler = choose_sampler(at, direction, target.epsilon, options.sampler).sampler
        count, total, squares = 0, 0.0, 0.0
        for draw in draws(sampler, _MOST_SAMPLES, fit, options.pool, options.progress):
            values = sampler.values(draw, target.epsilon)
            count, total, squares = count + values.size, total + float(values.sum()), squares + float(values @ values)
            error = math.sqrt(max(squares / count - (total / count) ** 2, 0.0) / count) if total else math.inf
            if error * count <= _WANTED * total:
                break
        if error * count >= frozen.relative_error * total:
            break
        ratio = total / count / target.delta
        value *= ratio ** quick.slope()
        if abs(math.log(ratio)) < 0.1:
            break
    return value
