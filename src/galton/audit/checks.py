"""Tests of a distribution, each with a p-value, and the verdict on all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, kolmogorov

from galton.errors import FloatArray

FALSE_ALARM = 1e-4
"""Probability that an audit of a correct system fails any of its checks."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      name: of the check.
      statistic: what was measured.
      p_value: probability of a result as extreme under a correct system; 0 or 1 for exact checks.
      words: what is checked.
    """

    name: str
    statistic: float
    p_value: float
    words: str


@dataclass(frozen=True)
class Check:
    """A finding with its verdict.

    Attributes:
      name: of the check.
      statistic: what was measured; -1 if it is not finite.
      p_value: probability of a result as extreme under a correct system; 0 or 1 for exact checks.
      threshold: the check fails if the p-value is below this.
      passed: the verdict.
      words: what is checked.
    """

    name: str
    statistic: float
    p_value: float
    threshold: float
    passed: bool
    words: str


def judge(findings: Sequence[Finding]) -> tuple[Check, ...]:
    """Passes the findings that are not too unlikely; NaN never passes.

    Formal guarantee: if every p-value is valid (up to the asymptotics of the Kolmogorov and chi-square distributions),
    a correct system fails any check with probability at most FALSE_ALARM.
    """
    threshold = FALSE_ALARM / len(findings)
    return tuple(
        Check(
            finding.name,
            finding.statistic if math.isfinite(finding.statistic) else -1.0,
            float(np.nan_to_num(finding.p_value)),
            threshold,
            bool(finding.p_value >= threshold),
            finding.words,
        )
        for finding in findings
    )


def exact(name: str, violations: int, words: str) -> Finding:
    """Checks a property that must hold without exception."""
    return Finding(name, float(violations), 0.0 if violations else 1.0, words)


def two_samples(name: str, observed: FloatArray, expected: FloatArray, words: str) -> Finding:
    """Kolmogorov-Smirnov test that two samples have one distribution."""
    if not (observed.size and expected.size):
        return Finding(name, 0.0, 1.0, words)
    observed, expected = np.sort(observed), np.sort(expected)
    both = np.concatenate((observed, expected))
    first = np.searchsorted(observed, both, side="right") / observed.size
    second = np.searchsorted(expected, both, side="right") / expected.size
    distance = float(np.abs(first - second).max()) if np.isfinite(observed).all() else math.nan
    effective = observed.size * expected.size / (observed.size + expected.size)
    return Finding(name, distance, float(kolmogorov(math.sqrt(effective) * distance)), words)


def chi_square(name: str, value: float, mean: float, variance: float, words: str) -> Finding:
    """Two-sided test of a sum of squares with this mean and variance, by the chi-square distribution that has both."""
    if variance <= 0:
        return Finding(name, value, 1.0 if value <= mean else 0.0, words)
    freedom = 2 * mean**2 / variance
    scaled = value * freedom / mean
    p = 2 * min(float(chdtr(freedom, scaled)), float(chdtrc(freedom, scaled)))
    return Finding(name, value / mean, min(1.0, p), words)


def pearson(observed: FloatArray, chances: FloatArray, trials: int) -> tuple[float, float, float]:
    """Returns Pearson's statistic of multinomial counts, summed over rows, with its exact mean and variance.

    Haldane 1937: mean k - 1, variance 2 (k - 1) + (sum 1/p - k^2 - 2 k + 2) / n.
    """
    rows, cells = observed.shape
    value = float((np.square(observed - trials * chances) / (trials * chances)).sum())
    variance = 2 * (cells - 1) + (float((1 / chances).sum()) - cells**2 - 2 * cells + 2) / trials
    return value, float(rows * (cells - 1)), rows * variance


def binomial(name: str, successes: int, trials: int, chance: float, words: str) -> Finding:
    """Two-sided binomial test."""
    if not trials or chance >= 1:
        return Finding(name, 0.0, 1.0, words)
    below, above = bdtr(successes, trials, chance), bdtrc(successes - 1, trials, chance) if successes else 1.0
    return Finding(name, successes / trials / chance, min(1.0, 2 * float(min(below, above))), words)


def chernoff(name: str, successes: int, trials: int, chance: float, words: str) -> Finding:
    """Two-sided test of a sum of negatively associated events, for which Chernoff's bound holds."""
    rate = successes / trials
    pairs = ((rate, chance), (1 - rate, 1 - chance))
    if any(a > 0 and b <= 0 for a, b in pairs):
        return Finding(name, rate, 0.0, words)
    divergence = sum(a * math.log(a / b) for a, b in pairs if a > 0)
    return Finding(name, rate, min(1.0, 2 * math.exp(-trials * divergence)), words)
