"""Answers from sources other than galton: closed forms, quadrature, brute force, PLD_accounting."""

from __future__ import annotations

import json
import math
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
    """delta for two modes with this Gram matrix (their rows in an orthonormal basis are its Cholesky factor)."""
    return by_quadrature(np.asarray(np.linalg.cholesky(gram), np.float64), epsilon, direction)


def by_quadrature(modes: FloatArray, epsilon: float, direction: Direction, points: int = 101) -> float:
    """delta for modes with non-negative products, one a row, by quadrature in the space that they span.

    Along the mean of the modes the loss increases, so that it exceeds epsilon beyond one point on each line, which is
    bisected; beyond it all densities are integrated in closed form. Across, a sum over a grid of smooth values.
    """
    along = modes.mean(axis=0) / np.linalg.norm(modes.mean(axis=0))
    _, sizes, basis = np.linalg.svd(modes - np.outer(modes @ along, along))
    across = basis[: int((sizes > 1e-9).sum())]
    heights, places = modes @ along, modes @ across.T
    assert (heights > 0).all()
    axis = np.linspace(-1, 1, points) * (8.5 + float(np.abs(places).max()))
    grid = np.stack(np.meshgrid(*[axis] * len(across), indexing="ij"), -1).reshape(-1, len(across))
    cell = float(axis[1] - axis[0]) ** len(across)

    def part(sign: float) -> tuple[FloatArray, FloatArray]:
        """Heights, and logarithms of the densities across, of sign * modes, with their weights; of nothing for 0."""
        own = sign * places if sign else np.zeros((1, len(across)))
        squares = ((grid[:, None, :] - own) ** 2).sum(-1)
        log_density = -squares / 2 - len(across) / 2 * math.log(2 * math.pi) - math.log(len(own))
        return (sign * heights if sign else np.zeros(1)), log_density

    mixture, noise, mirrored = part(1.0), part(0.0), part(-1.0)
    first, second, beyond = {
        Direction.MIXTURE_FIRST: (mixture, noise, 1),
        Direction.NOISE_FIRST: (noise, mixture, -1),
        Direction.REPLACE: (mixture, mirrored, 1),
    }[direction]

    def log_value(group: tuple[FloatArray, FloatArray], height: FloatArray) -> FloatArray:
        return np.asarray(logsumexp(group[1] - (height[:, None] - group[0]) ** 2 / 2, axis=1))

    low, high = np.full(len(grid), -1e3), np.full(len(grid), 1e3)
    for _ in range(70):
        middle = (low + high) / 2
        exceeds = log_value(first, middle) - log_value(second, middle) > epsilon
        low, high = np.where(exceeds == (beyond > 0), low, middle), np.where(exceeds == (beyond > 0), middle, high)

    def mass(group: tuple[FloatArray, FloatArray]) -> FloatArray:
        return np.asarray((np.exp(group[1]) * norm.cdf(beyond * (group[0] - low[:, None]))).sum(axis=1))

    return float((mass(first) - math.exp(epsilon) * mass(second)).sum() * cell)


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
