"""The noise level for bins redrawn in every epoch, on frozen draws (docs/math.md, section 10.6)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction, Guarantee
from galton.optimization.noise_level import Frozen, NoiseLevel
from galton.redrawn import Reach, RedrawnPair
from galton.sampling.base import chunk_key
from galton.sampling.pattern_samplers import component
from galton.sampling.patterns import log_mean_pattern, to_columns, to_rows
from galton.sampling.redrawn import (
    Attraction,
    Field,
    RedrawnModel,
    attraction,
    draw_attracted,
    field_of,
    kept_patterns,
    mean_half_space,
    tuple_energy,
    usual_order,
)
from galton.sampling.strata import stratified_normals

BLOCK_NORMALS = 1 << 18
"""Normals in a block: few, so that one compiled function serves every number of samples."""
FROZEN_STRATA = 4
"""Points of a draw along the average mode: most of the variance goes, for half as much work again."""
_REAL = jnp.float32


def reach_of(statistic: FloatArray) -> Reach:
    """Reads C from the statistic (epochs, 2 bins + 1, bins): rows of the epoch, rows of the next, and the tail."""
    bins = statistic.shape[2]
    return Reach(
        np.asarray(statistic[:, :bins], np.float64),
        np.asarray(statistic[:-1, bins : 2 * bins], np.float64),
        np.asarray(statistic[:, -1], np.float64),
    )


class PatternLevel(NoiseLevel):
    """The statistic is C in blocks of an epoch.

    Mixture-first and replace draw tuples of patterns by the tilted sampler, noise-first shifts noise against the
    average mode; all are designed for the given C and noise, and then frozen.

    Args:
      statistic: C at the design, at noise of standard deviation 1.
      log_sigma: log sigma near the solution there.
      guarantee: the guarantee that sigma has to meet.
      samples: draws per direction.
      seed: of the draws.
    """

    power: ClassVar[int] = 1

    def __init__(self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, samples: int, seed: int) -> None:
        pair = RedrawnPair(reach_of(statistic * math.exp(-log_sigma)))
        frozen = [_freeze(pair, direction, guarantee.epsilon, samples, seed) for direction in guarantee.directions]
        super().__init__(statistic, log_sigma, guarantee, frozen)

    def _log_delta(self, frozen: Frozen, scaled: FloatArray) -> tuple[float, FloatArray]:
        return log_delta_and_gradient(frozen, scaled, frozen.constants, self.epsilon)

    def _log_delta_value(self, frozen: Frozen, scaled: FloatArray) -> float:
        return log_delta_alone(frozen, scaled, frozen.constants, self.epsilon)


def log_delta_and_gradient(
    frozen: Frozen, scaled: FloatArray, constants: Any, epsilon: float
) -> tuple[float, FloatArray]:
    """Returns log delta on frozen draws, and its gradient in C."""
    matrices, total, gradient = jnp.asarray(scaled, _REAL), 0.0, jnp.zeros(scaled.shape, _REAL)
    for block in frozen.blocks:
        value, slope = _sum_and_gradient(frozen.kernel, matrices, constants, block, epsilon)
        total, gradient = total + float(value), gradient + slope
    if not total > 0:
        return -math.inf, np.zeros_like(scaled)
    return math.log(total / frozen.samples), np.asarray(gradient, np.float64) / total


def log_delta_alone(frozen: Frozen, scaled: FloatArray, constants: Any, epsilon: float) -> float:
    """Returns log delta on frozen draws."""
    matrices = jnp.asarray(scaled, _REAL)
    total = sum(float(_sum(frozen.kernel, matrices, constants, block, epsilon)) for block in frozen.blocks)
    return math.log(total / frozen.samples) if total > 0 else -math.inf


def _freeze(pair: RedrawnPair, direction: Direction, epsilon: float, samples: int, seed: int) -> Frozen:
    shape = (pair.epochs, pair.bins)
    size = min(samples, max(32, 1 << ((BLOCK_NORMALS // math.prod(shape)).bit_length() - 1)))
    count = -(-samples // size)
    keys = [chunk_key(seed, direction, index) for index in range(count)]
    if direction is Direction.NOISE_FIRST:
        space = mean_half_space(pair, epsilon)
        shift = max(0.0, -space.usual_depth)
        along = jnp.asarray(space.along)
        blocks = [shifted_noise(key, along, shift, size) for key in keys]
        return Frozen(direction, _noise_first_values, along.astype(_REAL), blocks, size * count)
    order, along = usual_order(pair, epsilon, direction), jnp.asarray(RedrawnModel(pair).along())
    factors, reach = attraction(pair.reach, 1.0), pair.reach
    field = field_of(reach, 1.0, order) if direction is Direction.REPLACE else None
    energies = jnp.asarray(reach.energies + 2 * reach.tail_products)
    unit = (jnp.asarray(reach.own), jnp.asarray(reach.following), jnp.asarray(reach.tail))
    tuples = [
        _tuples(
            key, factors, field, energies, jnp.asarray(reach.overlap), unit, along, order, kept_patterns(order), size
        )
        for key in keys
    ]
    kernel = _mixture_first_values if field is None else _replace_values
    return Frozen(direction, kernel, (order, along.astype(_REAL)), tuples, size * count)


@partial(jax.jit, static_argnames=("size",))
def shifted_noise(key: jax.Array, along: jax.Array, shift: float, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Noise, by how much it is moved along the average mode of the design in each stratum, and the weights there."""
    for_noise, for_depths = jax.random.split(key)
    normals = jax.random.normal(for_noise, (along.shape[0], size, along.shape[1]), _REAL)
    depths = stratified_normals(for_depths, size, FROZEN_STRATA)
    moves = depths - shift - component(normals.astype(jnp.float64), along)
    return normals, moves.astype(_REAL), shift * depths - shift**2 / 2


