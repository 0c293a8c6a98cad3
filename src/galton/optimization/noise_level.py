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
_IRRELEVANT = 0.3
"""A direction whose delta is below this share of the target at the other's sigma does not matter."""
_RIDGE = 1e-12
_STRIDE = 0.1
"""The largest step in log sigma."""
_REACH = 0.5
"""How far from its start, in log sigma, to look for a solution: farther away frozen draws say nothing."""
_EXACT = 3e-5
"""A Newton step this small in log sigma is the last: the error that remains is of the order of its square."""

Constants = Any
Block = Any
Kernel = Callable[..., jax.Array]
"""Called as kernel(matrices..., constants, block, epsilon); returns values."""


class OutsideDesign(GaltonError):
    """The matrix is too far from the design of the draws."""


class Level(NamedTuple):
    """log sigma and its gradient in the statistic."""

    log_sigma: float
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
        self._last: list[tuple[FloatArray, Level] | None] = [None for _ in self._frozen]

    @abstractmethod
    def _log_delta(self, frozen: Frozen, scaled: FloatArray) -> tuple[float, FloatArray]:
        """log delta at a statistic that includes the noise, and its gradient."""

    def _log_delta_value(self, frozen: Frozen, scaled: FloatArray) -> float:
        return self._log_delta(frozen, scaled)[0]

    def __call__(self, statistic: FloatArray) -> Level:
        """Returns log sigma at this statistic, by Newton's method from where the last call ended."""
        at_design = self._design + math.log(statistic.mean()) / self.power
        levels: list[Level] = []
        for index, frozen in enumerate(self._frozen):
            last = self._last[index]
            if last is not None:
                before, level = last
                start = level.log_sigma + float((level.gradient * (statistic - before)).sum())
            else:
                start = levels[0].log_sigma if levels else at_design
            solution = self._solve(frozen, statistic, start, may_skip=bool(levels) and last is None)
            self._last[index] = None if solution is None else (statistic, solution)
            if solution is not None:
                levels.append(solution)
        return _smooth_maximum(levels)

    def newton_step(self, statistic: FloatArray, log_sigma: float) -> float:
        """Returns one Newton step in log sigma: the larger over the directions, within half a unit."""
        steps = []
        for frozen in self._frozen:
            log_delta, slope, _ = self._at(frozen, statistic, log_sigma)
            steps.append((math.log(self.target) - log_delta) / slope if slope < 0 else -_REACH)
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

    def _solve(self, frozen: Frozen, statistic: FloatArray, log_sigma: float, may_skip: bool) -> Level | None:
        """Newton's method with a bracket; None if `may_skip` and delta is far below the target at the start."""
        low, high = log_sigma - _REACH, log_sigma + _REACH
        for _ in range(40):
            log_delta, slope, gradient = self._at(frozen, statistic, log_sigma)
            excess = log_delta - math.log(self.target)
            if may_skip and excess < math.log(_IRRELEVANT):
                return None
            may_skip = False
            low, high = (log_sigma, high) if excess > 0 else (low, log_sigma)
            step = -excess / slope if slope < 0 else math.copysign(high - low, excess)
            if slope < 0 and abs(step) < _EXACT:
                return Level(log_sigma + step, gradient / -slope)
            if high - low < _EXACT:
                break
            step = min(max(step, -_STRIDE), _STRIDE)
            if not low < log_sigma + step < high:
                step = (low + high) / 2 - log_sigma
            log_sigma += step
        raise OutsideDesign(
            "optimize: the noise level is out of reach of the frozen draws; raise samples, or start nearer"
        )


def _smooth_maximum(levels: list[Level]) -> Level:
    top = max(level.log_sigma for level in levels)
    weights = np.exp([(level.log_sigma - top) / _SOFTNESS for level in levels])
    share = weights / weights.sum()
    gradient = sum(part * level.gradient for part, level in zip(share, levels, strict=True))
    return Level(top + _SOFTNESS * math.log(weights.sum()), np.asarray(gradient))


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
