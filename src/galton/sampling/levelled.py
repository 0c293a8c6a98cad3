"""The sampler of a product of sums of exponentials, for little memory and tiny delta (docs/math.md, section 18.6)."""

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
from galton.sampling.base import Draw, Layout, Slack, block_keys, layout, wide_jax
from galton.sampling.bounded import BoundedDraw, BoundedSampler
from galton.sampling.factor import factor_of
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST, SHALLOW_LOST
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.levels import LevelTilt, log_exceedances
from galton.sampling.normals import uniforms
from galton.sampling.slack import loss_slack, norm_bound


class _Tables(NamedTuple):
    """What is drawn from: the chain of levels, the modes above the cut, and G.

    Attributes:
      weights: of levels after states, (levels, states).
      futures: total weight of all that may follow, (bins that have levels + 1, states).
      levels: u.
      log_coefficients: logarithms of c.
      pairs: running sums of the probabilities that A_k is above the cut under bin i, by (i, k).
      gram: G.
      raised: what the chain takes for G, less G.
      root: transposed factor of G.
    """

    weights: jax.Array
    futures: jax.Array
    levels: jax.Array
    log_coefficients: jax.Array
    pairs: jax.Array
    gram: jax.Array
    raised: jax.Array
    root: jax.Array


class _Constants(NamedTuple):
    """Numbers of the sampler: share of samples above the cut, the cut, two log normalisers, and the slack of A."""

    share: float
    cut: float
    log_above: float
    log_normaliser: float
    slack: float


