"""How min-separation batches are sampled (docs/math.md, section 10.7 on): the model behind `pattern_samplers`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import count as numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF
from galton.redrawn import Reach
from galton.sampling.base import Slack
from galton.sampling.normals import ERROR, lost_probability
from galton.sampling.pattern_samplers import HOPELESS, MAX_ORDER, PatternModel, PatternTilt
from galton.sampling.patterns import to_columns, to_rows
from galton.sampling.renewal import Renewal, draw_renewals, log_mean_renewal, places_taken, renewal, renewal_tables
from galton.sampling.separation_bound import SeparationBound, correlations
from galton.sampling.slack import UNLIKELY, norm_bound
from galton.separated import SeparatedPair

_NO_UNDERFLOW = 600.0
"""Sums over the rest of a pattern that differ by less than exp of this never underflow."""


class Mechanism(NamedTuple):
    """C in force and what follows from it, as JAX arrays in float64."""

    own: jax.Array
    following: jax.Array
    halves: jax.Array
    prior: Renewal

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks, and the separation."""
        return self.halves.shape[0], self.halves.shape[1]

    def fields(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what each round adds to A_s, and what all patterns share: nothing."""
        fields = to_columns(points, self.own, self.following) - self.halves[:, None]
        return fields, jnp.zeros(points.shape[1])

    def image(self, along: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what moving a point by `along`, (blocks, separation), adds to both."""
        return to_columns(along[:, None], self.own, self.following)[:, 0], jnp.zeros(())

    def reflected(self, fields: jax.Array, shared: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what `fields` does at the point on the other side of the origin."""
        return -fields - 2 * self.halves[:, None], shared

    def level(self, fields: jax.Array, shared: jax.Array) -> jax.Array:
        """Returns L = log dP/dQ."""
        return log_mean_renewal(fields, self.prior) + shared

    def loss(self, points: jax.Array) -> jax.Array:
        """Returns L at points of shape (blocks, samples, separation)."""
        return self.level(*self.fields(points))

    def draw_mode(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws modes from the prior."""
        blocks, separation = self.shape
        taken, _ = draw_renewals(key, _no_fields(blocks, samples, separation), self.prior)
        return to_rows(places_taken(taken, separation), self.own, self.following)


def _no_fields(blocks: int, samples: int, separation: int) -> jax.Array:
    """Fields of the prior; the barrier keeps the compiler from summing over all patterns at compile time."""
    nothing = jnp.zeros((blocks, samples, separation))
    return jnp.asarray(jax.lax.optimization_barrier(nothing))  # type: ignore[no-untyped-call]


def mechanism(pair: SeparatedPair) -> Mechanism:
    """Returns C in force; call inside `wide_jax()`."""
    reach, multiplier = pair.reach, pair.noise_multiplier
    return Mechanism(
        jnp.asarray(reach.own / multiplier),
        jnp.asarray(reach.following / multiplier),
        jnp.asarray(reach.energies / 2 / multiplier**2),
        renewal(pair),
    )


class Attraction(NamedTuple):
    """What each round of a pattern adds to the fields of those after it; the last row, of no round, is zero.

    Attributes:
      own: (blocks, separation + 1, separation), to the fields of the same block.
      later: (blocks - 1, separation + 1, separation), to those of the next block.
      earlier: (blocks - 1, separation + 1, separation), by a round of the next block, to those of this one.
    """

    own: jax.Array
    later: jax.Array
    earlier: jax.Array


def attraction(reach: Reach, noise_multiplier: float) -> Attraction:
    """Returns what rounds add to fields; call inside `wide_jax()`."""
    square = noise_multiplier**2
    tables = (reach.gram, reach.overlap, reach.overlap.transpose(0, 2, 1))
    return Attraction(*(jnp.asarray(np.pad(table / square, ((0, 0), (0, 1), (0, 0)))) for table in tables))


class Field(NamedTuple):
    """How t times the average mode attracts every pattern of a tilt for replace.

    Attributes:
      exponents: (blocks, separation), added to all fields.
      shift: (blocks, separation), t times the average mode.
      energy: half of its squared norm, which a tuple's weight has besides prod F_l.
    """

    exponents: jax.Array
    shift: jax.Array
    energy: jax.Array


def field_of(pair: SeparatedPair, order: int) -> Field:
    """Returns by what t average modes attract patterns; call inside `wide_jax()`."""
    shift = order * pair.mean_mode / pair.noise_multiplier
    parts = order * pair.mean_products / pair.noise_multiplier**2, shift, np.square(shift).sum() / 2
    return Field(*(jnp.asarray(part) for part in parts))


def draw_attracted(
    key: jax.Array,
    factors: Attraction,
    prior: Renewal,
    offsets: jax.Array,
    order: jax.Array | int,
    samples: int,
    field: Field | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Draws 1 + `order` patterns a sample, each attracted by those before it and by the offsets of its number.

    Args:
      key: of the draws.
      factors: how patterns attract each other.
      prior: of patterns.
      offsets: (at least 1 + order, blocks, separation), added to the fields of each pattern.
      order: of the tilt.
      samples: how many tuples.
      field: what attracts all patterns, for replace.

    Returns:
      How often each round was drawn, (blocks, samples, separation), and the logarithm of the weight.
    """
    blocks, _, separation = factors.own.shape
    first, rest = jax.random.split(key)
    each = jnp.arange(blocks)[:, None]

    def draw(key: jax.Array, fields: jax.Array, offset: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        taken, log_mean = draw_renewals(key, fields + offset[:, None], prior)
        places = places_taken(taken, separation)
        return taken, places, log_mean - jnp.einsum("enk,ek->n", places, offset, precision=jax.lax.Precision.HIGHEST)

    def extend(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        taken, counts, fields, log_weight = state
        fields = fields + factors.own[each, taken]
        fields = fields.at[1:].add(factors.later[each[:-1], taken[:-1]])
        fields = fields.at[:-1].add(factors.earlier[each[:-1], taken[1:]])
        taken, places, log_factor = draw(jax.random.fold_in(rest, index), fields, offsets[index])
        return taken, counts + places, fields, log_weight + log_factor

    fields = jnp.zeros((blocks, samples, separation))
    if field is not None:
        fields = fields + field.exponents[:, None]
    taken, places, log_factor = draw(first, fields, offsets[0])
    _, counts, _, log_weight = jax.lax.fori_loop(1, order + 1, extend, (taken, places, fields, log_factor))
    return counts, log_weight if field is None else log_weight + field.energy


class TiltedMechanism(NamedTuple):
    """C in force, how its patterns attract each other, and the offsets of each."""

    mechanism: Mechanism
    factors: Attraction
    offsets: jax.Array
    field: Field | None

    def draw_modes(self, key: jax.Array, order: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
        """Draws sums of 1 + `order` modes, each attracted by those before it, and the logarithm of prod F_l."""
        parts = self.mechanism
        counts, log_weight = draw_attracted(key, self.factors, parts.prior, self.offsets, order, samples, self.field)
        shift = to_rows(counts, parts.own, parts.following)
        return shift if self.field is None else shift + self.field.shift[:, None], log_weight


@lru_cache(maxsize=16)
def separation_bound(reach: Reach, interval: int) -> SeparationBound:
    """Returns the bound for this C and prior, whose points are kept as long as it is in use."""
    return SeparationBound(SeparatedPair(reach, interval))


def penalties(pair: SeparatedPair, order: int, fields: int = 0) -> tuple[FloatArray, FloatArray]:
    """Returns offsets (1 + order, rounds) and costs (order, rounds) of a tilt (docs/math.md, section 10.8).

    Any costs are valid. These are about what one round of a pattern adds, alone, to the logarithm of F_l, so that
    patterns with many rounds weigh no more than others.

    Args:
      pair: at its noise multiplier.
      order: t.
      fields: how many average modes attract every pattern; they are not part of the offsets.
    """
    return _penalties(pair.reach, pair.interval, pair.noise_multiplier, order, fields)


@lru_cache(maxsize=256)
def _penalties(
    reach: Reach, interval: int, multiplier: float, order: int, fields: int
) -> tuple[FloatArray, FloatArray]:
    pair = SeparatedPair(reach, interval)
    attracted = fields * float(pair.mean_products.mean()) / multiplier**2
    right, left = (part / multiplier**2 for part in correlations(pair))
    rounds = right.shape[0]
    offsets, costs = np.zeros((1 + order, rounds)), np.zeros((order, rounds))
    if pair.separation == interval:  # patterns have equally many rounds
        return offsets, costs
    for index in range(order, 0, -1):
        gains = np.expm1(np.minimum(index * right, 300.0)).sum(axis=1)
        gains += np.expm1(np.minimum(index * left[:, 1:], 300.0)).sum(axis=1)
        costs[index - 1] = np.log1p(_rate(pair, float(offsets[index].mean()) + attracted) * gains)
        offsets[index - 1] = offsets[index] + costs[index - 1] / index
    return offsets, costs


def _rate(pair: SeparatedPair, offset: float) -> float:
    """How often a round is taken if the same offset is added to all fields: by the growth of the sums over patterns."""
    chance, powers, _ = renewal_tables(pair.interval, pair.separation)
    low, high = 0.0, 1.0  # the ratio z of neighbouring sums: 1 = (1 - p) z + p exp(offset) z^S
    for _ in range(60):
        middle = (low + high) / 2
        over = powers[1] * middle + chance * math.exp(min(offset, 300.0)) * middle**pair.separation > 1
        low, high = (low, middle) if over else (middle, high)
    return 1 / (pair.separation - 1 + 1 / max(1 - powers[1] * high, 1e-12))


def offset_blocks(pair: SeparatedPair, order: int, fields: int = 0) -> jax.Array:
    """Returns the offsets as `draw_attracted` takes them, filled up so that few sizes are compiled."""
    offsets, _ = penalties(pair, order, fields)
    spare = -(1 + order) % 8
    return jnp.asarray(np.pad(offsets, ((0, spare), (0, 0))).reshape(-1, pair.blocks, pair.separation))


@lru_cache(maxsize=256)
def _penalised_bound(reach: Reach, interval: int, multiplier: float, order: int, fields: int) -> float:
    """A bound on the logarithm of the weight of a tilt, of its field's energy aside."""
    pair = SeparatedPair(reach, interval, multiplier)
    offsets, costs = penalties(pair, order, fields)
    offsets = offsets + fields * pair.mean_products.ravel() / multiplier**2
    spare = -order % 8
    strengths = np.pad(np.arange(1.0, order + 1) / multiplier**2, (0, spare))
    fitted = (np.pad(part, ((0, spare), (0, 0))).T for part in (offsets[1:], costs))
    bounds = separation_bound(reach, interval).largest(strengths, *fitted)[:order]
    return float(bounds.sum() + _log_means(pair, offsets[:1])[0])


class SeparatedModel(PatternModel):
    """Min-separation batches: a block has as many rounds as the separation."""

    def __init__(self, pair: SeparatedPair) -> None:
        self._pair = pair
        self.shape = (pair.blocks, pair.separation)
        self.largest = math.sqrt(pair.separated_energy) / pair.noise_multiplier
        self.mean_mode = pair.mean_mode / pair.noise_multiplier
        self.mean_energy = pair.mean_energy / pair.noise_multiplier**2

    def parts(self) -> Mechanism:
        return mechanism(self._pair)

    def tilted_parts(self, tilt: PatternTilt) -> TiltedMechanism:
        factors, fields = attraction(self._pair.reach, self._pair.noise_multiplier), _fields(tilt.order, tilt.direction)
        field = field_of(self._pair, fields) if fields else None
        return TiltedMechanism(self.parts(), factors, offset_blocks(self._pair, tilt.order, fields), field)

    def slack(
        self, order: int, dtype: str, moved: float = 0.0, direction: Direction = Direction.MIXTURE_FIRST
    ) -> Slack:
        """docs/math.md, section 10.11."""
        offset, order = self._largest_offset(order, direction), direction.sides * order
        (blocks, separation), largest = self.shape, self.largest
        rounds = blocks * separation
        rho = norm_bound(rounds)
        reach = rho + (order + 1) * largest + moved
        column = math.sqrt(float(self._pair.reach.energies.max())) / self._pair.noise_multiplier
        wait = self._pair.interval - separation
        forgetting = 2 * separation * math.log1p(1 / wait) if wait else math.inf
        spread = min(forgetting, 2 * (largest * reach + largest**2 / 2 + (blocks + 1) * offset))
        if spread + column * reach + column**2 / 2 + offset > _NO_UNDERFLOW:
            return Slack(HOPELESS, 1.0)
        error = largest * ERROR[dtype] * (rho + math.sqrt(rounds))
        gamma = 4 * (2 * separation + rounds + 2 * blocks + order + 64) * ROUNDOFF
        error += gamma * (largest * reach + (order + 2) * largest**2 + (blocks + 1) * offset)
        error += 4 * blocks * (2 * separation + 8 * order + 64) * ROUNDOFF
        return Slack(1.01 * error, lost_probability(rounds) + UNLIKELY)

    def lost_choices(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> float:
        blocks, separation = self.shape
        offset, order = self._largest_offset(order, direction), direction.sides * order
        exponent = order * self.largest**2 + (blocks + 1) * offset
        per_pattern = blocks * (2 * separation + 64) + (3 * order + 2 * separation + 8) * exponent
        return 8 * (order + 1) * per_pattern * ROUNDOFF

    def _largest_offset(self, order: int, direction: Direction) -> float:
        fields = _fields(order, direction)
        attracted = fields * float(self._pair.mean_products.max()) / self._pair.noise_multiplier**2
        return float(penalties(self._pair, order, fields)[0].max()) + attracted

    def attraction(self) -> Iterator[tuple[float, float]]:
        """Without offsets, whose points serve all noise multipliers: for bounds without samples."""
        bound = separation_bound(self._pair.reach, self._pair.interval)
        square = self._pair.noise_multiplier**2
        for order in numbers(1):
            yield bound(order / square), self._margin(order)

    def _margin(self, order: int) -> float:
        return 1e-8 + (order + 1) ** 2 * 8 * (self.shape[1] + 64) * ROUNDOFF * self.largest**2

    def attraction_in_field(self, order: int) -> float:
        """Without offsets, as `attraction`."""
        shares, rays = (
            np.linspace(0.0, 1.0, order + 1),
            separation_bound(self._pair.reach, self._pair.interval).in_field,
        )
        return rays.total(shares, order / self._pair.noise_multiplier**2) + self._margin(2 * order)

    def usual_order(self, epsilon: float) -> int:
        return usual_order(self._pair, epsilon, Direction.REPLACE)

    def tilt(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        pair, fields = self._pair, _fields(order, direction)
        bound = _penalised_bound(pair.reach, pair.interval, pair.noise_multiplier, order, fields)
        if direction is Direction.REPLACE:
            return self.tilt_in_field(order, bound + self._margin(2 * order))
        return PatternTilt(order, self._log_shape(order) + bound + self._margin(order))

    def sampled_tilt(self, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns the tilt with the smallest range near the usual order."""
        best = self.tilt(usual_order(self._pair, epsilon, direction), direction)
        for step in (1, -1):
            while 1 <= best.order + step <= MAX_ORDER:
                further = self.tilt(best.order + step, direction)
                if not further.log_range(epsilon) < best.log_range(epsilon):
                    break
                best = further
        return best


def _fields(order: int, direction: Direction) -> int:
    """How many average modes attract every pattern of a tilt."""
    return order if direction is Direction.REPLACE else 0


def usual_order(pair: SeparatedPair, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> int:
    """Returns about the order of `sampled_tilt`, judged by patterns with no round and with as many as can be."""
    right, left = correlations(pair)
    rounds, separation = right.shape
    taken = np.arange(separation // 2, rounds, separation)
    fields = np.zeros(rounds + separation)
    for place in taken:
        fields[place : place + separation] += right[place]
        fields[max(place - separation + 1, 0) : place] += left[place, 1 : place + 1][: separation - 1][::-1]
    fields, mean = fields[:rounds] / pair.noise_multiplier**2, pair.mean_products.ravel() / pair.noise_multiplier**2
    model, best = SeparatedModel(pair), math.inf
    for order in range(1, MAX_ORDER):
        offsets, costs = penalties(pair, order, _fields(order, direction))
        offsets = offsets + _fields(order, direction) * mean
        empty = _log_means(pair, offsets)
        full = _log_means(pair, np.arange(1.0, order + 1)[:, None] * fields + offsets[1:]) - costs[:, taken].sum(axis=1)
        attraction = float(empty[0] + np.maximum(empty[1:], full).sum())
        if direction is Direction.REPLACE:
            attraction += model.field_weight(order)
        log_range = order * math.log(order) - (1 + order) * math.log(1 + order) + attraction - order * epsilon
        if not log_range < best:
            return max(1, order - 1)
        best = log_range
    return MAX_ORDER


def _log_means(pair: SeparatedPair, fields: FloatArray) -> FloatArray:
    """log E_s exp(fields of s) for each row, round by round."""
    chance, powers, start = renewal_tables(pair.interval, pair.separation)
    rounds = fields.shape[1]
    values, level = np.ones((pair.separation, fields.shape[0])), np.zeros(fields.shape[0])
    for turn in range(rounds - 1, -1, -1):  # values[j]: from round turn + 1 + j on
        value = powers[1] * values[0] + chance * np.exp(np.minimum(fields[:, turn], 600.0)) * values[-1]
        values = np.concatenate((value[None], values[:-1]))
        largest = values.max(axis=0)
        values, level = values / largest, level + np.log(largest)
    return level + np.log(start @ values)
