"""The noise level as a differentiable function of what delta depends on, on frozen draws (docs/math.md, section 8).

For bins drawn once that is the Gram matrix G, for redrawn bins C itself. sigma is implicit in delta(G / sigma^2) =
target. With the draws frozen delta is a smooth function of G, and

    d log sigma = <d delta / dG', dG'> / (2 <d delta / dG', G'>),   G' = G / sigma^2.

Steers the optimiser; nothing here is a bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from galton.errors import FloatArray, GaltonError
from galton.guarantee import Direction, Guarantee
from galton.sampling.base import chunk_key
from galton.sampling.frozen import Proposals, choose_proposals, mixture_values, proposals
from galton.sampling.halfspace import FARTHEST, half_space
from galton.sampling.kernels import log_mean_exp
from galton.sampling.normals import standard_normals
from galton.sampling.tilted import best_tilt, draw_tuples

ESTIMATORS = ("mixture", "tilted", "plain")
BLOCK = 1 << 10
"""Samples evaluated at a time, so that one compiled function serves every number of samples."""

_SOFTNESS = 2e-3
"""Temperature of the smooth maximum of log sigma over the two directions."""
_IRRELEVANT = 0.6
"""A direction whose delta is below this share of the target at the other's sigma does not matter."""
_APART = 0.01
"""How far apart, in log sigma, two values are that tell the slope."""
_RIDGE = 1e-12
_STRIDE = 0.1
"""The largest step in log sigma."""
_REACH = 0.5
"""How far from its start, in log sigma, to look for a solution: farther away frozen draws say nothing."""
_EXACT = 3e-5
"""A Newton step this small in log sigma is the last: the error that remains is of the order of its square."""
_USUAL_SLOPE = -12.0
"""About d log delta / d log sigma: where steps without gradients begin."""

Constants = Any
Block = Any
Kernel = Callable[..., jax.Array]
"""Called as kernel(matrices..., constants, block, epsilon); returns values."""


class OutsideDesign(GaltonError):
    """The matrix is too far from the design of the draws."""


_OUTSIDE = "optimize: the noise level is out of reach of the frozen draws; raise samples, or start nearer"


class Level(NamedTuple):
    """log sigma and its gradient in the statistic."""

    log_sigma: float
    gradient: FloatArray


class _Known(NamedTuple):
    """What was found by one direction, with d log delta / d log sigma."""

    statistic: FloatArray
    log_sigma: float
    slope: float
    gradient: FloatArray


class Frozen(NamedTuple):
    """An estimator of delta on frozen draws, in blocks."""

    direction: Direction
    kernel: Kernel
    constants: Constants
    blocks: list[Block]
    samples: int


