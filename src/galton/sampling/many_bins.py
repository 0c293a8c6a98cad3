"""The samplers of bins drawn once that never see the Gram matrix (docs/math.md, section 17).

A sample is drawn in rounds: x = z + M c with normals z and the counts c of the modes that were drawn, then y = M^T x.
The coordinate of z along the average mode is drawn once in each of several strata, and the value of a sample is the
average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from galton.errors import FloatArray, InvalidArgument, count
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction
from galton.many_bins import ManyBinsPair
from galton.pair import ROUNDOFF
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, placed, wide_jax
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST, FARTHEST, SHALLOW_LOST, SHALLOWEST
from galton.sampling.kernels import categorical, log_mean_exp
from galton.sampling.mode_maps import ModeMap, mode_map
from galton.sampling.normals import distance_bound, standard_normals
from galton.sampling.slack import UNLIKELY, norm_bound
from galton.sampling.strata import (
    FARTHEST_NORMAL,
    FINE_STRATA,
    STRATA,
    depth_range,
    log_largest_average,
    stratified_depths,
    stratified_normals,
)
from galton.strategies.modes import Modes, RowBounds

MAX_ORDER = 4096
_NO_UNDERFLOW = 600.0
_BLOCK = 1 << 20
_CHUNK = 64


class Unit(NamedTuple):
    """What does not depend on the noise multiplier.

    Attributes:
      along: unit vector along the average mode.
      spread: norm of the average mode.
      image: M^T along.
      row_means: M^T times the average mode: the means of rows of G.
      spread_error: bound on |computed - exact average mode|.
    """

    along: FloatArray
    spread: float
    image: FloatArray
    row_means: FloatArray
    spread_error: float


@lru_cache(maxsize=4)
def unit_of(modes: Modes) -> Unit:
    """Returns the average mode, and what follows from it."""
    mean = np.maximum(modes.apply(np.full(modes.bins, 1 / modes.bins)), 0.0)
    spread = float(np.linalg.norm(mean))
    along = mean / spread
    image = modes.adjoint(along)
    error = modes.error + 4 * (modes.rounds + 8) * ROUNDOFF * modes.sensitivity
    return Unit(along, spread, image, image * spread, error)


@dataclass(frozen=True, eq=False)
class ManyTilt:
    """How 1 + t modes are drawn.

    Attributes:
      order: t.
      field: extra attraction of every mode, zero for mixture-first.
      log_bound: logarithm of a bound on exp(t * eps) * V.
    """

    order: int
    field: FloatArray
    log_bound: float

    def log_range(self, epsilon: float) -> float:
        """Returns the logarithm of the range of V at this epsilon, by itself an upper bound on delta."""
        return self.log_bound - self.order * epsilon


class ManyBinsModel:
    """A pair at its noise multiplier, as the samplers see it.

    Attributes:
      pair: the pair.
      largest: bound on the norms of all modes in force.
    """

    def __init__(self, pair: ManyBinsPair) -> None:
        self.pair = pair
        self.largest = pair.mu_upper
        self.unit = unit_of(pair.modes)
        self._square = pair.noise_multiplier**2
        self._bounds: RowBounds = pair.modes.row_bounds

    @property
    def energies(self) -> FloatArray:
        """Squared norms of the modes in force."""
        return self.pair.modes.energies / self._square

    @property
    def peak(self) -> float:
        """The largest bound on an entry of G."""
        return float(self._bounds.rows.max()) / self._square * (1 + 1e-12)

    def slope(self, direction: Direction) -> float:
        """Returns a lower bound on how fast the loss grows along the average mode."""
        least = float(self.unit.image.min()) - 2 * self.unit.spread_error
        return direction.sides * max(least, 0.0) / self.pair.noise_multiplier

    def table(self) -> FloatArray:
        """Returns factors by which a drawn mode attracts others: exp(bound on G - peak), as in `RowBounds`."""
        return np.exp(self._bounds.rows / self._square - self.peak)

    def most_order(self) -> int:
        """Returns the largest order at which no weight underflows; 0 if there is none."""
        return max(0, min(MAX_ORDER, int(_NO_UNDERFLOW / (2 * self.peak)) - 1))

    def best_tilt(self, direction: Direction, epsilon: float, strata: int) -> ManyTilt:
        """Returns the tilt with the smallest range: log R_t is convex in t, and is climbed down order by order."""
        best: ManyTilt | None = None
        attraction = _Attraction(self._bounds, self._square, self.peak, self.pair.bins)
        for order in range(1, max(1, self.most_order()) + 1):
            tilt = self._tilt(direction, order, strata, attraction)
            if best is not None and not tilt.log_range(epsilon) < best.log_range(epsilon):
                break
            best = tilt
        assert best is not None
        return best

    def tilt(self, direction: Direction, order: int, strata: int) -> ManyTilt:
        """Returns the tilt of this order."""
        count("order", order, at_most=max(1, self.most_order()))
        return self._tilt(direction, order, strata, _Attraction(self._bounds, self._square, self.peak, self.pair.bins))

    def _tilt(self, direction: Direction, order: int, strata: int, attraction: _Attraction) -> ManyTilt:
        bins, mean_square = self.pair.bins, self.unit.spread**2 / self._square
        more = 0.0
        if direction is Direction.REPLACE:
            field = order * self.unit.row_means / self._square
            more = order * float(self.energies.mean()) / 2 + order**2 * mean_square / 2
        else:
            field = np.zeros(bins)
        total = attraction.total(order, field if direction is Direction.REPLACE else None)
        shape = log_largest_average(order, self.slope(direction), strata)
        return ManyTilt(order, field, total + more + shape + self._margin(order))

    def _margin(self, order: int) -> float:
        """docs/math.md, section 17.5: what the range allows for rounding."""
        counts = 2 * order + 1
        error = self.unit.spread_error / self.pair.noise_multiplier
        units = (self.pair.modes.terms + 64) * (counts**2 * self.largest**2 + counts)
        return 1e-9 + 4 * counts**2 * self.largest * error + 8 * units * ROUNDOFF

    def ceiling(self, direction: Direction, epsilon: float) -> float:
        """Returns the sampling-free upper bound on delta of a direction."""
        if direction is Direction.NOISE_FIRST:
            return self.noise_first_bound(epsilon)
        if not self.most_order():
            return 1.0
        return math.exp(min(0.0, self.best_tilt(direction, epsilon, FINE_STRATA).log_range(epsilon)))

    def noise_first_bound(self, epsilon: float) -> float:
        """Returns a sampling-free upper bound on the noise-first delta: a Gaussian mechanism at a smaller epsilon.

        It falls in that epsilon and grows in the spread, so that errors lower the one and raise the other.
        """
        spread, error = self.unit.spread / self.pair.noise_multiplier, self.unit.spread_error
        error /= self.pair.noise_multiplier
        energy = float(self.energies.mean()) * (1 + 8 * (self.pair.modes.terms + 64) * ROUNDOFF)
        shifted = epsilon - (energy - max(spread - error, 0.0) ** 2) / 2 - 8 * ROUNDOFF * (energy + epsilon)
        return min(1.0, gaussian_delta(shifted, spread + error) * (1 + 1e-7))

    def half_space(self, epsilon: float) -> tuple[float, float]:
        """Returns the spread v and the bound r, both rounded up: where the loss is below -epsilon, w <= r.

        w is the coordinate along the average mode, and the loss is at least v (w - r) - epsilon (docs/math.md, 17.3).
        """
        spread, error = self.unit.spread / self.pair.noise_multiplier, self.unit.spread_error
        error /= self.pair.noise_multiplier
        energy = float(self.energies.mean()) * (1 + 8 * (self.pair.modes.terms + 64) * ROUNDOFF)
        if not error <= spread / 4:  # rounding hides the average mode, and with it the half-space
            return spread + error, math.inf
        offset = energy / 2 - epsilon + 4 * error * (norm_bound(self.pair.rounds) + FARTHEST + 10)
        bound = max(offset / (spread - error if offset > 0 else spread + error), -1e300)
        return spread + error, bound + 1e-9 * (1 + abs(bound))

    def slack(self, counts: float, moved: float) -> Slack:
        """docs/math.md, section 17.5. `counts` bounds the sum of the counts, `moved` the coordinate along the mode."""
        pair, largest = self.pair, self.largest
        distance, lost = distance_bound(pair.rounds)
        reach = norm_bound(pair.rounds) + counts * largest + moved
        error = 2 * self.unit.spread_error / pair.noise_multiplier
        rounding = largest * (distance + DEPTH_ERROR) + error * (4 * reach + 2 * (counts + 1) ** 2 * largest)
        units = 8 * (pair.modes.terms + 64) * (largest * reach + (counts + 2) ** 2 * largest**2 + counts)
        units += 2 * (pair.bins + 16) + 4 * math.log(pair.bins)
        return Slack(1.01 * (rounding + units * ROUNDOFF), lost + UNLIKELY + 2 * DEPTH_LOST)

    def layout(self) -> Layout:
        """Returns how chunks are cut."""
        block = max(1, min(_CHUNK, _BLOCK // (self.pair.rounds + self.pair.bins)))
        block = 1 << (block.bit_length() - 1)
        return Layout(block, _CHUNK // block)

    def parts(self) -> Parts:
        """Returns the pair in force; call inside `wide_jax()`."""
        multiplier = self.pair.noise_multiplier
        return Parts(
            mode_map(self.pair.modes),
            placed(multiplier),
            placed(self.energies),
            placed(self.unit.along),
            placed(self.unit.image / multiplier),
        )


class _Attraction:
    """Bounds on prod_l F_l (docs/math.md, section 17.2), each l once for mixture-first."""

    def __init__(self, bounds: RowBounds, square: float, peak: float, bins: int) -> None:
        self._bounds, self._bins, self._peak = bounds, bins, peak
        self._factors = np.exp(bounds.rows / square - peak)
        self._powers = np.ones_like(self._factors)
        self._totals = [0.0]

    def total(self, order: int, field: FloatArray | None) -> float:
        """Returns the logarithm of the bound for 1 + `order` modes."""
        if field is None:
            while len(self._totals) <= order:
                index = len(self._totals)
                self._powers *= self._factors
                self._totals.append(self._totals[-1] + index * self._peak + self._log_largest(self._powers, None))
            return self._totals[order]
        tops, powers, total = _chunk_tops(field), np.ones_like(self._factors), 0.0
        for index in range(order + 1):
            total += index * self._peak + self._log_largest(powers, tops)
            powers *= self._factors
        return total

    def _log_largest(self, powers: FloatArray, tops: tuple[NDArray[np.intp], FloatArray] | None) -> float:
        """log max_i (1/b) sum_k exp(field_k) powers[block of i, k - i + b - 1], rounded up."""
        bins, size = self._bins, self._bounds.size
        edges, weights = (np.array([0, bins], np.intp), np.ones(1)) if tops is None else tops
        largest = 0.0
        for index, row in enumerate(powers):
            sums = np.concatenate(([0.0], np.cumsum(row)))
            members = np.arange(index * size, min((index + 1) * size, bins))
            windows = np.diff(sums[bins - 1 - members[:, None] + edges], axis=1) @ weights
            rounding = 8 * (bins + 64) * ROUNDOFF * float(sums[-1]) * float(weights.max()) * weights.size
            largest = max(largest, float(windows.max()) + rounding)
        return math.log(largest / bins)


def _chunk_tops(field: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Edges of chunks of bins, and the exponential of the largest field in each."""
    edges = np.unique(np.linspace(0, field.size, min(field.size, 64) + 1).astype(np.intp))
    return edges, np.exp(np.maximum.reduceat(field, edges[:-1]))


