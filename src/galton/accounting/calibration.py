"""The smallest noise multiplier for a target, by common random numbers (docs/math.md, section 6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from galton import files
from galton.accounting.deterministic import direction_upper_bound, multiplier_upper_bound
from galton.accounting.estimate import TINY, DeltaEstimate, delta_with_failure
from galton.accounting.options import DEFAULT_SAMPLES, Options, check_tau, derived_seed
from galton.accounting.quick import multiplier_bracket, quick_multiplier, refined_multiplier
from galton.accounting.solve import solve
from galton.errors import GaltonError, InvalidArgument
from galton.gaussian import unamplified_multiplier
from galton.guarantee import Direction, Guarantee, as_guarantee
from galton.pair import DominatingPair
from galton.sampling import draws
from galton.sampling.choice import choose_sampler
from galton.sampling.toolkits import toolkit_for
from galton.typechecking import typechecked

DEFAULT_TAU = 1.05
_CHECKS = 12
CHECK_WORK = 10**11
"""Multiplications that a check may take: some seconds. A check that has not passed by then raises the noise."""
_QUICK_WORK = 2**18
"""Multiplications of a sample up to which a chunk takes less than its program takes to compile."""
_SLOPE = 0.08
"""d log multiplier / d log delta where it was not measured. Doubled with every check that fails: with more noise delta
may fall more slowly."""
_PREDICTIONS = 12
_WIDTH = 1.4
"""How far a limit is from its mean, in units of range * log(1 / failure) / samples: as measured, not proved."""


@typechecked
@dataclass(frozen=True)
class Calibration:
    """A noise multiplier and the evidence for it.

    Attributes:
      noise_multiplier: sensitivity-1 noise multiplier.
      guarantee: the guarantee that it was calibrated for.
      tau: the room left for a certificate, as a factor of delta.
      target: the delta that was aimed at: the delta of the guarantee divided by tau.
      unamplified: the exact multiplier without amplification: if it were known who takes part when.
      iterations: steps of the search for the multiplier.
      check: delta at the multiplier on fresh samples. Its upper limit is at most the delta of the guarantee. Each
        check has half the failure probability of the check before it, so that the first to pass holds with the
        confidence asked for.
      seed: the seed of all samples.
      seconds: how long the calibration took.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4)
      >>> calibration = calibrate(pair, Guarantee(epsilon=2.0, delta=1e-3), options=Options(seed=1))
      >>> pair.at(calibration.noise_multiplier).mu_upper < 1 and calibration.check.upper <= 1e-3
      True
    """

    noise_multiplier: float
    guarantee: Guarantee
    tau: float
    target: float
    unamplified: float
    iterations: int
    check: DeltaEstimate
    seed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        apart = ("guarantee", "check")
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        return self.guarantee.to_json() | files.plain(own) | {"check": self.check.to_json()}


@typechecked
def calibrate(
    pair: DominatingPair,
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    options: Options | None = None,
    tau: float = DEFAULT_TAU,
) -> Calibration:
    """Returns the smallest noise multiplier at which delta(epsilon) is delta / tau, checked on fresh samples.

    A certificate needs the room between delta / tau and delta to prove the claim. If the check's upper limit exceeds
    delta, the multiplier is raised until it does not: the answer errs towards more noise. Unless `options` says how
    many samples to take, a check whose samples cost much (those of many bins) takes fewer: a few percent more noise is
    then better than waiting for an hour.

    Formal guarantee: except with probability 1 - options.confidence over the accountant's random numbers, a run with
    this multiplier meets the guarantee. This is no certificate: nothing is written to the ledger of attempts.

    Args:
      pair: the mechanism; its own noise multiplier is ignored.
      epsilon: a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: delta of the guarantee; omit it if `epsilon` is a `Guarantee`.
      options: how to sample.
      tau: how much room to leave for a certificate, as a factor of delta.

    Returns:
      The multiplier and the evidence for it.

    Example:
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4)
      >>> calibration = calibrate(pair, epsilon=2.0, delta=1e-3, options=Options(seed=1))
      >>> calibration.check.upper <= 1e-3 and calibration.noise_multiplier < calibration.unamplified
      True
    """
    guarantee = as_guarantee(epsilon, delta)
    options = options or Options()
    check_tau(tau)
    start = time.perf_counter()
    seed = options.fresh_seed()
    claim, aim = guarantee.delta, guarantee.with_delta(guarantee.delta / tau)
    bracket = multiplier_bracket(pair, aim)
    highest = bracket[1]
    if options.sampler == "plain":
        multiplier, steps = _by_plain_samples(pair, aim, bracket, seed, options)

        def slope() -> float:
            return _SLOPE
    else:
        with ThreadPoolExecutor(1) as beside:

            def ahead(guess: float) -> object:
                return beside.submit(_compile_ahead, pair, guarantee, options, derived_seed(seed, "ahead"), guess)

            quick = quick_multiplier(pair, aim, options, seed, guessed=ahead)
        steps, slope = quick.designs, cache(quick.slope)
        multiplier = min(highest, refined_multiplier(pair, aim, quick, options, seed))
    width = replace(options, rel_width=min(tau - 1, 0.1))
    affordable = CHECK_WORK // toolkit_for(pair).work(pair)
    if options.samples is None and affordable < DEFAULT_SAMPLES:
        width = replace(width, samples=max(1, affordable))
        multiplier = min(highest, _confirmable(pair, guarantee, aim.delta, multiplier, slope(), width))
    for index in range(_CHECKS):
        failure = (1 - options.confidence) / 2 ** (index + 1)
        check = delta_with_failure(
            pair.at(multiplier), guarantee.epsilon, guarantee.adjacency, width, seed, failure, f"check {index}", claim
        )
        if check.upper <= claim or multiplier >= highest:
            break
        multiplier = min(highest, multiplier * 1.002 * (check.upper / claim) ** (slope() * 2**index))
        steps += 1
    if not check.upper <= claim and not check.samples:
        raise InvalidArgument("delta", claim, "is too small to be confirmed in floating point; take 1e-200 or more")
    if not check.upper <= claim:
        raise GaltonError(
            f"calibrate: delta <= {claim:g} could not be confirmed with {check.samples} samples; "
            "raise samples, or use sampler auto"
        )
    return Calibration(
        noise_multiplier=multiplier,
        guarantee=guarantee,
        tau=float(tau),
        target=aim.delta,
        unamplified=unamplified_multiplier(guarantee) * pair.at(1.0).mu_upper,
        iterations=steps,
        check=check,
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _compile_ahead(pair: DominatingPair, guarantee: Guarantee, options: Options, seed: int, multiplier: float) -> None:
    """Draws a chunk as checks near this multiplier will, so that on another core compiling does not wait for the fit.

    What it draws is dropped. Where a chunk takes long, compiling does not matter, and elsewhere it is done elsewhere.
    """
    if options.pool.elsewhere or toolkit_for(pair).work(pair) > _QUICK_WORK:
        return
    for direction in guarantee.directions:
        at = pair.at(multiplier)
        if direction_upper_bound(at, direction, guarantee.epsilon) > TINY and not toolkit_for(pair).computable(
            at, direction
        ):
            sampler = choose_sampler(at, direction, guarantee.epsilon, options.sampler).sampler
            sampler.draw(seed, 0)


def _confirmable(
    pair: DominatingPair, guarantee: Guarantee, fitted: float, multiplier: float, slope: float, options: Options
) -> float:
    """The least multiplier, from the fitted one on, at which the samples of a check will probably do.

    A check that is bound to fail costs as much as one that passes. What limits will be at another multiplier follows
    from the range there, which is known, and from delta, which falls as `slope` says.
    """
    raised, reach = multiplier, _WIDTH * math.log(4 / (1 - options.confidence)) / options.budget()
    for _ in range(_PREDICTIONS):
        at = pair.at(raised)
        samplers = [
            choose_sampler(at, direction, guarantee.epsilon, options.sampler).sampler
            for direction in guarantee.directions
        ]
        if any(sampler.narrows for sampler in samplers):
            return multiplier
        widest = max(sampler.value_range(guarantee.epsilon) for sampler in samplers)
        predicted = fitted * (multiplier / raised) ** (1 / slope) + reach * widest
        if predicted <= guarantee.delta:
            break
        raised *= (1.05 * predicted / guarantee.delta) ** (slope / 2)
    return raised


def _by_plain_samples(
    pair: DominatingPair, aim: Guarantee, bracket: tuple[float, float], seed: int, options: Options
) -> tuple[float, int]:
    """Solves on the same plain samples at every multiplier, which make delta a smooth, decreasing function of it."""
    steps = 0

    def mean_for(direction: Direction) -> Callable[[float], float]:
        def mean(multiplier: float) -> float:
            sampler = toolkit_for(pair).plain(pair.at(multiplier), direction)
            run = draws(sampler, options.budget(), derived_seed(seed, "fit"), options.pool, options.progress)
            return float(np.sum([sampler.values(draw, aim.epsilon).sum() for draw in run])) / options.budget()

        return mean

    means = [mean_for(direction) for direction in aim.directions]

    def largest(multiplier: float) -> float:
        nonlocal steps
        steps += 1
        return max(mean(multiplier) for mean in means)

    guess = min(bracket[1], multiplier_upper_bound(pair, aim))
    return solve(largest, aim.delta, guess, *bracket), steps
