"""Two ways to compute round t of C^-1 z: keep buffers, or draw all earlier z again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from galton.errors import FloatArray, InvalidArgument
from galton.noise.normals import standard_normals
from galton.strategies import Scaled, Strategy
from galton.strategies.streams import StreamState
from galton.strategies.toeplitz import ToeplitzLike

_NEGLIGIBLE = 2.0**-32
"""Draws that together move C by no more than this share are not drawn again (docs/math.md, section 7)."""
_NEGLIGIBLE_WIDE = 2.0**-61
"""The same for float64."""


class Draws(NamedTuple):
    """The source of the fresh normals of one vector in one round; a scale of NaN makes all noise NaN.

    A round's key is the last of `keys` whose first round, in `since`, is not after it.
    """

    keys: jax.Array
    since: jax.Array
    round: jax.Array
    scale: jax.Array
    group: int
    places: jax.Array

    def normals(self, turn: Any, draw: Any) -> jax.Array:
        """Returns the scaled normals of this or an earlier round."""
        key = self.keys[(self.since <= turn).sum() - 1]
        return standard_normals(key, turn, self.group, draw, self.places) * self.scale

    def all(self, draws: int) -> jax.Array:
        """Returns z of this round, shape (draws, size); zero for draws that are not used (`InverseStream.draws`)."""
        if draws == 1:
            return self.normals(self.round, 0)[None]
        used = ((self.round + 1) % (1 << jnp.arange(draws)) == 0).sum()
        start = jnp.zeros((draws, self.places.size), self.scale.dtype)
        return jax.lax.fori_loop(0, used, lambda d, z: z.at[d].set(self.normals(self.round, d)), start)


class Form(Protocol):
    """How the noise of one vector is computed."""

    @property
    def memory(self) -> int:
        """Copies of the vector that are kept between rounds."""

    def draw(self, fresh: Draws, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the noise of this round, and the buffers, shape (memory, size), after it."""


class Buffered:
    """By the strategy's own stream: memory and time per round do not depend on the round."""

    def __init__(self, strategy: Strategy) -> None:
        self._stream = strategy.stream()
        self.memory = self._stream.memory

    def draw(self, fresh: Draws, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = fresh.all(self._stream.draws).astype(buffers.dtype)
        x, after = self._stream.next(z, StreamState(fresh.round, buffers))
        return x, after.buffers


class Recomputed:
    """By x_t = sum_{s <= t} C^-1[t, s] z_s with every z_s drawn again: no memory.

    Round t draws t + 1 vectors, or `reach` if these are fewer.
    """

    memory = 0

    def __init__(self, strategy: Strategy) -> None:
        if strategy.rows != strategy.rounds:
            raise InvalidArgument("form", "recompute", "needs a square strategy; take buffers")
        self._strategy = strategy

    @cached_property
    def _inverse(self) -> tuple[FloatArray, FloatArray, bool]:
        """(table, weights, Toeplitz or not): C^-1[t, s] is table[t - s] or table[t, s], over weights[t]."""
        inner, weights = self._strategy, np.ones(self._strategy.rounds)
        if isinstance(self._strategy, Scaled):
            inner, weights = self._strategy.inner, self._strategy.weights
        if isinstance(inner, ToeplitzLike):
            return inner.inverse_series, weights, True
        return inner.inverse(), weights, False

    def reach(self, dtype: DTypeLike = jnp.float32) -> int:
        """Returns how many vectors a round draws at most: as many as the inverse has bands, if it is Toeplitz.

        Coefficients so small that they are lost in rounding do not count, which leaves a short banded C few of them.
        """
        coefficients, _, toeplitz = self._inverse
        if not toeplitz:
            return self._strategy.rounds
        inner = self._strategy.inner if isinstance(self._strategy, Scaled) else self._strategy
        limit = _NEGLIGIBLE if np.dtype(dtype).itemsize <= 4 else _NEGLIGIBLE_WIDE
        rest = np.abs(coefficients)[::-1].cumsum()[::-1] * np.abs(inner.columns(0, 1)).sum()
        return max(1, int((rest > limit).sum()))

    def draw(self, fresh: Draws, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
        size, dtype = buffers.shape[1], buffers.dtype
        coefficients, weights, toeplitz = self._inverse
        table = jnp.asarray(coefficients, dtype)
        reach = self.reach(dtype)

        def add(s: Any, total: jax.Array) -> jax.Array:
            weight = table[fresh.round - s] if toeplitz else table[fresh.round, s]
            return total + weight * fresh.normals(s, 0).astype(dtype)

        last = jnp.minimum(fresh.round, self._strategy.rounds - 1)
        first = jnp.maximum(last + 1 - reach, 0)
        total = jax.lax.fori_loop(first, last + 1, add, jnp.zeros(size, dtype))
        return total / jnp.asarray(weights, dtype)[last], buffers


FORMS: dict[str, Callable[[Strategy], Form]] = {"buffers": Buffered, "recompute": Recomputed}