def stratified_noise(key: jax.Array, along: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Noise, and by how much it is moved along the average mode of the design in each stratum."""
    normals, moves, _ = shifted_noise(key, along, 0.0, size)
    return normals, moves


@partial(jax.jit, static_argnames=("kept", "size"))
def _tuples(
    key: jax.Array,
    factors: Attraction,
    field: Field | None,
    energies: jax.Array,
    overlap: jax.Array,
    unit: tuple[jax.Array, ...],
    along: jax.Array,
    order: int,
    kept: int,
    size: int,
) -> tuple[jax.Array, ...]:
    """Noise and moves, counts and patterns of tuples, and the part of their log weight that does not depend on C."""
    which, noise = jax.random.split(key)
    own, following, tail = unit
    counts, log_weight, patterns = draw_attracted(which, factors, order, size, kept, field=field)
    shift = to_rows(counts, own, following) + (1 + order) * tail[:, None]
    if field is not None:
        shift = shift + field.shift[:, None]
    energy = tuple_energy(shift, patterns, order, energies, overlap, jnp.square(tail).sum())
    return *stratified_noise(noise, along, size), counts.astype(_REAL), patterns, log_weight - energy


@partial(jax.jit, static_argnames=("kernel",))
def _sum_and_gradient(
    kernel: Any, matrices: jax.Array, constants: Any, block: Any, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(lambda matrices: kernel(matrices, constants, block, epsilon).sum())(matrices)


@partial(jax.jit, static_argnames=("kernel",))
def _sum(kernel: Any, matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    return kernel(matrices, constants, block, epsilon).sum()


def _parts(matrices: jax.Array) -> tuple[jax.Array, ...]:
    """C in blocks, squared norms of its columns, their overlaps, and their products with the tail."""
    bins = matrices.shape[2]
    own, following, tail = matrices[:, :bins], matrices[:-1, bins : 2 * bins], matrices[:, -1]
    energies = jnp.square(own).sum(axis=1).at[:-1].add(jnp.square(following).sum(axis=1))
    overlap = jnp.einsum("eki,ekj->eij", following, own[1:])
    products = jnp.einsum("ekj,ek->ej", own, tail)
    products = products.at[:-1].add(jnp.einsum("ekj,ek->ej", following, tail[1:]))
    return own, following, tail, energies, overlap, products


def _losses(
    points: jax.Array, moves: jax.Array, along: jax.Array, parts: tuple[jax.Array, ...], side: int = 1
) -> jax.Array:
    """L at points moved along a unit vector by every row of moves, or (side = -1) at those across the origin."""
    own, following, tail, energies, overlap, products = parts
    columns, offsets = to_columns(points, own, following), (energies / 2 + products)[:, None]
    shared, half = jnp.einsum("enk,ek->n", points, tail), jnp.square(tail).sum() / 2
    image, gain = to_columns(along[:, None], own, following), (along * tail).sum()
    repulsion = jnp.exp(-overlap)

    def stratum(move: jax.Array) -> jax.Array:
        fields = side * (columns + move[:, None] * image) - offsets
        return log_mean_pattern(fields, repulsion) + side * (shared + move * gain) - half

    return jax.lax.map(stratum, moves).astype(jnp.float64)


def _mixture_first_values(matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    (order, along), (normals, moves, counts, patterns, log_weight) = constants, block
    parts = _parts(matrices)
    own, following, tail, energies, overlap, products = parts
    shift = to_rows(counts, own, following) + (1 + order) * tail[:, None]
    energy = tuple_energy(shift, patterns, order, energies + 2 * products, overlap, jnp.square(tail).sum())
    loss = _losses(normals + shift, moves, along, parts)
    weight = jnp.exp(log_weight + energy - order * loss)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)


def _noise_first_values(matrices: jax.Array, along: Any, block: Any, epsilon: float) -> jax.Array:
    normals, moves, log_weight = block
    loss = _losses(normals, moves, along, _parts(matrices))
    return (jnp.exp(log_weight) * -jnp.expm1(jnp.minimum(epsilon + loss, 0.0))).mean(axis=0)


def _replace_values(matrices: jax.Array, constants: Any, block: Any, epsilon: float) -> jax.Array:
    (order, along), (normals, moves, counts, patterns, log_weight) = constants, block
    parts = _parts(matrices)
    own, following, tail, energies, overlap, products = parts
    mean = (own.mean(axis=2) + tail).at[1:].add(following.mean(axis=2))
    shift = to_rows(counts, own, following) + (1 + order) * tail[:, None] + order * mean[:, None]
    energy = tuple_energy(shift, patterns, order, energies + 2 * products, overlap, jnp.square(tail).sum())
    points = normals + shift
    level = _losses(points, moves, along, parts)
    loss = level - _losses(points, moves, along, parts, side=-1)
    statistic = level + jnp.einsum("enk,ek->n", points, mean) + moves * (along * mean).sum()
    weight = jnp.exp(log_weight + energy - order * statistic)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)
