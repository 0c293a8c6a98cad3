"""The noise multiplier from frozen draws alone: quick, accurate to about 0.2%, and not certified."""

from __future__ import annotations

from collections.abc import Callable

from galton.accounting.deterministic import multiplier_upper_bound
from galton.accounting.options import Options, derived_seed
from galton.accounting.solve import Solution, walk
from galton.gaussian import gaussian_mu, unamplified_multiplier
from galton.guarantee import Guarantee
from galton.pair import DominatingPair
from galton.sampling.toolkits import blocks_for, frozen_estimator, toolkit_for
from galton.threads import one_blas_thread


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
    usual = toolkit_for(pair).usual_multiplier(pair, epsilon, target.delta)
    guess = min(bracket[1], max(bracket[0], usual) if usual else multiplier_upper_bound(pair, target))

    if guessed is not None:
        guessed(guess)

    def design(multiplier: float, blocks: int, step: int) -> Callable[[float], float]:
        fit = derived_seed(seed, f"fit {step}")
        designed = pair.at(multiplier)
        estimators = [frozen_estimator(designed, direction, epsilon, blocks, fit) for direction in target.directions]
        return lambda other: max(estimator(other, epsilon).delta for estimator in estimators)

    with one_blas_thread():
        return walk(design, target.delta, guess, bracket, blocks or blocks_for(pair), options.progress)
