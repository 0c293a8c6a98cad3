"""delta as a smooth function of noise multiplier and epsilon on frozen draws: the quick estimator (section 3, warning).

Not certified: it steers `calibrate` and `epsilon`, whose results are then bounded on fresh samples. The draws come
from a mixture of proposals with exact densities, from one mode alone to all modes together, so that the
estimate is accurate where the tilted sampler has rare large values.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from galton.errors import FloatArray
from galton.pair import Direction, Pair
from galton.sampling.base import chunk_key, wide_jax
from galton.sampling.factor import upward_factor
from galton.sampling.halfspace import half_space
from galton.sampling.kernels import correlated, log_mean_exp

_BLOCK = 1 << 11
_SHARPNESS = (np.inf, 1.0, 0.5, 0.25, 0.0)
"""How strongly a proposal keeps to one mode: inf is the mode alone, 0 all modes alike."""


class _Frozen(NamedTuple):
    """What does not change with noise multiplier and epsilon."""

    noise: jax.Array
    centre: jax.Array
    counts: jax.Array
    energies: jax.Array
    log_weights: jax.Array
    half: jax.Array


class Estimate(NamedTuple):
    """An estimate of delta and its standard error, relative to it."""

    delta: float
    relative_error: float


def samples_for(bins: int) -> int:
    """Returns how many frozen samples are affordable: fewer where every one costs b^2 more."""
    return _BLOCK * max(2, min(16, (1 << 30) // (bins * bins * _BLOCK)))


class FrozenMixture:
    """Mixture-first and replace: importance sampling from the mixture of proposals N(G c, G), c rows of counts.

    The counts are s * softmax(s * sharpness * G[i]) for every mode i, with s such that the loss at the centre of the
    proposal is epsilon. They are designed at (pair, epsilon) and then frozen with the normals.
    """

    def __init__(self, pair: Pair, direction: Direction, epsilon: float, samples: int, seed: int) -> None:
        self.direction = direction
        unit = upward_factor(pair.unit)
        rows = [_counts(pair.gram, direction, epsilon, sharpness) for sharpness in _SHARPNESS]
        if pair.bins == 1:
            rows = rows[:1]
        counts = np.concatenate(rows)
        weight = np.concatenate([np.full(len(row), 1 / len(row) / len(rows)) for row in rows])
        images = counts @ unit.gram
        with wide_jax():
            which, noise = jax.random.split(chunk_key(seed, direction, 0))
            uniform = jax.random.uniform(which, (samples,), jnp.float64)
            chosen = np.searchsorted(np.cumsum(weight), np.asarray(uniform), side="right")
            self._frozen = _Frozen(
                noise=_correlated(noise, jnp.asarray(unit.root.T), samples),
                centre=jnp.asarray(images[np.minimum(chosen, len(counts) - 1)]),
                counts=jnp.asarray(counts.T),
                energies=jnp.asarray(np.einsum("ij,ij->i", counts, images) / 2),
                log_weights=jnp.log(jnp.asarray(weight)),
                half=jnp.asarray(unit.gram.diagonal() / 2),
            )

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        with wide_jax():
            values = _mixture_values(self._frozen, noise_multiplier, epsilon, self.direction is Direction.REPLACE)
            return _summary(np.asarray(values))


class FrozenHalfSpace:
    """Noise-first: the half-space of the design, with its boundary moving smoothly."""

    def __init__(self, pair: Pair, epsilon: float, samples: int, seed: int) -> None:
        unit = upward_factor(pair.unit)
        weights = half_space(pair.gram, epsilon).weights
        along = unit.root.T @ weights
        length = float(np.linalg.norm(along))
        along /= length
        entropy = float(weights @ np.log(np.maximum(weights * weights.size, 1e-300)))
        self._constants = (length, entropy, float(weights @ unit.gram.diagonal()) / 2)
        with wide_jax():
            depth, noise = jax.random.split(chunk_key(seed, Direction.NOISE_FIRST, 0))
            across = np.eye(pair.bins) - np.outer(along, along)
            self._noise = _correlated(noise, jnp.asarray(across @ unit.root.T), samples)
            self._step = jnp.asarray(unit.root @ along)
            self._uniform = 1.0 - jax.random.uniform(depth, (samples,), jnp.float64)
            self._half = jnp.asarray(unit.gram.diagonal() / 2)

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        length, entropy, mean_half = self._constants
        bound = (mean_half / noise_multiplier**2 + entropy - epsilon) * noise_multiplier / length
        with wide_jax():
            arrays = (self._noise, self._step, self._uniform, self._half)
            return _summary(np.asarray(_half_space_values(*arrays, noise_multiplier, epsilon, bound)))


FrozenEstimator = FrozenMixture | FrozenHalfSpace


def frozen_estimator(pair: Pair, direction: Direction, epsilon: float, samples: int, seed: int) -> FrozenEstimator:
    """Returns the quick estimator of this direction, designed at the pair's noise multiplier and `epsilon`."""
    if direction is Direction.NOISE_FIRST:
        return FrozenHalfSpace(pair, epsilon, samples, seed)
    return FrozenMixture(pair, direction, epsilon, samples, seed)


