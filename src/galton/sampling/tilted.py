"""The tilted sampler, for mixture-first and replace: its range is close to delta itself (docs/math.md, section 3).

The noise's coordinate along the modes that were drawn is drawn once in each of several strata, and the value of a
sample is the average (3.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument, count
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, placed, wide_jax
from galton.sampling.factor import factor_of, factor_residual
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST
from galton.sampling.kernels import categorical, correlated, log_mean_exp
from galton.sampling.orders import search_by_halving
from galton.sampling.slack import UNIT_ROUNDOFF, choose_dtype, loss_slack, norm_bound
from galton.sampling.strata import FARTHEST_NORMAL, STRATA, log_largest_average, stratified_normals

MAX_ORDER = 4096
_WIDEST = 500.0
_UNRESOLVED = f"needs modes whose energies differ by at most {_WIDEST:g}; take plain, or more noise"
WORK = 4e8
"""Exponentials spent at most on the search for the order."""


@dataclass(frozen=True, eq=False)
class Tilt:
    """How 1 + t modes are drawn so that they attract each other, and how that enters the weight.

    The first indices (the head: a pair for t = 1, a triple otherwise) are drawn jointly and exactly, the others one
    by one. For replace adjacency all modes are also subject to the field t * rowmean(G).

    Attributes:
      order: t.
      field: the field, zero for mixture-first.
      table: unnormalised joint weights of the first two indices.
      log_head: logarithm of the constant part of the weight: the head's average and the field's own energy.
      log_bound: logarithm of a bound on exp(t * eps) * V.
    """

    order: int
    field: FloatArray
    table: FloatArray
    log_head: float
    log_bound: float

    def log_range(self, epsilon: float) -> float:
        """Returns log R_t, the range of V at this epsilon and by itself an upper bound on delta."""
        return self.log_bound - self.order * epsilon

    @property
    def head_size(self) -> int:
        """How many indices are drawn exactly."""
        return 2 if self.order == 1 else 3


def _log_mean_exp(values: FloatArray) -> FloatArray:
    peak = values.max(axis=-1)
    return peak + np.log(np.exp(values - peak[..., None]).mean(axis=-1))


def _log_tail(gram: FloatArray, field: FloatArray, index: int) -> float:
    """log max_i (1/b) sum_k exp(field_k + index G[i, k]): bounds the weight's factor at this index."""
    return float(_log_mean_exp(field + index * gram).max())


def _tilt(gram: FloatArray, direction: Direction, order: int, log_tail: float, log_shape: float) -> Tilt:
    """A pair (i, j) has weight e_i E_ij e_j with E = exp(G), e = exp(field); a triple e_i e_j e_k E_ij E_ik E_jk.

    The first two indices of a triple have the marginal e_i e_j E_ij (E diag(e) E)_ij, and the third follows given
    the two: no table of b^3 entries is needed.
    """
    bins = gram.shape[0]
    field = np.zeros(bins)
    log_head = log_more = 0.0
    if direction is Direction.REPLACE:
        field = order * gram.mean(axis=1)
        log_head = order**2 * float(gram.mean()) / 2
        log_more = order * float(gram.diagonal().mean()) / 2
    log_table = gram + field[:, None] + field
    size = 2
    if order > 1:
        paired = gram + field / 2
        tops = paired.max(axis=1)
        scaled = np.exp(paired - tops[:, None])
        with np.errstate(divide="ignore"):
            log_table += tops[:, None] + tops + np.log(scaled @ scaled.T)
        size = 3
    peak = float(log_table.max())
    table = np.exp(log_table - peak)
    log_head += peak + math.log(float(table.sum())) - size * math.log(bins)
    return Tilt(order, field, table, log_head, log_head + log_more + log_shape + log_tail)


def margin(gram: FloatArray, order: int) -> float:
    """Covers the logarithm of the range for rounding in G and in the sums."""
    bins, more = gram.shape[0], order + 1
    units = 8 * more * (bins + 64) + more**2 * (12 * (bins + 2) + 8 * more) * float(gram.max())
    return 1e-9 + units * ROUNDOFF


