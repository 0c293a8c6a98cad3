"""The tilted sampler with tuples from a chain, for little memory: a far smaller range (docs/math.md, section 18.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, wide_jax
from galton.sampling.chains import Chain, Ring, rings
from galton.sampling.factor import factor_of
from galton.sampling.halfspace import DEPTH_LOST
from galton.sampling.kernels import log_mean_exp
from galton.sampling.normals import uniforms
from galton.sampling.slack import choose_dtype, loss_slack, norm_bound
from galton.sampling.strata import FARTHEST_NORMAL, STRATA, stratified_normals
from galton.sampling.tilted import Strata, line, moving_error

_CHAIN_MARGIN = 1e-9
"""Added to the logarithm of the range for the rounding of the recursion, which is far smaller."""


@dataclass(frozen=True, eq=False)
class ChainTilt:
    """A tilt of order t whose 1 + t modes are drawn by a chain.

    Attributes:
      ring: the groups of bins.
      order: t.
      log_normaliser: logarithm of the mean weight of all tuples.
      log_bound: logarithm of a bound on exp(t * eps) * V.
    """

    ring: Ring
    order: int
    log_normaliser: float
    log_bound: float

    def log_range(self, epsilon: float) -> float:
        """Returns the logarithm of the range of V at this epsilon."""
        return self.log_bound - self.order * epsilon


def best_chain(gram: FloatArray, epsilon: float, tilted_order: int) -> ChainTilt | None:
    """Returns the tilt with the smallest range at `epsilon` among the chains that are affordable; None without any.

    Args:
      gram: G.
      epsilon: where delta is wanted.
      tilted_order: order of the tilted sampler; the best one of a chain is at most about twice that.
    """
    best, averages = None, Strata(gram, Direction.MIXTURE_FIRST, STRATA)
    for ring, most in rings(gram, 2 * tilted_order + 6):
        logs = Chain(ring, most).log_normalisers()
        for order in range(1, most):
            log_bound = float(logs[order + 1]) + ring.log_cut(order) + averages.log_shape(order) + _CHAIN_MARGIN
            tilt = ChainTilt(ring, order, float(logs[order + 1]), log_bound)
            if best is None or tilt.log_range(epsilon) < best.log_range(epsilon):
                best = tilt
    return best


class ChainedSampler(Sampler):
    """Draws 1 + t modes by a chain, and points around their sum, one in each stratum; its range is the chain's.

    For mixture-first and a banded Gram matrix. The samples are valid at every epsilon.
    """

    name: ClassVar[str] = "chained"
    tilts = True
    direction = Direction.MIXTURE_FIRST
    strata = STRATA

    def __init__(self, pair: Pair, tilt: ChainTilt, dtype: str | None = None) -> None:
        factor = factor_of(pair)
        gram, bins = factor.gram, pair.modes
        self.tilt, self.order = tilt, tilt.order
        largest = float(gram.diagonal().max())
        stretch = Strata(gram, self.direction, STRATA).stretch

        def slack(name: str) -> Slack:
            reach, residual = 2 * (self.order + 1) * largest, (self.order + 2) * factor.residual
            rounding = loss_slack(bins, largest, reach, residual, name, FARTHEST_NORMAL)
            moving = moving_error(bins, math.sqrt(largest), factor.residual, stretch, self.order, name)
            lost = rounding.lost + self._choice_error() + 3 * DEPTH_LOST
            return Slack(rounding.epsilon + moving + self._weight_error(gram), lost)

        self.dtype = dtype or choose_dtype(slack, self.order)
        self.slack = slack(self.dtype)
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 11)
        chain = Chain(tilt.ring, self.order + 1)
        targets, weights = chain.moves
        self._first = chain.first_state(self.order + 1)
        with wide_jax():
            self._tables = _Tables(
                jnp.asarray(chain.starts),
                jnp.asarray(targets),
                jnp.asarray(weights),
                jnp.asarray(chain.futures(keep=True)),
                jnp.asarray(tilt.ring.lags),
                jnp.asarray(gram),
                jnp.asarray(gram.mean(axis=1)),
                jnp.asarray(factor.root.T, self.dtype),
            )

    def _weight_error(self, gram: FloatArray) -> float:
        """Bounds the rounding of the log weight, beyond what errors of the point and of the loss do to it."""
        bins, most, largest = gram.shape[0], self.order + 2, float(gram.max())
        size = most * largest + math.sqrt(largest) * norm_bound(bins)
        units = (bins + 64) * (1 + most * size) + self.tilt.ring.groups * (most + 64) + most * (most**2 * largest + 64)
        return 4 * units * ROUNDOFF

    def _choice_error(self) -> float:
        """Bounds the distance of the law of tuples from the one that is meant."""
        more, largest, groups = self.order + 2, float(self.tilt.ring.lags[0]), self.tilt.ring.groups
        return 4 * more * (groups * more * (more + 8) + more**2 * largest + 64) * ROUNDOFF

    def _range_at(self, epsilon: float) -> float:
        return math.exp(min(self.tilt.log_range(epsilon), 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_tuple = _losses(keys, self._tables, self._first, self.order, self.tilt.ring.size, self.layout)
            losses = np.asarray(loss, np.float64)
            log_weights = np.asarray(log_tuple)[:, None] + self.tilt.log_normaliser - self.order * losses
            return Draw(losses, log_weights)


class _Tables(NamedTuple):
    """What is drawn from: the chain, and G.

    Attributes:
      starts: number of the first move of every state.
      targets: the state that a move leads to.
      weights: of moves.
      futures: total weight of all that may follow a state, before each group.
      lags: bounds on G between groups.
      gram: G.
      means: of its rows.
      root: transposed factor of G, in the type of the samples.
    """

    starts: jax.Array
    targets: jax.Array
    weights: jax.Array
    futures: jax.Array
    lags: jax.Array
    gram: jax.Array
    means: jax.Array
    root: jax.Array


@partial(jax.jit, static_argnames=("order", "group", "layout"))
def _losses(
    keys: jax.Array, tables: _Tables, first: int, order: int, group: int, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    """Returns losses, one for each stratum, and log weights but for the normaliser and the tilt."""
    diagonal, size, root = tables.gram.diagonal(), layout.block, tables.root
    half, field = (diagonal / 2).astype(root.dtype), jnp.zeros_like(diagonal)

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_groups, for_place, for_bins, noise, depth = jax.random.split(key, 5)
        grouped = _rotated(for_place, _counts(for_groups, tables, first, order, size))
        counts = _spread(for_bins, grouped, order, group)
        shift = _product(counts, tables.gram)
        log_tuple = ((shift - diagonal) * counts).sum(axis=-1) / 2 - _log_proposed(grouped, tables.lags)
        point, current, along = line(noise, root, counts, shift, field, tables.means, order)

        def stratum(normals: jax.Array) -> jax.Array:
            return log_mean_exp(point + (normals - current).astype(root.dtype)[:, None] * along - half)

        return jax.lax.map(stratum, stratified_normals(depth, size, STRATA)).T, log_tuple

    loss, log_tuple = jax.lax.map(block, keys)
    return loss.reshape(-1, STRATA), log_tuple.ravel()


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _counts(key: jax.Array, tables: _Tables, first: int, order: int, size: int) -> jax.Array:
    """Draws how many of the 1 + t modes are in each group, one row a sample, as if the circle were cut open.

    At each group, of the total weight of the future the first part belongs to "none here". A threshold in that part is
    as good for the next group; only after a move of one mode or more is a new one needed.
    """
    starts, targets, weights, futures = tables.starts, tables.targets, tables.weights, tables.futures
    uniform, every = uniforms(key, (order + 2, size)), jnp.arange(size)

    def step(
        carried: tuple[jax.Array, jax.Array, jax.Array], future: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], jax.Array]:
        state, threshold, placed = carried
        move = starts[state]
        left = order + 1 - placed

        def undecided(search: tuple[jax.Array, jax.Array]) -> jax.Array:
            here, total = search
            return (threshold >= total) & (here < left)

        def further(search: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            here, total = search
            here = here + undecided(search)
            return here, total + jnp.where(here > search[0], weights[move + here] * future[targets[move + here]], 0.0)

        here, _ = jax.lax.while_loop(
            lambda search: undecided(search).any(), further, (jnp.zeros_like(state), future[targets[move]])
        )
        state, placed = targets[move + here], placed + here
        threshold = jnp.where(here > 0, uniform[placed, every] * future[state], threshold)
        return (state, threshold, placed), here

    start = jnp.full(size, first), uniform[0] * futures[0, first], jnp.zeros(size, jnp.int64)
    _, counts = jax.lax.scan(step, start, futures[1:])
    return counts.T.astype(jnp.float64)


def _rotated(key: jax.Array, grouped: jax.Array) -> jax.Array:
    """Turns every row by a random number of groups."""
    size, groups = grouped.shape
    turns = (jax.random.bits(key, (size, 1), jnp.uint64) % groups).astype(jnp.int64)
    return jnp.take_along_axis(grouped, (jnp.arange(groups) - turns) % groups, axis=1)


def _spread(key: jax.Array, grouped: jax.Array, order: int, group: int) -> jax.Array:
    """Gives every mode of a group a random bin of it; returns how often each bin was drawn."""
    if group == 1:
        return grouped
    size, groups = grouped.shape
    running = jnp.cumsum(grouped, axis=1)
    members = jax.vmap(lambda row: jnp.searchsorted(row, jnp.arange(order + 1.0), side="right"))(running)
    places = (jax.random.bits(key, (size, order + 1), jnp.uint64) % group).astype(jnp.int64)
    bins = members * group + places
    return jnp.zeros((size, groups * group)).at[jnp.arange(size)[:, None], bins].add(1.0)


def _log_proposed(grouped: jax.Array, lags: jax.Array) -> jax.Array:
    """The logarithm of a tuple's weight in the chain, averaged over the places where the circle may be cut."""
    memory = lags.size - 1
    attracted = lags[0] * grouped * (grouped - 1) / 2
    for lag in range(1, memory + 1):
        attracted += lags[lag] * grouped * jnp.roll(grouped, lag, axis=1)
    across = jnp.zeros_like(grouped)
    for after in range(memory):
        before = sum(lags[after + back] * jnp.roll(grouped, back, axis=1) for back in range(1, memory - after + 1))
        across += before * jnp.roll(grouped, -after, axis=1)
    return attracted.sum(axis=-1) + log_mean_exp(-across)
