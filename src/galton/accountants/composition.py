"""Composition of Gaussian steps with random shifts: an upper bound on delta, rounding included (docs/mechanisms.md).

The privacy loss of one step is put on a grid so that it dominates; the sum of all steps is found by FFT under an
exponential tilt that puts epsilon in the middle of the distribution, so that the FFT's rounding error is relative to
delta and not to 1; and that error is bounded and added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from galton.errors import FloatArray, GaltonError, InvalidArgument
from galton.guarantee import Direction

UNIT = 2.0**-53
FAR = 12.5
"""A standard normal is beyond this with probability below 4e-36: what is there counts as a loss of infinity."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
MASS_ERROR = 4e-12
"""Relative error of the mass of a cell: quadrature of the density, or differences of `ndtr` over wide cells."""
LOST = 1e-290
"""Mass that may have underflowed."""
_TAIL = 60.0
"""What leaves the window of the FFT has a probability below e^-60 times delta's scale; it is added."""
MOST_CELLS = 1 << 24
_CELLS_AT_A_TIME = 1 << 16
_NEWTON_STEPS = 60
_LARGEST_TILT = 1e9


class GridTooLarge(GaltonError):
    """A coarser grid is needed."""


@dataclass(frozen=True, eq=False)
class LossGrid:
    """The privacy loss of one step, on multiples of `interval`, dominating the true one.

    Attributes:
      interval: distance of two losses.
      first: losses are (first + index) * interval.
      masses: masses of the losses; together with `infinite` they may exceed 1 by rounding.
      infinite: mass of an infinite loss.
    """

    interval: float
    first: int
    masses: FloatArray
    infinite: float

    @property
    def losses(self) -> FloatArray:
        """The losses."""
        return np.asarray(self.first + np.arange(self.masses.size), np.float64) * self.interval


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
    plain, shifted = _masses(edges, 0.0), _masses(edges, 1 / s)
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


def _masses(edges: FloatArray, mean: float) -> FloatArray:
    """Probabilities of a normal of this mean between neighbouring edges, with a small relative error each."""
    low, high = edges[:-1] - mean, edges[1:] - mean
    with np.errstate(invalid="ignore"):  # cells between two edges at minus infinity have no width and no mass
        width, middle = high - low, (high + low) / 2
    narrow = np.isfinite(middle) & (width * (1 + np.abs(middle)) < 1)
    result = np.zeros(low.size)
    result[narrow] = _density(middle[narrow], width[narrow]) * width[narrow] / 2 / math.sqrt(2 * math.pi)
    left, right = low[~narrow], high[~narrow]
    mirrored = left > 0
    left, right = np.where(mirrored, -right, left), np.where(mirrored, -left, right)
    result[~narrow] = ndtr(right) - ndtr(left)
    return np.maximum(result, 0.0)


@dataclass(frozen=True, eq=False)
class _Part:
    """Steps that are all alike, with the logarithms of their masses above 0 and the losses of these."""

    step: LossGrid
    steps: int
    log_masses: FloatArray
    losses: FloatArray

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """log E e^(tilt loss) of one step, and mean and variance of its loss under the tilt."""
        exponents = self.log_masses + tilt * self.losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ self.losses) / total
        variance = float(weights @ np.square(self.losses - mean)) / total
        return top + math.log(total), mean, variance


def _density(middle: FloatArray, width: FloatArray) -> FloatArray:
    """Weighted sums of e^(-x^2/2) at the nodes of quadrature; some cells at a time, to bound the memory."""
    density = np.empty(middle.size)
    for start in range(0, middle.size, _CELLS_AT_A_TIME):
        part = slice(start, start + _CELLS_AT_A_TIME)
        points = middle[part, None] + width[part, None] / 2 * _NODES
        density[part] = np.exp(-np.square(points) / 2) @ _WEIGHTS
    return density