class NoiseLevel(ABC):
    """log sigma for a target on draws frozen at a design, as a function of a statistic; call inside `wide_jax()`.

    The statistic is the array that delta depends on, at noise of standard deviation 1; with other noise it is divided
    by sigma to the `power`.

    Args:
      statistic: that of the design.
      log_sigma: log sigma near the solution there.
      guarantee: the guarantee that sigma has to meet; sigma is a smooth maximum over its directions.
      frozen: draws for every direction.
    """

    power: ClassVar[int]

    def __init__(self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, frozen: list[Frozen]) -> None:
        self.epsilon, self.target = guarantee.epsilon, guarantee.delta
        self._design = log_sigma - math.log(statistic.mean()) / self.power
        self._frozen = frozen
        self._last: list[_Known | None] = [None for _ in self._frozen]

    @abstractmethod
    def _log_delta(self, frozen: Frozen, scaled: FloatArray) -> tuple[float, FloatArray]:
        """log delta at a statistic that includes the noise, and its gradient."""

    @abstractmethod
    def _log_delta_value(self, frozen: Frozen, scaled: FloatArray) -> float:
        """log delta alone, which costs a third."""

    def __call__(self, statistic: FloatArray) -> Level:
        """Returns log sigma at this statistic and its gradient, by Newton's method from where the last call ended."""
        levels: list[Level] = []
        for index, frozen in enumerate(self._frozen):
            start, slope = self._start(index, statistic, levels[0].log_sigma if levels else None)
            if slope is None and levels and self._excess(frozen, statistic, start) < math.log(_IRRELEVANT):
                continue
            if slope is not None:
                start += min(max(-self._excess(frozen, statistic, start) / slope, -_STRIDE), _STRIDE)
            known = self._with_gradient(frozen, statistic, start)
            self._last[index] = known
            levels.append(Level(known.log_sigma, known.gradient))
        return _smooth_maximum(levels)

    def value(self, statistic: FloatArray) -> float:
        """Returns log sigma alone, which costs a third: by steps without gradients."""
        values: list[float] = []
        for index, frozen in enumerate(self._frozen):
            start, slope = self._start(index, statistic, values[0] if values else None)
            if slope is None and values and self._excess(frozen, statistic, start) < math.log(_IRRELEVANT):
                continue
            values.append(self._without_gradient(frozen, statistic, start, slope or _USUAL_SLOPE))
        return _soft_maximum(values)[0]

    def _start(self, index: int, statistic: FloatArray, other: float | None) -> tuple[float, float | None]:
        """About log sigma by one direction, and d log delta / d log sigma; by what the last call found, if it can be.

        Otherwise that of the other direction or of the design, and no slope.
        """
        known = self._last[index]
        if known is not None:
            return known.log_sigma + float((known.gradient * (statistic - known.statistic)).sum()), known.slope
        return (self._design + math.log(statistic.mean()) / self.power if other is None else other), None

    def newton_step(self, statistic: FloatArray, log_sigma: float) -> float:
        """Returns one Newton step in log sigma: the larger over the directions, within half a unit.

        Where delta seems to grow with the noise there is far too little of it, and draws miss nearly all of delta.
        """
        steps = []
        for frozen in self._frozen:
            excess = self._excess(frozen, statistic, log_sigma)
            slope = (self._excess(frozen, statistic, log_sigma + _APART) - excess) / _APART
            steps.append(-excess / slope if slope < 0 else _REACH if slope > 0 else -_REACH)
        return min(max(*steps, -_REACH), _REACH)

    def bisect(self, statistic: FloatArray, log_sigma: float, halvings: int) -> Level:
        """Returns log sigma by bisection around a guess, as the paper does, and its gradient there."""
        levels = []
        for frozen in self._frozen:
            low, high = log_sigma - _REACH, log_sigma + _REACH
            for _ in range(halvings):
                middle = (low + high) / 2
                scaled = statistic * math.exp(-self.power * middle)
                above = self._log_delta_value(frozen, scaled) > math.log(self.target)
                low, high = (middle, high) if above else (low, middle)
            _, slope, gradient = self._at(frozen, statistic, high)
            if slope < 0:
                levels.append(Level(high, gradient / -slope))
        if not levels:
            raise OutsideDesign("optimize: no sample has a positive value; raise samples")
        return _smooth_maximum(levels)

    def _at(self, frozen: Frozen, statistic: FloatArray, log_sigma: float) -> tuple[float, float, FloatArray]:
        """log delta, its derivative in log sigma, and its gradient in the statistic at noise 1."""
        scale = math.exp(-self.power * log_sigma)
        log_delta, gradient = self._log_delta(frozen, statistic * scale)
        gradient = gradient * scale
        return log_delta, -self.power * float((gradient * statistic).sum()), gradient

    def _excess(self, frozen: Frozen, statistic: FloatArray, log_sigma: float) -> float:
        """Logarithm of delta over the target."""
        return self._log_delta_value(frozen, statistic * math.exp(-self.power * log_sigma)) - math.log(self.target)

    def _with_gradient(self, frozen: Frozen, statistic: FloatArray, start: float) -> _Known:
        """Newton's method."""
        slope, gradient = 0.0, statistic

        def at(log_sigma: float) -> tuple[float, float]:
            nonlocal slope, gradient
            log_delta, slope, gradient = self._at(frozen, statistic, log_sigma)
            return log_delta - math.log(self.target), slope

        log_sigma = _root(at, start)
        return _Known(statistic, log_sigma, slope, gradient / -slope)

    def _without_gradient(self, frozen: Frozen, statistic: FloatArray, start: float, slope: float) -> float:
        """The secant method."""
        before: tuple[float, float] | None = None

        def at(log_sigma: float) -> tuple[float, float]:
            nonlocal before, slope
            excess = self._excess(frozen, statistic, log_sigma)
            apart = before is not None and abs(log_sigma - before[0]) > _EXACT
            if before is not None and apart and math.isfinite(before[1]) and math.isfinite(excess):
                slope = (excess - before[1]) / (log_sigma - before[0])
            before = log_sigma, excess
            return excess, slope

        return _root(at, start)


