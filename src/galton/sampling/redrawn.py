"""How bins redrawn in every epoch are sampled (docs/math.md, section 10): the model behind `pattern_samplers`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count as numbers
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF
from galton.redrawn import Reach, RedrawnPair
from galton.sampling.base import Slack
from galton.sampling.kernels import categorical
from galton.sampling.normals import ERROR, lost_probability
from galton.sampling.orders import search_by_halving
from galton.sampling.pattern_bound import FirstPattern, PatternBound
from galton.sampling.pattern_samplers import (
    HOPELESS,
    MAX_ORDER,
    MeanHalfSpace,
    PatternHalfSpaceSampler,
    PatternModel,
    PatternPlainSampler,
    PatternTilt,
    PatternTiltedSampler,
)
from galton.sampling.patterns import (
    coarser,
    draw_patterns,
    finer,
    log_mean_and_shares,
    log_mean_pattern,
    one_hot,
    to_columns,
    to_rows,
    uniform_patterns,
)
from galton.sampling.slack import UNLIKELY, norm_bound

_MOST_FITTED = 6
"""With tilts of larger orders the first pattern matters little, and is drawn from the prior."""
_NEARLY = math.log(2.5)
_FEW_SHARES = 16
"""Terms of a sum over the patterns of a tuple, of which more hardly change its estimate."""
_NO_UNDERFLOW = 700.0
"""Fields of an epoch that differ by less than this never underflow when they are exponentiated."""


class Mechanism(NamedTuple):
    """C in force and what follows from it, as JAX arrays in float64.

    Attributes:
      own: C in blocks of an epoch or, if its memory is shorter, of a part of one: rows and columns of the same block.
      following: rows of the next block.
      tail: (epochs, bins).
      offsets: (epochs, bins), half of the energies of the columns, and their products with the tail.
      repulsion: (epochs - 1, reach, reach), of the last bins of an epoch and the first ones of the next.
      tail_half: half of the energy of the tail.
    """

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

    def rows(self, counts: jax.Array) -> jax.Array:
        """Returns C s, for how often each round is in a sum of patterns."""
        return coarser(to_rows(finer(counts, self.own.shape[-1]), self.own, self.following), self.shape[1])

    def fields(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what each round adds to A_s, and what all patterns share."""
        columns, products = self._products(points)
        return columns - self.offsets[:, None], products - self.tail_half

    def _products(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        columns = to_columns(finer(points, self.own.shape[-1]), self.own, self.following)
        products = jnp.einsum("enk,ek->n", points, self.tail, precision=jax.lax.Precision.HIGHEST)
        return coarser(columns, self.shape[1]), products

    def image(self, along: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what moving a point by `along`, (epochs, bins), adds to its fields, and to what is shared."""
        columns, products = self._products(along[:, None])
        return columns[:, 0], products[0]

    def reflected(self, fields: jax.Array, shared: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what `fields` does at the point on the other side of the origin."""
        return -fields - 2 * self.offsets[:, None], -shared - 2 * self.tail_half

    def level(self, fields: jax.Array, shared: jax.Array) -> jax.Array:
        """Returns L = log dP/dQ."""
        return log_mean_pattern(fields, self.repulsion) + shared

    def loss(self, points: jax.Array) -> jax.Array:
        """Returns L at points of shape (epochs, samples, bins)."""
        return self.level(*self.fields(points))

    def loss_and_slope(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns L and its gradient, the average mode of the patterns given the point."""
        fields, shared = self.fields(points)
        level, shares = log_mean_and_shares(fields, self.repulsion)
        return level + shared, self.rows(shares) + self.tail[:, None]

    def draw_mode(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws modes from the prior."""
        epochs, bins = self.shape
        return self.rows(one_hot(uniform_patterns(key, samples, epochs, bins), bins)) + self.tail[:, None]


def mechanism(reach: Reach, noise_multiplier: float) -> Mechanism:
    """Returns C in force; call inside `wide_jax()`."""
    square = noise_multiplier**2
    own, following = shorter_blocks(reach)
    width = min(reach.bins, max(1, longest_lag(reach)))
    return Mechanism(
        jnp.asarray(own / noise_multiplier),
        jnp.asarray(following / noise_multiplier),
        jnp.asarray(reach.tail / noise_multiplier),
        jnp.asarray((reach.energies / 2 + reach.tail_products) / square),
        jnp.asarray(np.exp(-reach.overlap[:, -width:, :width] / square)),
        jnp.asarray(reach.tail_energy / 2 / square),
    )


@lru_cache(maxsize=16)
def longest_lag(reach: Reach) -> int:
    """Returns how many rounds after its own the last entry of a column is, at most; the tail aside."""
    own, following = (np.argwhere(part.any(axis=0)) for part in (reach.own, reach.following))
    within = int((own[:, 0] - own[:, 1]).max(initial=0))
    return max(within, int((following[:, 0] - following[:, 1]).max(initial=-reach.bins)) + reach.bins)


@lru_cache(maxsize=4)
def shorter_blocks(reach: Reach) -> tuple[FloatArray, FloatArray]:
    """Returns C in the shortest blocks, of a width that divides the bins, of which only neighbours interact."""
    bins, lag = reach.bins, longest_lag(reach)
    width = next(width for width in range(max(1, lag), bins + 1) if bins % width == 0) if lag < bins else bins
    if width == bins:
        return reach.own, reach.following
    parts, blocks = bins // width, reach.epochs * bins // width
    own, following = np.zeros((blocks, width, width)), np.zeros((blocks - 1, width, width))
    for block in range(blocks):
        epoch, part = divmod(block, parts)
        columns = slice(part * width, (part + 1) * width)
        own[block] = reach.own[epoch][columns, columns]
        if part + 1 < parts:
            following[block] = reach.own[epoch][(part + 1) * width : (part + 2) * width, columns]
        elif epoch + 1 < reach.epochs:
            following[block] = reach.following[epoch][:width, columns]
    return own, following


@lru_cache(maxsize=16)
def pattern_bound(reach: Reach) -> PatternBound:
    """Returns the bound for this C, whose points are kept as long as it is in use."""
    return PatternBound(reach)


@lru_cache(maxsize=8)
def first_pattern(reach: Reach, noise_multiplier: float, order: int, field: int) -> FirstPattern:
    """Returns the law of the first pattern of a tilt, which takes a moment to fit; `field` average modes attract it."""
    square = noise_multiplier**2
    return pattern_bound(reach).first_pattern(square, order, field / square)


def usual_order(pair: RedrawnPair, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> int:
    """Returns about the order of `best_tilt`, judged by one pattern in the middle of the epochs: quick."""
    if direction is Direction.REPLACE:
        return search_by_halving(_MiddleTilts(pair).tilt, epsilon, MAX_ORDER).order
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


class _MiddleTilts:
    """About the ranges of the tilts for replace, judged by one pattern in the middle of the epochs."""

    def __init__(self, pair: RedrawnPair) -> None:
        reach, square, middle = pair.reach, pair.noise_multiplier**2, pair.bins // 2
        self._model = RedrawnModel(pair)
        self._fields = (reach.gram[:, middle] + reach.tail_products) / square
        self._shared = float(reach.tail_products[:, middle].sum() + reach.tail_energy) / square
        self._mean = reach.mean_products / square
        self._shared_mean = reach.tail_along_mean / square

    def tilt(self, order: int) -> PatternTilt:
        """Returns the tilt of an order: a bound only if no pattern attracts more."""
        shares = np.linspace(0.0, 1.0, min(order, _FEW_SHARES) + 1)
        exponents = order * (shares[:, None, None] * self._fields + self._mean)
        peaks = exponents.max(axis=2)
        logs = (peaks + np.log(np.exp(exponents - peaks[..., None]).mean(axis=2))).sum(axis=1)
        logs += order * (shares * self._shared + self._shared_mean)
        steps = shares[1:] * order - shares[:-1] * order  # trapezia, and half of each end
        total = float(((logs[1:] + logs[:-1]) / 2 * steps).sum() + (logs[0] + logs[-1]) / 2)
        return self._model.tilt_in_field(order, total)


def field_of(reach: Reach, noise_multiplier: float, order: int) -> Field:
    """Returns by what t average modes attract patterns; call inside `wide_jax()`."""
    square = noise_multiplier**2
    exponents = order * reach.mean_products / square
    peaks = exponents.max(axis=1)
    shared = float(peaks.sum()) + order * reach.tail_along_mean / square
    shift = order * reach.mean_mode / noise_multiplier
    parts = np.exp(exponents - peaks[:, None]), shared, shift, np.square(shift).sum() / 2
    return Field(*(jnp.asarray(part) for part in parts))


class Field(NamedTuple):
    """How t times the average mode attracts every pattern of a tilt for replace.

    Attributes:
      weights: (epochs, bins), factors by which bins become more likely, divided by their largest.
      log_scale: logarithm of what they were divided by, and the tail's part.
      shift: (epochs, bins), t times the average mode.
      energy: half of its squared norm, which a tuple's weight has besides prod F_l.
    """

    weights: jax.Array
    log_scale: jax.Array
    shift: jax.Array
    energy: jax.Array


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


class Start(NamedTuple):
    """How the first pattern is drawn, bin by bin: a chain of epochs.

    Attributes:
      first: (1, bins), weights of the bins of the first epoch.
      steps: (epochs - 1, bins, bins), weights of the next bin (last index) given one.
      nodes: (epochs, bins), and
      pairs: (epochs - 1, bins, bins): the logarithm of the density against the prior is a sum of these, less
      log_total: the logarithm of what that sum is normalised by.
    """

    first: jax.Array
    steps: jax.Array
    nodes: jax.Array
    pairs: jax.Array
    log_total: jax.Array


def start_of(law: FirstPattern, reach: Reach, field: float = 0.0) -> Start:
    """Returns how to draw from a law; call inside `wide_jax()`. Weights of a bin are divided by their largest.

    Args:
      law: of the first pattern.
      reach: C.
      field: how often the average mode attracts it; the density is that against prior times this attraction.
    """
    epochs, bins = law.nodes.shape
    steps, log_total, ahead = np.empty_like(law.pairs), field * reach.tail_along_mean, np.ones(bins)
    nodes = law.nodes + field * reach.mean_products
    for epoch in range(epochs - 1, -1, -1):
        peak = float(nodes[epoch].max())
        weights = np.exp(nodes[epoch] - peak) * ahead
        log_total += peak
        if epoch:
            peak = float(law.pairs[epoch - 1].max())
            steps[epoch - 1] = np.exp(law.pairs[epoch - 1] - peak) * weights
            ahead = steps[epoch - 1].mean(axis=1)
            log_total += peak
    log_total += math.log(float(weights.mean()))
    return Start(
        jnp.asarray(weights[None]),
        jnp.asarray(steps),
        jnp.asarray(law.nodes),
        jnp.asarray(law.pairs),
        jnp.asarray(log_total),
    )


def draw_start(key: jax.Array, start: Start, samples: int) -> tuple[jax.Array, jax.Array]:
    """Returns the bins (epochs, samples) of patterns drawn from a law, and the logarithms of prior over law."""
    epochs = start.nodes.shape[0]
    uniform = jax.random.uniform(key, (epochs, samples), jnp.float64)
    begin, _ = categorical(jnp.broadcast_to(start.first, (samples, start.first.shape[1])), uniform[0])

    def step(chosen: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        weights, pairs, uniform = inputs
        following, _ = categorical(weights[chosen], uniform)
        return following, (following, pairs[chosen, following])

    _, (later, pairs) = jax.lax.scan(step, begin, (start.steps, start.pairs, uniform[1:]))
    chosen = jnp.concatenate((begin[None], later))
    return chosen, start.log_total - start.nodes[jnp.arange(epochs)[:, None], chosen].sum(axis=0) - pairs.sum(axis=0)


def draw_attracted(
    key: jax.Array,
    factors: Attraction,
    order: jax.Array | int,
    samples: int,
    most: int,
    start: Start | None = None,
    field: Field | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws 1 + `order` patterns a sample, each attracted by those before it; the first from the prior, or by `start`.

    In a field all of them are attracted by the average mode, too.

    Returns:
      How often each round was drawn, (epochs, samples, bins); the logarithm of prod F_l, and of prior over law of the
      first pattern, and the energy of the field; and the bins of the first `most` patterns, at least 1, as (most,
      epochs, samples).
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

    nothing = jnp.zeros(samples)
    weights, level = jnp.ones((epochs, samples, bins)), nothing
    if field is not None:
        weights = jnp.broadcast_to(field.weights[:, None], weights.shape)
        chosen, means = draw_patterns(first, weights)
        weights, level = weights / means[..., None], jnp.log(means).sum(axis=0) + field.log_scale
        log_weight = level
    elif start is None:
        chosen, log_weight = uniform_patterns(first, samples, epochs, bins), nothing
    if start is not None:
        chosen, log_weight = draw_start(first, start, samples)
    if field is not None:
        log_weight = log_weight + field.energy
    kept = jnp.zeros((most, epochs, samples), chosen.dtype).at[0].set(chosen)
    begin = (chosen, one_hot(chosen, bins), weights, level, log_weight, kept)
    _, counts, _, _, log_weight, kept = jax.lax.fori_loop(1, order + 1, extend, begin)
    return counts, log_weight, kept


class TiltedMechanism(NamedTuple):
    """C in force, and how its patterns attract each other."""

    mechanism: Mechanism
    factors: Attraction
    start: Start | None
    field: Field | None

    def draw_modes(self, key: jax.Array, order: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
        """Draws sums of 1 + `order` modes, each attracted by those before it, and the logarithm of prod F_l."""
        parts = self.mechanism
        counts, log_weight, _ = draw_attracted(key, self.factors, order, samples, 1, self.start, self.field)
        shift = parts.rows(counts) + (1 + order) * parts.tail[:, None]
        return shift if self.field is None else shift + self.field.shift[:, None], log_weight


class RedrawnModel(PatternModel):
    """Bins redrawn in every epoch: a block is an epoch."""

    sloped: ClassVar[bool] = True

    def __init__(self, pair: RedrawnPair) -> None:
        self._pair = pair
        self.shape = (pair.epochs, pair.bins)
        self.largest = pair.mu_upper
        self.mean_mode = pair.reach.mean_mode / pair.noise_multiplier
        self.mean_energy = pair.reach.mean_energy / pair.noise_multiplier**2
        self.slope = pair.reach.least_along_mean / pair.noise_multiplier

    def parts(self) -> Mechanism:
        return mechanism(self._pair.reach, self._pair.noise_multiplier)

    def tilted_parts(self, tilt: PatternTilt) -> TiltedMechanism:
        reach, multiplier = self._pair.reach, self._pair.noise_multiplier
        fields = tilt.order if tilt.direction is Direction.REPLACE else 0
        field = field_of(reach, multiplier, fields) if fields else None
        start = None
        if tilt.fitted:
            start = start_of(first_pattern(reach, multiplier, tilt.order, fields), reach, fields / multiplier**2)
        return TiltedMechanism(self.parts(), attraction(reach, multiplier), start, field)

    def tilt(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns the tilt of this order; the first pattern is drawn by a law fitted to it if that is better."""
        plain = super().tilt(order, direction)
        if order > _MOST_FITTED:
            return plain
        fitted = self._fitted_tilt(order, direction)
        return fitted if fitted.log_bound < plain.log_bound else plain

    def _fitted_tilt(self, order: int, direction: Direction) -> PatternTilt:
        reach, multiplier = self._pair.reach, self._pair.noise_multiplier
        bound, square = pattern_bound(reach), multiplier**2
        if direction is Direction.REPLACE:
            steps = np.arange(2, order + 1)
            others = bound.in_field.total(steps / order, order / square, (steps - 1) / steps)
            total = first_pattern(reach, multiplier, order, order).log_bound + others + self._margin(2 * order)
            return replace(self.tilt_in_field(order, total), fitted=True)
        others = sum(bound(step / square) * (step - 1) / step for step in range(2, order + 1))
        total = first_pattern(reach, multiplier, order, 0).log_bound + others + self._margin(order)
        return PatternTilt(order, self._log_shape(order) + total, fitted=True)

    def sampled_tilt(self, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns a tilt with nearly the smallest range, of the largest order: values of a larger order vary less.

        Laws of the first pattern are fitted where the order is small.
        """
        plain = self.best_tilt(epsilon, direction)
        if plain.order > _MOST_FITTED:
            return plain
        tilts = [self.tilt(order, direction) for order in range(1, plain.order + 3)]
        least = min(tilt.log_range(epsilon) for tilt in tilts)
        return [tilt for tilt in tilts if tilt.log_range(epsilon) <= least + _NEARLY][-1]

    def slack(
        self, order: int, dtype: str, moved: float = 0.0, direction: Direction = Direction.MIXTURE_FIRST
    ) -> Slack:
        """docs/math.md, section 10.5."""
        (epochs, bins), largest, order = self.shape, self.largest, direction.sides * order
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

    def lost_choices(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> float:
        (epochs, bins), order = self.shape, direction.sides * order
        exponents = 3 * order * self.largest**2
        return 8 * (epochs * (order + 1) * (bins + 4 * order + 16) + epochs * exponents) * ROUNDOFF

    def attraction(self) -> Iterator[tuple[float, float]]:
        bound, square = pattern_bound(self._pair.reach), self._pair.noise_multiplier**2
        for order in numbers(1):
            yield bound(order / square), self._margin(order)

    def attraction_in_field(self, order: int) -> float:
        shares, rays = np.linspace(0.0, 1.0, order + 1), pattern_bound(self._pair.reach).in_field
        return rays.total(shares, order / self._pair.noise_multiplier**2) + self._margin(2 * order)

    def usual_order(self, epsilon: float) -> int:
        return usual_order(self._pair, epsilon, Direction.REPLACE)

    def _margin(self, order: int) -> float:
        return 1e-9 + (order + 1) ** 2 * 8 * (self.shape[1] + 64) * ROUNDOFF * self.largest**2


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