class Strata:
    """What averages over strata make of the largest value of a sample, whatever modes were drawn (docs/math.md, 3.4).

    Attributes:
      slope: how fast the loss grows at least with the coordinate that has strata.
      stretch: bounds the sum of counts divided by the length of the vector that the coordinate is along.
    """

    def __init__(self, gram: FloatArray, direction: Direction, strata: int) -> None:
        means, residual = gram.mean(axis=1), 2 * factor_residual(gram)
        least = float((gram.min(axis=0) + means).min()) - 2 * residual
        longest = math.sqrt(float((gram.diagonal() + 2 * means).max()) + float(means.mean()) + 4 * residual)
        self.slope = direction.sides * max(least, 0.0) / longest * (1 - 1e-9)
        self.stretch = 2 / math.sqrt(max(2 * float(means.min()) + float(means.mean()) - 3 * residual, 1e-300))
        self._gram, self._strata = gram, strata

    def log_shape(self, order: int) -> float:
        """Returns the logarithm of the largest average of exp(-t x) (1 - exp(-x)), and a margin for rounding."""
        return log_largest_average(order, self.slope, self._strata) + margin(self._gram, order)


def tilt(gram: FloatArray, direction: Direction, order: int, strata: int = STRATA) -> Tilt:
    """Returns the tilt of the given order."""
    count("order", order, at_most=MAX_ORDER)
    return _whole_tilt(gram, direction, order, Strata(gram, direction, strata))


def _whole_tilt(gram: FloatArray, direction: Direction, order: int, strata: Strata) -> Tilt:
    field = order * gram.mean(axis=1) if direction is Direction.REPLACE else np.zeros(gram.shape[0])
    log_tail = sum(_log_tail(gram, field, index) for index in range(3, order + 1))
    return _tilt(gram, direction, order, log_tail, strata.log_shape(order))


