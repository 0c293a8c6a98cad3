"""Checks whether the noise is as analysed: decoded by C it must be white, independent standard normals."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincc, kolmogorov, ndtr

from galton.audit.checks import Finding, chi_square
from galton.errors import FloatArray

MOST = 1 << 21
"""The most values that are tested."""
MOST_VECTORS = 1024
"""The most coordinates that are compared with each other."""


def noise_findings(z: FloatArray) -> list[Finding]:
    """Tests decoded noise, shape (rounds, coordinates)."""
    rounds, coordinates = z.shape
    if not np.isfinite(z).all():
        return [Finding("noise finite", math.nan, 0.0, "the noise of every round is finite")]
    total = chi_square(
        "noise variance",
        float(np.square(z).sum()),
        z.size,
        2 * z.size,
        "C x / stddev has variance 1 (the statistic is the ratio)",
    )
    between, across = _cosines(z), _cosines(z[:, :MOST_VECTORS].T)
    return [
        total,
        _largest_round(z),
        _normality(z),
        _whiteness(between, coordinates),
        _largest_cosine(
            "noise repeats", between, coordinates, "no two rounds have noise in common, before or after a resumption"
        ),
        _largest_cosine("noise coordinates", across, rounds, "no two coordinates have noise in common"),
    ]


def _largest_round(z: FloatArray) -> Finding:
    """Tests the variance of the least likely round, with a p-value for all rounds together."""
    coordinates = z.shape[1]
    by_round = [chi_square("", float(value), coordinates, 2 * coordinates, "") for value in np.square(z).sum(axis=1)]
    least = min(by_round, key=lambda finding: finding.p_value)
    words = "every single round has variance 1 (the statistic is the worst ratio)"
    return Finding("noise variance by round", least.statistic, min(1.0, least.p_value * len(by_round)), words)


def _normality(z: FloatArray) -> Finding:
    ordered = np.sort(z, axis=None)
    below = ndtr(ordered)
    grid = np.arange(z.size + 1) / z.size
    distance = float(max(np.abs(below - grid[1:]).max(), np.abs(below - grid[:-1]).max()))
    p = float(kolmogorov(math.sqrt(z.size) * distance))
    return Finding("noise normality", distance, p, "C x / stddev is standard normal (Kolmogorov-Smirnov)")


def _cosines(z: FloatArray) -> FloatArray:
    """Cosines between all rows."""
    unit = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    return np.asarray(unit @ unit.T)


def _whiteness(cosines: FloatArray, coordinates: int) -> Finding:
    """sqrt(coordinates) * the mean cosine at every lag is nearly N(0, 1 / pairs)."""
    rounds = cosines.shape[0]
    words = "no correlation at any lag (the statistic is the largest, in standard deviations)"
    if rounds == 1:
        return Finding("noise whiteness", 0.0, 1.0, words)
    scores = [
        abs(float(cosines.diagonal(lag).sum())) * math.sqrt(coordinates / (rounds - lag)) for lag in range(1, rounds)
    ]
    worst = max(scores)
    return Finding("noise whiteness", worst, min(1.0, 2 * len(scores) * float(ndtr(-worst))), words)


def _largest_cosine(name: str, cosines: FloatArray, dimension: int, words: str) -> Finding:
    """The largest cosine between two of several independent normal vectors; cos^2 is Beta(1/2, (dimension - 1) / 2)."""
    vectors = cosines.shape[0]
    if vectors == 1 or dimension == 1:
        return Finding(name, 0.0, 1.0, words)
    worst = min(float(np.abs(np.tril(cosines, -1)).max()), 1.0)
    p = float(betaincc(0.5, (dimension - 1) / 2, worst**2)) * vectors * (vectors - 1) / 2
    return Finding(name, worst, min(1.0, p), words)
