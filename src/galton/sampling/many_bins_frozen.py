"""The quick estimator for many bins: delta on frozen draws (docs/math.md, section 17.6).

Not certified. What a sample needs of its rounds does not depend on the noise multiplier: it is kept, one number for
each bin, and no transform is needed at another multiplier.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from scipy.special import ndtr

from galton.guarantee import Direction
from galton.many_bins import ManyBinsPair
from galton.sampling.base import chunk_key, wide_jax
from galton.sampling.frozen import Estimate, estimate_from
from galton.sampling.kernels import log_mean_exp
from galton.sampling.many_bins import ManyBinsModel, Parts, TiltParts, draw_counts, tilt_parts
from galton.sampling.strata import STRATA, stratified_depths, stratified_normals

_NUMBERS = 1 << 24
"""Numbers kept by an estimator, about."""
_AT_A_TIME = 1 << 20


def many_blocks(pair: ManyBinsPair) -> int:
    """Returns how many blocks of frozen samples are affordable."""
    return max(1, min(512, _NUMBERS // (2 * pair.bins)) // block_of(pair))


def block_of(pair: ManyBinsPair) -> int:
    """Returns the samples of a block."""
    block = max(1, min(64, _AT_A_TIME // (pair.rounds + pair.bins)))
    return 1 << (block.bit_length() - 1)


class Frozen(NamedTuple):
    """Frozen draws of one block, for M at noise multiplier 1.

    Attributes:
      noise: M^T z, without the coordinate of z along the average mode.
      centre: M^T M c.
      depths: (strata, samples), coordinates along the average mode.
      log_weight: -sum log(bins * probability) over the modes drawn, at the design.
      energy: (|M c|^2 - sum of energies) / 2, by which the weight depends on the noise multiplier.
    """

    noise: jax.Array
    centre: jax.Array
    depths: jax.Array
    log_weight: jax.Array
    energy: jax.Array


class FrozenMany:
    """Mixture-first and replace: tuples of modes drawn by the tilted sampler of a design."""

    def __init__(self, pair: ManyBinsPair, direction: Direction, epsilon: float, blocks: int, seed: int) -> None:
        model = ManyBinsModel(pair)
        tilt = model.best_tilt(direction, epsilon, STRATA)
        self._order, self._direction = tilt.order, direction
        with wide_jax():
            unit = ManyBinsModel(pair.at(1.0)).parts()
            self._half, self._image = unit.energies / 2, unit.image
            factors = tilt_parts(model, tilt, direction)
            self._blocks = [
                _draw(chunk_key(seed, direction, index), unit, factors, self._order, block_of(pair))
                for index in range(blocks)
            ]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        replace = self._direction is Direction.REPLACE
        with wide_jax():
            values = [
                _values(block, self._half, self._image, noise_multiplier, self._order, epsilon, replace)
                for block in self._blocks
            ]
            return estimate_from(values)


@partial(jax.jit, static_argnames=("size",))
def _draw(key: jax.Array, unit: Parts, factors: TiltParts, order: jax.Array, size: int) -> Frozen:
    which, noise, depth = jax.random.split(key, 3)
    counts, log_weight = draw_counts(which, factors, order, size)
    shift = unit.shift(counts + factors.extra)
    energy = (jnp.square(shift).sum(axis=1) - counts @ unit.energies) / 2
    points = unit.normals(noise, size)
    across = unit.statistics(points) - (points @ unit.along)[:, None] * unit.image
    return Frozen(across, unit.statistics(shift), stratified_normals(depth, size, STRATA), log_weight, energy)


@partial(jax.jit, static_argnames=("replace",))
def _values(
    block: Frozen,
    half: jax.Array,
    image: jax.Array,
    multiplier: float,
    order: jax.Array,
    epsilon: float,
    replace: bool,
) -> jax.Array:
    square = multiplier * multiplier
    centre = block.noise / multiplier + block.centre / square
    log_weight = block.log_weight + block.energy / square

    def stratum(depths: jax.Array) -> jax.Array:
        moved = centre + depths[:, None] * image / multiplier
        mixture = log_mean_exp(moved - half / square)
        loss, statistic = mixture, mixture
        if replace:
            loss = mixture - log_mean_exp(-moved - half / square)
            statistic = mixture + moved.mean(axis=1)
        return jnp.exp(log_weight - order * statistic) * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))

    return jax.lax.map(stratum, block.depths).mean(axis=0)


class FrozenDepthsOfMany:
    """Noise-first: depths in a half-space whose boundary moves smoothly."""

    def __init__(self, pair: ManyBinsPair, blocks: int, seed: int) -> None:
        self._pair = pair
        with wide_jax():
            unit = ManyBinsModel(pair.at(1.0)).parts()
            self._half, self._image = unit.energies / 2, unit.image
            keys = [chunk_key(seed, Direction.NOISE_FIRST, index) for index in range(blocks)]
            self._blocks = [_draw_noise(key, unit, block_of(pair)) for key in keys]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        _, bound = ManyBinsModel(self._pair.at(noise_multiplier)).half_space(epsilon)
        mass = float(ndtr(bound))
        with wide_jax():
            values = [
                _depth_values(block, self._half, self._image, noise_multiplier, epsilon, mass) for block in self._blocks
            ]
            return estimate_from(values)


@partial(jax.jit, static_argnames=("size",))
def _draw_noise(key: jax.Array, unit: Parts, size: int) -> tuple[jax.Array, jax.Array]:
    noise, depth = jax.random.split(key)
    points = unit.normals(noise, size)
    across = unit.statistics(points) - (points @ unit.along)[:, None] * unit.image
    return across, jax.random.key_data(depth)


@jax.jit
def _depth_values(
    block: tuple[jax.Array, jax.Array],
    half: jax.Array,
    image: jax.Array,
    multiplier: float,
    epsilon: float,
    mass: float,
) -> jax.Array:
    noise, depth = block
    centre = noise / multiplier - half / (multiplier * multiplier)
    depths = stratified_depths(jax.random.wrap_key_data(depth, impl="threefry2x32"), noise.shape[0], STRATA, mass)

    def stratum(depths: jax.Array) -> jax.Array:
        loss = log_mean_exp(centre + depths[:, None] * image / multiplier)
        return mass * -jnp.expm1(jnp.minimum(epsilon + loss, 0.0))

    return jax.lax.map(stratum, depths).mean(axis=0)
