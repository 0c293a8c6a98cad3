"""How bins redrawn in every epoch are sampled (docs/math.md, section 10): the model behind `pattern_samplers`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import count as numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import InvalidArgument
from galton.guarantee import Direction
from galton.pair import ROUNDOFF
from galton.redrawn import Reach, RedrawnPair
from galton.sampling.base import Slack
from galton.sampling.normals import ERROR, lost_probability
from galton.sampling.pattern_bound import PatternBound
from galton.sampling.pattern_samplers import (
    HOPELESS,
    MAX_ORDER,
    MeanHalfSpace,
    PatternHalfSpaceSampler,
    PatternModel,
    PatternPlainSampler,
    PatternTiltedSampler,
)
from galton.sampling.patterns import draw_patterns, log_mean_pattern, one_hot, to_columns, to_rows, uniform_patterns
from galton.sampling.slack import UNLIKELY, norm_bound

_NO_UNDERFLOW = 700.0
"""Fields of an epoch that differ by less than this never underflow when they are exponentiated."""


class Mechanism(NamedTuple):
    """C in force and what follows from it, as JAX arrays in float64."""

    own: jax.Array
    following: jax.Array
    tail: jax.Array
    offsets: jax.Array
    repulsion: jax.Array
    tail_half: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """Epochs and bins."""
        return self.offsets.shape[0], self.offsets.shape[1]

    def loss(self, points: jax.Array) -> jax.Array:
        """Returns L = log dP/dQ at points of shape (epochs, samples, bins)."""
        fields = to_columns(points, self.own, self.following) - self.offsets[:, None]
        shared = jnp.einsum("enk,ek->n", points, self.tail, precision=jax.lax.Precision.HIGHEST) - self.tail_half
        return log_mean_pattern(fields, self.repulsion) + shared

    def draw_mode(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws modes from the prior."""
        epochs, bins = self.shape
        counts = one_hot(uniform_patterns(key, samples, epochs, bins), bins)
        return to_rows(counts, self.own, self.following) + self.tail[:, None]


def mechanism(reach: Reach, noise_multiplier: float) -> Mechanism:
    """Returns C in force; call inside `wide_jax()`."""
    square = noise_multiplier**2
    return Mechanism(
        jnp.asarray(reach.own / noise_multiplier),
        jnp.asarray(reach.following / noise_multiplier),
        jnp.asarray(reach.tail / noise_multiplier),
        jnp.asarray((reach.energies / 2 + reach.tail_products) / square),
        jnp.asarray(np.exp(-reach.overlap / square)),
        jnp.asarray(reach.tail_energy / 2 / square),
    )


@lru_cache(maxsize=16)
def pattern_bound(reach: Reach) -> PatternBound:
    """Returns the bound for this C, whose points are kept as long as it is in use."""
    return PatternBound(reach)


def usual_order(pair: RedrawnPair, epsilon: float) -> int:
    """Returns about the order of `best_tilt`, judged by one pattern in the middle of the epochs: quick."""
    square, middle = pair.noise_multiplier**2, pair.bins // 2
    fields = (pair.reach.gram[:, middle] + pair.reach.tail_products) / square
    shared = float(pair.reach.tail_products[:, middle].sum() + pair.reach.tail_energy) / square
    best, order, attraction = math.inf, 1, 0.0
    while order < MAX_ORDER:
        peaks = order * fields.max(axis=1)
        means = np.exp(order * fields - peaks[:, None]).mean(axis=1)
        attraction += float((peaks + np.log(means)).sum()) + order * shared
        log_range = order * math.log(order) - (1 + order) * math.log(1 + order) + attraction - order * epsilon
        if not log_range < best:
            break
        best, order = log_range, order + 1
    return max(1, order - 1)


