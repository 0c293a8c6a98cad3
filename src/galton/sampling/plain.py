"""The plain sampler: losses drawn from the pair itself, values in [0, 1] (docs/math.md, section 1)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import numpy as np

from galton.guarantee import Direction
from galton.pair import Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, placed, wide_jax
from galton.sampling.factor import factor_of
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.slack import choose_dtype, loss_slack

INDEX_LOST = 2.0**-62
"""Bias, for each mode, of an index below their number that comes from 64-bit integers."""


class PlainSampler(Sampler):
    """Draws from the first distribution of the pair; R = 1.

    It computes in float32 where that keeps the slack in epsilon small, else in float64, unless `dtype` is given.
    """

    name: ClassVar[str] = "plain"
    tilts = True

    def __init__(self, pair: Pair, direction: Direction, dtype: str | None = None) -> None:
        factor = factor_of(pair)
        diagonal = factor.gram.diagonal()
        largest = float(diagonal.max())
        sides = direction.sides

        def slack(name: str) -> Slack:
            rounding = loss_slack(pair.modes, largest, 1.5 * largest, factor.residual, name)
            return Slack(sides * rounding.epsilon, rounding.lost + pair.modes * INDEX_LOST)

        self.direction = direction
        self.dtype = dtype or choose_dtype(slack)
        self.slack = slack(self.dtype)
        self.layout = layout(pair.modes)
        with wide_jax():
            self._root = placed(factor.root.T, self.dtype)
            self._gram = placed(factor.gram, self.dtype)
            self._half = placed(diagonal / 2, self.dtype)

    def _range_at(self, epsilon: float) -> float:
        return 1.0

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss = np.asarray(
                _losses(keys, self._root, self._gram, self._half, self.direction, self.layout), np.float64
            )
        return Draw(loss, np.broadcast_to(0.0, loss.shape))


@partial(jax.jit, static_argnames=("direction", "layout"))
def _losses(
    keys: jax.Array, root: jax.Array, gram: jax.Array, half: jax.Array, direction: Direction, layout: Layout
) -> jax.Array:
    def block(key: jax.Array) -> jax.Array:
        which, noise = jax.random.split(key)
        point = correlated(noise, root, layout.block)
        if direction is Direction.NOISE_FIRST:
            return -log_mean_exp(point - half)
        point = point + gram[jax.random.randint(which, (layout.block,), 0, half.size)]
        loss = log_mean_exp(point - half)
        if direction is Direction.REPLACE:
            loss = loss - log_mean_exp(-point - half)
        return loss

    return jax.lax.map(block, keys).ravel()
