"""Balls-in-bins for any C, by galton's own accountant, in the shape of the other baselines."""

from __future__ import annotations

from dataclasses import replace

from galton.accounting import Calibration, Options, calibrate
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.quick import quick_multiplier
from galton.baselines.figure import Figure
from galton.baselines.statement import Standing, Statement
from galton.pair import dominating_pair, groups_for
from galton.strategies.base import Strategy

SAMPLING = "balls-in-bins: one batch in each epoch, the same in all epochs, uniformly and independently"
TAU = 1.1
"""The multiplier is aimed at delta / TAU, so that few samples prove delta: about 0.8% more noise than the least."""
_LEAST_FAILURE = 1e-13
"""Failure probabilities below this are lost when 1 is added to them."""


def comparison_options(delta: float, seed: int | None = None) -> Options:
    """Returns the accountant's options for a comparison: limits as sure as a certificate's, from a million samples.

    Where these do not prove delta (independent noise, small epsilon), the multiplier is raised until they do.

    >>> comparison_options(1e-5).confidence == 1 - 1.5e-8
    True
    """
    return Options(confidence=1 - max(FAILURE_SHARE * delta, _LEAST_FAILURE), seed=seed, samples=1 << 20)


def certified_statement(calibration: Calibration, options: Options) -> Statement:
    """Returns what a calibration with these options is worth: the failure probabilities of all its checks together."""
    return Statement(
        adjacency=calibration.adjacency,
        sampling=SAMPLING,
        standing=Standing.CERTIFIED,
        source=f"galton, {calibration.check.samples} samples",
        failure_probability=1 - options.confidence,
    )


def calibrate_balls_in_bins(
    strategy: Strategy, bins: int, epsilon: float, delta: float, options: Options | None = None, tau: float = TAU
) -> Figure:
    """Returns a noise multiplier with delta(epsilon) <= delta, checked on fresh samples.

    Formal guarantee: except with the statement's failure probability over the accountant's random numbers, a run with
    this multiplier is (epsilon, delta)-DP under the adjacency of `options`, for per-example contributions of norm at
    most 1. The failure probability is that of a certificate by default, but this is a figure to compare: nothing is
    written to the ledger of attempts, and a release takes `certify`.
    """
    pair = dominating_pair(strategy, bins, merge=groups_for(bins))
    options = options or comparison_options(delta)
    found = calibrate(pair, epsilon, delta, options, tau)
    return Figure(found.noise_multiplier, float(epsilon), float(delta), certified_statement(found, options))


def estimate_balls_in_bins(
    strategy: Strategy, bins: int, epsilon: float, delta: float, options: Options | None = None, tau: float = TAU
) -> Figure:
    """Returns a quick estimate of the same multiplier, good to about 1%: to choose among strategies, not to rely on."""
    options = replace(options or comparison_options(delta), progress=None)
    pair = dominating_pair(strategy, bins, merge=groups_for(bins))
    seed = 0 if options.seed is None else options.seed
    multiplier, _ = quick_multiplier(pair, epsilon, delta / tau, options, seed, blocks=1)
    statement = Statement(options.adjacency, SAMPLING, Standing.ESTIMATE, "galton, 4096 frozen samples a direction")
    return Figure(multiplier, float(epsilon), float(delta), statement)
