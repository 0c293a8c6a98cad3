"""Samplers for bins redrawn in every epoch (docs/math.md, section 10).

A point x has one coordinate a round. Normals are drawn in float32 where that keeps the slack small; all else is
computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument, count
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction
from galton.pair import ROUNDOFF
from galton.redrawn import Reach, RedrawnPair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, wide_jax
from galton.sampling.depths import DEPTHS_LOST, Depths, choose_depths, draw_depths
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST, FARTHEST, SHALLOW_LOST, SHALLOWEST
from galton.sampling.normals import ERROR, lost_probability, standard_normals
from galton.sampling.pattern_bound import PatternBound
from galton.sampling.patterns import draw_patterns, log_mean_pattern, one_hot, to_columns, to_rows, uniform_patterns
from galton.sampling.slack import UNLIKELY, choose_dtype, norm_bound

MAX_ORDER = 4096
HOPELESS = 1e6
"""Slack in epsilon where float64 cannot tell: every limit is then trivial, and valid."""
_NO_UNDERFLOW = 700.0
"""Fields of an epoch that differ by less than this never underflow when they are exponentiated."""
_BLOCK = 1 << 20
"""Normals drawn at a time."""
_SHALLOWER = 0.3
"""Samples of the half-space are often drawn from so far above the depth where the loss is -epsilon on average."""


class Mechanism(NamedTuple):
    """C in force and what follows from it, as JAX arrays in float64."""

    own: jax.Array
    following: jax.Array
    tail: jax.Array
    offsets: jax.Array
    repulsion: jax.Array
    tail_half: jax.Array


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


def privacy_loss(points: jax.Array, parts: Mechanism) -> jax.Array:
    """Returns L = log dP/dQ at points of shape (epochs, samples, bins)."""
    fields = to_columns(points, parts.own, parts.following) - parts.offsets[:, None]
    shared = jnp.einsum("enk,ek->n", points, parts.tail, precision=jax.lax.Precision.HIGHEST) - parts.tail_half
    return log_mean_pattern(fields, parts.repulsion) + shared


def pattern_slack(pair: RedrawnPair, order: int, dtype: str, moved: float = 0.0) -> Slack:
    """Bounds the error of L (docs/math.md, section 10.5) at points moved by `order` + 1 modes, or by `moved`."""
    epochs, bins = pair.epochs, pair.bins
    rounds, largest = epochs * bins, pair.mu_upper
    rho = norm_bound(rounds)
    reach = rho + (order + 1) * largest + moved
    column = math.sqrt(float(pair.reach.energies.max())) / pair.noise_multiplier
    if 2 * (column * reach + 2 * largest**2) > _NO_UNDERFLOW:
        return Slack(HOPELESS, 1.0)
    error = largest * ERROR[dtype] * (rho + math.sqrt(rounds))
    gamma = 4 * (2 * bins + rounds + epochs + 64) * ROUNDOFF
    error += gamma * (largest * reach + (order + 2) * largest**2)
    error += 4 * epochs * (2 * bins + 8 * order + epochs * math.log(bins + 1) + 64) * ROUNDOFF
    return Slack(1.01 * error, lost_probability(rounds) + UNLIKELY)


def _layout(pair: RedrawnPair, most_blocks: int) -> Layout:
    block = max(32, min(1 << 11, _BLOCK // (pair.epochs * pair.bins)))
    return Layout(1 << (block.bit_length() - 1), most_blocks)


@lru_cache(maxsize=16)
def pattern_bound(reach: Reach) -> PatternBound:
    """Returns the bound for this C, whose points are kept as long as it is in use."""
    return PatternBound(reach)


@dataclass(frozen=True)
class PatternTilt:
    """The order t of a tilt, and the logarithm of a bound on exp(t eps) V."""

    order: int
    log_bound: float

    def log_range(self, epsilon: float) -> float:
        """Returns log R_t, the range of V at this epsilon and by itself an upper bound on delta."""
        return self.log_bound - self.order * epsilon


def pattern_tilts(pair: RedrawnPair) -> Iterator[PatternTilt]:
    """Yields the tilts of order 1, 2, ..., as long as there is a bound."""
    bound, square = pattern_bound(pair.reach), pair.noise_multiplier**2
    attraction = 0.0
    for order in range(1, MAX_ORDER + 1):
        attraction += bound(order / square)
        margin = 1e-9 + (order + 1) ** 2 * 8 * (pair.bins + 64) * ROUNDOFF * pair.mu_upper**2
        shape = order * math.log(order) - (1 + order) * math.log(1 + order)
        yield PatternTilt(order, shape + attraction + margin)


def best_pattern_tilt(pair: RedrawnPair, epsilon: float) -> PatternTilt:
    """Returns the tilt with the smallest range: log R_t is convex in t, and is climbed down order by order."""
    tilts = pattern_tilts(pair)
    best = next(tilts)
    for further in tilts:
        if not further.log_range(epsilon) < best.log_range(epsilon):
            break
        best = further
    return best


def usual_order(pair: RedrawnPair, epsilon: float) -> int:
    """Returns about the order of `best_pattern_tilt`, judged by one pattern in the middle of the epochs: quick."""
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


class RedrawnPlainSampler(Sampler):
    """Draws from the first distribution of the pair; R = 1."""

    name: ClassVar[str] = "plain"

    def __init__(self, pair: RedrawnPair, direction: Direction, dtype: str | None = None) -> None:
        refuse_replace(direction)
        self.direction = direction
        self.dtype = dtype or choose_dtype(lambda name: pattern_slack(pair, 0, name))
        self.slack = pattern_slack(pair, 0, self.dtype)
        self.layout = _layout(pair, 8)
        with wide_jax():
            self._parts = mechanism(pair.reach, pair.noise_multiplier)

    def _range_at(self, epsilon: float) -> float:
        return 1.0

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss = np.asarray(_plain_losses(keys, self._parts, self.direction, self.dtype, self.layout))
        return Draw(loss, np.broadcast_to(0.0, loss.shape))


@partial(jax.jit, static_argnames=("direction", "dtype", "layout"))
def _plain_losses(keys: jax.Array, parts: Mechanism, direction: Direction, dtype: str, layout: Layout) -> jax.Array:
    epochs, bins = parts.offsets.shape

    def block(key: jax.Array) -> jax.Array:
        which, noise = jax.random.split(key)
        points = _normals(noise, layout.block, epochs, bins, dtype)
        if direction is Direction.NOISE_FIRST:
            return -privacy_loss(points, parts)
        counts = one_hot(uniform_patterns(which, layout.block, epochs, bins), bins)
        return privacy_loss(points + to_rows(counts, parts.own, parts.following) + parts.tail[:, None], parts)

    return jax.lax.map(block, keys).ravel()


def _normals(key: jax.Array, samples: int, epochs: int, bins: int, dtype: str) -> jax.Array:
    return standard_normals(key, (epochs, samples, bins), jnp.dtype(dtype)).astype(jnp.float64)


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


class RedrawnTiltedSampler(Sampler):
    """Draws 1 + t patterns, attracted to each other, and a point around the sum of their modes; range R_t."""

    name: ClassVar[str] = "tilted"

    def __init__(
        self,
        pair: RedrawnPair,
        direction: Direction,
        epsilon: float,
        order: int | None = None,
        dtype: str | None = None,
    ) -> None:
        refuse_replace(direction)
        if direction is Direction.NOISE_FIRST:
            raise InvalidArgument("direction", direction.value, "has no tilt; the half-space sampler is for it")
        self.direction = direction
        if order is None:
            self.tilt = best_pattern_tilt(pair, epsilon)
        else:
            count("order", order, at_most=MAX_ORDER)
            self.tilt = next(islice(pattern_tilts(pair), order - 1, None))
        self.order = self.tilt.order

        def slack(name: str) -> Slack:
            rounding = pattern_slack(pair, self.order, name)
            choices = 8 * pair.epochs * (self.order + 1) * (pair.bins + 4 * self.order + 16) * ROUNDOFF
            return Slack(rounding.epsilon, rounding.lost + choices)

        self.dtype = dtype or choose_dtype(slack, self.order)
        self.slack = slack(self.dtype)
        self.layout = _layout(pair, 4)
        with wide_jax():
            self._parts = mechanism(pair.reach, pair.noise_multiplier)
            self._factors = attraction(pair.reach, pair.noise_multiplier)

    def _range_at(self, epsilon: float) -> float:
        return math.exp(min(self.tilt.log_range(epsilon), 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight = _tilted_losses(keys, self._parts, self._factors, self.order, self.dtype, self.layout)
            losses = np.asarray(loss)
            return Draw(losses, np.asarray(log_weight) - self.order * losses)


@partial(jax.jit, static_argnames=("dtype", "layout"))
def _tilted_losses(
    keys: jax.Array, parts: Mechanism, factors: Attraction, order: int, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    epochs, bins = parts.offsets.shape

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        which, noise = jax.random.split(key)
        counts, log_weight, _ = draw_attracted(which, factors, order, layout.block, 1)
        points = _normals(noise, layout.block, epochs, bins, dtype)
        points = points + to_rows(counts, parts.own, parts.following) + (1 + order) * parts.tail[:, None]
        return privacy_loss(points, parts), log_weight

    loss, log_weight = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel()


@dataclass(frozen=True, eq=False)
class MeanHalfSpace:
    """{x : m.x <= bound |m|}, m the average of all modes: it holds every x with L(x) <= -epsilon, by Jensen.

    Attributes:
      along: m / |m|, (epochs, bins).
      spread: |m|.
      bound: the offset in standard deviations; the half-space has probability Phi(bound).
      usual_depth: about where, in standard deviations, the loss is -epsilon on average: Jensen's gap is about half
        the variance, over patterns, of m_s.x.
    """

    along: FloatArray
    spread: float
    bound: float
    usual_depth: float


def mean_half_space(pair: RedrawnPair, epsilon: float) -> MeanHalfSpace:
    """Returns the half-space for this epsilon."""
    reach, multiplier = pair.reach, pair.noise_multiplier
    length = float(np.linalg.norm(reach.mean_mode))
    spread = length / multiplier
    bound = max((reach.mean_energy / 2 / multiplier**2 - epsilon) / spread, -1e300)
    margin = 1e-9 + 1e-12 * reach.epochs * reach.bins
    gap = (reach.mean_energy / multiplier**2 - spread**2) / 2
    return MeanHalfSpace(reach.mean_mode / length, spread, bound + margin * (1 + abs(bound)), bound - gap / spread)


def pattern_noise_first_bound(pair: RedrawnPair, epsilon: float) -> float:
    """Returns a sampling-free upper bound on the noise-first delta: a Gaussian mechanism at a smaller epsilon.

    It falls in that epsilon and grows in the spread, so that errors lower the one and raise the other.
    """
    reach = pair.reach
    error = 8 * (reach.epochs * reach.bins + 64) * ROUNDOFF
    spread = float(np.linalg.norm(reach.mean_mode)) / pair.noise_multiplier
    energy = reach.mean_energy / pair.noise_multiplier**2
    shifted = epsilon - (energy - spread**2) / 2 - error * (energy + epsilon)
    return min(1.0, gaussian_delta(shifted, spread * (1 + error)) * (1 + 1e-7))


class RedrawnHalfSpaceSampler(Sampler):
    """Draws noise within the half-space outside of which the value is zero, more of it where values are large.

    Depths are drawn by `choose_depths`; any `deep` is valid, and changes the variance only. It is not valid below
    `least_epsilon`, the epsilon given.
    """

    name: ClassVar[str] = "half-space"
    direction = Direction.NOISE_FIRST

    def __init__(self, pair: RedrawnPair, epsilon: float, deep: float | None = None, dtype: str | None = None) -> None:
        space = mean_half_space(pair, epsilon)
        bound = max(space.bound, -FARTHEST)
        deep = max(min(bound, space.usual_depth + _SHALLOWER if deep is None else deep), -FARTHEST)
        self.least_epsilon = epsilon
        moved = abs(deep) + 10.0

        def slack(name: str) -> Slack:
            rounding = pattern_slack(pair, 0, name, moved)
            lost = rounding.lost + DEPTH_LOST + DEPTHS_LOST + (SHALLOW_LOST if bound > SHALLOWEST else 0.0)
            return Slack(rounding.epsilon + DEPTH_ERROR * pair.mu_upper, lost)

        self.dtype = dtype or choose_dtype(slack, max(1, round(-deep / space.spread)))
        self.slack = slack(self.dtype)
        self.layout = _layout(pair, 4)
        with wide_jax():
            self._depths, self._range = choose_depths(space.spread * (1 + 1e-9), bound, deep)
            self._parts = mechanism(pair.reach, pair.noise_multiplier)
            self._along = jnp.asarray(space.along)

    def _range_at(self, epsilon: float) -> float:
        return self._range

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight = _half_space_losses(keys, self._parts, self._along, self._depths, self.dtype, self.layout)
            return Draw(np.asarray(loss), np.asarray(log_weight))


@partial(jax.jit, static_argnames=("dtype", "layout"))
def _half_space_losses(
    keys: jax.Array, parts: Mechanism, along: jax.Array, depths: Depths, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    epochs, bins = parts.offsets.shape

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_depth, noise = jax.random.split(key)
        depth, log_density = draw_depths(for_depth, layout.block, depths)
        points = _normals(noise, layout.block, epochs, bins, dtype)
        current = jnp.einsum("enk,ek->n", points, along, precision=jax.lax.Precision.HIGHEST)
        return -privacy_loss(points + (depth - current)[:, None] * along[:, None], parts), -log_density

    loss, log_weight = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel()


def refuse_replace(direction: Direction) -> None:
    """Raises `InvalidArgument` for replace adjacency, for which there is no tilt yet."""
    if direction is Direction.REPLACE:
        raise InvalidArgument(
            "adjacency", "replace", "is not covered for bins redrawn in every epoch; take add-or-remove or zero-out"
        )