class LevelledSampler(BoundedSampler):
    """Draws points around sums of modes by levels from a chain, or points with a mode above a cut.

    For mixture-first and a banded Gram matrix. Where no A_k is above the cut, the density of the first kind is at least
    exp(theta * sum of X) up to its normaliser; where one is, the density of the second kind is at least that of the
    mixture over the mean number of such A_k. The weight is taken by the mixture of both. The samples are valid at every
    epsilon.
    """

    name: ClassVar[str] = "levelled"
    direction = Direction.MIXTURE_FIRST

    def __init__(self, pair: Pair, tilt: LevelTilt, epsilon: float) -> None:
        factor = factor_of(pair)
        gram, bins, chain = factor.gram, pair.modes, tilt.chain
        self.tilt = tilt
        self._share = math.exp(tilt.log_above - tilt.log_range(epsilon))
        self._share = min(max(self._share, _LEAST_SHARE), 1 - _LEAST_SHARE)
        top, largest = float(chain.levels[-1]), float(gram.diagonal().max())
        around = float(gram.sum(axis=1).max())
        least = float(gram.diagonal().min())
        farthest = (abs(tilt.cut) + 1.5 * largest) / math.sqrt(least) + 10.0
        rounding = loss_slack(
            bins, largest, top * around + 2 * largest, (top * bins + 2) * factor.residual, "float64", farthest
        )
        moved = (rounding.epsilon + DEPTH_ERROR * math.sqrt(largest)) * (1 + math.sqrt(largest / least))
        self.slack = Slack(moved, rounding.lost + DEPTH_LOST + SHALLOW_LOST + self._choice_error(bins))
        self._weight_error = self._rounding() + (top * bins) ** 2 * factor.residual
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 11)
        weights = chain.weights(tilt.log_coefficients)
        futures, _ = chain.futures(weights, chain.steps)
        exceedances = np.exp(log_exceedances(gram, tilt.cut))
        with wide_jax():
            self._tables = _Tables(
                jnp.asarray(weights.reshape(chain.levels.size, -1)),
                jnp.asarray(futures),
                jnp.asarray(chain.levels),
                jnp.asarray(tilt.log_coefficients),
                jnp.asarray(np.cumsum(exceedances)),
                jnp.asarray(gram),
                jnp.asarray(self._raised(gram)),
                jnp.asarray(factor.root.T),
            )

    def _raised(self, gram: FloatArray) -> FloatArray:
        """The attraction of the chain on the circle, less G."""
        bins, lags = gram.shape[0], self.tilt.chain.ring.lags
        apart = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
        apart = np.minimum(apart, bins - apart)
        return np.asarray(np.append(lags, np.zeros(bins))[apart] - gram)

    def _choice_error(self, bins: int) -> float:
        """Bounds the distance of the law of levels, of pairs and of the choice of a kind from the one that is meant."""
        count, exponent = self.tilt.chain.levels.size, float(self.tilt.chain.log_attraction.max())
        return 8 * (bins * (count + 2) * (bins + exponent + 16) + bins * bins) * ROUNDOFF

    def _rounding(self) -> float:
        """Bounds the rounding of the log weight, beyond what errors of the point do to it."""
        bins, top = self.tilt.chain.ring.groups, float(self.tilt.chain.levels[-1])
        largest = float(self.tilt.chain.ring.lags.sum() * 2)
        size = top * (top * largest + math.sqrt(largest) * norm_bound(bins)) + 64
        return 8 * (bins + 64) * (bins * size + bins * top**2 * largest) * ROUNDOFF + 1e-10

    def _range_at(self, epsilon: float) -> float:
        margin = 4 * self.tilt.chain.ring.groups * float(self.tilt.chain.levels[-1]) * self.slack.epsilon
        below = self.tilt.log_below(epsilon) - math.log1p(-self._share)
        above = self.tilt.log_above - math.log(self._share)
        return math.exp(min(max(below, above) + margin + 2 * self._weight_error + 1e-9, 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        tilt = self.tilt
        constants = _Constants(self._share, tilt.cut, tilt.log_above, tilt.log_normaliser, self.slack.epsilon)
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            memory = tilt.chain.ring.memory
            arrays = _losses(keys, self._tables, constants, memory, self.layout)
            loss, log_weight, least, most = (np.asarray(array) for array in arrays)
        return BoundedDraw(loss, log_weight, least - self._weight_error, most + self._weight_error)


_LEAST_SHARE = 0.02
"""Share of samples of either kind, at least."""


@partial(jax.jit, static_argnames=("memory", "layout"))
def _losses(
    keys: jax.Array, tables: _Tables, constants: _Constants, memory: int, layout: Layout
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns losses, log weights and bounds on them."""
    diagonal, size = tables.gram.diagonal(), layout.block
    half, every = diagonal / 2, jnp.arange(layout.block)
    log_share, log_rest = jnp.log(constants.share), jnp.log1p(-constants.share)

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        for_kind, for_levels, for_place, for_pair, for_depth, for_turn, after, noise = jax.random.split(key, 8)
        above = uniforms(for_kind, (size,)) <= constants.share
        before = _rotated(for_place, _chain_levels(for_levels, tables, size), memory)
        under, chosen = _exceeding(for_pair, tables, size)
        centre = jnp.where(above[:, None], tables.gram[under], _product(before, tables.gram))
        point = correlated(noise, tables.root, size) + centre
        energy, mean = diagonal[chosen], tables.gram[under, chosen]
        spread = jnp.sqrt(energy)
        mass = jax.scipy.special.ndtr((mean - constants.cut - energy / 2) / spread)
        depth = -jax.scipy.special.ndtri(uniforms(for_depth, (size,)) * mass)
        step = jnp.where(above, (mean + spread * depth - point[every, chosen]) / energy, 0.0)
        point = point + step[:, None] * tables.gram[chosen]

        exponents = point - half
        loss = log_mean_exp(exponents)
        terms = jnp.exp(tables.log_coefficients + tables.levels * exponents[..., None])
        factors = terms.sum(axis=-1)
        logs = jnp.log(factors)
        slope = ((terms * tables.levels).sum(axis=-1) / factors).sum(axis=-1)
        by_turn = logs.sum(axis=-1, keepdims=True) - _windows(logs, memory)
        levels = jnp.where(
            above[:, None], _posterior_levels(for_turn, after, terms, by_turn, tables.levels, memory), before
        )
        doubled = (_product(levels, tables.raised) * levels).sum(axis=-1)
        raised = (doubled - (tables.raised.diagonal() * levels).sum(axis=-1)) / 2
        log_chain = log_mean_exp(by_turn) + raised - constants.log_normaliser - loss

        def log_weight(bound: int) -> jax.Array:
            moved = bound * constants.slack
            number = (exponents > constants.cut + moved).sum(axis=-1)
            steepness = 4 * slope + levels.sum(axis=-1) + 2 + factors.shape[-1] * tables.levels[-1] ** 2 * abs(moved)
            high = log_share + jnp.log(number.astype(jnp.float64)) - constants.log_above
            return -jnp.logaddexp(high, log_rest + log_chain) + steepness * moved

        return loss, log_weight(0), log_weight(-1), log_weight(1)

    loss, log_weight, least, most = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel(), least.ravel(), most.ravel()


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _exceeding(key: jax.Array, tables: _Tables, size: int) -> tuple[jax.Array, jax.Array]:
    """Draws a bin i and a mode k with probability proportional to that of A_k above the cut under i."""
    bins = tables.gram.shape[0]
    place = jnp.searchsorted(tables.pairs, uniforms(key, (size,)) * tables.pairs[-1])
    place = jnp.minimum(place, tables.pairs.size - 1)
    return place // bins, place % bins


def _chain_levels(key: jax.Array, tables: _Tables, size: int) -> jax.Array:
    """Draws the levels of all bins but the last, one row a sample."""
    count, states = tables.weights.shape
    uniform = uniforms(key, (tables.futures.shape[0] - 1, size))
    kinds = jnp.arange(count)[:, None]

    def step(state: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        future, threshold = inputs
        following = kinds * (states // count) + state // count
        running = jnp.cumsum(tables.weights[:, state] * future[following], axis=0)
        chosen = jnp.minimum((running <= threshold * running[-1]).sum(axis=0), count - 1)
        return chosen * (states // count) + state // count, chosen

    _, chosen = jax.lax.scan(step, jnp.zeros(size, jnp.int64), (tables.futures[1:], uniform))
    return tables.levels[chosen.T]


def _rotated(key: jax.Array, levels: jax.Array, memory: int) -> jax.Array:
    """Adds the bins of level 0 at the end, and turns every row by a random number of bins."""
    levels = jnp.pad(levels, ((0, 0), (0, memory)))
    size, bins = levels.shape
    turns = (jax.random.bits(key, (size, 1), jnp.uint64) % bins).astype(jnp.int64)
    return jnp.take_along_axis(levels, (jnp.arange(bins) - turns) % bins, axis=1)


def _windows(values: jax.Array, memory: int) -> jax.Array:
    """Sums of as many neighbours on the circle as the memory has; entry t starts at t."""
    return sum((jnp.roll(values, -lag, axis=-1) for lag in range(1, memory)), values)


def _posterior_levels(
    for_turn: jax.Array, key: jax.Array, terms: jax.Array, by_turn: jax.Array, levels: jax.Array, memory: int
) -> jax.Array:
    """Draws, given the point, where the bins of level 0 are, and the levels of the others."""
    size, bins, count = terms.shape
    running = jnp.cumsum(jnp.exp(by_turn - by_turn.max(axis=-1, keepdims=True)), axis=-1)
    turn = (running <= uniforms(for_turn, (size, 1)) * running[:, -1:]).sum(axis=-1, keepdims=True)
    skipped = (jnp.arange(bins) - jnp.minimum(turn, bins - 1)) % bins < memory
    sums = jnp.cumsum(terms, axis=-1)
    chosen = (sums <= (uniforms(key, (size, bins)) * sums[..., -1])[..., None]).sum(axis=-1)
    return jnp.where(skipped, 0.0, levels[jnp.minimum(chosen, count - 1)])