class Parts(NamedTuple):
    """The pair in force, as JAX arrays in float64.

    Attributes:
      map: M at noise multiplier 1.
      multiplier: the noise multiplier.
      energies: squared norms of the modes in force.
      along: unit vector along the average mode.
      image: M^T along, in force.
    """

    map: ModeMap
    multiplier: jax.Array
    energies: jax.Array
    along: jax.Array
    image: jax.Array

    def normals(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws points in rounds from noise alone."""
        return standard_normals(key, (samples, self.map.rounds), jnp.float64)

    def shift(self, counts: jax.Array) -> jax.Array:
        """Returns M c in force."""
        return self.map.apply(counts) / self.multiplier

    def statistics(self, points: jax.Array) -> jax.Array:
        """Returns y = M^T x in force."""
        return self.map.adjoint(points) / self.multiplier


class TiltParts(NamedTuple):
    """How modes attract each other.

    Attributes:
      table: exp(bound on G - peak), by blocks of bins.
      size: bins in a block.
      start: the weights of the first mode.
      extra: what is added to all counts: t / bins for replace, else 0.
    """

    table: jax.Array
    size: jax.Array
    start: jax.Array
    extra: jax.Array


def tilt_parts(model: ManyBinsModel, tilt: ManyTilt, direction: Direction) -> TiltParts:
    """Returns how modes attract each other; call inside `wide_jax()`."""
    extra = tilt.order / model.pair.bins if direction is Direction.REPLACE else 0.0
    return TiltParts(
        placed(model.table()),
        placed(model.pair.modes.row_bounds.size),
        placed(np.exp(tilt.field - tilt.field.max())),
        placed(extra),
    )


def draw_counts(key: jax.Array, parts: TiltParts, order: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
    """Draws 1 + t modes, each attracted by those before it.

    Returns:
      How often each mode was drawn, (samples, bins), and -sum log(bins * probability) over the draws.
    """
    bins = parts.start.size
    each = jnp.arange(samples)

    def attraction(chosen: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(parts.table, (chosen // parts.size, bins - 1 - chosen), (1, bins))[0]

    def extend(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        counts, weights, log_weight = state
        uniform = jax.random.uniform(jax.random.fold_in(key, index), (samples,), jnp.float64)
        chosen, total = categorical(weights, uniform)
        log_weight = log_weight - jnp.log(bins * weights[each, chosen] / total)
        weights = weights * jax.vmap(attraction)(chosen) / total[:, None]
        return counts.at[each, chosen].add(1.0), weights, log_weight

    start = (jnp.zeros((samples, bins)), jnp.broadcast_to(parts.start, (samples, bins)), jnp.zeros(samples))
    counts, _, log_weight = jax.lax.fori_loop(0, order + 1, extend, start)
    return counts, log_weight


class ManyPlainSampler(Sampler):
    """Draws from the first distribution of the pair; R = 1."""

    name: ClassVar[str] = "plain"
    tilts = True
    dtype = "float64"

    def __init__(self, pair: ManyBinsPair, direction: Direction) -> None:
        model = ManyBinsModel(pair)
        rounding = model.slack(1.0, 0.0)
        self.direction = direction
        self.slack = Slack(direction.sides * rounding.epsilon, rounding.lost + pair.bins * 2.0**-62)
        self.layout = model.layout()
        with wide_jax():
            self._parts = model.parts()

    def _range_at(self, epsilon: float) -> float:
        return 1.0

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss = np.asarray(_plain_losses(keys, self._parts, self.direction, self.layout))
        return Draw(loss, np.broadcast_to(0.0, loss.shape))


@partial(jax.jit, static_argnames=("direction", "layout"))
def _plain_losses(keys: jax.Array, parts: Parts, direction: Direction, layout: Layout) -> jax.Array:
    half, bins = parts.energies / 2, parts.energies.size

    def block(key: jax.Array) -> jax.Array:
        which, noise = jax.random.split(key)
        points = parts.normals(noise, layout.block)
        if direction is Direction.NOISE_FIRST:
            return -log_mean_exp(parts.statistics(points) - half)
        chosen = jax.random.randint(which, (layout.block,), 0, bins)
        statistics = parts.statistics(points + parts.shift(jax.nn.one_hot(chosen, bins, dtype=jnp.float64)))
        loss = log_mean_exp(statistics - half)
        if direction is Direction.REPLACE:
            loss = loss - log_mean_exp(-statistics - half)
        return loss

    return jax.lax.map(block, keys).ravel()


class ManyTiltedSampler(Sampler):
    """Draws 1 + t modes, attracted to each other, and points around their sum, one in each stratum; range R_t."""

    name: ClassVar[str] = "tilted"
    tilts = True
    dtype = "float64"
    strata = STRATA

    def __init__(self, pair: ManyBinsPair, direction: Direction, epsilon: float, order: int | None = None) -> None:
        if direction is Direction.NOISE_FIRST:
            raise InvalidArgument("direction", direction.value, "has no tilt; the half-space sampler is for it")
        model = ManyBinsModel(pair)
        if not model.most_order():
            raise InvalidArgument("sampler", self.name, "needs more noise; take plain")
        self.direction = direction
        if order is None:
            self.tilt = model.best_tilt(direction, epsilon, STRATA)
        else:
            self.tilt = model.tilt(direction, order, STRATA)
        self.order = self.tilt.order
        rounding = model.slack(direction.sides * (self.order + 1), FARTHEST_NORMAL)
        choices = (self.order + 1) * (8 * pair.bins + 64) * ROUNDOFF
        self.slack = Slack(direction.sides * rounding.epsilon, rounding.lost + choices)
        self.layout = model.layout()
        with wide_jax():
            self._parts = model.parts()
            self._tilt = tilt_parts(model, self.tilt, direction)

    def _range_at(self, epsilon: float) -> float:
        return math.exp(min(self.tilt.log_range(epsilon), 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight = _tilted_losses(
                keys, self._parts, self._tilt, self.order, self.direction, self.layout, self.strata
            )
            return Draw(np.asarray(loss), np.asarray(log_weight))


@partial(jax.jit, static_argnames=("direction", "layout", "strata"))
def _tilted_losses(
    keys: jax.Array,
    parts: Parts,
    tilt: TiltParts,
    order: jax.Array,
    direction: Direction,
    layout: Layout,
    strata: int,
) -> tuple[jax.Array, jax.Array]:
    half = parts.energies / 2

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        which, noise, depth = jax.random.split(key, 3)
        counts, log_weight = draw_counts(which, tilt, order, layout.block)
        shift = parts.shift(counts + tilt.extra)
        log_weight = log_weight + (jnp.square(shift).sum(axis=1) - counts @ parts.energies) / 2
        points = parts.normals(noise, layout.block)
        current = points @ parts.along
        statistics = parts.statistics(points + shift)

        def stratum(depths: jax.Array) -> tuple[jax.Array, jax.Array]:
            moved = statistics + (depths - current)[:, None] * parts.image
            mixture = log_mean_exp(moved - half)
            if direction is Direction.MIXTURE_FIRST:
                return mixture, log_weight - order * mixture
            return (
                mixture - log_mean_exp(-moved - half),
                log_weight - order * (mixture + moved.mean(axis=1)),
            )

        loss, weights = jax.lax.map(stratum, stratified_normals(depth, layout.block, strata))
        return loss.T, weights.T

    loss, log_weight = jax.lax.map(block, keys)
    return loss.reshape(-1, strata), log_weight.reshape(-1, strata)


class ManyHalfSpaceSampler(Sampler):
    """Draws noise within the half-space outside of which the value is zero, one point in each stratum of depths.

    It is not valid below `least_epsilon`, the epsilon given: the half-space may miss losses below that.
    """

    name: ClassVar[str] = "half-space"
    direction = Direction.NOISE_FIRST
    dtype = "float64"
    strata = STRATA

    def __init__(self, pair: ManyBinsPair, epsilon: float) -> None:
        model = ManyBinsModel(pair)
        spread, farthest = model.half_space(epsilon)
        bound = min(max(farthest, -FARTHEST), FARTHEST)
        self.least_epsilon = epsilon
        rounding = model.slack(0.0, abs(bound) + FARTHEST_NORMAL)
        shallow = SHALLOW_LOST * STRATA if bound > SHALLOWEST else 0.0
        self.slack = Slack(rounding.epsilon, rounding.lost + shallow)
        self.layout = model.layout()
        self._mass = float(ndtr(bound))
        whole = farthest > FARTHEST  # a bound that was lowered bounds no value
        self._range = (self._mass if whole else depth_range(spread, bound, self._mass, STRATA)) * (1 + 1e-9)
        with wide_jax():
            self._parts = model.parts()

    def _range_at(self, epsilon: float) -> float:
        return self._range

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss = np.asarray(_half_space_losses(keys, self._parts, self._mass, self.layout, self.strata))
        return Draw(loss, np.broadcast_to(math.log(self._mass), loss.shape))


@partial(jax.jit, static_argnames=("layout", "strata"))
def _half_space_losses(keys: jax.Array, parts: Parts, mass: float, layout: Layout, strata: int) -> jax.Array:
    half = parts.energies / 2

    def block(key: jax.Array) -> jax.Array:
        noise, depth = jax.random.split(key)
        points = parts.normals(noise, layout.block)
        current = points @ parts.along
        statistics = parts.statistics(points) - half

        def stratum(depths: jax.Array) -> jax.Array:
            return -log_mean_exp(statistics + (depths - current)[:, None] * parts.image)

        return jax.lax.map(stratum, stratified_depths(depth, layout.block, strata, mass)).T

    return jax.lax.map(block, keys).reshape(-1, strata)
