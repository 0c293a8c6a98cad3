"""The noise level for min-separation batches, on frozen draws (docs/math.md, section 10.12)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from galton.errors import FloatArray
from galton.guarantee import Direction, Guarantee
from galton.optimization.noise_level import Frozen, NoiseLevel
from galton.optimization.pattern_level import (
    BLOCK_NORMALS,
    log_delta_alone,
    log_delta_and_gradient,
    reach_of,
    shifted_noise,
    stratified_noise,
)
from galton.sampling.base import chunk_key
from galton.sampling.patterns import to_columns, to_rows
from galton.sampling.renewal import Renewal, log_mean_renewal, renewal
from galton.sampling.separated import (
    Attraction,
    Field,
    SeparatedModel,
    attraction,
    draw_attracted,
    field_of,
    offset_blocks,
    usual_order,
)
from galton.separated import SeparatedPair

_REAL = jnp.float32


class SeparatedLevel(NoiseLevel):
    """The statistic is C in blocks of as many rounds as the separation, as `pattern_level.reach_of` reads it.

    Args:
      statistic: C at the design, at noise of standard deviation 1.
      interval: rounds between two participations on average.
      log_sigma: log sigma near the solution there.
      guarantee: the guarantee that sigma has to meet.
      samples: draws per direction.
      seed: of the draws.
    """

    power: ClassVar[int] = 1

    def __init__(
        self, statistic: FloatArray, interval: int, log_sigma: float, guarantee: Guarantee, samples: int, seed: int
    ) -> None:
        pair = SeparatedPair(reach_of(statistic * math.exp(-log_sigma)), interval)
        self._prior = Renewal(*(part.astype(_REAL) for part in renewal(pair)))
        frozen = [_freeze(pair, direction, guarantee.epsilon, samples, seed) for direction in guarantee.directions]
        super().__init__(statistic, log_sigma, guarantee, frozen)

    def _log_delta(self, frozen: Frozen, scaled: FloatArray) -> tuple[float, FloatArray]:
        return log_delta_and_gradient(frozen, scaled, (frozen.constants, self._prior), self.epsilon)

    def _log_delta_value(self, frozen: Frozen, scaled: FloatArray) -> float:
        return log_delta_alone(frozen, scaled, (frozen.constants, self._prior), self.epsilon)


def _freeze(pair: SeparatedPair, direction: Direction, epsilon: float, samples: int, seed: int) -> Frozen:
    model = SeparatedModel(pair)
    along = jnp.asarray(model.along())
    size = min(samples, max(32, 1 << ((BLOCK_NORMALS // math.prod(model.shape)).bit_length() - 1)))
    count = -(-samples // size)
    keys = [chunk_key(seed, direction, index) for index in range(count)]
    if direction is Direction.NOISE_FIRST:
        space = model.half_space(epsilon)
        shift = max(0.0, -space.usual_depth)
        noise = [shifted_noise(key, along, shift, size) for key in keys]
        return Frozen(direction, _noise_first_values, (0, along.astype(_REAL)), noise, size * count)
    order, factors, prior = usual_order(pair, epsilon, direction), attraction(pair.reach, 1.0), renewal(pair)
    fields = order if direction is Direction.REPLACE else 0
    field = field_of(pair, fields) if fields else None
    unit = (jnp.asarray(pair.reach.own), jnp.asarray(pair.reach.following), jnp.asarray(pair.reach.energies))
    offsets = offset_blocks(pair, order, fields)
    tuples = [_tuples(key, factors, field, prior, offsets, unit, along, order, size) for key in keys]
    if fields:
        constants = (order, along.astype(_REAL), float(pair.interval))
        return Frozen(direction, _replace_values, constants, tuples, size * count)
    return Frozen(direction, _mixture_first_values, (order, along.astype(_REAL)), tuples, size * count)


@partial(jax.jit, static_argnames=("size",))
def _tuples(
    key: jax.Array,
    factors: Attraction,
    field: Field | None,
    prior: Renewal,
    offsets: jax.Array,
    unit: tuple[jax.Array, ...],
    along: jax.Array,
    order: int,
    size: int,
) -> tuple[jax.Array, ...]:
    """Noise, moves and counts of tuples, and the part of their log weight that does not depend on C."""
    which, noise = jax.random.split(key)
    counts, log_weight = draw_attracted(which, factors, prior, offsets, order, size, field)
    own, following, energies = unit
    shift = to_rows(counts, own, following)
    energy = _attraction(shift if field is None else shift + field.shift[:, None], counts, energies)
    return *stratified_noise(noise, along, size), counts.astype(_REAL), log_weight - energy


def _attraction(shift: jax.Array, counts: jax.Array, energies: jax.Array) -> jax.Array:
    """Half of |sum of modes|^2 - sum |mode|^2; columns of one pattern are orthogonal."""
    return (jnp.square(shift).sum(axis=(0, 2)) - jnp.einsum("enk,ek->n", counts, energies)) / 2


def _parts(matrices: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """C in blocks, and the squared norms of its columns."""
    width = matrices.shape[2]
    own, following = matrices[:, :width], matrices[:-1, width : 2 * width]
    return own, following, jnp.square(own).sum(axis=1).at[:-1].add(jnp.square(following).sum(axis=1))


def _losses(
    points: jax.Array,
    moves: jax.Array,
    along: jax.Array,
    parts: tuple[jax.Array, ...],
    prior: Renewal,
    side: int = 1,
) -> jax.Array:
    """L at points moved along a unit vector by every row of moves, or (side = -1) at those across the origin."""
    own, following, energies = parts
    columns, image = to_columns(points, own, following), to_columns(along[:, None], own, following)
    halves = energies[:, None] / 2
    losses = jax.lax.map(lambda move: log_mean_renewal(side * (columns + move[:, None] * image) - halves, prior), moves)
    return losses.astype(jnp.float64)


def _mixture_first_values(matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    ((order, along), prior), (normals, moves, counts, log_weight) = constants, block
    parts = own, following, energies = _parts(matrices)
    shift = to_rows(counts, own, following)
    loss = _losses(normals + shift, moves, along, parts, prior)
    weight = jnp.exp(log_weight + _attraction(shift, counts, energies) - order * loss)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)


def _replace_values(matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    ((order, along, interval), prior), (normals, moves, counts, log_weight) = constants, block
    parts = own, following, energies = _parts(matrices)
    mean = own.sum(axis=2).at[1:].add(following.sum(axis=2)) / interval
    shift = to_rows(counts, own, following) + order * mean[:, None]
    points = normals + shift
    level = _losses(points, moves, along, parts, prior)
    loss = level - _losses(points, moves, along, parts, prior, side=-1)
    statistic = level + jnp.einsum("enk,ek->n", points, mean) + moves * (along * mean).sum()
    weight = jnp.exp(log_weight + _attraction(shift, counts, energies) - order * statistic)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)


def _noise_first_values(matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    ((_, along), prior), (normals, moves, log_weight) = constants, block
    loss = _losses(normals, moves, along, _parts(matrices), prior)
    return (jnp.exp(log_weight) * -jnp.expm1(jnp.minimum(epsilon + loss, 0.0))).mean(axis=0)
