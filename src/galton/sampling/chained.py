"""The tilted sampler with tuples from a chain, for little memory: a far smaller range (docs/math.md, section 18.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, wide_jax
from galton.sampling.chains import Chain, Ring, rings
from galton.sampling.factor import factor_of
from galton.sampling.frozen import Proposals, proposals
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.normals import uniforms
from galton.sampling.slack import loss_slack, norm_bound
from galton.sampling.tilted import log_shape

_CHAINED_SHARE = 0.7
"""Share of samples whose tuple comes from the chain; the range is inversely proportional to it."""
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
    best = None
    for ring, most in rings(gram, 2 * tilted_order + 6):
        logs = Chain(ring, most).log_normalisers()
        for order in range(1, most):
            log_bound = float(logs[order + 1]) + ring.log_cut(order) + log_shape(gram, order) + _CHAIN_MARGIN
            tilt = ChainTilt(ring, order, float(logs[order + 1]), log_bound)
            if best is None or tilt.log_range(epsilon) < best.log_range(epsilon):
                best = tilt
    return best


class ChainedSampler(Sampler):
    """Draws points around 1 + t modes of a chain, or around fixed sums of modes; unbiased, and its range is a chain's.

    For mixture-first and a banded Gram matrix. Points around modes that a chain draws bound the range; points around
    the centres of the quick estimator keep the variance low. Every sample also has a tuple of modes, drawn before its
    point or after it, so that both laws have a density and the weight is taken by their mixture.
    The samples are valid at every epsilon.
    """

    name: ClassVar[str] = "chained"
    direction = Direction.MIXTURE_FIRST

    def __init__(self, pair: Pair, tilt: ChainTilt, epsilon: float) -> None:
        factor = factor_of(pair)
        gram, bins = factor.gram, pair.modes
        self.tilt, self.order = tilt, tilt.order
        rows, probabilities = proposals(gram, self.direction, epsilon)
        self._strength = math.ceil(float(rows.sum(axis=1).max()))
        most = max(self.order, self._strength)
        largest = float(gram.diagonal().max())
        rounding = loss_slack(bins, largest, 2 * (most + 1) * largest, (most + 2) * factor.residual, "float64")
        self.slack = Slack(rounding.epsilon + self._weight_error(gram), rounding.lost + self._choice_error(bins))
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 11)
        chain = Chain(tilt.ring, self.order + 1)
        targets, weights = chain.moves
        self._first = chain.first_state(self.order + 1)
        with wide_jax():
            self._chain = (jnp.asarray(chain.starts), jnp.asarray(targets), jnp.asarray(weights))
            self._futures = jnp.asarray(chain.futures(keep=True))
            self._lags = jnp.asarray(tilt.ring.lags)
            self._gram = jnp.asarray(gram)
            self._root = jnp.asarray(factor.root.T)
            images = rows @ gram
            self._fixed = Proposals(
                jnp.asarray(rows.T),
                jnp.asarray(np.einsum("ij,ij->i", rows, images) / 2),
                jnp.asarray(np.log(probabilities)),
            )
            self._images = jnp.asarray(images)

    @property
    def steepness(self) -> int:
        """The fixed sums' density moves by their strength, and one; tuples drawn after the point by 2 (1 + t)."""
        return max(self.order, self._strength + 1) + 2 * (self.order + 1)

    def _weight_error(self, gram: FloatArray) -> float:
        """Bounds the rounding of the log weight, beyond what errors of the point and of the loss do to it."""
        bins, most, largest = gram.shape[0], max(self.order, self._strength) + 2, float(gram.max())
        size = most * largest + math.sqrt(largest) * norm_bound(bins)
        units = (bins + 64) * (1 + most * size) + self.tilt.ring.groups * (most + 64) + most * (most**2 * largest + 64)
        return 4 * units * ROUNDOFF

    def _choice_error(self, bins: int) -> float:
        """Bounds the distance of the law of tuples, and of fixed sums, from the one that is meant."""
        more, largest, groups = self.order + 2, float(self.tilt.ring.lags[0]), self.tilt.ring.groups
        chained = more * (groups * more * (more + 8) + more**2 * largest + 64)
        return 4 * (chained + more * (bins + 8) + 8 * bins) * ROUNDOFF

    def _range_at(self, epsilon: float) -> float:
        margin = 2 * (self.order + 1) * self.slack.epsilon
        return math.exp(min(self.tilt.log_range(epsilon) - math.log(_CHAINED_SHARE) + margin, 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight = _losses(
                keys,
                self._chain,
                self._futures,
                self._first,
                self._lags,
                self._gram,
                self._root,
                self._fixed,
                self._images,
                self.tilt.log_normaliser,
                self.order,
                self.tilt.ring.size,
                self.layout,
            )
            return Draw(np.asarray(loss), np.asarray(log_weight))


@partial(jax.jit, static_argnames=("order", "group", "layout"))
def _losses(
    keys: jax.Array,
    chain: tuple[jax.Array, jax.Array, jax.Array],
    futures: jax.Array,
    first: int,
    lags: jax.Array,
    gram: jax.Array,
    root: jax.Array,
    fixed: Proposals,
    images: jax.Array,
    log_normaliser: float,
    order: int,
    group: int,
    layout: Layout,
) -> tuple[jax.Array, jax.Array]:
    """Returns losses and log weights."""
    half, size = gram.diagonal() / 2, layout.block
    cumulative = jnp.cumsum(jnp.exp(fixed.log_weights))

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_kind, for_groups, for_place, for_bins, for_row, for_tuple, noise = jax.random.split(key, 7)
        chained = (uniforms(for_kind, (size,)) <= _CHAINED_SHARE)[:, None]
        grouped = _rotated(for_place, _counts(for_groups, chain, futures, first, order, size))
        before = _spread(for_bins, grouped, order, group)
        row = jnp.searchsorted(cumulative, uniforms(for_row, (size,)) * cumulative[-1])
        shift = jnp.where(chained, _product(before, gram), images[jnp.minimum(row, cumulative.size - 1)])
        point = correlated(noise, root, size) + shift
        loss = log_mean_exp(point - half)
        after = _softmax_counts(for_tuple, point - half, order)
        counts = jnp.where(chained, before, after)
        energy = ((_product(counts, gram) - gram.diagonal()) * counts).sum(axis=-1) / 2
        log_tuple = energy - _log_proposed(counts.reshape(size, -1, group).sum(axis=-1), lags) + log_normaliser
        exponents = _product(point, fixed.counts) - fixed.energies + fixed.log_weights
        log_fixed = jax.scipy.special.logsumexp(exponents, axis=-1) + math.log(1 - _CHAINED_SHARE)
        return loss, -jnp.logaddexp(math.log(_CHAINED_SHARE) + order * loss - log_tuple, log_fixed - loss)

    loss, log_weight = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel()


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _softmax_counts(key: jax.Array, exponents: jax.Array, order: int) -> jax.Array:
    """Draws 1 + t modes a row, independently, with probabilities proportional to exp; returns their counts."""
    size = exponents.shape[0]
    running = jnp.cumsum(jnp.exp(exponents - exponents.max(axis=-1, keepdims=True)), axis=-1)
    targets = uniforms(key, (size, order + 1)) * running[:, -1:]
    chosen = jnp.minimum(jax.vmap(jnp.searchsorted)(running, targets), exponents.shape[1] - 1)
    return jnp.zeros_like(exponents).at[jnp.arange(size)[:, None], chosen].add(1.0)


def _counts(
    key: jax.Array, chain: tuple[jax.Array, jax.Array, jax.Array], futures: jax.Array, first: int, order: int, size: int
) -> jax.Array:
    """Draws how many of the 1 + t modes are in each group, one row a sample, as if the circle were cut open.

    At each group, of the total weight of the future the first part belongs to "none here". A threshold in that part is
    as good for the next group; only after a move of one mode or more is a new one needed.
    """
    starts, targets, weights = chain
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