class Composition:
    """The sum of independent losses on one grid: several kinds of steps, each so many times.

    Formal guarantee: `delta(epsilon)` is not below E(1 - e^(epsilon - S))_+ for the sum S of the losses, whatever the
    rounding of this arithmetic, if exp, log and the normal distribution function are right to 1e-13 and the FFT
    has the error of the standard algorithm (Higham, Theorem 24.2, times 4).

    Args:
      parts: kinds of steps, each with the number of such steps; all on the same interval.
    """

    def __init__(self, parts: Sequence[tuple[LossGrid, int]]) -> None:
        self._interval = parts[0][0].interval
        if any(step.interval != self._interval for step, _ in parts):
            raise InvalidArgument("parts", sorted({step.interval for step, _ in parts}), "must share one interval")
        kept = [step.masses > 0 for step, _ in parts]
        self._parts = [
            _Part(step, steps, np.log(step.masses[some]), step.losses[some])
            for (step, steps), some in zip(parts, kept, strict=True)
        ]
        self._steps = sum(part.steps for part in self._parts)

    def _moments(self, tilt: float) -> tuple[float, float, float]:
        """log E e^(tilt S) of the sum S, and its mean and variance under the tilt."""
        each = [(part.steps, part.moments(tilt)) for part in self._parts]
        log_scale, mean, variance = (math.fsum(steps * values[which] for steps, values in each) for which in range(3))
        return log_scale, mean, variance

    def _tilt_for(self, epsilon: float) -> float:
        """The tilt, at least 0, under which the sum has about mean epsilon: any tilt is valid, this one is sharp."""
        tilt, low, high = 0.0, 0.0, _LARGEST_TILT
        for _ in range(_NEWTON_STEPS):
            _, mean, variance = self._moments(tilt)
            if abs(mean - epsilon) < 0.02 * math.sqrt(variance):
                break
            low, high = (tilt, high) if mean < epsilon else (low, tilt)
            tilt = tilt + (epsilon - mean) / max(variance, 1e-300)
            if not low < tilt < high:
                tilt = (low + min(high, max(2 * low, 1.0))) / 2
            if tilt < 1e-12:
                return 0.0
        return tilt

    def _reach(self, tilt: float, sign: int) -> float:
        """A sum beyond which (above for +1, below for -1) the tilted distribution has a mass below e^-_TAIL.

        By Chernoff's bound: P(S >= t) <= exp(log E e^(a S) - a t) for every a.
        """
        log_scale, _, variance = self._moments(tilt)
        spread = math.sqrt(variance) + self._interval
        far = math.inf
        for factor in (0.3, 1.0, 3.0, 7.0, 11.0, 18.0, 40.0):
            more = sign * factor / spread
            gain = self._moments(tilt + more)[0] - log_scale
            far = min(far, (gain + _TAIL) / abs(more))
        return sign * far

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta.

        Args:
          epsilon: where.

        Returns:
          A number from 0 to 1.
        """
        if max(part.step.infinite for part in self._parts) >= 0.5:
            return 1.0
        infinite = -math.expm1(math.fsum(part.steps * math.log1p(-part.step.infinite) for part in self._parts))
        infinite *= 1 + 1e-9
        if self._steps == 1:
            step = self._parts[0].step
            alone = float(step.masses @ -np.expm1(np.minimum(epsilon - step.losses, 0.0)))
            return min(1.0, alone * (1 + 1e-12) + infinite)
        tilt = self._tilt_for(epsilon)
        log_scale, _, _ = self._moments(tilt)
        top, bottom = self._reach(tilt, 1), self._reach(tilt, -1)
        offset = math.floor(bottom / self._interval)
        widest = max(part.step.masses.size for part in self._parts)
        cells = max(math.ceil(top / self._interval) - offset + 2, widest)
        size = 1 << max(4, (cells - 1).bit_length())
        if size > MOST_CELLS:
            raise GridTooLarge(f"composition: {self._steps} steps need a grid of {size} losses, too many")
        product = _Product(size)
        for part in self._parts:
            tilted = np.zeros(size)
            with np.errstate(divide="ignore", under="ignore"):
                exponents = np.log(part.step.masses) + tilt * part.step.losses - part.moments(tilt)[0]
                tilted[: part.step.masses.size] = np.exp(exponents)
            product.multiply(tilted, part.steps)
        # Cell i of the circular sum stands for all sums of first + i modulo size; the window picks one each.
        first = sum(part.steps * part.step.first for part in self._parts)
        positions = np.arange(offset, offset + size)
        window = product.sums()[(positions - first) % size]
        sums = positions * self._interval
        above = sums > epsilon
        gap = sums[above] - epsilon
        values = np.exp(-tilt * gap) * -np.expm1(-gap)
        inside = float(values @ np.maximum(window[above], 0.0)) + product.hidden(values)
        log_front = log_scale - tilt * epsilon
        largest = max(float((np.abs(part.log_masses) + tilt * np.abs(part.losses)).max()) for part in self._parts)
        units = 4 * self._steps * (64 + math.log2(size) + 2 * largest) + 64 * (1 + abs(log_front))
        units += 4 * (size + epsilon / self._interval)
        if log_front > 1 or units * UNIT > 1:  # delta is 1 for all we know
            return 1.0
        rounding = math.exp(units * UNIT)
        # Beyond the window: P(S > top) <= e^(log_scale - tilt top) times the tilted mass there.
        beyond = math.exp(min(0.0, log_scale - tilt * (offset + size - 1) * self._interval - _TAIL))
        return min(1.0, math.exp(log_front) * inside * rounding + beyond * rounding + infinite)


class _Product:
    """A product of powers of transforms, and a bound on what rounding hides in it.

    A transform of x has an error of norm at most c |x| sqrt(size), c = 28 log2(size) units of rounding. In a product of
    powers |z_1|^n_1 |z_2|^n_2 ... an error of z_i is multiplied by at most n_i / |z_i| times the product, all
    magnitudes taken as large as they can be; logarithms, angles and exponentials add a few units for every step, and
    the inverse transform c times the norm of what it is given.
    """

    def __init__(self, size: int) -> None:
        self._size, self._parts, self._steps = size, 0, 0
        self._relative = 28 * math.log2(size) * UNIT
        frequencies = size // 2 + 1
        self._log, self._angle = np.zeros(frequencies), np.zeros(frequencies)
        self._log_largest, self._squares = np.zeros(frequencies), np.zeros(frequencies)

    def multiply(self, values: FloatArray, steps: int) -> None:
        """Multiplies by a power of the transform of `values`."""
        transform = np.fft.rfft(values)
        magnitude = np.abs(transform)
        norm = float(np.sqrt(np.square(values).sum()))
        largest = magnitude + self._relative * norm * math.sqrt(self._size)
        with np.errstate(divide="ignore"):
            self._log += steps * np.log(magnitude)
        self._angle += steps * np.angle(transform)
        self._log_largest += steps * np.log(largest)
        self._squares += np.square(norm * steps / largest)
        self._parts += 1
        self._steps += steps

    def sums(self) -> FloatArray:
        """Returns the circular convolution."""
        with np.errstate(under="ignore"):
            power = np.exp(self._log) * np.exp(1j * self._angle)
        return np.fft.irfft(power, self._size)

    def hidden(self, values: FloatArray) -> float:
        """Bounds how far values . sums() can be from the truth.

        Entry by entry (Cauchy-Schwarz over frequencies), or all entries together (over cells): the smaller holds. Sums
        over parts are bounded by the root of the sum of squares, times the root of their number, and by their number
        times the largest.
        """
        with np.errstate(under="ignore"):
            grown = np.exp(self._log_largest)
            slopes = grown * np.sqrt(self._squares)
        power_norm = math.sqrt(2 * float(np.square(grown).sum()) / self._size)
        computing = ((28 + 4 * self._parts) * self._steps * UNIT + self._relative) * power_norm
        slopes_norm = math.sqrt(2 * self._parts * float(np.square(slopes).sum()) / self._size)
        by_entry = self._relative * slopes_norm + computing
        together = self._relative * self._parts * float(slopes.max()) + computing
        return min(by_entry * float(values.sum()), together * float(np.sqrt(np.square(values).sum()))) + LOST
