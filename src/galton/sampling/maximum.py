"""Importance sampling on the maximum, for orthogonal modes (Chua et al., "Balls-and-Bins Sampling for DP-SGD", 2025).

max A - log b <= L <= max A: mixture-first, a loss above eps needs a maximum above eps; noise-first, a loss below
-eps needs a maximum below log b - eps. Samples are drawn given that event, and its probability is the range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_ndtr, ndtr

from galton.guarantee import Direction
from galton.pair import Pair
from galton.sampling.base import Draw, Layout, Sampler, block_keys, layout, wide_jax
from galton.sampling.kernels import log_mean_exp
from galton.sampling.normals import uniforms
from galton.sampling.orthogonal import COMMON_LOST, Orthogonal, orthogonal

MARGIN = 1e-9
"""How much larger than necessary the event is, relative to its level."""


@dataclass(frozen=True)
class TopEvent:
    """The event outside of which the value is zero, in terms of independent standard normals z.

    Mixture-first: z_0 > `own` (the bin that is in use) or some other z_k > `other`. Noise-first: no z_k > `other`.

    Attributes:
      own: level of the bin that is in use; not used for noise-first.
      other: level of the other bins.
      log_mass: logarithm of the event's probability.
    """

    own: float
    other: float
    log_mass: float


def top_event(modes: Orthogonal, direction: Direction, epsilon: float, slack: float) -> TopEvent:
    """Returns the event for an epsilon, large enough to hold every loss that rounding may lift above it."""
    half, spread = modes.energy / 2, modes.spread
    if direction is Direction.MIXTURE_FIRST:
        level = epsilon - slack - MARGIN * (1 + abs(epsilon) + half)
        own, other = (level - half) / spread, (level + half) / spread
        missed = float(log_ndtr(own)) + (modes.modes - 1) * float(log_ndtr(other))
        return TopEvent(own, other, math.log(max(-math.expm1(missed), 1e-300)))
    level = math.log(modes.modes) - epsilon + slack + MARGIN * (1 + abs(epsilon) + half)
    other = (level + half) / spread
    return TopEvent(0.0, other, max(modes.modes * float(log_ndtr(other)), -690.0))


class MaximumSampler(Sampler):
    """Draws given that the largest A_k is where it must be for a value above zero; R is that event's probability.

    It refuses a pair whose modes are not orthogonal and of equal length. C = I, in any number of whole epochs, gives
    a pair that it accepts.
    """

    name: ClassVar[str] = "maximum"

    def __init__(self, pair: Pair, direction: Direction, epsilon: float) -> None:
        self.modes = orthogonal(pair, direction, self.name)
        self.direction = direction
        self.least_epsilon = epsilon
        rough = top_event(self.modes, direction, epsilon, 0.0)
        self.slack = self.modes.slack(abs(rough.own) + abs(rough.other) + 10.0)
        self.event = top_event(self.modes, direction, epsilon, self.slack.epsilon)
        self.layout = layout(self.modes.modes, most_blocks=8, largest_block=1 << 11)

    def _range_at(self, epsilon: float) -> float:
        return min(1.0, math.exp(self.event.log_mass) * (1 + 1e-9))

    def lost_delta(self, epsilon: float) -> float:
        return super().lost_delta(epsilon) + COMMON_LOST

    def draw(self, seed: int, index: int) -> Draw:
        event = self.event
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            arguments = (keys, self.modes.spread, self.modes.energy / 2)
            if self.direction is Direction.MIXTURE_FIRST:
                tails = float(ndtr(-event.own)), float(ndtr(-event.other))
                loss = _given_exceeded(*arguments, *tails, math.exp(event.log_mass), self.modes.modes, self.layout)
            else:
                loss = _given_bounded(*arguments, float(ndtr(event.other)), self.modes.modes, self.layout)
            losses = np.asarray(loss, np.float64)
        return Draw(losses, np.broadcast_to(event.log_mass, losses.shape))


@partial(jax.jit, static_argnames=("modes", "layout"))
def _given_exceeded(
    keys: jax.Array, spread: float, half: float, own: float, other: float, mass: float, modes: int, layout: Layout
) -> jax.Array:
    """Losses under bin 0 given that some normal exceeds its level; `own` and `other` are the levels' tail masses.

    The first index whose normal exceeds is geometric and is drawn by inversion; the normals before it lie below their
    levels, its own above, and those after it anywhere.
    """
    index = jnp.arange(modes)
    levels = jnp.where(index == 0, own, other)
    below_own = jnp.log1p(-jnp.minimum(own, 1 - 2.0**-53))
    below_other = jnp.log1p(-jnp.clip(other, 1e-300, 1 - 2.0**-53))

    def block(key: jax.Array) -> jax.Array:
        which, noise = jax.random.split(key)
        reached = jnp.log1p(-jnp.minimum(uniforms(which, (layout.block,)) * mass, 1 - 2.0**-53))
        first = jnp.where(reached >= below_own, 0.0, jnp.ceil((reached - below_own) / below_other))
        first = jnp.clip(first, 0, modes - 1)[:, None]
        least = jnp.where(index < first, levels, 0.0)
        most = jnp.where(index == first, levels, 1.0)
        tails = least + (most - least) * uniforms(noise, (layout.block, modes))
        normals = -jax.scipy.special.ndtri(jnp.clip(tails, 1e-300, 1 - 2.0**-53))
        return log_mean_exp(spread * normals + jnp.where(index == 0, half, -half))

    return jax.lax.map(block, keys).ravel()


@partial(jax.jit, static_argnames=("modes", "layout"))
def _given_bounded(keys: jax.Array, spread: float, half: float, mass: float, modes: int, layout: Layout) -> jax.Array:
    """Losses under noise alone given that every normal is below the level with this mass."""

    def block(key: jax.Array) -> jax.Array:
        below = jnp.clip(mass * uniforms(key, (layout.block, modes)), 1e-300, 1 - 2.0**-53)
        return -log_mean_exp(spread * jax.scipy.special.ndtri(below) - half)

    return jax.lax.map(block, keys).ravel()
