"""C^-1 z, one round at a time, with explicit state: pure functions of JAX arrays, ready for jit and scan.

A stream has the shape of an optax transformation: `init(shape)` makes the state, `next(z, state)` returns this
round's correlated noise and the new state. `z` holds the fresh independent noise of the round with shape
`(draws, *shape)`; `draws` is 1 unless C is rectangular.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from galton.errors import FloatArray
from galton.strategies.honaker import refined_variances

Shape = tuple[int, ...]
Arrays = TypeVar("Arrays", jax.Array, tuple[jax.Array, jax.Array])

FEW = 8
"""Sums over at most this many buffers are written out, so that they fuse with what follows."""


class StreamState(NamedTuple):
    """All a stream remembers: the index of the coming round and its model-sized buffers."""

    round: jax.Array
    buffers: jax.Array


class InverseStream(Protocol):
    """C^-1 as a stream."""

    @property
    def rounds(self) -> int:
        """Rounds of the run."""

    @property
    def draws(self) -> int:
        """Fresh noise vectors per round; z[d] with d > 0 is used only in rounds t with 2^d | t + 1."""

    @property
    def memory(self) -> int:
        """Model-sized buffers kept between rounds."""

    @property
    def operations(self) -> int:
        """Multiplications (with their additions) per parameter and round, besides drawing the normals."""

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        """Returns the state before the first round, for noise of this shape."""

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        """Returns the correlated noise of this round and the state after it."""


def _initial_state(memory: int, shape: Shape, dtype: DTypeLike) -> StreamState:
    return StreamState(jnp.zeros((), jnp.int32), jnp.zeros((memory, *shape), dtype))


def _weighted_sum(weights: jax.Array, buffers: jax.Array) -> jax.Array:
    """sum_k weights[k] buffers[k], at full precision on every backend; few buffers fuse with what follows."""
    if buffers.shape[0] <= FEW:
        return functools.reduce(operator.add, (weights[k] * buffers[k] for k in range(buffers.shape[0])))
    return jnp.tensordot(weights, buffers, axes=1, precision=jax.lax.Precision.HIGHEST)


def _nan_after_run(inside: jax.Array, compute: Callable[[], Arrays]) -> Arrays:
    """Returns compute() while `inside` the run, NaN after it.

    The branch also keeps XLA from fusing x, and the normals it comes from, into the update of every buffer.
    """
    return jax.lax.cond(
        inside, compute, lambda: jax.tree.map(lambda shape: jnp.full_like(shape, jnp.nan), jax.eval_shape(compute))
    )


@dataclass(frozen=True, eq=False)
class WindowStream:
    """x_t = (z_t - sum_{k=1..W-1} C[t, t-k] x_{t-k}) / C[t, t], a ring of the last W-1 outputs.

    `rows` holds C[t, t-k] at [t, k], or one row for all rounds.
    """

    rounds: int
    rows: FloatArray
    draws: int = 1

    @property
    def memory(self) -> int:
        return self.rows.shape[1] - 1

    @property
    def operations(self) -> int:
        return self.memory + 1  # one for each kept output, and the division

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        return _initial_state(self.memory, shape, dtype)

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        row = jnp.asarray(self.rows, z.dtype)[jnp.minimum(state.round, self.rows.shape[0] - 1)]
        if not self.memory:
            return _nan_after_run(state.round < self.rounds, lambda: z[0] / row[0]), StreamState(
                state.round + 1, state.buffers
            )
        lags = (state.round - 1 - jnp.arange(self.memory)) % self.memory + 1
        x = _nan_after_run(state.round < self.rounds, lambda: (z[0] - _weighted_sum(row[lags], state.buffers)) / row[0])
        buffers = jax.lax.dynamic_update_index_in_dim(state.buffers, x, state.round % self.memory, 0)
        return x, StreamState(state.round + 1, buffers)


@dataclass(frozen=True, eq=False)
class FilterStream:
    """x_t = sum_{k<W} r_k z_{t-k}, the stream of a banded inverse: a ring of the last W-1 fresh vectors."""

    rounds: int
    coefficients: FloatArray
    draws: int = 1

    @property
    def memory(self) -> int:
        return self.coefficients.size - 1

    @property
    def operations(self) -> int:
        return self.coefficients.size

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        return _initial_state(self.memory, shape, dtype)

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        row, inside = jnp.asarray(self.coefficients, z.dtype), state.round < self.rounds
        if not self.memory:
            return _nan_after_run(inside, lambda: row[0] * z[0]), StreamState(state.round + 1, state.buffers)
        lags = (state.round - 1 - jnp.arange(self.memory)) % self.memory + 1
        x, kept = _nan_after_run(inside, lambda: (row[0] * z[0] + _weighted_sum(row[lags], state.buffers), z[0]))
        buffers = jax.lax.dynamic_update_index_in_dim(state.buffers, kept, state.round % self.memory, 0)
        return x, StreamState(state.round + 1, buffers)


@dataclass(frozen=True, eq=False)
class BufferStream:
    """The stream of a BLT: x = z - scale . S, then S <- decay * S + x."""

    rounds: int
    decay: FloatArray
    scale: FloatArray
    draws: int = 1

    @property
    def memory(self) -> int:
        return self.decay.size

    @property
    def operations(self) -> int:
        return 2 * self.memory

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        return _initial_state(self.memory, shape, dtype)

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        decay, scale = jnp.asarray(self.decay, z.dtype), jnp.asarray(self.scale, z.dtype)
        x = _nan_after_run(state.round < self.rounds, lambda: z[0] - _weighted_sum(scale, state.buffers))
        buffers = decay.reshape((-1,) + (1,) * x.ndim) * state.buffers + x
        return x, StreamState(state.round + 1, buffers)


@dataclass(frozen=True, eq=False)
class ScaledStream:
    """The stream of T diag(w): that of T, divided by w_t."""

    inner: InverseStream
    weights: FloatArray

    @property
    def rounds(self) -> int:
        return self.inner.rounds

    @property
    def draws(self) -> int:
        return self.inner.draws

    @property
    def memory(self) -> int:
        return self.inner.memory

    @property
    def operations(self) -> int:
        return self.inner.operations + 1

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        return self.inner.init(shape, dtype)

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        x, after = self.inner.next(z, state)
        return x / jnp.asarray(self.weights, z.dtype)[state.round], after


@dataclass(frozen=True, eq=False)
class TreeStream:
    """Honaker's online decoder: buffers hold the refined left siblings, one per height.

    Round t completes one node per trailing one-bit of t, plus its leaf; `z[h]` is the noise of the completed node of
    height h, and the entries of `z` above that are not used.
    """

    rounds: int
    height: int

    @property
    def draws(self) -> int:
        return self.height + 1

    @property
    def memory(self) -> int:
        return self.height + 1

    @property
    def operations(self) -> int:
        return 3 * self.height  # as it is run: every height in every round

    def init(self, shape: Shape, dtype: DTypeLike = jnp.float32) -> StreamState:
        return _initial_state(self.memory, shape, dtype)

    def next(self, z: jax.Array, state: StreamState) -> tuple[jax.Array, StreamState]:
        variances = refined_variances(self.height).tolist()
        current, finished = z[0], jnp.zeros_like(z[0])
        level, climbing = jnp.zeros((), jnp.int32), jnp.ones((), bool)
        for height in range(self.height):
            climbing = climbing & ((state.round >> height) & 1 == 1)
            left, own = state.buffers[height], variances[height + 1]
            finished = jnp.where(climbing, finished + left, finished)
            current = jnp.where(climbing, own * z[height + 1] + (1 - own) * (left + current), current)
            level = level + climbing
        buffers = jax.lax.dynamic_update_index_in_dim(state.buffers, current, level, 0)
        return current - finished, StreamState(state.round + 1, buffers)
