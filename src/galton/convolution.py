"""Sums of independent variables on a grid: bounds on what exceeds a level, rounding included (docs/mechanisms.md).

The distribution of the sum is found by FFT under an exponential tilt that puts the level in its middle, so that the
FFT's rounding error is relative to the expectation and not to 1; and that error is bounded and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from galton.errors import FloatArray, GaltonError, InvalidArgument

UNIT = 2.0**-53
FAR = 12.5
"""A standard normal is beyond this with probability below 4e-36."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
MASS_ERROR = 4e-12
"""Relative error of the mass of a cell: quadrature of the density, or differences of `ndtr` over wide cells."""
LOST = 1e-290
"""Mass that may have underflowed."""
_TAIL = 60.0
"""What leaves the window of the FFT has a probability below e^-60 under the tilt; it is counted."""
_LAW_TAIL = 40.0
"""The same where all masses of the sum are wanted, whose errors are larger than e^-40."""
_REACHES = (0.3, 1.0, 3.0, 7.0, 11.0, 18.0, 40.0)
_SMALL_REACHES = (1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
"""Tilts over the standard deviation of the sum, for Chernoff's bound; small ones for rare terms that are large."""
MOST_CELLS = 1 << 24
_CELLS_AT_A_TIME = 1 << 16
_NEWTON_STEPS = 60
_LARGEST_TILT = 1e9
_OUTLINE = 1 << 9
"""Points of the outline of a term, by which its tilt is looked for first."""


Payoff = Callable[[FloatArray], FloatArray]
"""What a sum counts, by how far it exceeds a level."""


class GridTooLarge(GaltonError):
    """A coarser grid is needed."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A distribution on multiples of `interval`.

    Attributes:
      interval: distance of two points.
      first: points are (first + index) * interval.
      masses: masses of the points.
    """

    interval: float
    first: int
    masses: FloatArray

    @property
    def points(self) -> FloatArray:
        """The points."""
        return np.asarray(self.first + np.arange(self.masses.size), np.float64) * self.interval


def normal_masses(edges: FloatArray, mean: float) -> FloatArray:
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


def _density(middle: FloatArray, width: FloatArray) -> FloatArray:
    """Weighted sums of e^(-x^2/2) at the nodes of quadrature; some cells at a time, to bound the memory."""
    density = np.empty(middle.size)
    for start in range(0, middle.size, _CELLS_AT_A_TIME):
        part = slice(start, start + _CELLS_AT_A_TIME)
        points = middle[part, None] + width[part, None] / 2 * _NODES
        density[part] = np.exp(-np.square(points) / 2) @ _WEIGHTS
    return density


@dataclass(frozen=True, eq=False)
class _Part:
    """Terms that are all alike, with the logarithms of their masses above 0 and the points of these."""

    term: Grid
    times: int
    log_masses: FloatArray
    points: FloatArray

    def moments(self, tilt: float) -> tuple[float, float]:
        """The mean and the variance of one term under the tilt."""
        exponents = self.log_masses + tilt * self.points
        weights = np.exp(exponents - float(exponents.max()))
        total = float(weights.sum())
        mean = float(weights @ self.points) / total
        variance = float(weights @ np.square(self.points - mean)) / total
        return mean, variance

    def log_scale(self, tilt: float) -> float:
        """log E e^(tilt point) of one term."""
        exponents = self.log_masses + tilt * self.points
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def outline(self) -> _Part:
        """Returns about the same terms with fewer points: neighbours are joined at their mean."""
        starts = np.arange(0, self.points.size, max(1, -(-self.points.size // _OUTLINE)))
        masses = np.exp(self.log_masses)
        joined = np.add.reduceat(masses, starts)
        means = np.add.reduceat(masses * self.points, starts)
        some = joined > 0  # some of the masses may underflow
        return _Part(self.term, self.times, np.log(joined[some]), means[some] / joined[some])


def _moments(parts: Sequence[_Part], tilt: float) -> tuple[float, float]:
    """The mean and the variance of the sum of all terms under the tilt."""
    each = [(part.times, part.moments(tilt)) for part in parts]
    mean, variance = (math.fsum(times * values[which] for times, values in each) for which in range(2))
    return mean, variance


def _log_scale(parts: Sequence[_Part], tilt: float) -> float:
    """log E e^(tilt S) of the sum S of all terms."""
    return math.fsum(part.times * part.log_scale(tilt) for part in parts)


class TiltedSum:
    """The sum of independent terms on one grid: several kinds of terms, each so many times.

    Formal guarantee: what the masses of the terms give lies within `bracket`, and the masses of the sum within the
    error of `law`, whatever the rounding of this arithmetic, if exp, log and arctan are right to 4 units in the last
    place and the FFT has the error of the standard algorithm (Higham, Theorem 24.2, times 4).

    Args:
      parts: kinds of terms, each with the number of such terms; all on the same interval.
    """

    def __init__(self, parts: Sequence[tuple[Grid, int]]) -> None:
        self._interval = parts[0][0].interval
        if any(term.interval != self._interval for term, _ in parts):
            raise InvalidArgument("parts", sorted({term.interval for term, _ in parts}), "must share one interval")
        kept = [term.masses > 0 for term, _ in parts]
        self._parts = [
            _Part(term, times, np.log(term.masses[some]), term.points[some])
            for (term, times), some in zip(parts, kept, strict=True)
        ]
        self._outline = [part.outline() for part in self._parts]
        self._terms = sum(part.times for part in self._parts)

    def _tilt_for(self, level: float, bounded: bool) -> float:
        """The tilt, at least 0, under which the sum has about mean `level`: any tilt is valid, this one is sharp.

        Where f is not bounded the tilt is above 0, so that what lies beyond the window has a bound. It is looked for by
        the outline, which is quick, and then by the terms themselves.
        """
        return self._newton(self._parts, level, bounded, self._newton(self._outline, level, bounded, 0.0))

    def _newton(self, parts: Sequence[_Part], level: float, bounded: bool, tilt: float) -> float:
        """The tilt under which the sum of these terms has about mean `level`, looked for from another one."""
        scale = 1 / (math.sqrt(_moments(self._outline, 0.0)[1]) + self._interval)
        low, high = 0.0, _LARGEST_TILT * scale
        least = 0.0 if bounded else 1e-9 * scale
        for step in range(_NEWTON_STEPS):
            mean, variance = _moments(parts, tilt)
            if abs(mean - level) < 0.02 * math.sqrt(variance):
                break
            low, high = (tilt, high) if mean < level else (low, tilt)
            tilt = tilt + (level - mean) / max(variance, 1e-300)
            if step % 3 == 2 or not low < tilt < high:  # also where the mean jumps, as it does for heavy tails
                tilt = (low + min(high, max(2 * low, scale))) / 2
            if tilt < least + 1e-12 * scale:
                return least
        return max(tilt, least)

    def _reach(self, tilt: float, log_scale: float, sign: int, tail: float, factors: Sequence[float]) -> float:
        """A sum beyond which (above for +1, below for -1) the tilted distribution has a mass below e^-tail.

        By Chernoff's bound: P(S >= t) <= exp(log E e^(a S) - a t) for every a; the outline tells which a is sharp.
        """
        spread = math.sqrt(_moments(self._outline, tilt)[1]) + self._interval
        about = _log_scale(self._outline, tilt)
        steps = [sign * factor / spread for factor in factors]
        more = min(steps, key=lambda more: (_log_scale(self._outline, tilt + more) - about + tail) / abs(more))
        return (_log_scale(self._parts, tilt + more) - log_scale + tail) / more

    def bracket(self, level: float, payoff: Payoff, most: float = math.inf) -> tuple[float, float]:
        """Returns a lower and an upper bound on E f(S - level); 0 and infinity where rounding leaves nothing to say.

        Args:
          level: below which a sum counts nothing.
          payoff: f on gaps above 0: concave, non-negative, 0 at 0.
          most: what f does not exceed.

        Returns:
          The bounds.
        """
        highest = sum(part.times * (part.term.first + part.term.masses.size - 1) for part in self._parts)
        if highest * self._interval <= level:  # the privacy loss of a run without the example may be bounded
            return 0.0, 0.0
        tilt = self._tilt_for(level, math.isfinite(most))
        window = self._window(tilt, _TAIL, _REACHES)
        size, product, log_scale = window.masses.size, window.product, window.log_scale
        sums = np.arange(window.first, window.first + size) * self._interval
        above = sums > level
        gaps = np.asarray(sums[above] - level, np.float64)
        values = np.exp(-tilt * gaps) * payoff(gaps)
        inside, hidden = float(values @ np.maximum(window.masses[above], 0.0)), product.hidden(values)
        log_front = log_scale - tilt * level
        units = self._units(tilt, size, log_front) + 4 * (size + abs(level) / self._interval)
        if log_front > 1 or units * UNIT > 1:
            return 0.0, math.inf
        front, rounding = math.exp(log_front), math.exp(units * UNIT)
        # Beyond the window, and folded into it, is a tilted mass of at most e^-_TAIL on either side; on the lower one
        # it counts only if the level is there.
        within = window.first * self._interval <= level
        beyond = _largest(payoff, most, tilt, float(gaps[-1]) if gaps.size and within else 0.0)
        outside, folded = (1 if within else 2) * beyond, 2 * float(values.max(initial=0.0))
        upper = front * (inside + hidden + math.exp(-_TAIL) * outside * rounding) * rounding
        lower = front * (inside - hidden - math.exp(-_TAIL) * folded * rounding) / rounding
        return max(lower - LOST, 0.0), upper

    def law(self) -> tuple[Grid, float]:
        """Returns the masses of the sum, and a bound on the sum of the sizes of all their errors.

        Returns:
          The masses, none negative, and the bound; what lies outside the window is part of it.
        """
        window = self._window(0.0, _LAW_TAIL, (*_SMALL_REACHES, *_REACHES))
        size, scale = window.masses.size, math.exp(window.log_scale)
        least, most = (
            sum(part.times * (part.term.first + last * (part.term.masses.size - 1)) for part in self._parts)
            for last in (0, 1)
        )
        places = np.arange(window.first, window.first + size)
        masses = np.where((places >= least) & (places <= most), np.maximum(window.masses, 0.0), 0.0)
        hidden = window.product.hidden(np.ones(size))
        rounding = math.expm1(self._units(0.0, size, window.log_scale) * UNIT)
        wrong = (hidden + 4 * math.exp(-_LAW_TAIL)) * (1 + rounding) + rounding * float(masses.sum())
        error = scale * wrong * (1 + 1e-9) + LOST
        return Grid(self._interval, window.first, masses * scale), error

    def _window(self, tilt: float, tail: float, factors: Sequence[float]) -> _Window:
        """The tilted law of the sum by FFT, but for a mass of e^-tail on either side, which is folded into it."""
        log_scales = [part.log_scale(tilt) for part in self._parts]
        log_scale = math.fsum(part.times * each for part, each in zip(self._parts, log_scales, strict=True))
        top, bottom = (self._reach(tilt, log_scale, sign, tail, factors) for sign in (1, -1))
        offset = math.floor(bottom / self._interval)
        widest = max(part.term.masses.size for part in self._parts)
        cells = max(math.ceil(top / self._interval) - offset + 2, widest)
        size = 1 << max(4, (cells - 1).bit_length())
        if size > MOST_CELLS:
            raise GridTooLarge(f"composition: {self._terms} steps need a grid of {size} points, too many")
        product = _Product(size)
        for part, each in zip(self._parts, log_scales, strict=True):
            tilted = np.zeros(size)
            with np.errstate(divide="ignore", under="ignore"):
                exponents = np.log(part.term.masses) + tilt * part.term.points - each
                tilted[: part.term.masses.size] = np.exp(exponents)
            product.multiply(tilted, part.times)
        # Cell i of the circular sum stands for all sums of first + i modulo size; the window picks one each.
        first = sum(part.times * part.term.first for part in self._parts)
        positions = np.arange(offset, offset + size)
        return _Window(offset, product.sums()[(positions - first) % size], product, log_scale)

    def _units(self, tilt: float, size: int, log_front: float) -> float:
        """Units of rounding in the masses of a window, and in a factor in front of it."""
        largest = max(float((np.abs(part.log_masses) + tilt * np.abs(part.points)).max()) for part in self._parts)
        return 4 * self._terms * (64 + math.log2(size) + 2 * largest) + 64 * (1 + abs(log_front))


@dataclass(frozen=True, eq=False)
class _Window:
    """The tilted law of a sum: masses of the sums (first + index) * interval, relative to e^log_scale."""

    first: int
    masses: FloatArray
    product: _Product
    log_scale: float


def _largest(payoff: Payoff, most: float, tilt: float, gap: float) -> float:
    """Bounds e^(-tilt x) f(x) over all x from `gap`.

    f is concave and 0 at 0, so that f(x) / x falls. So does x e^(-tilt x) from x = 1 / tilt on; and before that f(x) is
    at most f(1 / tilt).
    """
    bounds = [most] if math.isfinite(most) else []
    if tilt > 0:
        bounds.append(float(payoff(np.array([max(gap, 1 / tilt)]))[0]))
    return min(bounds) * math.exp(-tilt * gap)


class _Product:
    """A product of powers of transforms, and a bound on what rounding hides in it.

    A transform of x has an error of norm at most c |x| sqrt(size), c = 28 log2(size) units of rounding, and no entry
    of it has one above c times the sum of the sizes of x. In a product of powers |z_1|^n_1 |z_2|^n_2 ... an error of
    z_i is multiplied by at most n_i / |z_i| times the product, all magnitudes taken as large as they can be;
    logarithms, angles and exponentials add a few units for every step, and the inverse transform c times the norm of
    what it is given.
    """

    def __init__(self, size: int) -> None:
        self._size, self._parts, self._steps = size, 0, 0
        self._relative = 28 * math.log2(size) * UNIT
        frequencies = size // 2 + 1
        self._log, self._angle = np.zeros(frequencies), np.zeros(frequencies)
        self._log_largest, self._squares = np.zeros(frequencies), np.zeros(frequencies)
        self._entries = np.zeros(frequencies)

    def multiply(self, values: FloatArray, steps: int) -> None:
        """Multiplies by a power of the transform of `values`."""
        transform = np.fft.rfft(values)
        magnitude = np.abs(transform)
        norm, total = float(np.sqrt(np.square(values).sum())), float(np.abs(values).sum()) * (1 + 1e-9)
        largest = magnitude + self._relative * min(norm * math.sqrt(self._size), total)
        with np.errstate(divide="ignore"):
            self._log += steps * np.log(magnitude)
        self._angle += steps * np.angle(transform)
        self._log_largest += steps * np.log(largest)
        self._squares += np.square(norm * steps / largest)
        self._entries += total * steps / largest
        self._parts += 1
        self._steps += steps

    def sums(self) -> FloatArray:
        """Returns the circular convolution."""
        with np.errstate(under="ignore"):
            power = np.exp(self._log) * np.exp(1j * self._angle)
        return np.fft.irfft(power, self._size)

    def hidden(self, values: FloatArray) -> float:
        """Bounds how far values . sums() can be from the truth.

        Entry by entry, or all entries together (Cauchy-Schwarz over cells); from the norm of the error of a transform,
        or from the bound on its entries: the smallest holds. Sums over parts are bounded by the root of the sum of
        squares, times the root of their number, and by their number times the largest.
        """
        with np.errstate(under="ignore"):
            grown = np.exp(self._log_largest)
            slopes, entries = grown * np.sqrt(self._squares), grown * self._entries
        power_norm = math.sqrt(2 * float(np.square(grown).sum()) / self._size)
        computing = ((28 + 4 * self._parts) * self._steps * UNIT + self._relative) * power_norm
        slopes_norm = math.sqrt(2 * self._parts * float(np.square(slopes).sum()) / self._size)
        by_entry = min(slopes_norm, 2 * float(entries.sum()) / self._size)
        together = min(self._parts * float(slopes.max()), math.sqrt(2 * float(np.square(entries).sum()) / self._size))
        each, norm = self._relative * by_entry + computing, self._relative * together + computing
        return min(each * float(values.sum()), norm * float(np.sqrt(np.square(values).sum()))) + LOST
