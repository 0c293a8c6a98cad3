"""Answers from sources other than galton: closed forms, quadrature, brute force, PLD_accounting."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from galton.errors import FloatArray
from galton.guarantee import Direction

RANDOM_ALLOCATION = Path(__file__).parent / "data" / "random_allocation.json"


def gaussian(epsilon: float, mu: float) -> float:
    """delta of N(mu, 1) against N(0, 1) (Balle and Wang 2018, theorem 8)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def two_bins(gram: FloatArray, epsilon: float, direction: Direction) -> float:
    """delta for two modes by summing densities over a fine grid of the plane that the modes span."""
    return _two_bins(tuple(gram.ravel().tolist()), epsilon, direction)


@cache
def _two_bins(entries: tuple[float, ...], epsilon: float, direction: Direction, points: int = 900) -> float:
    gram = np.array(entries).reshape(2, 2)
    root = np.linalg.cholesky(gram)
    modes = root  # rows are the modes in an orthonormal basis of their span: modes @ modes.T = gram
    reach = 9 + float(np.abs(modes).max())
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    cell = (axis[1] - axis[0]) ** 2

    def log_density(centres: FloatArray) -> FloatArray:
        squares = ((grid[:, None, :] - centres) ** 2).sum(-1)
        return np.asarray(logsumexp(-squares / 2, axis=1) - math.log(len(centres)) - math.log(2 * math.pi))

    mixture, noise, mirrored = log_density(modes), log_density(np.zeros((1, 2))), log_density(-modes)
    first, second = {
        Direction.MIXTURE_FIRST: (mixture, noise),
        Direction.NOISE_FIRST: (noise, mixture),
        Direction.REPLACE: (mixture, mirrored),
    }[direction]
    return float(np.maximum(np.exp(first) - np.exp(epsilon + second), 0.0).sum() * cell)


def brute_force(
    matrix: FloatArray, bins: int, sigma: float, epsilon: float, direction: Direction, samples: int, seed: int
) -> tuple[float, float]:
    """delta and its standard error by sampling the n-vectors of the mechanism themselves, with no Gram matrix."""
    random = np.random.default_rng(seed)
    modes = np.stack([np.abs(matrix)[:, i::bins].sum(axis=1) for i in range(bins)])
    noise = sigma * random.standard_normal((samples, matrix.shape[0]))
    point = noise if direction is Direction.NOISE_FIRST else noise + modes[random.integers(bins, size=samples)]

    def log_ratio(centres: FloatArray) -> FloatArray:
        exponent = (point @ centres.T - (centres**2).sum(axis=1) / 2) / sigma**2
        return np.asarray(logsumexp(exponent, axis=1) - math.log(bins))

    loss = log_ratio(modes)
    if direction is Direction.NOISE_FIRST:
        loss = -loss
    elif direction is Direction.REPLACE:
        loss = loss - log_ratio(-modes)
    values = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return float(values.mean()), float(values.std() / math.sqrt(samples))


def random_allocation() -> list[dict[str, Any]]:
    """Brackets on delta for C = I, computed by PLD_accounting (tests/data/make_random_allocation.py)."""
    rows: list[dict[str, Any]] = json.loads(RANDOM_ALLOCATION.read_text())["rows"]
    return [row | {"direction": row["direction"].replace("_", "-")} for row in rows if row["direction"] != "max"]