def _root(at: Callable[[float], tuple[float, float]], start: float) -> float:
    """Where a falling function is zero, by steps along its slope within a bracket; at(x) is its value and slope."""
    low, high, here = start - _REACH, start + _REACH, start
    for _ in range(40):
        excess, slope = at(here)
        low, high = (here, high) if excess > 0 else (low, here)
        step = -excess / slope if slope < 0 else math.copysign(high - low, excess)
        if slope < 0 and abs(step) < _EXACT:
            return here + step
        if high - low < _EXACT:
            break
        step = min(max(step, -_STRIDE), _STRIDE)
        if not low < here + step < high:
            step = (low + high) / 2 - here
        here += step
    raise OutsideDesign(_OUTSIDE)


def _smooth_maximum(levels: list[Level]) -> Level:
    value, share = _soft_maximum([level.log_sigma for level in levels])
    gradient = sum(part * level.gradient for part, level in zip(share, levels, strict=True))
    return Level(value, np.asarray(gradient))


def _soft_maximum(values: list[float]) -> tuple[float, FloatArray]:
    """A smooth maximum, and its derivatives."""
    top = max(values)
    weights = np.exp((np.array(values) - top) / _SOFTNESS)
    return top + _SOFTNESS * math.log(weights.sum()), weights / weights.sum()


class GramLevel(NoiseLevel):
    """For bins that are drawn once: the statistic is M^T M.

    Args:
      gram: M^T M at the design.
      log_sigma: log sigma near the solution there.
      guarantee: the guarantee that sigma has to meet.
      estimator: `mixture` (importance sampling from a mixture of proposals: the default), `tilted` or `plain`.
      samples: draws per direction.
      seed: of the draws.
    """

    power: ClassVar[int] = 2

    def __init__(
        self,
        gram: FloatArray,
        log_sigma: float,
        guarantee: Guarantee,
        estimator: str,
        samples: int,
        seed: int,
    ) -> None:
        scaled = gram * math.exp(-2 * log_sigma)
        frozen = [
            _freeze(scaled, direction, guarantee.epsilon, estimator, samples, seed)
            for direction in guarantee.directions
        ]
        super().__init__(gram, log_sigma, guarantee, frozen)

    def _log_delta_value(self, frozen: Frozen, scaled: FloatArray) -> float:
        matrices = (jnp.asarray(_cholesky(scaled)), jnp.asarray(scaled))
        total = sum(
            float(_sum_values(frozen.kernel, *matrices, frozen.constants, block, self.epsilon))
            for block in frozen.blocks
        )
        return math.log(total / frozen.samples) if total > 0 else -math.inf

    def _log_delta(self, frozen: Frozen, scaled: FloatArray) -> tuple[float, FloatArray]:
        root = _cholesky(scaled)
        matrices = (jnp.asarray(root), jnp.asarray(scaled))
        total, root_bar, gram_bar = 0.0, np.zeros_like(scaled), np.zeros_like(scaled)
        for block in frozen.blocks:
            value, (by_root, by_gram) = _sum_and_gradient(
                frozen.kernel, *matrices, frozen.constants, block, self.epsilon
            )
            total, root_bar, gram_bar = total + float(value), root_bar + by_root, gram_bar + by_gram
        if not total > 0:
            return -math.inf, np.zeros_like(scaled)
        gradient = _pull_back_cholesky(root, root_bar) + (gram_bar + gram_bar.T) / 2
        return math.log(total / frozen.samples), gradient / total


