"""The quick estimators for pairs with patterns: delta on frozen draws (docs/math.md, sections 10.6 and 10.12).

Not certified: they steer `calibrate`, `epsilon` and the optimiser, whose results are then bounded on fresh samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.guarantee import Direction
from galton.redrawn import RedrawnPair
from galton.sampling.base import chunk_key, wide_jax
from galton.sampling.frozen import Estimate, estimate_from
from galton.sampling.normals import standard_normals
from galton.sampling.pattern_samplers import (
    STRATA,
    Parts,
    PatternModel,
    component,
    mirrored_losses,
    moved_losses,
)
from galton.sampling.redrawn import (
    Attraction,
    Field,
    Mechanism,
    RedrawnModel,
    attraction,
    draw_attracted,
    field_of,
    kept_patterns,
    mechanism,
    tuple_energy,
    usual_order,
)
from galton.sampling.strata import stratified_normals

_NORMALS = 1 << 20
"""Normals in a block."""


def block_size(rounds: int) -> int:
    """Returns the samples of a block: fewer where a sample has more rounds."""
    return max(64, min(1 << 12, 1 << ((_NORMALS // rounds).bit_length() - 1)))


class Tuples(NamedTuple):
    """Frozen draws of one block, for C at noise multiplier 1.

    Attributes:
      noise: (epochs, samples, bins).
      moves: (strata, samples), by which points differ along the average mode.
      shift: (epochs, samples, bins), the sum of the modes.
      log_weight: of the design.
      energy: half of |sum of modes|^2 - sum |mode|^2, by which the weight depends on the noise multiplier.
    """

    noise: jax.Array
    moves: jax.Array
    shift: jax.Array
    log_weight: jax.Array
    energy: jax.Array


class FrozenPatterns:
    """Mixture-first, replace: tuples drawn by the tilted sampler of a design, at any noise multiplier near it."""

    def __init__(self, pair: RedrawnPair, direction: Direction, epsilon: float, blocks: int, seed: int) -> None:
        self._order = usual_order(pair, epsilon, direction)
        self._design, self._reach = pair.noise_multiplier, pair.reach
        size, replace = block_size(pair.epochs * pair.bins), direction is Direction.REPLACE
        self._spread = float(np.linalg.norm(pair.reach.mean_mode)) if replace else None
        with wide_jax():
            unit = mechanism(pair.reach, 1.0)
            self._along = jnp.asarray(RedrawnModel(pair).along())
            factors = attraction(pair.reach, pair.noise_multiplier)
            field = field_of(pair.reach, self._design, self._order) if replace else None
            overlap = jnp.asarray(pair.reach.overlap)
            energies = jnp.asarray(pair.reach.energies + 2 * pair.reach.tail_products)
            self._blocks = [
                _draw_tuples(
                    chunk_key(seed, direction, index),
                    unit,
                    self._along,
                    factors,
                    field,
                    self._design,
                    energies,
                    overlap,
                    self._order,
                    kept_patterns(self._order),
                    size,
                )
                for index in range(blocks)
            ]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        with wide_jax():
            parts = mechanism(self._reach, noise_multiplier)
            multipliers = self._design, noise_multiplier
            return tuple_estimate(self._blocks, parts, self._along, multipliers, self._order, epsilon, self._spread)


@partial(jax.jit, static_argnames=("kept", "size"))
def _draw_tuples(
    key: jax.Array,
    unit: Mechanism,
    along: jax.Array,
    factors: Attraction,
    field: Field | None,
    design: float,
    energies: jax.Array,
    overlap: jax.Array,
    order: int,
    kept: int,
    size: int,
) -> Tuples:
    which, noise = jax.random.split(key)
    counts, log_weight, patterns = draw_attracted(which, factors, order, size, kept, field=field)
    shift = unit.rows(counts) + (1 + order) * unit.tail[:, None]
    if field is not None:
        shift = shift + design * field.shift[:, None]
    energy = tuple_energy(shift, patterns, order, energies, overlap, 2 * unit.tail_half)
    return stratified_tuples(noise, along, shift, log_weight, energy)


def stratified_tuples(
    key: jax.Array, along: jax.Array, shift: jax.Array, log_weight: jax.Array, energy: jax.Array
) -> Tuples:
    """Draws the noise of tuples."""
    for_noise, for_depths = jax.random.split(key)
    noise = standard_normals(for_noise, shift.shape, jnp.float64)
    moves = stratified_normals(for_depths, shift.shape[1], STRATA) - component(noise, along)
    return Tuples(noise, moves, shift, log_weight, energy)


def tuple_estimate(
    blocks: list[Tuples],
    parts: Parts,
    along: jax.Array,
    multipliers: tuple[float, float],
    order: int,
    epsilon: float,
    spread: float | None = None,
) -> Estimate:
    """Returns the estimate on frozen tuples, moved from the first noise multiplier (the design) to the second.

    Args:
      blocks: of tuples.
      parts: C at the second noise multiplier.
      along: the direction in which points of a tuple differ.
      multipliers: the two.
      order: of the tilt.
      epsilon: where delta is wanted.
      spread: the norm of the average mode at noise multiplier 1, for replace.
    """
    design, here = multipliers
    change = here**-2 - design**-2
    if spread is not None:
        values = [_mirrored_values(block, parts, along, here, change, order, epsilon, spread) for block in blocks]
    else:
        values = [_tuple_values(block, parts, along, here, change, order, epsilon) for block in blocks]
    return estimate_from(values)


@jax.jit
def _tuple_values(
    block: Tuples, parts: Any, along: jax.Array, multiplier: float, change: float, order: int, epsilon: float
) -> jax.Array:
    loss = moved_losses(parts, block.noise + block.shift / multiplier, along, block.moves)
    weight = jnp.exp(block.log_weight + block.energy * change - order * loss)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)


@jax.jit
def _mirrored_values(
    block: Tuples,
    parts: Any,
    along: jax.Array,
    multiplier: float,
    change: float,
    order: int,
    epsilon: float,
    spread: float,
) -> jax.Array:
    points = block.noise + block.shift / multiplier
    loss, statistic = mirrored_losses(parts, points, along, block.moves, spread / multiplier)
    weight = jnp.exp(block.log_weight + block.energy * change - order * statistic)
    return (weight * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))).mean(axis=0)


class FrozenDepths:
    """Noise-first: noise shifted against the average mode, to about where the loss is -epsilon at the design.

    Args:
      model: model(noise multiplier) returns how the pair is sampled there.
      design: the noise multiplier near which the estimate is wanted.
      epsilon: the same for epsilon.
      blocks: blocks of samples.
      seed: of the draws.
    """

    def __init__(
        self, model: Callable[[float], PatternModel], design: float, epsilon: float, blocks: int, seed: int
    ) -> None:
        space, (width, rounds) = model(design).half_space(epsilon), model(design).shape
        self._model, self._shift = model, max(0.0, -space.usual_depth)
        shape = (width, block_size(width * rounds), rounds)
        with wide_jax():
            self._along = jnp.asarray(space.along)
            keys = [chunk_key(seed, Direction.NOISE_FIRST, index) for index in range(blocks)]
            self._blocks = [_noise(key, self._along, shape) for key in keys]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        with wide_jax():
            parts = self._model(noise_multiplier).parts()
            return estimate_from(
                [_depth_values(block, self._along, parts, self._shift, epsilon) for block in self._blocks]
            )


@partial(jax.jit, static_argnames=("shape",))
def _noise(key: jax.Array, along: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Noise across the average mode, and along it in every stratum."""
    for_noise, for_depths = jax.random.split(key)
    noise = standard_normals(for_noise, shape, jnp.float64)
    across = noise - component(noise, along)[:, None] * along[:, None]
    return across, stratified_normals(for_depths, shape[1], STRATA)


@jax.jit
def _depth_values(
    block: tuple[jax.Array, jax.Array], along: jax.Array, parts: Any, shift: float, epsilon: float
) -> jax.Array:
    across, depths = block
    loss = moved_losses(parts, across, along, depths - shift)
    weight = jnp.exp(shift * depths - shift**2 / 2)
    return (weight * -jnp.expm1(jnp.minimum(epsilon + loss, 0.0))).mean(axis=0)
