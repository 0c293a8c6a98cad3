"""The smallest noise multiplier for a target, by common random numbers (docs/math.md, section 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from galton.accounting.deterministic import multiplier_upper_bound
from galton.accounting.estimate import DeltaEstimate, delta_with_failure
from galton.accounting.options import Options, derived_seed
from galton.accounting.quick import multiplier_bracket, quick_multiplier
from galton.accounting.solve import solve
from galton.errors import GaltonError, InvalidArgument, positive, probability
from galton.gaussian import gaussian_mu
from galton.pair import Direction, Pair
from galton.sampling import PlainSampler, draws

DEFAULT_TAU = 1.05
_CHECKS = 12


@dataclass(frozen=True)
class Calibration:
    """A noise multiplier and the evidence for it.

    Attributes:
      noise_multiplier: sensitivity-1 noise multiplier.
      target: the delta that was aimed at, claimed delta / tau.
      unamplified: the multiplier without amplification (exact).
      check: delta at the multiplier on fresh samples; its upper limit is below the claimed delta. Check number k
        has half the failure probability of the one before: the first that passes holds with the confidence asked for.
    """

    noise_multiplier: float
    epsilon: float
    delta: float
    tau: float
    target: float
    adjacency: str
    unamplified: float
    iterations: int
    check: DeltaEstimate
    seed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return asdict(self)


def calibrate(
    pair: Pair, epsilon: float, delta: float, options: Options | None = None, tau: float = DEFAULT_TAU
) -> Calibration:
    """Returns the smallest noise multiplier at which delta(epsilon) is delta / tau, checked on fresh samples.

    The room between delta / tau and delta is what a certificate needs to prove the claim. The multiplier of `pair`
    is ignored. If the check's upper limit exceeds delta, the multiplier is raised until it does not: the
    answer errs towards more noise.
    """
    options = options or Options()
    positive("epsilon", epsilon)
    target = probability("delta", delta)
    if not 1.001 <= positive("tau", tau) <= 1000:
        raise InvalidArgument("tau", tau, "must lie between 1.001 and 1000, so that there is room to prove the claim")
    start = time.perf_counter()
    seed = options.fresh_seed()
    aim = target / tau
    sides = 2 if options.adjacency == "replace" else 1
    unamplified = sides / gaussian_mu(epsilon, target)
    bracket = multiplier_bracket(pair, epsilon, aim, options.adjacency)
    highest = bracket[1]
    if options.sampler == "plain":
        multiplier, steps = _by_plain_samples(pair, epsilon, aim, bracket, seed, options)
    else:
        multiplier, steps = quick_multiplier(pair, epsilon, aim, options, seed)
    for index in range(_CHECKS):
        failure = (1 - options.confidence) / 2 ** (index + 1)
        width = replace(options, rel_width=min(tau - 1, 0.1))
        check = delta_with_failure(pair.at(multiplier), epsilon, width, seed, failure, f"check {index}")
        if check.upper <= target or multiplier >= highest:
            break
        multiplier = min(highest, multiplier * 1.002 * (check.upper / target) ** 0.08)
        steps += 1
    if not check.upper <= target:
        raise GaltonError(
            f"calibrate: delta <= {target:g} could not be confirmed with {check.samples} samples; "
            "raise samples, or use sampler auto"
        )
    return Calibration(
        noise_multiplier=multiplier,
        epsilon=float(epsilon),
        delta=float(target),
        tau=float(tau),
        target=aim,
        adjacency=options.adjacency,
        unamplified=unamplified,
        iterations=steps,
        check=check,
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _by_plain_samples(
    pair: Pair, epsilon: float, aim: float, bracket: tuple[float, float], seed: int, options: Options
) -> tuple[float, int]:
    """The same plain samples at every multiplier: delta is then a smooth, decreasing function of it."""
    steps = 0

    def mean(direction: Direction) -> Callable[[float], float]:
        def at(multiplier: float) -> float:
            sampler = PlainSampler(pair.at(multiplier), direction)
            run = draws(sampler, options.budget(), derived_seed(seed, "fit"), options.pool, options.progress)
            return float(np.sum([sampler.values(draw, epsilon).sum() for draw in run])) / options.budget()

        return at

    means = [mean(direction) for direction in options.directions]

    def largest(multiplier: float) -> float:
        nonlocal steps
        steps += 1
        return max(one(multiplier) for one in means)

    guess = min(bracket[1], multiplier_upper_bound(pair, epsilon, aim, options.adjacency))
    return solve(largest, aim, guess, *bracket), steps
