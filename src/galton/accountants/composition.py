"""The privacy loss of a subsampled Gaussian step, on a grid so that it dominates (docs/mechanisms.md)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from galton.convolution import FAR, LOST, MASS_ERROR, MOST_CELLS, UNIT, GridTooLarge, normal_masses
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.loss_grids import LossGrid


@lru_cache(maxsize=16)
def subsampled_step(
    noise_multiplier: float, probability_of_use: float, direction: Direction, interval: float
) -> LossGrid:
    """Returns the loss of one Poisson-subsampled Gaussian step of sensitivity 1.

    The intervals on which the loss lies between two points of the grid are cells. A cell's mass goes to its two ends
    so that both its probabilities are kept: a mean-preserving spread of the likelihood ratio, which dominates. Errors
    of masses raise them; errors of the split move mass upwards.
    """
    if direction is Direction.REPLACE:
        raise InvalidArgument("direction", direction.value, "must be mixture-first or noise-first")
    s, q = noise_multiplier, probability_of_use
    mixture_first = direction is Direction.MIXTURE_FIRST
    highest = _loss((FAR + 1 / s) if mixture_first else FAR, s, q)
    lowest = max(_loss(-FAR, s, q), -1e300)
    start, stop = math.floor(lowest / interval), math.ceil(highest / interval)
    if stop - start > MOST_CELLS:
        raise GridTooLarge(f"composition: noise multiplier {s:g} needs a grid of {stop - start} losses, too many")
    losses = np.arange(start, stop + 1, dtype=np.float64) * interval
    edges = _observation(losses, s, q)
    plain, shifted = normal_masses(edges, 0.0), normal_masses(edges, 1 / s)
    with_example = (1 - q) * plain + q * shifted
    above_plain, above_shifted = float(ndtr(-edges[-1])), float(ndtr(1 / s - edges[-1]))
    below_plain, below_shifted = float(ndtr(edges[0])), float(ndtr(edges[0] - 1 / s))
    if mixture_first:
        numerator, denominator, lower = with_example, plain, losses[:-1]
        below, above = (1 - q) * below_plain + q * below_shifted, (1 - q) * above_plain + q * above_shifted
    else:  # the loss is the negative one: cells in reverse
        numerator, denominator, lower = plain[::-1], with_example[::-1], -losses[:0:-1]
        below, above = above_plain, below_plain
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (1 - denominator / numerator * np.exp(lower)) / -math.expm1(-interval)
    with np.errstate(over="ignore"):
        # What rounding of an edge does to its loss, or of masses to their ratio, moves mass upwards instead.
        loss = lower if mixture_first else -lower
        scale = 4 + abs(math.log(q)) + (1 + 1 / s) ** 2 + 2 * FAR / s
        edge_error = scale + np.abs(loss) + np.exp(-np.minimum(loss, 0.0))
        moved = (16 * UNIT * edge_error + 4 * MASS_ERROR) / -math.expm1(-interval)
    share = np.where(np.isfinite(share), np.clip(share + moved, 0.0, 1.0), 1.0)
    masses = np.zeros(losses.size)
    masses[1:] += numerator * share
    masses[:-1] += numerator * (1 - share)
    masses[0] += below
    first = start if mixture_first else -stop
    return LossGrid(interval, first, masses * (1 + 2 * MASS_ERROR), above * (1 + 1e-9) + LOST)


def _loss(observation: float, s: float, q: float) -> float:
    """log of (1 - q + q e^(u/s - 1/(2 s^2))) at an observation u in units of the noise."""
    exponent = observation / s - 0.5 / s**2
    if q == 1:
        return exponent
    return float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def _observation(losses: FloatArray, s: float, q: float) -> FloatArray:
    """The inverse of `_loss`; minus infinity below its range."""
    if q == 1:
        return np.asarray(s * losses + 0.5 / s)
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log(np.maximum(np.expm1(np.minimum(losses, 1.0)) + q, 0.0))
        large = losses + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 0.0)))
    return np.asarray(s * (np.where(losses < 1.0, small, large) - math.log(q)) + 0.5 / s)
