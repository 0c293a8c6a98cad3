"""The half-space sampler for noise-first: the loss is only large within a half-space (docs/math.md, section 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from galton.errors import FloatArray
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, placed, wide_jax
from galton.sampling.factor import factor_of, factor_residual
from galton.sampling.kernels import log_mean_exp
from galton.sampling.normals import standard_normals
from galton.sampling.slack import choose_dtype, loss_slack
from galton.sampling.strata import FARTHEST_NORMAL, STRATA, depth_range, stratified_depths

FARTHEST = 30.0
"""A half-space farther out than this many standard deviations has probability below 1e-197."""


DEPTH_ERROR, DEPTH_LOST = 1e-7, 2.0**-40
"""The depth's uniform number has 64 bits: above 2^-40 its lattice moves the depth by less than 4e-8."""
SHALLOWEST, SHALLOW_LOST = 6.0, 1e-9
"""Rounding of a probability near 1 moves a depth of up to 6 by less than 6e-8; deeper, it has no bound here. A normal
is above 6 with probability below 1e-9."""
_MOST_RELATIVE = 0.25
"""Above this relative error of the spread its bound does not hold, and the half-space is taken to be everything."""


@dataclass(frozen=True, eq=False)
class HalfSpace:
    """{y : p.y <= offset}, which holds every y with L(y) <= -epsilon; p lies in the simplex.

    L >= sum_k p_k A_k - KL(p || uniform) for every p (Jensen), so that L <= -eps implies
    p.y <= p.d/2 + KL(p || uniform) - eps.

    Attributes:
      weights: p.
      spread: standard deviation of p.y under noise alone.
      bound: the offset in standard deviations; the half-space has probability Phi(bound).
    """

    weights: FloatArray
    spread: float
    bound: float


def half_space(gram: FloatArray, epsilon: float) -> HalfSpace:
    """Returns the half-space of the smallest probability found: uniform weights, or better ones by L-BFGS."""
    bins = gram.shape[0]
    uniform = _half_space_of(gram, np.full(bins, 1 / bins), epsilon)
    if bins == 1 or uniform.bound < -1e6:  # nothing to gain, or nothing left
        return uniform

    def objective(logits: FloatArray) -> tuple[float, FloatArray]:
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        image = gram @ weights
        spread = math.sqrt(float(weights @ image))
        logs = np.log(np.maximum(weights * bins, 1e-300))
        offset = float(weights @ (gram.diagonal() / 2 + logs)) - epsilon
        gradient = (gram.diagonal() / 2 + logs + 1) / spread - offset / spread**3 * image
        return offset / spread, weights * (gradient - weights @ gradient)

    optimum = minimize(objective, np.zeros(bins), jac=True, method="L-BFGS-B", options={"maxiter": 100})
    weights = np.exp(optimum.x - optimum.x.max())
    better = _half_space_of(gram, weights / weights.sum(), epsilon)
    return better if better.bound < uniform.bound else uniform


def _half_space_of(gram: FloatArray, weights: FloatArray, epsilon: float) -> HalfSpace:
    spread = math.sqrt(float(weights @ gram @ weights))
    offset = float(weights @ gram.diagonal()) / 2 + _entropy(weights) - epsilon
    relative = _spread_error(gram, spread)
    if relative > _MOST_RELATIVE:
        return HalfSpace(weights, spread, math.inf)
    raised = (offset + _offset_error(gram, epsilon)) / spread
    bound = max(raised * (1 + math.copysign(2 * relative, raised)), -1e300)  # an infinite bound would have no margin
    return HalfSpace(weights, spread, bound + 1e-9 * (1 + abs(bound)))


def _entropy(weights: FloatArray) -> float:
    """KL(p || uniform)."""
    return float(weights @ np.log(np.maximum(weights * weights.size, 1e-300)))


def _spread_error(gram: FloatArray, spread: float) -> float:
    """Relative error of the spread: from the residual of the factor, and from rounding."""
    return factor_residual(gram) / max(spread**2, 1e-300) + 2 * (gram.shape[0] + 4) * ROUNDOFF


def _offset_error(gram: FloatArray, epsilon: float) -> float:
    """Absolute error of the offset of a half-space: from the residual of the factor, and from rounding."""
    bins = gram.shape[0]
    size = float(gram.diagonal().max()) + math.log(bins) + 1 + epsilon
    return factor_residual(gram) + 4 * (bins + 8) * ROUNDOFF * size