def _freeze(gram: FloatArray, direction: Direction, epsilon: float, estimator: str, samples: int, seed: int) -> Frozen:
    """Freezes draws for a Gram matrix that already includes sigma."""
    size = min(BLOCK, samples)
    count = -(-samples // size)
    keys = [chunk_key(seed, direction, index) for index in range(count)]
    normals = [_normals(key, (size, len(gram))) for key in keys]
    random = np.random.default_rng([seed, direction.stream])
    if estimator == "plain":
        bins = jnp.asarray(random.integers(len(gram), size=(count, size)))
        return Frozen(direction, _PLAIN[direction], (), list(zip(normals, bins, strict=True)), size * count)
    if direction is Direction.NOISE_FIRST:
        weights = half_space(gram, epsilon).weights
        entropy = float(weights @ np.log(np.maximum(weights * weights.size, 1e-300)))
        uniforms = jnp.asarray(1.0 - random.random((count, size)))
        space = (jnp.asarray(weights), entropy)
        return Frozen(direction, _half_space_values, space, list(zip(normals, uniforms, strict=True)), size * count)
    if estimator == "tilted" and direction is Direction.MIXTURE_FIRST:
        tilt = best_tilt(gram, direction, epsilon)
        tuples = [draw_tuples(jax.random.fold_in(key, 1), gram, tilt, size) for key in keys]
        blocks = [(normal, *drawn) for normal, drawn in zip(normals, tuples, strict=True)]
        return Frozen(direction, _tilted_values, (jnp.asarray(gram), tilt.order), blocks, size * count)
    counts, probabilities = proposals(gram, direction, epsilon)
    chosen = jnp.asarray(choose_proposals(probabilities, direction, (count, size), seed))
    centres = (jnp.asarray(counts), jnp.asarray(np.log(probabilities)))
    return Frozen(direction, _MIXTURE[direction], centres, list(zip(normals, chosen, strict=True)), size * count)


@partial(jax.jit, static_argnames=("shape",))
def _normals(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    return standard_normals(key, shape, jnp.float64)


def _cholesky(gram: FloatArray) -> FloatArray:
    return np.linalg.cholesky(gram + _RIDGE * gram.diagonal().max() * np.eye(len(gram)))


def _pull_back_cholesky(root: FloatArray, root_bar: FloatArray) -> FloatArray:
    """The gradient in G of a function of its Cholesky factor: L^-T Phi(L^T Lbar) L^-1, made symmetric."""
    inner = np.tril(root.T @ root_bar)
    left = solve_triangular(root, inner + np.tril(inner, -1).T, lower=True, trans="T", check_finite=False)
    return np.asarray(solve_triangular(root, left.T, lower=True, trans="T", check_finite=False)) / 2


@partial(jax.jit, static_argnames=("kernel",))
def _sum_values(
    kernel: Kernel, root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float
) -> jax.Array:
    return kernel(root, gram, constants, block, epsilon).sum()


@partial(jax.jit, static_argnames=("kernel",))
def _sum_and_gradient(
    kernel: Kernel, root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def total(root: jax.Array, gram: jax.Array) -> jax.Array:
        return kernel(root, gram, constants, block, epsilon).sum()

    return jax.value_and_grad(total, argnums=(0, 1))(root, gram)


def _plain_values(
    root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float, direction: Direction
) -> jax.Array:
    normals, bins = block
    half = gram.diagonal() / 2
    point = normals @ root.T
    if direction is Direction.NOISE_FIRST:
        loss = -log_mean_exp(point - half)
    else:
        point = point + gram[bins]
        loss = log_mean_exp(point - half)
        if direction is Direction.REPLACE:
            loss = loss - log_mean_exp(-point - half)
    return -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))


def _mixture_values(
    root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float, replace: bool
) -> jax.Array:
    counts, log_weights = constants
    normals, chosen = block
    images = counts @ gram
    centres = Proposals(counts.T, (counts * images).sum(axis=1) / 2, log_weights)
    return mixture_values(normals @ root.T + images[chosen], centres, gram.diagonal() / 2, epsilon, replace)


def _tilted_values(root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float) -> jax.Array:
    """The weight at the design, moved to this G: the tuple's own energy (N G N - N.d) / 2 is all that changes."""
    design, order = constants
    normals, counts, log_weight = block
    images = counts @ gram
    change = (counts * (images - counts @ design)).sum(axis=1) - counts @ (gram - design).diagonal()
    loss = log_mean_exp(normals @ root.T + images - gram.diagonal() / 2)
    return jnp.exp(log_weight + change / 2 - order * loss) * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))


def _half_space_values(
    root: jax.Array, gram: jax.Array, constants: Constants, block: Block, epsilon: float
) -> jax.Array:
    weights, entropy = constants
    normals, uniforms = block
    half = gram.diagonal() / 2
    along = root.T @ weights
    length = jnp.sqrt(jnp.square(along).sum())
    along = along / length
    mass = jax.scipy.stats.norm.cdf(jnp.maximum((weights @ half + entropy - epsilon) / length, -FARTHEST))
    depth = jax.scipy.special.ndtri(uniforms * mass)
    moved = normals + (depth - normals @ along)[:, None] * along
    return mass * -jnp.expm1(jnp.minimum(epsilon + log_mean_exp(moved @ root.T - half), 0.0))


_PLAIN: dict[Direction, Kernel] = {direction: partial(_plain_values, direction=direction) for direction in Direction}
_MIXTURE: dict[Direction, Kernel] = {
    Direction.MIXTURE_FIRST: partial(_mixture_values, replace=False),
    Direction.REPLACE: partial(_mixture_values, replace=True),
}
