"""The sampler of a product of polynomials, one an arc of bins, for little memory and tiny delta (math.md, 18.9).

All that a sample needs along a line on which all A_k grow alike are the sums of its arcs at one point of it: an average
over strata of that line costs little more than a single value.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.arcs import ArcTilt, Splits, splits
from galton.sampling.base import Draw, Layout, Slack, block_keys, layout, wide_jax
from galton.sampling.bounded import BoundedDraw, BoundedSampler
from galton.sampling.factor import factor_of
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.normals import uniforms
from galton.sampling.slack import UNIT_ROUNDOFF, loss_slack, norm_bound
from galton.sampling.strata import FARTHEST_NORMAL, STRATA, EvenLine, stratified_normals


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
      across: what a point is multiplied by to have its coordinate on the line that has strata.
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
    across: jax.Array


class _Constants(NamedTuple):
    """Numbers of the sampler: share of samples around tuples, two log normalisers, two bounds on G, slope and slack."""

    share: float
    log_tuples: float
    log_normaliser: float
    self_lag: float
    beyond: float
    slope: float
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


class ArcSampler(BoundedSampler):
    """Draws points around modes of a chain on the circle, or around a tuple of modes that are all in one arc.

    For mixture-first and a banded Gram matrix. Where no arc's sum of X is above the cut, the density of the first kind
    is at least exp(theta * sum of X) up to its normaliser; where one is, the density of the second kind is at least
    that of the mixture times a power of the sum. The weight is taken by both, and a value is the average over strata of
    the line along which all sums grow alike. The samples are valid at every epsilon.
    """

    name: ClassVar[str] = "arcs"
    direction = Direction.MIXTURE_FIRST
    strata = STRATA

    def __init__(self, pair: Pair, tilt: ArcTilt, epsilon: float) -> None:
        factor = factor_of(pair)
        gram, bins, chain = factor.gram, pair.modes, tilt.chain
        self.tilt = tilt
        self._share = tilt.best_share(epsilon)
        self._ranges: dict[float, float] = {}
        most, largest = chain.totals[-1], float(gram.diagonal().max())
        modes = max(most * chain.arcs, tilt.power + 1)
        reach = (3 * most + tilt.power + 3) * float(gram.max()) + modes * max(chain.ring.beyond, 0.0)
        residual = (modes + 2) * factor.residual
        rounding = loss_slack(bins, largest, reach, residual, "float64", FARTHEST_NORMAL)
        sectors, parts = chain.sector_splits(), chain.part_splits(max(most, tilt.power))
        rows, logs = chain.tuples(tilt.power)
        tuples = splits(np.zeros(logs.size, np.int64), logs, rows)
        stored = (chain.arcs + 1) * (sectors.rounding + chain.parts * parts.rounding) + tuples.rounding
        lost = rounding.lost + self._choice_error(bins) + stored + 3 * DEPTH_LOST
        self.slack = Slack(rounding.epsilon + moving_evenly(tilt.line, bins, math.sqrt(largest)), lost)
        self._weight_error = self._rounding() + (modes + 2) ** 2 * factor.residual
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 10)
        self._shape = _Shape(chain.arcs, chain.parts, chain.width, tilt.power, most, self.layout)
        first, futures, _ = chain.futures(tilt.log_coefficients)
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
                jnp.asarray(chain.raised()[: chain.size, : chain.size]),
                jnp.asarray(gram),
                jnp.asarray(chain.raised() - gram),
                jnp.asarray(factor.root.T),
                jnp.asarray(tilt.line.weights),
            )

    def _choice_error(self, bins: int) -> float:
        """Bounds the distance of the laws of modes from those that are meant."""
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
        if epsilon not in self._ranges:
            log_range = self.tilt.log_range(epsilon, self._share) + 2 * self._weight_error + 1e-9
            self._ranges[epsilon] = math.exp(min(log_range, 700.0))
        return self._ranges[epsilon]

    def draw(self, seed: int, index: int) -> Draw:
        tilt = self.tilt
        constants = _Constants(
            self._share,
            tilt.log_tuples,
            tilt.log_normaliser,
            float(tilt.chain.ring.lags[0]),
            tilt.chain.ring.beyond,
            tilt.line.slope,
            self.slack.epsilon,
        )
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight, moved = (
                np.asarray(array) for array in _losses(keys, self._tables, constants, self._shape)
            )
        moved = moved + self._weight_error
        return BoundedDraw(loss, log_weight, log_weight - moved, log_weight + moved)


def moving_evenly(line: EvenLine, bins: int, spread: float) -> float:
    """Bounds what moving a point along the line adds to the error of an A_k (docs/math.md, 18.9)."""
    unit = UNIT_ROUNDOFF["float64"]
    coordinate = 2 * line.stretch * (bins + 4) * unit * spread * norm_bound(bins)
    return 1.01 * line.slope * (coordinate + DEPTH_ERROR + 3 * FARTHEST_NORMAL * line.uneven)


def _on_device(ways: Splits) -> _Ways:
    return _Ways(jnp.asarray(ways.ends), jnp.asarray(ways.rows, jnp.float64))


@partial(jax.jit, static_argnames=("shape",))
def _losses(
    keys: jax.Array, tables: _Tables, constants: _Constants, shape: _Shape
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses, log weights, and how far these may be off, each with one column a stratum."""
    size, bins = shape.layout.block, tables.gram.shape[0]
    diagonal = tables.gram.diagonal()
    log_share, log_rest = jnp.log(constants.share), jnp.log1p(-constants.share)
    second = shape.arcs * shape.most**2 * constants.slack / 8

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        for_kind, for_chain, for_parts, for_bins, for_tuple, for_extra, noise, depth = jax.random.split(key, 8)
        around_tuple = uniforms(for_kind, (size,)) <= constants.share
        states = _circle(for_chain, tables, size)
        before = _in_bins(for_bins, tables, _way(for_parts, tables.sectors, states), shape).reshape(size, bins)
        arc, here = _tuple_before(for_tuple, tables, shape)
        field = _product(jnp.where(around_tuple[:, None], _on_circle(arc, here, shape), before), tables.gram)
        extra = _softmax_index(uniforms(for_extra, (size,)), field)
        centre = field + jnp.where(around_tuple[:, None], tables.gram[extra], 0.0) - diagonal / 2
        raised = jnp.where(
            around_tuple,
            _tuple_energy(here, arc, field, tables, constants, shape),
            _chain_energy(before, tables, constants),
        )
        point = correlated(noise, tables.root, size)
        exponents = point + centre - constants.slope * _product(point, tables.across[:, None])
        loss = log_mean_exp(exponents)
        sums = jax.scipy.special.logsumexp(exponents.reshape(size, shape.arcs, shape.size), axis=-1)
        powers = jax.scipy.special.logsumexp(shape.power * sums, axis=-1) - constants.log_tuples

        def stratum(normals: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            moved = normals * constants.slope
            terms = tables.log_coefficients + tables.totals * (sums + moved[:, None])[..., None]
            tops = terms.max(axis=-1)
            parts = jnp.exp(terms - tops[..., None])
            totals = parts.sum(axis=-1)
            log_product = (tops + jnp.log(totals)).sum(axis=-1)
            steepness = ((parts * tables.totals).sum(axis=-1) / totals).sum(axis=-1) + shape.power + 2
            log_chain = log_product - constants.log_normaliser - loss - moved
            log_weight = -jnp.logaddexp(log_share + powers + shape.power * moved, log_rest + log_chain)
            return loss + moved, log_weight - raised, (steepness + second) * constants.slack

        return jax.tree.map(jnp.transpose, jax.lax.map(stratum, stratified_normals(depth, size, STRATA)))

    return jax.tree.map(lambda array: array.reshape(-1, STRATA), jax.lax.map(block, keys))


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
    """Draws an index of every row with probability proportional to exp."""
    running = jnp.cumsum(jnp.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    chosen = (running < (uniform * running[:, -1])[:, None]).sum(axis=-1)
    return jnp.minimum(chosen, logs.shape[-1] - 1)


def _chain_energy(modes: jax.Array, tables: _Tables, constants: _Constants) -> jax.Array:
    """The logarithm of the attraction of modes in the chain, less that of their attraction by G."""
    doubled = (_product(modes, tables.raised) * modes).sum(axis=-1)
    return (doubled - ((constants.self_lag - tables.gram.diagonal()) * modes).sum(axis=-1)) / 2


def _tuple_energy(
    here: jax.Array, arc: jax.Array, field: jax.Array, tables: _Tables, constants: _Constants, shape: _Shape
) -> jax.Array:
    """The logarithm of a tuple's weight in its law, less that of its weight by G, whose field is given."""
    modes = _on_circle(arc, here, shape)
    doubled = (_product(here, tables.within) * here).sum(axis=-1) - (field * modes).sum(axis=-1)
    doubled -= constants.self_lag * shape.power - (tables.gram.diagonal() * modes).sum(axis=-1)
    near = _product(here.reshape(-1, shape.parts, shape.width).sum(axis=-1), tables.around)
    far = (shape.arcs - 3) * shape.size * jnp.exp(shape.power * constants.beyond)
    total = shape.width * jnp.exp(near).sum(axis=-1) + far
    return doubled / 2 + jnp.log(total / (shape.arcs * shape.size)) - log_mean_exp(field)
