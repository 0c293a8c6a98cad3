"""The samplers of pairs whose modes are sums over patterns of rounds (docs/math.md, section 10).

A `PatternModel` says how patterns are drawn and summed over; the samplers are the same for all. A point x has one
coordinate a round, in blocks. Normals are drawn in float32 where that keeps the slack small; all else is computed in
float64.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_ndtr

from galton.errors import FloatArray, InvalidArgument, count
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction
from galton.pair import ROUNDOFF
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, wide_jax
from galton.sampling.depths import Depths, choose_depths, draw_depths
from galton.sampling.floors import Floor, Slopes, lay_floor, measure_floor, usual_depths
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST, FARTHEST, SHALLOW_LOST, SHALLOWEST
from galton.sampling.normals import standard_normals
from galton.sampling.orders import search_by_halving
from galton.sampling.slack import choose_dtype
from galton.sampling.strata import FARTHEST_NORMAL, log_largest_average, stratified_normals

MAX_ORDER = 4096
HOPELESS = 1e6
"""Slack in epsilon where float64 cannot tell: every limit is then trivial, and valid."""
_BLOCK = 1 << 18
"""Normals drawn at a time, so that all that is made of them stays in cache."""
STRATA = 8
"""Depths of a sample along the average mode: as many sums over patterns, and one product with C."""
_BEYOND_CHUNKS = 1 << 31
"""Chunks are numbered from 0; those from here on are of samples that measure, and of no others."""
_MEASURES, _MEASURED_BLOCKS = 5, 4
"""Chunks that measure, each as large as so many blocks: with the first a floor is laid, the others say how large it is.
"""
_HIGHER = 1.0
"""A floor is laid so far above the depth where the loss is -epsilon on average."""
_WORTH = math.log(100)
"""A floor is laid where the half-space is so much larger than what lies below that depth."""
_FLOOR_FAILURE = 0.01
"""Share of a failure probability that the floor has."""
_REST, _REST_OF_CLAIM = 0.005, 0.2
"""How much of delta, about, may be left to what is known of the floor; and of what a claim has to spare."""
_ROUGH = 1e-2
"""With a larger slack, no floor is laid."""
_SHALLOWER = 0.3
"""Samples of the half-space are often drawn from so far above the depth where the loss is -epsilon on average."""


class Parts(Protocol):
    """C in force and the prior of patterns, a tuple of JAX arrays in float64; points are (blocks, samples, width)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks, and rounds of a block."""

    def fields(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what each round adds to A_s, and what all patterns share: affine in the points."""

    def image(self, along: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what moving a point by `along`, (blocks, width), adds to its fields, and to what is shared."""

    def reflected(self, fields: jax.Array, shared: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what `fields` does at the point on the other side of the origin."""

    def level(self, fields: jax.Array, shared: jax.Array) -> jax.Array:
        """Returns L = log dP/dQ, the logarithm of the mean over patterns."""

    def loss(self, points: jax.Array) -> jax.Array:
        """Returns L at points."""

    def draw_mode(self, key: jax.Array, samples: int) -> jax.Array:
        """Draws modes from the prior."""


class SlopedParts(Parts, Protocol):
    """The same, with the gradient of the loss: the parts of a model that is `sloped`."""

    def loss_and_slope(self, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns L and its gradient, the average mode of the patterns given the point."""


class TiltedParts(Protocol):
    """C in force, with what it takes to draw patterns that attract each other."""

    @property
    def mechanism(self) -> Parts:
        """C in force."""

    def draw_modes(self, key: jax.Array, order: jax.Array, samples: int) -> tuple[jax.Array, jax.Array]:
        """Draws sums of 1 + `order` modes, each attracted by those before it, and the logarithm of prod F_l."""


@dataclass(frozen=True)
class PatternTilt:
    """How 1 + t patterns are drawn so that they attract each other; for replace also by t times the average mode.

    Attributes:
      order: t.
      log_bound: the logarithm of a bound on exp(t eps) V.
      fitted: whether a law is fitted to the first pattern.
      direction: mixture-first or replace.
    """

    order: int
    log_bound: float
    fitted: bool = False
    direction: Direction = Direction.MIXTURE_FIRST

    def log_range(self, epsilon: float) -> float:
        """Returns log R_t, the range of V at this epsilon and by itself an upper bound on delta."""
        return self.log_bound - self.order * epsilon


@dataclass(frozen=True, eq=False)
class MeanHalfSpace:
    """{x : m.x <= bound |m|}, m the average of all modes: it holds every x with L(x) <= -epsilon, by Jensen.

    Attributes:
      along: m / |m|, (blocks, width).
      spread: |m|.
      bound: the offset in standard deviations; the half-space has probability Phi(bound).
      usual_depth: about where, in standard deviations, the loss is -epsilon on average: Jensen's gap is about half
        the variance, over patterns, of m_s.x.
    """

    along: FloatArray
    spread: float
    bound: float
    usual_depth: float


class PatternModel(ABC):
    """What the samplers need to know of one kind of pair, at its noise multiplier.

    Attributes:
      shape: blocks, and rounds of a block.
      largest: bound on the norms of all modes.
      mean_mode: (blocks, width), the average of all modes.
      mean_energy: the average of their squared norms.
      slope: how fast L grows at least along the average mode.
      sloped: whether `parts` are `SlopedParts`.
    """

    sloped: ClassVar[bool] = False
    slope: float = 0.0
    shape: tuple[int, int]
    largest: float
    mean_mode: FloatArray
    mean_energy: float

    @abstractmethod
    def parts(self) -> Parts:
        """Returns C in force; call inside `wide_jax()`."""

    @abstractmethod
    def tilted_parts(self, tilt: PatternTilt) -> TiltedParts:
        """Returns C in force, for this tilt; call inside `wide_jax()`."""

    @abstractmethod
    def slack(
        self, order: int, dtype: str, moved: float = 0.0, direction: Direction = Direction.MIXTURE_FIRST
    ) -> Slack:
        """Bounds the error of L at points moved by `order` + 1 modes, `order` mean ones (replace), and by `moved`."""

    @abstractmethod
    def lost_choices(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> float:
        """Bounds how far the law of the patterns that are drawn is from the one wanted, in total variation."""

    @abstractmethod
    def attraction(self) -> Iterator[tuple[float, float]]:
        """Yields, for l = 1, 2, ..., a bound on log F_l, and the margin for rounding of the sum of the first l."""

    @abstractmethod
    def attraction_in_field(self, order: int) -> float:
        """Returns a bound on the sum of log F_l, l = 0, ..., `order`, for patterns that t mean modes attract, too."""

    @abstractmethod
    def usual_order(self, epsilon: float) -> int:
        """Returns about the order of the tilt with the smallest range for replace: quick."""

    def layout(self, most_blocks: int) -> Layout:
        """Returns how chunks are cut."""
        block = max(32, min(1 << 11, _BLOCK // math.prod(self.shape)))
        return Layout(1 << (block.bit_length() - 1), most_blocks)

    def tilts(self) -> Iterator[PatternTilt]:
        """Yields the tilts of order 1, 2, ..."""
        total = 0.0
        for order, (bound, margin) in enumerate(islice(self.attraction(), MAX_ORDER), start=1):
            total += bound
            yield PatternTilt(order, self._log_shape(order) + total + margin)

    def replace_tilt(self, order: int) -> PatternTilt:
        """Returns the tilt of this order for replace (docs/math.md, section 10.4)."""
        return self.tilt_in_field(order, self.attraction_in_field(order))

    def tilt_in_field(self, order: int, attraction: float) -> PatternTilt:
        """Returns the tilt for replace, given a bound on the sum of log F_l."""
        log_bound = self._log_shape(order, Direction.REPLACE.sides) + attraction + self.field_weight(order)
        return PatternTilt(order, log_bound, direction=Direction.REPLACE)

    def field_weight(self, order: int) -> float:
        """Returns what a field of t average modes adds to the logarithm of the range besides prod F_l, rounded up."""
        weight = order * self.mean_energy / 2 + order**2 * float(np.square(self.mean_mode).sum()) / 2
        return weight * (1 + 8 * (math.prod(self.shape) + 64) * ROUNDOFF)

    def _log_shape(self, order: int, sides: int = 1) -> float:
        """The logarithm of the largest average of exp(-t x) (1 - exp(-x)) over the strata of a sample."""
        return log_largest_average(order, sides * self.slope, STRATA)

    def along(self) -> FloatArray:
        """Returns the unit vector along the average mode."""
        unit: FloatArray = self.mean_mode / np.linalg.norm(self.mean_mode)
        return unit

    def best_tilt(self, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns the tilt with the smallest range: log R_t is convex in t, and is climbed down order by order."""
        if direction is Direction.REPLACE:
            return search_by_halving(self.replace_tilt, epsilon, MAX_ORDER, self.usual_order(epsilon))
        tilts = self.tilts()
        best = next(tilts)
        for further in tilts:
            if not further.log_range(epsilon) < best.log_range(epsilon):
                break
            best = further
        return best

    def tilt(self, order: int, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns the tilt of this order that samples are drawn with."""
        if direction is Direction.REPLACE:
            return self.replace_tilt(order)
        return next(islice(self.tilts(), order - 1, None))

    def sampled_tilt(self, epsilon: float, direction: Direction = Direction.MIXTURE_FIRST) -> PatternTilt:
        """Returns the tilt that samples are drawn with."""
        return self.best_tilt(epsilon, direction)

    def half_space(self, epsilon: float) -> MeanHalfSpace:
        """Returns the half-space outside of which noise-first values are zero, for this epsilon."""
        spread = float(np.linalg.norm(self.mean_mode))
        bound = max((self.mean_energy / 2 - epsilon) / spread, -1e300)
        margin = 1e-9 + 1e-12 * math.prod(self.shape)
        gap = (self.mean_energy - spread**2) / 2
        return MeanHalfSpace(self.along(), spread, bound + margin * (1 + abs(bound)), bound - gap / spread)

    def noise_first_bound(self, epsilon: float) -> float:
        """Returns a sampling-free upper bound on the noise-first delta: a Gaussian mechanism at a smaller epsilon.

        It falls in that epsilon and grows in the spread, so that errors lower the one and raise the other.
        """
        error = 8 * (math.prod(self.shape) + 64) * ROUNDOFF
        spread = float(np.linalg.norm(self.mean_mode))
        shifted = epsilon - (self.mean_energy - spread**2) / 2 - error * (self.mean_energy + epsilon)
        return min(1.0, gaussian_delta(shifted, spread * (1 + error)) * (1 + 1e-7))

    def ceiling(self, direction: Direction, epsilon: float) -> float:
        """Returns the sampling-free upper bound on delta of a direction."""
        if direction is Direction.NOISE_FIRST:
            return self.noise_first_bound(epsilon)
        return math.exp(min(0.0, self.best_tilt(epsilon, direction).log_range(epsilon)))


class PatternPlainSampler(Sampler):
    """Draws from the first distribution of the pair; R = 1."""

    name: ClassVar[str] = "plain"
    tilts = True

    def __init__(self, model: PatternModel, direction: Direction, dtype: str | None = None) -> None:
        self.direction = direction

        def slack(name: str) -> Slack:
            rounding = model.slack(0, name)
            return Slack(direction.sides * rounding.epsilon, rounding.lost + model.lost_choices(0))

        self.dtype = dtype or choose_dtype(slack)
        self.slack = slack(self.dtype)
        self.layout = model.layout(8)
        with wide_jax():
            self._parts = model.parts()

    def _range_at(self, epsilon: float) -> float:
        return 1.0

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss = np.asarray(_plain_losses(keys, self._parts, self.direction, self.dtype, self.layout))
        return Draw(loss, np.broadcast_to(0.0, loss.shape))


@partial(jax.jit, static_argnames=("direction", "dtype", "layout"))
def _plain_losses(keys: jax.Array, parts: Any, direction: Direction, dtype: str, layout: Layout) -> jax.Array:
    def block(key: jax.Array) -> jax.Array:
        which, noise = jax.random.split(key)
        points = _normals(noise, layout.block, parts.shape, dtype)
        if direction is Direction.NOISE_FIRST:
            return -parts.loss(points)
        fields, shared = parts.fields(points + parts.draw_mode(which, layout.block))
        level = parts.level(fields, shared)
        return level - parts.level(*parts.reflected(fields, shared)) if direction is Direction.REPLACE else level

    return jax.lax.map(block, keys).ravel()


def _normals(key: jax.Array, samples: int, shape: tuple[int, int], dtype: str) -> jax.Array:
    return standard_normals(key, (shape[0], samples, shape[1]), jnp.dtype(dtype)).astype(jnp.float64)


class PatternTiltedSampler(Sampler):
    """Draws 1 + t patterns, attracted to each other, and points around the sum of their modes; range R_t.

    The points of a sample differ along the average mode only: one in each stratum. For replace they are moved by t
    times the average mode, too.
    """

    name: ClassVar[str] = "tilted"
    tilts = True
    strata = STRATA

    def __init__(
        self,
        model: PatternModel,
        direction: Direction,
        epsilon: float,
        order: int | None = None,
        dtype: str | None = None,
    ) -> None:
        if direction is Direction.NOISE_FIRST:
            raise InvalidArgument("direction", direction.value, "has no tilt; the half-space sampler is for it")
        self.direction = direction
        if order is None:
            self.tilt = model.sampled_tilt(epsilon, direction)
        else:
            self.tilt = model.tilt(count("order", order, at_most=MAX_ORDER), direction)
        self.order = self.tilt.order

        def slack(name: str) -> Slack:
            rounding = model.slack(self.order, name, FARTHEST_NORMAL, direction)
            lost = rounding.lost + model.lost_choices(self.order, direction) + 2 * DEPTH_LOST
            return Slack(direction.sides * (rounding.epsilon + DEPTH_ERROR * model.largest), lost)

        self.dtype = dtype or choose_dtype(slack, self.order)
        self.slack = slack(self.dtype)
        self.layout = model.layout(4)
        with wide_jax():
            self._parts = model.tilted_parts(self.tilt)
            self._along = jnp.asarray(model.along())
        self._spread = float(np.linalg.norm(model.mean_mode))

    def _range_at(self, epsilon: float) -> float:
        return math.exp(min(self.tilt.log_range(epsilon), 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            points = (keys, self._parts, self._along, self.order)
            if self.direction is Direction.REPLACE:
                loss, statistic, log_weight = _mirrored_losses(*points, self._spread, self.dtype, self.layout)
            else:
                loss, log_weight = _tilted_losses(*points, self.dtype, self.layout)
                statistic = loss
            log_weights = np.asarray(log_weight)[:, None] - self.order * np.asarray(statistic)
            return Draw(np.asarray(loss), log_weights)


@partial(jax.jit, static_argnames=("dtype", "layout"))
def _tilted_losses(
    keys: jax.Array, parts: Any, along: jax.Array, order: int, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        points, moves, log_weight = _tilted_points(key, parts, along, order, dtype, layout)
        return moved_losses(parts.mechanism, points, along, moves), log_weight

    loss, log_weight = jax.lax.map(block, keys)
    return _in_rows(loss), log_weight.ravel()


@partial(jax.jit, static_argnames=("dtype", "layout"))
def _mirrored_losses(
    keys: jax.Array, parts: Any, along: jax.Array, order: int, spread: float, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Losses of replace, the statistic of its tilt, and the part of the log weight that a tuple has."""

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        points, moves, log_weight = _tilted_points(key, parts, along, order, dtype, layout)
        return *mirrored_losses(parts.mechanism, points, along, moves, spread), log_weight

    loss, statistic, log_weight = jax.lax.map(block, keys)
    return _in_rows(loss), _in_rows(statistic), log_weight.ravel()


def _tilted_points(
    key: jax.Array, parts: Any, along: jax.Array, order: int, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Points around sums of modes, by how much they are moved in each stratum, and the logarithm of prod F_l."""
    which, noise, depth = jax.random.split(key, 3)
    shift, log_weight = parts.draw_modes(which, order, layout.block)
    normals = _normals(noise, layout.block, parts.mechanism.shape, dtype)
    moves = stratified_normals(depth, layout.block, STRATA) - component(normals, along)
    return normals + shift, moves, log_weight


def _in_rows(values: jax.Array) -> jax.Array:
    """(blocks, strata, samples) of a chunk as (samples, strata)."""
    return values.transpose(0, 2, 1).reshape(-1, STRATA)


def component(points: jax.Array, along: jax.Array) -> jax.Array:
    """Returns the coordinates of points along a unit vector."""
    return jnp.einsum("enk,ek->n", points, along, precision=jax.lax.Precision.HIGHEST)


def moved_losses(parts: Parts, points: jax.Array, along: jax.Array, moves: jax.Array) -> jax.Array:
    """Returns L at points moved along a unit vector, by every row of moves (strata, samples): one product with C."""
    (fields, shared), (image, gain) = parts.fields(points), parts.image(along)

    def stratum(move: jax.Array) -> jax.Array:
        return parts.level(fields + move[:, None] * image[:, None], shared + move * gain)

    return jax.lax.map(stratum, moves)


def mirrored_losses(
    parts: Parts, points: jax.Array, along: jax.Array, moves: jax.Array, spread: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Returns L(x) - L(-x) at moved points, and L + m.x, where m is the average mode: `spread` times `along`."""
    (fields, shared), (image, gain) = parts.fields(points), parts.image(along)
    place = component(points, along)

    def stratum(move: jax.Array) -> tuple[jax.Array, jax.Array]:
        at = fields + move[:, None] * image[:, None], shared + move * gain
        level = parts.level(*at)
        return level - parts.level(*parts.reflected(*at)), level + spread * (place + move)

    loss, statistic = jax.lax.map(stratum, moves)
    return loss, statistic


class PatternHalfSpaceSampler(Sampler):
    """Draws noise within the half-space outside of which the value is zero, more of it where values are large.

    The points of a sample differ in depth only, one in each stratum. Depths are drawn by `choose_depths`; any `deep`
    is valid, and changes the variance only. It is not valid below `least_epsilon`, the epsilon given. Once measured,
    depths above `top` are not drawn: a floor bounds what they add.
    """

    name: ClassVar[str] = "half-space"
    direction = Direction.NOISE_FIRST
    strata = STRATA

    def __init__(
        self, model: PatternModel, epsilon: float, deep: float | None = None, dtype: str | None = None
    ) -> None:
        space = model.half_space(epsilon)
        bound = max(space.bound, -FARTHEST)
        deep = max(min(bound, space.usual_depth + _SHALLOWER if deep is None else deep), -FARTHEST)
        self.least_epsilon = epsilon
        moved = abs(deep) + 10.0
        lost_each = DEPTH_LOST + (SHALLOW_LOST if bound > SHALLOWEST else 0.0)

        def slack(name: str) -> Slack:
            rounding = model.slack(0, name, moved)
            return Slack(rounding.epsilon + DEPTH_ERROR * model.largest, rounding.lost + STRATA * lost_each)

        self.dtype = dtype or choose_dtype(slack, max(1, round(-deep / space.spread)))
        self._rounding, self._measuring = slack(self.dtype), slack("float64")
        self.layout = model.layout(4)
        self._spread, self._bound, self._deep = space.spread * (1 + 1e-9), bound, deep
        self._usual = max(space.usual_depth, -FARTHEST)
        larger = float(log_ndtr(bound) - log_ndtr(self._usual))
        self.narrows = model.sloped and larger > _WORTH and self._measuring.epsilon < _ROUGH
        self._floor: Floor | None = None
        self._top = bound
        self._draw_from(deep, bound)
        with wide_jax():
            self._parts = model.parts()
            self._along = jnp.asarray(space.along)

    def _draw_from(self, deep: float, top: float) -> None:
        """Chooses how depths are drawn, with all that follows from it."""
        with wide_jax():
            self._depths, self._range, lost = choose_depths(self._spread, self._bound, deep, top)
        self.slack = Slack(self._rounding.epsilon, self._rounding.lost + STRATA * lost)

    def _range_at(self, epsilon: float) -> float:
        return self._range

    def rest(self, epsilon: float) -> float:
        return 0.0 if self._floor is None else self._floor.rest(epsilon, self._top)

    def measured(self, seed: int, failure: float, claim: float | None = None) -> tuple[Sampler, float]:
        """Lays a floor, and draws no depth from where on the floor bounds nearly all that is left (math.md, 10.14)."""
        if not self.narrows:
            return self, failure
        depth, epsilon = min(self._usual + _HIGHER, self._bound), self.least_epsilon
        pilot, *others = (self._slopes(seed, index, depth) for index in range(_MEASURES))
        fresh = Slopes(*(np.concatenate(parts) for parts in zip(*map(_each, others), strict=True)))
        spent = failure * _FLOOR_FAILURE
        floor = measure_floor(lay_floor(depth, pilot), fresh, spent, self._measuring.lost)
        usual, deep = usual_depths(depth, pilot, epsilon)
        allowed = max(_REST * usual, _REST_OF_CLAIM * ((claim or 0.0) - 2 * usual))
        if claim is not None:
            allowed = min(allowed, _REST_OF_CLAIM * claim)
        narrower = copy.copy(self)
        narrower.narrows = False
        low, high = depth, self._bound
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if floor.rest(epsilon, middle) <= allowed else (middle, high)
        if high < self._bound:
            narrower._floor, narrower._top = floor, high
            narrower._draw_from(min(max(deep, self._deep), high), high)  # no deeper than the slack is for
        return narrower, failure - spent

    def _slopes(self, seed: int, index: int, depth: float) -> Slopes:
        """Bounds on L and on its gradient at points of one depth: an error of the slack in every m_s.x."""
        with wide_jax():
            keys = block_keys(seed, self.direction, _BEYOND_CHUNKS + index, 1)
            size = _MEASURED_BLOCKS * self.layout.block
            sums = _losses_and_slopes(keys[0], self._parts, self._along, depth, size)
            loss, along, norm = (np.asarray(part) for part in sums)
        error = 4 * self._measuring.epsilon
        across = np.square(norm) * math.exp(2 * error) - np.square(along) * math.exp(-2 * error)
        return Slopes(loss - error, along * math.exp(-error), np.sqrt(np.maximum(across, 0.0)))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            loss, log_weight = _half_space_losses(keys, self._parts, self._along, self._depths, self.dtype, self.layout)
            return Draw(np.asarray(loss), np.asarray(log_weight))


def _each(slopes: Slopes) -> tuple[FloatArray, FloatArray, FloatArray]:
    return slopes.loss, slopes.along, slopes.across


@partial(jax.jit, static_argnames=("size",))
def _losses_and_slopes(
    key: jax.Array, parts: Any, along: jax.Array, depth: float, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    points = _normals(key, size, parts.shape, "float64")
    loss, slope = parts.loss_and_slope(points + (depth - component(points, along))[:, None] * along[:, None])
    inner = jnp.einsum("enk,ek->n", slope, along, precision=jax.lax.Precision.HIGHEST)
    return loss, inner, jnp.sqrt(jnp.square(slope).sum(axis=(0, 2)))


@partial(jax.jit, static_argnames=("dtype", "layout"))
def _half_space_losses(
    keys: jax.Array, parts: Any, along: jax.Array, depths: Depths, dtype: str, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_depth, noise = jax.random.split(key)
        depth, log_density = draw_depths(for_depth, layout.block, STRATA, depths)
        normals = _normals(noise, layout.block, parts.shape, dtype)
        return -moved_losses(parts, normals, along, depth - component(normals, along)), -log_density

    loss, log_weight = jax.lax.map(block, keys)
    return _in_rows(loss), _in_rows(log_weight)
