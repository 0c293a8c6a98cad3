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
from galton.sampling.base import Sampler
from galton.sampling.choice import choose_sampler
from galton.sampling.schedule import draws
from galton.sampling.toolkits import blocks_for, frozen_estimator, toolkit_for
from galton.threads import one_blas_thread

_BELOW, _MISSED = 0.9, 0.95
"""Shares of the usual multiplier: how far a walk that starts there may go down, and from where it starts anew."""


def multiplier_bracket(pair: DominatingPair, target: Guarantee) -> tuple[float, float]:
    """Returns a bracket of the multiplier that just meets the target: G lowered to its least entry, and unamplified."""
    highest = unamplified_multiplier(target) * pair.at(1.0).mu_upper * (1 + 1e-9)
    lowest = pair.at(1.0).mu_lower / gaussian_mu(target.epsilon, target.delta) * 0.99
    return max(highest * 1e-4, lowest), highest


def quick_multiplier(
    pair: DominatingPair,
    target: Guarantee,
    options: Options,
    seed: int,
    blocks: int | None = None,
    guessed: Callable[[float], object] | None = None,
) -> Solution:
    """Returns an estimate of the multiplier at which the target is just met.

    Starts at the deterministic bound, or nearer if more is known, and walks on frozen draws. No guarantee: `calibrate`
    checks it.

    Args:
      pair: the mechanism.
      target: the guarantee.
      options: its progress is told of steps.
      seed: of the draws.
      blocks: of frozen draws at the end.
      guessed: called with the multiplier that the walk starts at.
    """
    epsilon = target.epsilon
    bracket = multiplier_bracket(pair, target)
    usual = toolkit_for(pair).usual_multiplier(pair, target)
    guess = min(bracket[1], max(bracket[0], usual)) if usual else multiplier_upper_bound(pair, target)
    if guessed is not None:
        guessed(guess)

    def design(multiplier: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        designed = pair.at(multiplier)
        estimators = [frozen_estimator(designed, direction, epsilon, blocks, fit) for direction in target.directions]
        return lambda other: max(estimator(other, epsilon).delta for estimator in estimators)

    def walked(start: float, least: float) -> Solution:
        return walk(design, target.delta, start, (least, bracket[1]), blocks or blocks_for(pair), options.progress)

    with one_blas_thread():
        if not usual:
            return walked(guess, bracket[0])
        solution = walked(guess, max(bracket[0], _BELOW * guess))
        if solution.value > _MISSED * guess:
            return solution
        # The average mode alone needs about as much. With far too little noise draws miss nearly all of delta, which
        # then seems to need less noise still.
        return walked(multiplier_upper_bound(pair, target), bracket[0])


_COARSE, _WANTED = 0.02, 0.008
"""Relative error above which frozen draws are not relied on, and the one that samples are drawn for instead."""
_NEAR = 0.03
"""How near, as the logarithm of their ratio, delta is to be to the target."""
_MOST_SAMPLES = 1 << 19
_CORRECTIONS = 5
_SLOPES = (0.01, 0.3)


def refined_multiplier(pair: DominatingPair, target: Guarantee, quick: Solution, options: Options, seed: int) -> float:
    """Returns the multiplier of `quick`, corrected by samples that a certificate would take where draws are too coarse.

    At tiny delta and with few bands the proposals of the quick estimator miss much of where delta comes from: its
    relative error is up to a quarter there, and that of the sharp sampler, whose range is small, a percent. The slope
    by which the multiplier is corrected is that of the draws at first, and then that between the last two multipliers.
    """
    value, direction = quick.value, target.directions[0]
    if not isinstance(pair, Pair):
        return value
    frozen = quick_error(pair.at(value), target, seed)
    if frozen <= _COARSE:
        return value
    slope = quick.slope()
    before: tuple[float, float] | None = None
    for step in range(_CORRECTIONS):
        sampler = choose_sampler(pair.at(value), direction, target.epsilon, options.sampler).sampler
        mean, error = _mean(sampler, target.epsilon, derived_seed(seed, f"refine {step}"), options)
        if not error < frozen:
            break
        ratio = math.log(mean / target.delta)
        if before is not None and abs(ratio - before[1]) > _NEAR:
            slope = (math.log(value) - before[0]) / (before[1] - ratio)
            slope = min(max(slope, _SLOPES[0]), _SLOPES[1])
        before = math.log(value), ratio
        value *= math.exp(slope * ratio)
        if abs(ratio) < _NEAR:
            break
    return value


def quick_error(pair: Pair, target: Guarantee, seed: int) -> float:
    """Returns the relative error of the quick estimator at the pair's noise multiplier."""
    fit = derived_seed(seed, "error")
    estimator = frozen_estimator(pair, target.directions[0], target.epsilon, blocks_for(pair), fit)
    return estimator(pair.noise_multiplier, target.epsilon).relative_error


def _mean(sampler: Sampler, epsilon: float, seed: int, options: Options) -> tuple[float, float]:
    """The mean of as many samples as the error wanted takes, and its relative error."""
    count, total, squares, error = 0, 0.0, 0.0, math.inf
    for draw in draws(sampler, _MOST_SAMPLES, seed, options.pool, options.progress):
        values = sampler.values(draw, epsilon)
        count, total, squares = count + values.size, total + float(values.sum()), squares + float(values @ values)
        error = math.sqrt(max(squares * count / total**2 - 1, 0.0) / count) if total else math.inf
        if error <= _WANTED:
            break
    return total / max(count, 1), error
