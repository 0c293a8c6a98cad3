"""The modes of bins drawn once, as a linear map: no matrix with one entry for every pair of bins (docs/math.md, 17).

A mode is a sum of columns of |C|, one from every epoch. For Toeplitz, BLT, banded and scaled C modes of neighbouring
bins are shifted copies of each other, or nearly, and all that the accountant needs follows in about n log n steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from galton.errors import FloatArray

UNIT = 2.0**-53
MOST_BLOCKS = 64
_LOUDEST, _LEAST_ENERGY = 1e75, 1e-140
"""Of entries and energies: with factors below the one, underflow takes less than n 10^-170 from an energy."""
_MOST_ENTRIES = 1 << 24
"""Entries in `RowBounds.rows`, about half of them: with more bins there are fewer blocks."""


def transform_error(size: int) -> float:
    """Returns a bound on the error of an FFT of this size, in the 2-norm and relative to that of its result.

    Four times that of the standard algorithm (Higham, Theorem 24.2), which leaves room for other radices than 2.
    """
    return 28 * math.log2(size) * UNIT


@dataclass(frozen=True, eq=False)
class RowBounds:
    """For blocks of `size` neighbouring bins, bounds on their rows of G = M^T M, shifted to each other.

    G[i, k] <= rows[i // size, k - i + bins - 1] for all bins i, k.
    """

    size: int
    rows: FloatArray

    @cached_property
    def largest_beside(self) -> float:
        """A bound on all entries of G beside its diagonal."""
        middle = self.rows.shape[1] // 2
        return float(max(self.rows[:, :middle].max(initial=0.0), self.rows[:, middle + 1 :].max(initial=0.0)))

    def row(self, index: int, bins: int) -> FloatArray:
        """Returns the bound on row `index` of G."""
        start = bins - 1 - index
        return self.rows[index // self.size, start : start + bins]


class Modes(ABC):
    """M, of shape (rounds, bins): column i is the mode of bin i. All entries are non-negative."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Rows of M."""

    @property
    @abstractmethod
    def bins(self) -> int:
        """Columns of M."""

    @property
    @abstractmethod
    def error(self) -> float:
        """Bounds rounding: of each entry of M^T x in units of |x|, and of M c, as a vector, in units of sum |c|."""

    @abstractmethod
    def times(self, factor: float) -> Modes:
        """Returns all modes times a number."""

    @abstractmethod
    def apply(self, counts: FloatArray) -> FloatArray:
        """Returns M c."""

    @abstractmethod
    def adjoint(self, point: FloatArray) -> FloatArray:
        """Returns M^T x."""

    @cached_property
    @abstractmethod
    def energies(self) -> FloatArray:
        """The diagonal of G = M^T M: sums of at most `terms` products of non-negative numbers each."""

    @property
    @abstractmethod
    def terms(self) -> int:
        """Bounds the additions in an energy; at least bins + rounds."""

    @property
    @abstractmethod
    def moderate(self) -> bool:
        """Whether no product in an energy over- or underflows so that it matters."""

    @abstractmethod
    def _aligned_row(self, start: int, size: int) -> FloatArray:
        """Bounds G[start + s, k + s], for all 0 <= s < size, at index k + size - 1, for -size < k < bins."""

    @cached_property
    def sensitivity(self) -> float:
        """The largest norm of a mode."""
        return float(np.sqrt(self.energies.max()))

    @cached_property
    def row_bounds(self) -> RowBounds:
        """Bounds on all rows of G, by blocks of bins."""
        bins = self.bins
        blocks = max(1, min(MOST_BLOCKS, bins, _MOST_ENTRIES // bins))
        size = -(-bins // blocks)
        starts = range(0, bins, size)
        rows = np.zeros((len(starts), 2 * bins - 1))
        for index, start in enumerate(starts):
            first = max(0, bins - start - size)  # the bin before all others, seen from the last bin of the block
            last = 2 * bins - 1 - start
            rows[index, first:last] = self._aligned_row(start, size)[first - last :]
        return RowBounds(size, rows)


@dataclass(frozen=True, eq=False)
class ShiftedModes(Modes):
    """Modes m_i[t] = sum_j weights[j, i] kernel[t - i - j bins].

    A Toeplitz C has its first mode as `kernel` and a single row of weights 1; T diag(w) has the coefficients of T and
    w in rows of an epoch.
    """

    kernel: FloatArray
    weights: FloatArray

    @property
    def rounds(self) -> int:
        return self.kernel.size

    @property
    def bins(self) -> int:
        return self.weights.shape[1]

    @cached_property
    def size(self) -> int:
        """Size of the transforms: even, and large enough for nothing to wrap around."""
        return 2 * int(next_fast_len(-(-(self.rounds + self.weights.size + self.bins) // 2), real=True))

    @cached_property
    def spectrum(self) -> Any:
        """Transform of the kernel."""
        return rfft(self.kernel, self.size)

    @property
    def error(self) -> float:
        loudest = float(np.linalg.norm(self.kernel)) * float(self.weights.sum(axis=0).max())
        return 4 * transform_error(self.size) * math.sqrt(self.size) * loudest

    @property
    def terms(self) -> int:
        epochs = self.weights.shape[0]
        return self.rounds + self.bins + epochs * (epochs + 1)

    @property
    def moderate(self) -> bool:
        return bool(max(self.kernel.max(), self.weights.max()) < _LOUDEST) and _clear(self.energies)

    def times(self, factor: float) -> ShiftedModes:
        return replace(self, kernel=self.kernel * factor)

    def apply(self, counts: FloatArray) -> FloatArray:
        return np.asarray(irfft(rfft((self.weights * counts).ravel(), self.size) * self.spectrum, self.size))[
            : self.rounds
        ]

    def adjoint(self, point: FloatArray) -> FloatArray:
        products = self._products(point)[: self.weights.size].reshape(self.weights.shape)
        return np.asarray((self.weights * products).sum(axis=0))

    def _products(self, point: FloatArray) -> FloatArray:
        """sum_t kernel[t - p] x[t] at index p; negative ones count from the end."""
        return np.asarray(irfft(rfft(point, self.size) * self.spectrum.conj(), self.size))

    @cached_property
    def energies(self) -> FloatArray:
        epochs, bins = self.weights.shape
        result = np.zeros(bins)
        for lag in range(epochs):
            shifted = self.kernel[lag * bins :]
            sums = np.concatenate(([0.0], np.cumsum(self.kernel[: shifted.size] * shifted)))
            for later in range(lag, epochs):  # the later of two columns; both are cut at the end of the run
                kept = np.maximum(self.rounds - np.arange(bins) - later * bins, 0)
                pairs = self.weights[later] * self.weights[later - lag] * sums[np.minimum(kept, sums.size - 1)]
                result += pairs if lag == 0 else 2 * pairs
        return result

    def _aligned_row(self, start: int, size: int) -> FloatArray:
        epochs, bins = self.weights.shape
        largest = self.weights[:, start : start + size].max(axis=1)
        mode = np.zeros(self.rounds)
        for epoch in range(epochs):
            begin = start + epoch * bins
            mode[begin:] += largest[epoch] * self.kernel[: max(self.rounds - begin, 0)]
        sliding = sliding_maximum(self.weights, size)
        products = self._products(mode)
        places = np.arange(epochs)[:, None] * bins + np.arange(1 - size, bins)
        row = (sliding * products[places]).sum(axis=0)
        loudest = float(np.linalg.norm(self.kernel)) * float(sliding.sum(axis=0).max()) * float(np.linalg.norm(mode))
        rounding = 4 * transform_error(self.size) * math.sqrt(self.size) * loudest
        return np.asarray(np.maximum(row, 0.0) + 1.01 * rounding)


@dataclass(frozen=True, eq=False)
class BandedModes(Modes):
    """Modes of a banded matrix with columns of its own: `coefficients` is (bands, rounds), the diagonal first."""

    coefficients: FloatArray
    epoch: int

    @property
    def rounds(self) -> int:
        return self.coefficients.shape[1]

    @property
    def bins(self) -> int:
        return self.epoch

    @property
    def epochs(self) -> int:
        """Epochs, a partial one included."""
        return -(-self.rounds // self.bins)

    @property
    def bands(self) -> int:
        """Diagonals of C."""
        return self.coefficients.shape[0]

    @property
    def error(self) -> float:
        return 2 * (self.bands + self.epochs + 8) * UNIT * self.sensitivity

    @property
    def terms(self) -> int:
        return self.rounds + self.bins + self.bands * self.epochs * (2 + self.bands // self.bins)

    @property
    def moderate(self) -> bool:
        return _clear(self.energies)

    @cached_property
    def columns(self) -> FloatArray:
        """(bands, epochs, bins): the coefficients, with zeros behind the end of the run."""
        padded = np.pad(self.coefficients, ((0, 0), (0, self.epochs * self.bins - self.rounds)))
        return padded.reshape(self.bands, self.epochs, self.bins)

    def times(self, factor: float) -> BandedModes:
        return replace(self, coefficients=self.coefficients * factor)

    def apply(self, counts: FloatArray) -> FloatArray:
        columns = self.columns * counts
        result = np.zeros(self.rounds + self.bands + self.bins)
        for band in range(self.bands):
            result[band : band + self.epochs * self.bins] += columns[band].ravel()
        return result[: self.rounds]

    def adjoint(self, point: FloatArray) -> FloatArray:
        return self._adjoint(point, self.columns)

    def _adjoint(self, point: FloatArray, columns: FloatArray) -> FloatArray:
        """M^T x; `columns` may begin some bins before those of the run, where x is zero."""
        bands, epochs, wide = columns.shape
        before = wide - self.bins
        padded = np.concatenate((np.zeros(before), point, np.zeros(bands + 2 * self.bins)))
        places = np.arange(epochs)[:, None] * self.bins + np.arange(wide)
        result = np.zeros(wide)
        for band in range(bands):
            result += (columns[band] * padded[places + band]).sum(axis=0)
        return result

    @cached_property
    def energies(self) -> FloatArray:
        result = np.square(self.columns).sum(axis=(0, 1))
        for lag in range(1, self.epochs):
            reach = lag * self.bins
            if reach >= self.bands:
                break
            result += 2 * (self.columns[reach:, :-lag] * self.columns[: self.bands - reach, lag:]).sum(axis=(0, 1))
        return np.asarray(result)

    def _aligned_row(self, start: int, size: int) -> FloatArray:
        largest = self.columns[:, :, start : start + size].max(axis=2)
        mode = np.zeros(self.rounds + self.bands + self.bins)
        for band in range(self.bands):
            mode[start + band : start + band + self.epochs * self.bins : self.bins] += largest[band]
        row = self._adjoint(mode[: self.rounds], sliding_maximum(self.columns, size))
        return row * (1 + 4 * (self.bands + self.epochs + 8) * UNIT)


def _clear(energies: FloatArray) -> bool:
    """Whether the largest energy is far above what underflow can take from it, and none is infinite."""
    return bool(np.isfinite(energies).all() and energies.max() > _LEAST_ENERGY)


def sliding_maximum(values: FloatArray, size: int) -> FloatArray:
    """Returns the largest of values[..., k:k+size] at index k + size - 1, for all k above -size."""
    before = [(0, 0)] * (values.ndim - 1) + [(size - 1, size - 1)]
    largest, width = np.pad(values, before), 1
    while 2 * width <= size:
        largest = np.maximum(largest[..., : largest.shape[-1] - width], largest[..., width:])
        width *= 2
    rest = size - width
    return np.maximum(largest[..., : largest.shape[-1] - rest], largest[..., rest:])