def kept_patterns(order: int) -> int:
    """Returns how many patterns of a tuple to keep: all, rounded up so that few sizes are compiled."""
    return -(-(order + 1) // 16) * 16


def tuple_energy(
    shift: jax.Array,
    patterns: jax.Array,
    order: jax.Array | int,
    energies: jax.Array,
    overlap: jax.Array,
    tail_energy: jax.Array,
) -> jax.Array:
    """Returns half of |sum of modes|^2 - sum |mode|^2: how much the modes of a tuple attract each other.

    Args:
      shift: (epochs, samples, bins), the sum of the modes.
      patterns: (kept, epochs, samples), of which the first 1 + `order` count.
      order: of the tilt.
      energies: (epochs, bins), squared norms of the columns, and twice their products with the tail.
      overlap: (epochs - 1, bins, bins), products of columns of neighbouring epochs.
      tail_energy: squared norm of the tail.
    """
    each = jnp.arange(energies.shape[0])[:, None]
    single = energies[each, patterns].sum(axis=1) + tail_energy
    single = single + 2 * overlap[each[:-1], patterns[:, :-1], patterns[:, 1:]].sum(axis=1)
    counted = (jnp.arange(patterns.shape[0]) <= order)[:, None]
    return (jnp.square(shift).sum(axis=(0, 2)) - jnp.where(counted, single, 0.0).sum(axis=0)) / 2


class Attraction(NamedTuple):
    """How much more likely a bin becomes for each bin of the patterns before it: factors, divided by their largest.

    Attributes:
      own: (epochs, bins, bins), by a bin of the same epoch; the tail's part included.
      later: (epochs - 1, bins, bins), of a bin of the next epoch (last index).
      earlier: (epochs - 1, bins, bins), of a bin of this epoch (last index) by one of the next.
      log_scale: logarithm of what all factors of a sample were divided by, in one step.
      tail_products: (epochs, bins), products of columns and tail.
      tail_energy: squared norm of the tail.
    """

    own: jax.Array
    later: jax.Array
    earlier: jax.Array
    log_scale: jax.Array
    tail_products: jax.Array
    tail_energy: jax.Array


def attraction(reach: Reach, noise_multiplier: float) -> Attraction:
    """Returns the factors; call inside `wide_jax()`."""
    square = noise_multiplier**2
    own = (reach.gram + reach.tail_products[:, None, :]) / square
    across = reach.overlap / square
    peak, across_peak = float(own.max()), float(across.max(initial=0.0))
    factors = np.exp(across - across_peak)
    return Attraction(
        jnp.asarray(np.exp(own - peak)),
        jnp.asarray(factors),
        jnp.asarray(np.ascontiguousarray(factors.transpose(0, 2, 1))),
        jnp.asarray(reach.epochs * peak + 2 * (reach.epochs - 1) * across_peak),
        jnp.asarray(reach.tail_products / square),
        jnp.asarray(reach.tail_energy / square),
    )


def draw_attracted(
    key: jax.Array, factors: Attraction, order: jax.Array | int, samples: int, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws 1 + `order` patterns a sample, each attracted by those before it.

    Returns:
      How often each round was drawn, (epochs, samples, bins); the logarithm of prod F_l; and the bins of the first
      `most` patterns, at least 1, (most, epochs, samples).
    """
    epochs, bins = factors.tail_products.shape
    first, rest = jax.random.split(key)
    each = jnp.arange(epochs)[:, None]

    def extend(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        chosen, counts, weights, level, log_weight, kept = state
        weights = weights * factors.own[each, chosen]
        weights = weights.at[1:].multiply(factors.later[each[:-1], chosen[:-1]])
        weights = weights.at[:-1].multiply(factors.earlier[each[:-1], chosen[1:]])
        shared = factors.tail_products[each, chosen].sum(axis=0) + factors.tail_energy
        chosen, means = draw_patterns(jax.random.fold_in(rest, index), weights)
        level = level + jnp.log(means).sum(axis=0) + factors.log_scale + shared
        kept = kept.at[index].set(chosen, mode="drop")
        return chosen, counts + one_hot(chosen, bins), weights / means[..., None], level, log_weight + level, kept

    chosen = uniform_patterns(first, samples, epochs, bins)
    kept = jnp.zeros((most, epochs, samples), chosen.dtype).at[0].set(chosen)
    nothing = jnp.zeros(samples)
    start = (chosen, one_hot(chosen, bins), jnp.ones((epochs, samples, bins)), nothing, nothing, kept)
    _, counts, _, _, log_weight, kept = jax.lax.fori_loop(1, order + 1, extend, start)
    return counts, log_weight, kept


class TiltedMechanism(NamedTuple):
    """C in force, and how its patterns attract each other."""

    mechanism: Mechanism
    factors: Attraction

    @property
    def shape(self) -> tuple[int, int]:
        """Epochs and bins."""
        return self.mechanism.shape

    def loss(self, points: jax.Array) -> jax.Array:
        """Returns L = log dP/dQ at points of shape (epochs, samples, bins)."""
        return self.mechanism.loss(points)

    def draw_mode(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws modes from the prior."""
        return self.mechanism.draw_mode(key, samples)

    def draw_modes(self, key: jax.Array, order: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
        """Draws sums of 1 + `order` modes, each attracted by those before it, and the logarithm of prod F_l."""
        parts = self.mechanism
        counts, log_weight, _ = draw_attracted(key, self.factors, order, samples, 1)
        return to_rows(counts, parts.own, parts.following) + (1 + order) * parts.tail[:, None], log_weight


class RedrawnModel(PatternModel):
    """Bins redrawn in every epoch: a block is an epoch."""

    def __init__(self, pair: RedrawnPair) -> None:
        self._pair = pair
        self.shape = (pair.epochs, pair.bins)
        self.largest = pair.mu_upper
        self.mean_mode = pair.reach.mean_mode / pair.noise_multiplier
        self.mean_energy = pair.reach.mean_energy / pair.noise_multiplier**2

    def refuse(self, direction: Direction) -> None:
        refuse_replace(direction)

    def parts(self) -> Mechanism:
        return mechanism(self._pair.reach, self._pair.noise_multiplier)

    def tilted_parts(self, order: int) -> TiltedMechanism:
        return TiltedMechanism(self.parts(), attraction(self._pair.reach, self._pair.noise_multiplier))

    def slack(self, order: int, dtype: str, moved: float = 0.0) -> Slack:
        """docs/math.md, section 10.5."""
        (epochs, bins), largest = self.shape, self.largest
        rounds = epochs * bins
        rho = norm_bound(rounds)
        reach = rho + (order + 1) * largest + moved
        column = math.sqrt(float(self._pair.reach.energies.max())) / self._pair.noise_multiplier
        if 2 * (column * reach + 2 * largest**2) > _NO_UNDERFLOW:
            return Slack(HOPELESS, 1.0)
        error = largest * ERROR[dtype] * (rho + math.sqrt(rounds))
        gamma = 4 * (2 * bins + rounds + epochs + 64) * ROUNDOFF
        error += gamma * (largest * reach + (order + 2) * largest**2)
        error += 4 * epochs * (2 * bins + 8 * order + epochs * math.log(bins + 1) + 64) * ROUNDOFF
        return Slack(1.01 * error, lost_probability(rounds) + UNLIKELY)

    def lost_choices(self, order: int) -> float:
        epochs, bins = self.shape
        return 8 * epochs * (order + 1) * (bins + 4 * order + 16) * ROUNDOFF

    def attraction(self) -> Iterator[tuple[float, float]]:
        bound, square = pattern_bound(self._pair.reach), self._pair.noise_multiplier**2
        for order in numbers(1):
            margin = 1e-9 + (order + 1) ** 2 * 8 * (self.shape[1] + 64) * ROUNDOFF * self.largest**2
            yield bound(order / square), margin


def mean_half_space(pair: RedrawnPair, epsilon: float) -> MeanHalfSpace:
    """Returns the half-space outside of which noise-first values are zero, for this epsilon."""
    return RedrawnModel(pair).half_space(epsilon)


class RedrawnPlainSampler(PatternPlainSampler):
    """Draws from the first distribution of the pair; R = 1."""

    def __init__(self, pair: RedrawnPair, direction: Direction, dtype: str | None = None) -> None:
        super().__init__(RedrawnModel(pair), direction, dtype)


class RedrawnTiltedSampler(PatternTiltedSampler):
    """Draws 1 + t patterns, attracted to each other, and a point around the sum of their modes; range R_t."""

    def __init__(
        self,
        pair: RedrawnPair,
        direction: Direction,
        epsilon: float,
        order: int | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(RedrawnModel(pair), direction, epsilon, order, dtype)


class RedrawnHalfSpaceSampler(PatternHalfSpaceSampler):
    """Draws noise within the half-space outside of which the value is zero."""

    def __init__(self, pair: RedrawnPair, epsilon: float, deep: float | None = None, dtype: str | None = None) -> None:
        super().__init__(RedrawnModel(pair), epsilon, deep, dtype)


def refuse_replace(direction: Direction) -> None:
    """Raises `InvalidArgument` for replace adjacency, for which there is no tilt yet."""
    if direction is Direction.REPLACE:
        raise InvalidArgument(
            "adjacency", "replace", "is not covered for bins redrawn in every epoch; take add-or-remove or zero-out"
        )
