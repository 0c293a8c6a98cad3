"""The sampler of a product of polynomials, one an arc of bins, for little memory and tiny delta (math.md, 18.9)."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.arcs import ArcTilt, Splits, splits
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, wide_jax
from galton.sampling.factor import factor_of
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.levelled import BoundedDraw
from galton.sampling.normals import uniforms
from galton.sampling.slack import loss_slack, norm_bound

_LEAST_SHARE = 0.02
"""Share of samples of either kind, at least."""


class _Ways(NamedTuple):
    """`Splits` as JAX arrays."""

    ends: jax.Array
    rows: jax.Array


class _Tables(NamedTuple):
    """What is drawn from: the chain on the circle, the ways to spread modes, the tuples of one arc, and G.

    Attributes:
      first: running sums of the weights of the states of the first arc.
      futures: weight of an arc and all after it, (arcs but the first, states of the first arc, states).
      attraction: of the states of neighbouring arcs.
      sectors: how modes in sectors are spread over parts.
      parts: how modes in a part are spread over its bins.
      tuples: how the modes of a tuple are spread over the parts of an arc.
      totals: numbers of modes that an arc may have.
      log_coefficients: of the factors.
      around: what a tuple's parts attract others by, near its arc.
      within: what the bins of an arc attract each other by.
      gram: G.
      raised: what modes attract each other by, less G.
      root: transposed factor of G.
    """

    first: jax.Array
    futures: jax.Array
    attraction: jax.Array
    sectors: _Ways
    parts: _Ways
    tuples: _Ways
    totals: jax.Array
    log_coefficients: jax.Array
    around: jax.Array
    within: jax.Array
    gram: jax.Array
    raised: jax.Array
    root: jax.Array


class _Constants(NamedTuple):
    """Numbers of the sampler: share of samples around tuples, two log normalisers, and two bounds on G."""

    share: float
    log_tuples: float
    log_normaliser: float
    self_lag: float
    beyond: float
    slack: float


class _Shape(NamedTuple):
    """What is fixed when the program is compiled: sizes, and numbers of modes."""

    arcs: int
    parts: int
    width: int
    power: int
    most: int
    layout: Layout

    @property
    def size(self) -> int:
        """Bins of an arc."""
        return self.parts * self.width


class ArcSampler(Sampler):
    """Draws points around modes of a chain on the circle, or around a tuple of modes that are all in one arc.

    For mixture-first and a banded Gram matrix. Where no arc's sum of X is above the cut, the density of the first kind
    is at least exp(theta * sum of X) up to its normaliser; where one is, the density of the second kind is at least
    that of the mixture times a power of the sum. The weight is taken by the mixture of both. The samples are valid at
    every epsilon.
    """

    name: ClassVar[str] = "arcs"
    direction = Direction.MIXTURE_FIRST

    def __init__(self, pair: Pair, tilt: ArcTilt, epsilon: float) -> None:
        factor = factor_of(pair)
        gram, bins, chain = factor.gram, pair.modes, tilt.chain
        self.tilt = tilt
        self._share = math.exp(tilt.log_above - tilt.log_range(epsilon))
        self._share = min(max(self._share, _LEAST_SHARE), 1 - _LEAST_SHARE)
        most, largest = chain.totals[-1], float(gram.diagonal().max())
        modes = max(most * chain.arcs, tilt.power + 1)
        reach = (3 * most + tilt.power + 3) * float(gram.max()) + modes * max(chain.ring.beyond, 0.0)
        rounding = loss_slack(bins, largest, reach, (modes + 2) * factor.residual, "float64")
        sectors, parts = chain.sector_splits(), chain.part_splits(max(most, tilt.power))
        rows, logs = chain.tuples(tilt.power)
        tuples = splits(np.zeros(logs.size, np.int64), logs, rows)
        stored = (chain.arcs + 1) * (sectors.rounding + chain.parts * parts.rounding) + tuples.rounding
        self.slack = Slack(rounding.epsilon, rounding.lost + self._choice_error(bins) + stored)
        self._weight_error = self._rounding() + (modes + 2) ** 2 * factor.residual
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 10)
        self._shape = _Shape(chain.arcs, chain.parts, chain.width, tilt.power, most, self.layout)
        first, futures, _ = chain.futures(tilt.log_coefficients)
        raised = chain.raised()
        with wide_jax():
            self._tables = _Tables(
                jnp.asarray(np.cumsum(first)),
                jnp.asarray(futures),
                jnp.asarray(chain.attraction),
                _on_device(sectors),
                _on_device(parts),
                _on_device(tuples),
                jnp.asarray(chain.totals, jnp.float64),
                jnp.asarray(tilt.log_coefficients),
                jnp.asarray(chain.around),
                jnp.asarray(raised[: chain.size, : chain.size]),
                jnp.asarray(gram),
                jnp.asarray(raised - gram),
                jnp.asarray(factor.root.T),
            )

    def _choice_error(self, bins: int) -> float:
        """Bounds the distance of the laws of modes, before points and after them, from those that are meant."""
        chain, power = self.tilt.chain, self.tilt.power
        exponent = max(float(chain.totals[-1]) ** 2 * 2, float(power) ** 2) * float(chain.part_lags[0]) + 700
        ways = chain.states.shape[0] + chain.log_sector_masses.size + math.comb(power + chain.parts, chain.parts)
        draws = chain.arcs * (2 + chain.parts + chain.totals[-1]) + power + 4
        return 16 * draws * (ways + bins + exponent + 64) * ROUNDOFF

    def _rounding(self) -> float:
        """Bounds the rounding of the log weight, beyond what errors of the point do to it."""
        chain = self.tilt.chain
        bins, top = chain.ring.groups, float(max(chain.totals[-1], self.tilt.power + 1))
        largest = float(chain.ring.lags[0])
        size = top * (3 * top * largest + math.sqrt(largest) * norm_bound(bins)) + 700
        return 16 * (bins + 64) * chain.arcs * size * ROUNDOFF + 1e-10

    def _range_at(self, epsilon: float) -> float:
        chain, power = self.tilt.chain, self.tilt.power
        steps = 4 * chain.totals[-1] * chain.arcs + 4 * power + 8
        steps += math.ceil(self.tilt.theta * chain.ring.groups * math.exp(min(epsilon, 100.0)))
        margin = steps * self.slack.epsilon + chain.arcs * chain.totals[-1] ** 2 * self.slack.epsilon**2
        below = self.tilt.log_below(epsilon) - math.log1p(-self._share)
        above = self.tilt.log_above - math.log(self._share)
        return math.exp(min(max(below, above) + margin + 2 * self._weight_error + 1e-9, 700.0))

    def values(self, draw: Draw, epsilon: float, rounding: int = 0) -> FloatArray:
        if rounding and isinstance(draw, BoundedDraw):
            draw = Draw(draw.loss, draw.most if rounding > 0 else draw.least)
        return super().values(draw, epsilon, rounding)

    def draw(self, seed: int, index: int) -> Draw:
        tilt = self.tilt
        constants = _Constants(
            self._share,
            tilt.log_tuples,
            tilt.log_normaliser,
            float(tilt.chain.ring.lags[0]),
            tilt.chain.ring.beyond,
            self.slack.epsilon,
        )
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight, moved = (
                np.asarray(array) for array in _losses(keys, self._tables, constants, self._shape)
            )
        moved = moved + self._weight_error
        return BoundedDraw(loss, log_weight, log_weight - moved, log_weight + moved)


def _on_device(ways: Splits) -> _Ways:
    return _Ways(jnp.asarray(ways.ends), jnp.asarray(ways.rows, jnp.float64))


@partial(jax.jit, static_argnames=("shape",))
def _losses(
    keys: jax.Array, tables: _Tables, constants: _Constants, shape: _Shape
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses, log weights, and how far these may be off."""
    size, bins = shape.layout.block, tables.gram.shape[0]
    diagonal = tables.gram.diagonal()
    half = diagonal / 2
    log_share, log_rest = jnp.log(constants.share), jnp.log1p(-constants.share)

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        keys = jax.random.split(key, 9)
        for_kind, for_chain, for_parts, for_bins, for_tuple, for_extra, noise, after, tuple_after = keys
        around_tuple = uniforms(for_kind, (size,)) <= constants.share
        states = _circle(for_chain, tables, size)
        before = _in_bins(for_bins, tables, _way(for_parts, tables.sectors, states), shape).reshape(size, bins)
        arc, here = _tuple_before(for_tuple, tables, shape)
        mine = jnp.where(around_tuple[:, None], _on_circle(arc, here, shape), before)
        field = _product(mine, tables.gram)
        extra = _softmax_index(uniforms(for_extra, (size, 1)), field)[:, 0]
        centre = field + jnp.where(around_tuple[:, None], tables.gram[extra], 0.0)

        exponents = correlated(noise, tables.root, size) + centre - half
        loss = log_mean_exp(exponents)
        in_arcs = exponents.reshape(size, shape.arcs, shape.size)
        peaks = in_arcs.max(axis=-1)
        masses = jnp.exp(in_arcs - peaks[..., None])
        sums = peaks + jnp.log(masses.sum(axis=-1))
        running = jnp.cumsum(masses, axis=-1)
        terms = tables.log_coefficients + tables.totals * sums[..., None]
        tops = terms.max(axis=-1)
        parts = jnp.exp(terms - tops[..., None])
        totals = parts.sum(axis=-1)
        log_product = (tops + jnp.log(totals)).sum(axis=-1)
        slope = ((parts * tables.totals).sum(axis=-1) / totals).sum(axis=-1)

        modes = jnp.where(around_tuple[:, None], _modes_after(after, tables, parts, running, shape), before)
        arc_after, here_after = _tuple_after(tuple_after, sums, running, shape)
        here = jnp.where(around_tuple[:, None], here, here_after)
        arc = jnp.where(around_tuple, arc, arc_after)

        doubled = (_product(modes, tables.raised) * modes).sum(axis=-1)
        raised = (doubled - ((constants.self_lag - diagonal) * modes).sum(axis=-1)) / 2
        log_chain = log_product + raised - constants.log_normaliser - loss
        powers = jax.scipy.special.logsumexp(shape.power * sums, axis=-1)
        log_tuple = powers + _tuple_energy(here, arc, tables, constants, shape) - constants.log_tuples
        log_weight = -jnp.logaddexp(log_share + log_tuple, log_rest + log_chain)
        steps = 2 * slope + modes.sum(axis=-1) + 3 * shape.power + 4
        second = shape.arcs * shape.most**2 * constants.slack / 2
        return loss, log_weight, (steps + second) * constants.slack

    loss, log_weight, moved = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel(), moved.ravel()


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _circle(key: jax.Array, tables: _Tables, size: int) -> jax.Array:
    """Draws the states of sectors of all arcs, one row a sample."""
    arcs, last = tables.futures.shape[0] + 1, tables.first.size - 1
    uniform = uniforms(key, (arcs, size))
    first = jnp.searchsorted(tables.first, uniform[0] * tables.first[-1]).astype(jnp.int64)
    first = jnp.minimum(first, last)

    def step(state: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        future, threshold = inputs
        running = jnp.cumsum(tables.attraction[state] * future[first], axis=-1)
        chosen = jnp.minimum((running < threshold[:, None] * running[:, -1:]).sum(axis=-1), last)
        return chosen, chosen

    _, others = jax.lax.scan(step, first, (tables.futures, uniform[1:]))
    return jnp.concatenate((first[:, None], others.T), axis=1)


def _way(key: jax.Array, ways: _Ways, places: jax.Array) -> jax.Array:
    """Draws a way to spread the modes of every place."""
    uniform = uniforms(key, places.shape)
    index = jnp.searchsorted(ways.ends, places + uniform)
    return ways.rows[jnp.minimum(index, ways.ends.size - 1)]


def _in_bins(key: jax.Array, tables: _Tables, counts: jax.Array, shape: _Shape) -> jax.Array:
    """Spreads the modes of parts over their bins; the last axis is that of parts, and becomes that of bins."""
    if shape.width == 1:
        return counts
    return _way(key, tables.parts, counts).reshape(*counts.shape[:-1], shape.size)


def _tuple_before(key: jax.Array, tables: _Tables, shape: _Shape) -> tuple[jax.Array, jax.Array]:
    """Draws an arc and how often each of its bins is in the tuple."""
    for_arc, for_parts, for_bins = jax.random.split(key, 3)
    size = shape.layout.block
    arc = (jax.random.bits(for_arc, (size,), jnp.uint64) % shape.arcs).astype(jnp.int64)
    return arc, _in_bins(for_bins, tables, _way(for_parts, tables.tuples, jnp.zeros(size)), shape)


def _on_circle(arc: jax.Array, here: jax.Array, shape: _Shape) -> jax.Array:
    """Puts the modes of one arc among all bins."""
    places = jnp.arange(shape.arcs)[:, None] == arc[:, None, None]
    return jnp.where(places, here[:, None, :], 0.0).reshape(here.shape[0], -1)


def _softmax_index(uniform: jax.Array, logs: jax.Array) -> jax.Array:
    """Draws indices with probabilities proportional to exp, one for every uniform number of a row."""
    running = jnp.cumsum(jnp.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    chosen = (running[:, None, :] < (uniform * running[:, -1:])[..., None]).sum(axis=-1)
    return jnp.minimum(chosen, logs.shape[-1] - 1)


def _counted(uniform: jax.Array, kept: jax.Array, running: jax.Array) -> jax.Array:
    """How many of the uniform numbers that are kept fall to each place, by running sums over the last axis."""
    reached = uniform[..., None] * running[..., None, -1:] <= running[..., None, :]
    totals = (reached & kept[..., None]).sum(axis=-2).astype(jnp.float64)
    return jnp.diff(totals, axis=-1, prepend=0.0)


def _modes_after(key: jax.Array, tables: _Tables, parts: jax.Array, running: jax.Array, shape: _Shape) -> jax.Array:
    """Draws, given the point, how many modes each arc has, and in which of its bins."""
    for_total, for_place = jax.random.split(key)
    size = parts.shape[0]
    sums = jnp.cumsum(parts, axis=-1)
    kind = (sums < uniforms(for_total, (size, shape.arcs, 1)) * sums[..., -1:]).sum(axis=-1)
    total = tables.totals[jnp.minimum(kind, tables.totals.size - 1)]
    uniform = uniforms(for_place, (size, shape.arcs, shape.most))
    return _counted(uniform, jnp.arange(shape.most) < total[..., None], running).reshape(size, -1)


def _tuple_after(key: jax.Array, sums: jax.Array, running: jax.Array, shape: _Shape) -> tuple[jax.Array, jax.Array]:
    """Draws, given the point, an arc and how often each of its bins is in the tuple."""
    for_arc, for_place = jax.random.split(key)
    size = sums.shape[0]
    arc = _softmax_index(uniforms(for_arc, (size, 1)), shape.power * sums)[:, 0]
    mine = running[jnp.arange(size), arc]
    uniform = uniforms(for_place, (size, shape.power))
    return arc, _counted(uniform, jnp.ones_like(uniform, bool), mine)


def _tuple_energy(here: jax.Array, arc: jax.Array, tables: _Tables, constants: _Constants, shape: _Shape) -> jax.Array:
    """The logarithm of a tuple's weight in its law, less that of its weight by G."""
    size = here.shape[0]
    modes = _on_circle(arc, here, shape)
    field = _product(modes, tables.gram)
    doubled = (_product(here, tables.within) * here).sum(axis=-1) - (field * modes).sum(axis=-1)
    doubled -= constants.self_lag * shape.power - (tables.gram.diagonal() * modes).sum(axis=-1)
    near = _product(here.reshape(size, shape.parts, shape.width).sum(axis=-1), tables.around)
    far = (shape.arcs - 3) * shape.size * jnp.exp(shape.power * constants.beyond)
    total = shape.width * jnp.exp(near).sum(axis=-1) + far
    return doubled / 2 + jnp.log(total / (shape.arcs * shape.size)) - log_mean_exp(field)