def _summary(values: FloatArray) -> Estimate:
    mean = float(values.mean())
    if not mean > 0:
        return Estimate(0.0, np.inf)
    return Estimate(mean, float(values.std() / mean / np.sqrt(values.size)))


def _counts(gram: FloatArray, direction: Direction, epsilon: float, sharpness: float) -> FloatArray:
    """Rows of counts for one sharpness, scaled so that the loss at their centres is about epsilon."""
    bins = gram.shape[0]
    half = gram.diagonal() / 2

    def rows(strength: float) -> FloatArray:
        if sharpness == 0:
            return np.full((1, bins), strength / bins)
        if sharpness == np.inf:
            return strength * np.eye(bins)
        logits = sharpness * strength * gram
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return strength * weights / weights.sum(axis=1, keepdims=True)

    def excess(strength: float) -> float:
        centre = rows(strength) @ gram
        loss = _log_mean_exp(centre - half)
        if direction is Direction.REPLACE:
            loss -= _log_mean_exp(-centre - half)
        return float(np.median(loss)) - epsilon

    high = 1.0
    while excess(high) < 0 and high < 1e9:
        high *= 2
    if high == 1.0 or excess(high) < 0:
        return rows(high)
    return rows(max(1.0, float(brentq(excess, high / 2, high, rtol=1e-3))))


def _log_mean_exp(values: FloatArray) -> FloatArray:
    peak = values.max(axis=-1)
    return peak + np.log(np.exp(values - peak[:, None]).mean(axis=-1))


@partial(jax.jit, static_argnames=("samples",))
def _correlated(key: jax.Array, root: jax.Array, samples: int) -> jax.Array:
    keys = jax.random.split(key, samples // _BLOCK)
    return jax.lax.map(lambda key: correlated(key, root, _BLOCK), keys).reshape(samples, -1)


@partial(jax.jit, static_argnames=("replace",))
def _mixture_values(frozen: _Frozen, multiplier: float, epsilon: float, replace: bool) -> jax.Array:
    square = multiplier * multiplier

    def block(arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        noise, centre = arrays
        point = noise / multiplier + centre / square
        mixture = log_mean_exp(point - frozen.half / square)
        exponents = point @ frozen.counts - frozen.energies / square + frozen.log_weights
        proposal = jax.scipy.special.logsumexp(exponents, axis=-1)
        loss = mixture - log_mean_exp(-point - frozen.half / square) if replace else mixture
        return jnp.exp(mixture - proposal) * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))

    blocks = (frozen.noise.shape[0] // _BLOCK, _BLOCK, -1)
    return jax.lax.map(block, (frozen.noise.reshape(blocks), frozen.centre.reshape(blocks))).ravel()


@jax.jit
def _half_space_values(
    noise: jax.Array,
    step: jax.Array,
    uniform: jax.Array,
    half: jax.Array,
    multiplier: float,
    epsilon: float,
    bound: float,
) -> jax.Array:
    mass = jax.scipy.stats.norm.cdf(bound)

    def block(arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        noise, depth = arrays
        point = (noise + depth[:, None] * step) / multiplier
        return -jnp.expm1(jnp.minimum(epsilon + log_mean_exp(point - half / multiplier**2), 0.0))

    depth = jax.scipy.special.ndtri(jnp.maximum(uniform * mass, 1e-300))
    blocks = (noise.shape[0] // _BLOCK, _BLOCK)
    return mass * jax.lax.map(block, (noise.reshape(*blocks, -1), depth.reshape(blocks))).ravel()
