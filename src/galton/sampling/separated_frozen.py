"""The quick estimators of min-separation batches, but for noise-first (docs/math.md, section 10.12). Not certified."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from galton.guarantee import Direction
from galton.sampling.base import chunk_key, wide_jax
from galton.sampling.frozen import Estimate
from galton.sampling.patterns import to_rows
from galton.sampling.redrawn_frozen import Tuples, block_size, stratified_tuples, tuple_estimate
from galton.sampling.separated import (
    Attraction,
    Field,
    Mechanism,
    SeparatedModel,
    attraction,
    draw_attracted,
    field_of,
    mechanism,
    offset_blocks,
    usual_order,
)
from galton.separated import SeparatedPair


class FrozenRenewals:
    """Mixture-first, replace: tuples drawn by the tilted sampler of a design, at any noise multiplier near it."""

    def __init__(self, pair: SeparatedPair, direction: Direction, epsilon: float, blocks: int, seed: int) -> None:
        self._order = usual_order(pair, epsilon, direction)
        self._pair = pair
        size, fields = block_size(pair.blocks * pair.separation), self._order if direction is Direction.REPLACE else 0
        self._spread = float(np.linalg.norm(pair.mean_mode)) if fields else None
        with wide_jax():
            unit = mechanism(pair.at(1.0))
            self._along = jnp.asarray(SeparatedModel(pair).along())
            factors, offsets = attraction(pair.reach, pair.noise_multiplier), offset_blocks(pair, self._order, fields)
            field = field_of(pair, fields) if fields else None
            self._blocks = [
                _draw_tuples(
                    chunk_key(seed, direction, index),
                    unit,
                    self._along,
                    factors,
                    field,
                    pair.noise_multiplier,
                    offsets,
                    self._order,
                    size,
                )
                for index in range(blocks)
            ]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        with wide_jax():
            parts = mechanism(self._pair.at(noise_multiplier))
            multipliers = self._pair.noise_multiplier, noise_multiplier
            return tuple_estimate(self._blocks, parts, self._along, multipliers, self._order, epsilon, self._spread)


@partial(jax.jit, static_argnames=("size",))
def _draw_tuples(
    key: jax.Array,
    unit: Mechanism,
    along: jax.Array,
    factors: Attraction,
    field: Field | None,
    design: float,
    offsets: jax.Array,
    order: int,
    size: int,
) -> Tuples:
    which, noise = jax.random.split(key)
    counts, log_weight = draw_attracted(which, factors, unit.prior, offsets, order, size, field)
    shift = to_rows(counts, unit.own, unit.following)
    if field is not None:
        shift = shift + design * field.shift[:, None]
    single = 2 * jnp.einsum("enk,ek->n", counts, unit.halves)
    energy = (jnp.square(shift).sum(axis=(0, 2)) - single) / 2
    return stratified_tuples(noise, along, shift, log_weight, energy)