def noise_first_bound(gram: FloatArray, epsilon: float) -> float:
    """Returns a sampling-free upper bound on the noise-first delta: a Gaussian mechanism at a smaller epsilon.

    With L >= p.A - KL: delta <= delta of N(0, v^2) at eps - (p.d - v^2)/2 - KL(p || uniform), for any p. It falls in
    that epsilon and grows in v, so that errors lower the one and raise the other.
    """
    space = half_space(gram, epsilon)
    weights, relative = space.weights, _spread_error(gram, space.spread)
    if relative > _MOST_RELATIVE:
        return 1.0
    least_square = space.spread**2 * (1 - 2 * relative)
    shifted = epsilon - (float(weights @ gram.diagonal()) - least_square) / 2 - _entropy(weights)
    shifted -= _offset_error(gram, epsilon)
    return min(1.0, gaussian_delta(shifted, space.spread * (1 + relative)) * (1 + 1e-7))


class HalfSpaceSampler(Sampler):
    """Draws noise within the half-space outside of which the value is zero, one point in each stratum of depths.

    It is not valid below `least_epsilon`, the epsilon given: the half-space may miss losses below that.
    """

    name: ClassVar[str] = "half-space"
    direction = Direction.NOISE_FIRST
    strata = STRATA

    def __init__(self, pair: Pair, epsilon: float, dtype: str | None = None) -> None:
        factor = factor_of(pair)
        gram, bins = factor.gram, pair.modes
        self._space = half_space(gram, epsilon)
        self._bound = min(max(self._space.bound, -FARTHEST), FARTHEST)
        shallow = SHALLOW_LOST * STRATA if self._bound > SHALLOWEST else 0.0
        self.least_epsilon = epsilon
        largest = float(gram.diagonal().max())
        moved = abs(self._bound) + FARTHEST_NORMAL

        def slack(name: str) -> Slack:
            rounding = loss_slack(bins, largest, largest / 2, factor.residual, name, moved)
            return Slack(rounding.epsilon + DEPTH_ERROR * math.sqrt(largest), rounding.lost + DEPTH_LOST + shallow)

        order = max(1, round(-self._bound / self._space.spread))
        self.dtype = dtype or choose_dtype(slack, order)
        self.slack = slack(self.dtype)
        self.layout = layout(bins, most_blocks=8, largest_block=1 << 11)
        self._log_mass = float(log_ndtr(self._bound))
        mass, spread = math.exp(self._log_mass), self._space.spread * (1 + _spread_error(gram, self._space.spread))
        whole = self._space.bound > FARTHEST  # a bound that was lowered bounds no value
        self._range = (mass if whole else depth_range(spread, self._bound, mass, STRATA)) * (1 + 1e-9)
        direction = factor.root.T @ self._space.weights
        along = direction / np.linalg.norm(direction)
        with wide_jax():
            self._root = placed(factor.root.T, self.dtype)
            self._half = placed(gram.diagonal() / 2, self.dtype)
            self._along = placed(along, self.dtype)
            self._image = placed(factor.root @ along, self.dtype)

    @property
    def weights(self) -> FloatArray:
        """The weights p of the half-space."""
        return self._space.weights

    def _range_at(self, epsilon: float) -> float:
        return self._range

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            losses = np.asarray(
                _losses(
                    keys,
                    self._root,
                    self._half,
                    self._along,
                    self._image,
                    math.exp(self._log_mass),
                    self.layout,
                    self.strata,
                ),
                np.float64,
            )
        return Draw(losses, np.broadcast_to(self._log_mass, losses.shape))


@partial(jax.jit, static_argnames=("layout", "strata"))
def _losses(
    keys: jax.Array,
    root: jax.Array,
    half: jax.Array,
    along: jax.Array,
    image: jax.Array,
    mass: float,
    layout: Layout,
    strata: int,
) -> jax.Array:
    def block(key: jax.Array) -> jax.Array:
        for_depth, noise = jax.random.split(key)
        normals = standard_normals(noise, (layout.block, half.size), root.dtype)
        current = jnp.matmul(normals, along, precision=jax.lax.Precision.HIGHEST)
        point = jnp.matmul(normals, root, precision=jax.lax.Precision.HIGHEST) - half

        def stratum(depths: jax.Array) -> jax.Array:
            return -log_mean_exp(point + (depths.astype(root.dtype) - current)[:, None] * image)

        return jax.lax.map(stratum, stratified_depths(for_depth, layout.block, strata, mass)).T

    return jax.lax.map(block, keys).reshape(-1, strata)