def best_tilt(gram: FloatArray, direction: Direction, epsilon: float, strata: int = STRATA) -> Tilt:
    """Returns the tilt with the smallest range at `epsilon` that a search of bounded cost finds.

    Every order gives a valid range: a search that ends early costs samples, but never validity.
    """
    averages = Strata(gram, direction, strata)
    if direction is Direction.MIXTURE_FIRST:
        return _search_upwards(gram, epsilon, max(3, min(MAX_ORDER, int(WORK / gram.size))), averages)
    if direction is Direction.REPLACE:
        largest = max(3, min(MAX_ORDER // 4, int(WORK / 16 / gram.size)))
        return search_by_halving(lambda order: _whole_tilt(gram, direction, order, averages), epsilon, largest)
    raise InvalidArgument("direction", direction.value, "has no tilt; the half-space sampler is for it")


def _search_upwards(gram: FloatArray, epsilon: float, largest: int, strata: Strata) -> Tilt:
    """Order by order: the tail's factors do not depend on the order, and log R_t is nearly convex in t."""
    current = best = _tilt(gram, Direction.MIXTURE_FIRST, 1, 0.0, strata.log_shape(1))
    log_tail = 0.0
    for order in range(2, largest + 1):
        if order == 2:
            current = _tilt(gram, Direction.MIXTURE_FIRST, 2, 0.0, strata.log_shape(2))
        else:
            log_tail += _log_tail(gram, current.field, order)
            log_bound = current.log_head + strata.log_shape(order) + log_tail
            current = Tilt(order, current.field, current.table, current.log_head, log_bound)
        if current.log_range(epsilon) < best.log_range(epsilon):
            best = current
        elif order > 3:
            break
    return best


def resolvable(gram: FloatArray) -> bool:
    """Whether the weights of tuples keep their precision: none is so small that it underflows (docs/math.md, 6.4)."""
    diagonal = gram.diagonal()
    return float(diagonal.max() - diagonal.min()) <= _WIDEST


def _weight_error(bins: int, largest: float, order: int) -> float:
    """Bounds a t-th of the error of the log weight, the errors of centres, and the relative ones of tuples' weights."""
    units = (bins + 64) * (1 + (order + 1) * largest) + 16 * (order + 2) ** 2 * (largest + 8)
    return 2 * units * ROUNDOFF


class TiltedSampler(Sampler):
    """Draws 1 + t modes, attracted to each other by G, and points around their sum, one in each stratum; range R_t.

    The order t is the one with the smallest range at `epsilon`; it never depends on samples. The samples are valid
    at every other epsilon too, with another range: nothing in section 3 of docs/math.md depends on the epsilon that t
    was chosen for.
    """

    name: ClassVar[str] = "tilted"
    tilts = True
    strata = STRATA

    def __init__(
        self, pair: Pair, direction: Direction, epsilon: float, order: int | None = None, dtype: str | None = None
    ) -> None:
        factor = factor_of(pair)
        gram, bins = factor.gram, pair.modes
        if not resolvable(gram):
            raise InvalidArgument("sampler", self.name, _UNRESOLVED)
        self.direction = direction
        self.tilt = best_tilt(gram, direction, epsilon) if order is None else tilt(gram, direction, order)
        self.order = self.tilt.order
        largest = float(gram.diagonal().max())
        stretch = Strata(gram, direction, STRATA).stretch
        sides = direction.sides

        def slack(name: str) -> Slack:
            reach, residual = 2 * (self.order + 1) * largest, (self.order + 2) * factor.residual
            rounding = loss_slack(bins, largest, reach, residual, name, FARTHEST_NORMAL)
            moving = moving_error(bins, math.sqrt(largest), factor.residual, stretch, self.order, name)
            weights = _weight_error(bins, largest, self.order)
            choices = 4 * (self.order + 2) * bins * bins * ROUNDOFF + weights
            return Slack(sides * (rounding.epsilon + moving) + weights, rounding.lost + choices + 3 * DEPTH_LOST)

        self.dtype = dtype or choose_dtype(slack, self.order)
        self.slack = slack(self.dtype)
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 11)
        with wide_jax():
            self._parts = Parts(
                placed(np.cumsum(self.tilt.table)),
                placed(self.tilt.field),
                placed(gram),
                placed(gram.mean(axis=1)),
                placed(factor.root.T, self.dtype),
                placed(gram.diagonal() / 2, self.dtype),
            )

    def _range_at(self, epsilon: float) -> float:
        return math.exp(min(self.tilt.log_range(epsilon), 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, statistic, log_weight = _losses(
                keys, self._parts, self.order, self.tilt.head_size, self.direction, self.layout, self.strata
            )
            statistics = np.asarray(statistic, np.float64)
            log_weights = np.asarray(log_weight)[:, None] + self.tilt.log_head - self.order * statistics
            return Draw(np.asarray(loss, np.float64), log_weights)


def moving_error(bins: int, spread: float, residual: float, stretch: float, order: int, dtype: str) -> float:
    """Bounds what moving a point along the modes that were drawn adds to the error of a loss (docs/math.md, 6.5)."""
    unit = UNIT_ROUNDOFF[dtype]
    gamma = (bins + 4) * unit / (1 - (bins + 4) * unit)
    product = 2 * stretch * gamma * spread * norm_bound(bins)
    far = 2 * FARTHEST_NORMAL
    length = residual * stretch * (1 + spread * stretch) + 4 * spread * (bins + order + 8) * ROUNDOFF
    return 1.01 * (spread * (product + DEPTH_ERROR) + far * length)


class Parts(NamedTuple):
    """The pair and its tilt, as JAX arrays.

    Attributes:
      table: cumulative sums of the joint weights of the first two indices.
      field: extra attraction of every mode.
      gram: G.
      means: of its rows.
      root: transposed factor of G, in the type of the samples.
      half: half of its diagonal, in that type.
    """

    table: jax.Array
    field: jax.Array
    gram: jax.Array
    means: jax.Array
    root: jax.Array
    half: jax.Array


def line(
    key: jax.Array,
    root: jax.Array,
    counts: jax.Array,
    shift: jax.Array,
    field: jax.Array,
    means: jax.Array,
    order: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws points around tuples; returns them, where they are on their lines, and the directions of these.

    A line is along n = counts + (1 + t) / bins: the image of its unit vector is G n / |n|, |n|^2 = n G n.

    Args:
      key: of the noise.
      root: transposed factor of G.
      counts: how often each mode was drawn, one row a tuple.
      shift: field + counts @ G.
      field: extra attraction of every mode.
      means: of the rows of G.
      order: t.
    """
    drawn = counts + (order + 1) / means.size
    image = shift - field + (order + 1) * means
    length = jnp.sqrt((drawn * image).sum(axis=-1))
    point = correlated(key, root, counts.shape[0])
    current = (drawn * point.astype(jnp.float64)).sum(axis=-1) / length
    return point + shift.astype(root.dtype), current, (image / length[:, None]).astype(root.dtype)


@partial(jax.jit, static_argnames=("head_size", "direction", "layout", "strata"))
def _losses(
    keys: jax.Array,
    parts: Parts,
    order: int,
    head_size: int,
    direction: Direction,
    layout: Layout,
    strata: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses, the statistic of the tilt, and the tail's part of the log weight; tuples are drawn in float64."""
    root, half = parts.root, parts.half

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        for_head, for_tail, noise, depth = jax.random.split(key, 4)
        shift, log_weight, counts = _tuples(
            for_head, for_tail, parts.table, parts.field, parts.gram, order, head_size, layout.block
        )
        point, current, along = line(noise, root, counts, shift, parts.field, parts.means, order)

        def stratum(normals: jax.Array) -> tuple[jax.Array, jax.Array]:
            moved = point + (normals - current).astype(root.dtype)[:, None] * along
            mixture = log_mean_exp(moved - half).astype(jnp.float64)
            if direction is Direction.MIXTURE_FIRST:
                return mixture, mixture
            mirrored = log_mean_exp(-moved - half)
            return mixture - mirrored, mixture + moved.astype(jnp.float64).mean(axis=-1)

        loss, statistic = jax.lax.map(stratum, stratified_normals(depth, layout.block, strata))
        return loss.T, statistic.T, log_weight

    loss, statistic, log_weight = jax.lax.map(block, keys)
    return loss.reshape(-1, strata), statistic.reshape(-1, strata), log_weight.ravel()


@partial(jax.jit, static_argnames=("head_size", "size"))
def _tuples(
    for_head: jax.Array,
    for_tail: jax.Array,
    table: jax.Array,
    field: jax.Array,
    gram: jax.Array,
    order: int,
    head_size: int,
    size: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws 1 + t modes per sample; returns field + counts @ G, the tail's part of the log weight, and the counts."""
    bins = field.size
    peak = gram.max()
    attraction = jnp.exp(gram - peak)
    uniform = jax.random.uniform(for_head, (size,), jnp.float64)
    first = jnp.minimum(jnp.searchsorted(table, uniform * table[-1], side="right"), table.size - 1)
    shift = field + gram[first // bins] + gram[first % bins]
    level = shift.max(axis=-1)
    rows = jnp.arange(size)

    def extend(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """One more mode, with probability proportional to exp(shift) = weights * exp(level)."""
        shift, weights, level, log_weight, counts = state
        uniform = jax.random.uniform(jax.random.fold_in(for_tail, index), (size,), jnp.float64)
        chosen, total = categorical(weights, uniform)
        level = level + jnp.log(total)
        log_weight = jnp.where(index < head_size, log_weight, log_weight + level - jnp.log(bins))
        weights = weights * attraction[chosen] / total[:, None]
        return shift + gram[chosen], weights, level + peak, log_weight, counts.at[rows, chosen].add(1.0)

    counts = jnp.zeros((size, bins)).at[rows, first // bins].add(1.0).at[rows, first % bins].add(1.0)
    start = (shift, jnp.exp(shift - level[:, None]), level, jnp.zeros(size), counts)
    shift, _, _, log_weight, counts = jax.lax.fori_loop(2, order + 1, extend, start)
    return shift, log_weight, counts


def draw_tuples(key: jax.Array, gram: FloatArray, tilt: Tilt, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns how often each mode was drawn, one row per sample, and log weights without the statistic's part.

    Call inside `wide_jax()`.
    """
    for_head, for_tail = jax.random.split(key)
    table, field, matrix = placed(np.cumsum(tilt.table)), placed(tilt.field), placed(gram)
    _, log_weight, counts = _tuples(for_head, for_tail, table, field, matrix, tilt.order, tilt.head_size, size)
    return counts, log_weight + tilt.log_head
