"""Correlation matrices as differentiable JAX values: their modes, and their error on a workload (section 8).

They only steer the optimiser. What is reported comes from the strategy that a form is turned into.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from scipy.fft import next_fast_len

from galton.optimization.series import inverse_series, product
from galton.workloads import Training, Workload

_LONG = 2048
"""From so many rounds on a Toeplitz error is found by FFT, which is quicker than round by round."""
_ROWS_KEPT = 64
"""One row of C^-1 in this many is kept for the backward pass."""


class Form(ABC):
    """A lower-triangular C that JAX can differentiate."""

    rounds: int

    @abstractmethod
    def modes(self, bins: int) -> jax.Array:
        """Returns the (rounds, bins) matrix of modes (docs/math.md, section 1)."""

    def combined_modes(self, counts: jax.Array) -> jax.Array:
        """Returns M c for rows c of counts, one number for each bin: (rows, rounds)."""
        return counts @ self.modes(counts.shape[1]).T

    def largest_energy(self, bins: int) -> jax.Array:
        """Returns the largest squared norm of a mode."""
        return jnp.square(self.modes(bins)).sum(axis=0).max()

    def epoch_blocks(self, bins: int) -> jax.Array:
        """Returns C as (epochs, 2 bins + 1, bins): rows of the epoch, rows of the next, and the tail (section 10)."""
        epochs = -(-self.rounds // bins)
        extra = epochs * bins - self.rounds
        matrix = jnp.pad(self.dense(), ((0, extra), (0, extra)))
        blocks = matrix.reshape(epochs, bins, epochs, bins)
        each = jnp.arange(epochs)
        own = blocks[each, :, each]
        late = jnp.tri(bins, k=-1, dtype=bool)
        following = blocks[each[1:], :, each[:-1]]
        far = jnp.where((each[:, None] > each + 1)[:, None, :, None], blocks, 0.0).max(axis=3).sum(axis=2)
        tail = far.at[1:].add(jnp.where(late, following, 0.0).max(axis=2))
        following = jnp.pad(jnp.where(late, 0.0, following), ((0, 1), (0, 0), (0, 0)))
        return jnp.concatenate((own, following, tail[:, None]), axis=1)

    @abstractmethod
    def row_variances(self, workload: Workload) -> jax.Array:
        """Returns the variance of each entry of A C^-1 z for unit noise z."""

    @abstractmethod
    def dense(self) -> jax.Array:
        """Returns C as a matrix."""


@dataclass(frozen=True, eq=False)
class SeriesForm(Form):
    """C = T diag(weights), T Toeplitz with coefficients `series` (as many as rounds); weights None: all 1."""

    series: jax.Array
    weights: jax.Array | None = None

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.series.shape[0]

    def modes(self, bins: int) -> jax.Array:
        epochs = -(-self.rounds // bins)
        extra = epochs * bins - self.rounds
        series = jnp.pad(self.series, (0, extra))
        if self.weights is None:
            return _shifted_columns(self._first_mode(bins), bins)
        blocks = _shifted_columns(series, bins).reshape(epochs, bins, bins)
        weights = jnp.pad(self.weights, (0, extra)).reshape(epochs, bins)
        back = jnp.arange(epochs)[:, None] - jnp.arange(epochs)
        shifted = jnp.where(back < 0, 0.0, weights.T[:, jnp.maximum(back, 0)])
        return jnp.einsum("irk,kui->rui", shifted, blocks).reshape(epochs * bins, bins)[: self.rounds]

    def _first_mode(self, bins: int) -> jax.Array:
        """The mode of bin 0 of a C without weights; those of other bins are shifted."""
        epochs = -(-self.rounds // bins)
        padded = jnp.pad(self.series, (0, epochs * bins - self.rounds))
        return jnp.cumsum(padded.reshape(epochs, bins), axis=0).reshape(-1)[: self.rounds]

    def combined_modes(self, counts: jax.Array) -> jax.Array:
        bins = counts.shape[1]
        if self.weights is None:
            kernel, spread = self._first_mode(bins), counts
        else:
            epochs = -(-self.rounds // bins)
            kernel, spread = self.series, jnp.tile(counts, (1, epochs))[:, : self.rounds] * self.weights
        size = next_fast_len(self.rounds + spread.shape[1], real=True)
        product = jnp.fft.rfft(spread, size) * jnp.fft.rfft(kernel, size)
        return jnp.fft.irfft(product, size)[:, : self.rounds]

    def largest_energy(self, bins: int) -> jax.Array:
        if self.weights is None:
            return jnp.square(self._first_mode(bins)).sum()
        return super().largest_energy(bins)

    def row_variances(self, workload: Workload) -> jax.Array:
        inverse = inverse_series(self.series)
        if isinstance(workload, Training):
            if self.weights is None and workload.is_toeplitz:
                return jnp.cumsum(jnp.square(_error_series(workload, inverse)))
            return _training_row_variances(inverse, self.weights, workload)
        rows = _lower_toeplitz(inverse)
        return _matrix_row_variances(rows if self.weights is None else rows / self.weights[:, None], workload)

    def dense(self) -> jax.Array:
        matrix = _lower_toeplitz(self.series)
        return matrix if self.weights is None else matrix * self.weights


@dataclass(frozen=True, eq=False)
class BufferForm(SeriesForm):
    """A BLT, possibly scaled: the error on a training workload costs O(rounds buffers^2) and no matrix."""

    decay: jax.Array | None = None
    scale: jax.Array | None = None

    @classmethod
    def of(cls, rounds: int, decay: jax.Array, scale: jax.Array, weights: jax.Array | None = None) -> BufferForm:
        """Returns the form with c_0 = 1 and c_t = sum_i scale_i decay_i^(t-1)."""
        powers = jnp.exp(jnp.arange(rounds - 1)[:, None] * jnp.log(decay))
        return cls(jnp.concatenate((jnp.ones(1), powers @ scale)), weights, decay, scale)

    def row_variances(self, workload: Workload) -> jax.Array:
        if not isinstance(workload, Training) or self.decay is None or self.scale is None:
            return super().row_variances(workload)
        if self.weights is None and workload.is_toeplitz and self.rounds > _LONG:
            return super().row_variances(workload)
        return _buffer_row_variances(self.decay, self.scale, self.weights, workload, self.rounds)


@dataclass(frozen=True, eq=False)
class MatrixForm(Form):
    """Any lower-triangular C, as a matrix."""

    entries: jax.Array

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.entries.shape[0]

    def modes(self, bins: int) -> jax.Array:
        epochs = -(-self.rounds // bins)
        padded = jnp.pad(self.entries, ((0, 0), (0, epochs * bins - self.rounds)))
        return padded.reshape(self.rounds, epochs, bins).sum(axis=1)

    def row_variances(self, workload: Workload) -> jax.Array:
        inverse = jax.scipy.linalg.solve_triangular(self.entries, jnp.eye(self.rounds), lower=True)
        return _matrix_row_variances(inverse, workload)

    def dense(self) -> jax.Array:
        return self.entries


def _lower_toeplitz(series: jax.Array) -> jax.Array:
    return _shifted_columns(series, series.size)


def _shifted_columns(values: jax.Array, shifts: int) -> jax.Array:
    """Columns i = 0, 1, ...: `values` moved down by i. Reads copies of it in rows one too short, without a gather."""
    size = values.size
    length = size + shifts
    copies = jnp.tile(jnp.pad(values, (0, shifts)), shifts)
    return copies[: shifts * (length - 1)].reshape(shifts, length - 1)[:, :size].T


def _learning_rates(workload: Training) -> jax.Array:
    return jnp.ones(workload.rounds) if workload.learning_rates is None else jnp.asarray(workload.learning_rates)


def _error_series(workload: Training, inverse: jax.Array) -> jax.Array:
    """First column of A C^-1 where both are Toeplitz."""
    if workload.momentum:
        inverse = product(inverse, workload.momentum ** jnp.arange(workload.rounds))
    return jnp.cumsum(inverse)


def _matrix_row_variances(inverse: jax.Array, workload: Workload) -> jax.Array:
    """Sums of squares of the rows of A C^-1."""
    if not isinstance(workload, Training):
        return jnp.square(jnp.asarray(workload.matrix()) @ inverse).sum(axis=1)
    steps = inverse
    if workload.momentum:

        def decayed(before: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            now = workload.momentum * before + row
            return now, now

        _, steps = jax.lax.scan(decayed, jnp.zeros(workload.rounds), inverse)
    return jnp.square(jnp.cumsum(_learning_rates(workload)[:, None] * steps, axis=0)).sum(axis=1)


def _training_row_variances(inverse: jax.Array, weights: jax.Array | None, workload: Training) -> jax.Array:
    """Sums of squares of the rows of A diag(1/w) T^-1, one row after the other; few rows are kept in memory."""
    rounds = workload.rounds
    scales = jnp.ones(rounds) if weights is None else 1.0 / weights
    padded = jnp.concatenate((jnp.zeros(rounds), inverse))[::-1]

    def advance(
        state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        round_, scale, rate = inputs
        moving, total = state
        row = jax.lax.dynamic_slice(padded, (rounds - 1 - round_,), (rounds,))
        moving = workload.momentum * moving + row * scale
        total = total + rate * moving
        return (moving, total), jnp.square(total).sum()

    return _checkpointed_scan(
        advance, (jnp.zeros(rounds), jnp.zeros(rounds)), (jnp.arange(rounds), scales, _learning_rates(workload)), rounds
    )


def _buffer_row_variances(
    decay: jax.Array, scale: jax.Array, weights: jax.Array | None, workload: Training, rounds: int
) -> jax.Array:
    """Variances of the iterates by the covariance of the stream's state: buffers, moving average, running sum.

    x = z - scale.S, S <- decay S + x, moving <- momentum moving + x / w, total <- total + rate moving.
    """
    size = decay.size
    scales = jnp.ones(rounds) if weights is None else 1.0 / weights
    noise = jnp.concatenate((-scale, jnp.zeros(2)))  # x = noise.state + z
    keep = jnp.concatenate((decay, jnp.array([workload.momentum, 1.0])))

    def advance(covariance: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        inverse_weight, rate = inputs
        into = jnp.concatenate((jnp.ones(size), jnp.stack((inverse_weight, rate * inverse_weight))))
        step = jnp.diag(keep).at[size + 1, size].set(rate * workload.momentum) + into[:, None] * noise
        covariance = step @ covariance @ step.T + into[:, None] * into
        return covariance, covariance[-1, -1]

    return _checkpointed_scan(advance, jnp.zeros((size + 2, size + 2)), (scales, _learning_rates(workload)), rounds)


def _checkpointed_scan(step, start, inputs, rounds: int) -> jax.Array:  # type: ignore[no-untyped-def]
    """A scan that keeps every `_ROWS_KEPT`-th state for the backward pass and recomputes the others."""
    chunks = -(-rounds // _ROWS_KEPT)
    padded = jax.tree.map(
        lambda values: jnp.pad(values, (0, chunks * _ROWS_KEPT - rounds)).reshape(chunks, _ROWS_KEPT), inputs
    )

    @partial(jax.checkpoint, prevent_cse=False)
    def chunk(state, chunk_inputs):  # type: ignore[no-untyped-def]
        return jax.lax.scan(step, state, chunk_inputs)

    _, outputs = jax.lax.scan(chunk, start, padded)
    return outputs.reshape(-1)[:rounds]
