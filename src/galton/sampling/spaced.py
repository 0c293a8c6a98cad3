"""Noise-first for banded G: every p-th mode is independent, and is drawn with a tilt (docs/math.md, section 18.7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, logsumexp

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling.base import Draw, Layout, Sampler, Slack, block_keys, layout, wide_jax
from galton.sampling.chains import IntArray
from galton.sampling.factor import factor_of
from galton.sampling.halfspace import DEPTH_ERROR, DEPTH_LOST, SHALLOW_LOST
from galton.sampling.kernels import correlated, log_mean_exp
from galton.sampling.normals import uniforms
from galton.sampling.slack import loss_slack

_EDGES = np.concatenate(([-np.inf], np.linspace(-8.0, 8.0, 1 << 10), [np.inf]))
"""Cells of a standard normal in which the tilt is taken at its largest."""
_TOLERANCE = 1e-9
"""Entries of G up to this share of the largest count as rounding."""
_MOST_STRENGTH = 1e4


@dataclass(frozen=True, eq=False)
class SpacedTilt:
    """A tilt by exp(-(b / n) theta X) of the n modes of a class: every p-th from some mode on, once around the circle.

    Attributes:
      spacing: p.
      theta: of the tilt of all modes that the classes stand for.
      log_masses: logarithms of the probabilities of the cells times the tilt, (bins, cells).
      log_normalisers: logarithms of the normalisers of the classes.
      beside: a bound on G between modes of a class.
    """

    spacing: int
    theta: float
    log_masses: FloatArray
    log_normalisers: FloatArray
    beside: float

    @property
    def members(self) -> int:
        """Modes of a class, n."""
        return self.log_masses.shape[0] // self.spacing

    @property
    def share(self) -> float:
        """What a mode's tilt is multiplied by, as it is in n of b classes."""
        return self.log_masses.shape[0] / self.members

    def log_range(self, epsilon: float) -> float:
        """Returns the logarithm of the range of V at this epsilon."""
        strength = self.theta * self.log_masses.shape[0]
        return float(self.log_normalisers.max()) + _log_most(strength, epsilon)


def _log_most(strength: float, epsilon: float) -> float:
    """The logarithm of the largest (1 - exp(epsilon) x) exp(strength x) for x >= 0."""
    end = strength * math.exp(-epsilon)
    return end - 1 - math.log(end) if end > 1 else 0.0


def best_spaced(gram: FloatArray, epsilon: float) -> SpacedTilt | None:
    """Returns the tilt with the smallest range at `epsilon`; None if no classes of modes are independent.

    Args:
      gram: G.
      epsilon: where delta is wanted.
    """
    bins = gram.shape[0]
    by_lag = np.array([float(np.diagonal(gram, lag).max()) for lag in range(bins)])
    least = float(gram.diagonal().min())
    for spacing in range(2, bins // 2 + 1):
        steps = spacing * np.arange(1, bins // spacing)
        beside = max(float(by_lag[steps].max()), float(by_lag[bins - steps].max()), 0.0)
        if beside <= _TOLERANCE * least:
            break
    else:
        return None
    members = _members(bins, spacing)

    def tilt(log_strength: float) -> SpacedTilt:
        theta = math.exp(log_strength) / bins
        masses = _log_masses(gram.diagonal(), bins / members.shape[1] * theta)
        return SpacedTilt(spacing, theta, masses, logsumexp(masses, axis=1)[members].sum(axis=1), beside)

    def log_range(log_strength: float) -> float:
        return tilt(log_strength).log_range(epsilon)

    bounds = (epsilon, math.log(_MOST_STRENGTH) + epsilon)
    optimum = minimize_scalar(log_range, bounds=bounds, method="bounded", options={"xatol": 0.02, "maxiter": 30})
    return tilt(float(optimum.x))


def _members(bins: int, spacing: int) -> IntArray:
    """The modes of every class, one class a row: as many classes as modes, or fewer where all others are the same."""
    classes = spacing if bins % spacing == 0 else bins
    return (np.arange(classes)[:, None] + spacing * np.arange(bins // spacing)) % bins


def _log_masses(energies: FloatArray, strength: float) -> FloatArray:
    """Logarithms of the probability of every cell times exp(-strength X), X at the cell's left end."""
    low, high = log_ndtr(_EDGES[:-1]), log_ndtr(_EDGES[1:])
    with np.errstate(divide="ignore"):
        left = np.where(_EDGES[:-1] < 0, high + np.log1p(-np.exp(low - high)), 0.0)
        flipped = log_ndtr(-_EDGES[:-1]) + np.log1p(-np.exp(log_ndtr(-_EDGES[1:]) - log_ndtr(-_EDGES[:-1])))
    probabilities = np.where(_EDGES[:-1] < 0, left, flipped)
    powers = np.exp(np.sqrt(energies)[:, None] * _EDGES[:-1] - energies[:, None] / 2)
    return np.asarray(probabilities - strength * powers)


class SpacedSampler(Sampler):
    """Draws about every p-th mode with a tilt exp(-p theta X), independently, and the others given these.

    For noise-first and a banded Gram matrix. By the inequality of means the mixture over the classes is at least
    exp(-theta * sum of X) up to its normaliser. The samples are not valid below `least_epsilon`, the epsilon given,
    where rounding has no bound.
    """

    name: ClassVar[str] = "spaced"
    direction = Direction.NOISE_FIRST

    def __init__(self, pair: Pair, tilt: SpacedTilt, epsilon: float) -> None:
        factor = factor_of(pair)
        gram, bins = factor.gram, pair.modes
        self.tilt, self.least_epsilon = tilt, epsilon
        members = tilt.members
        largest, least = float(gram.diagonal().max()), float(gram.diagonal().min())
        together = members * (tilt.beside + factor.residual) / least
        around = float(gram.sum(axis=1).max()) / least
        rounding = loss_slack(bins, largest, largest / 2, factor.residual, "float64", 20.0)
        moved = (rounding.epsilon + DEPTH_ERROR * math.sqrt(largest)) * (1 + around)
        near = 4 * together * members * 40.0 * math.sqrt(largest) * (1 + around)
        ratio = 4 * together * members * 400.0 + 64 * bins * _EDGES.size * ROUNDOFF
        self.slack = Slack(
            moved + near + ratio, rounding.lost + members * (DEPTH_LOST + SHALLOW_LOST) + 8 * bins * bins * ROUNDOFF
        )
        self.layout = layout(bins, most_blocks=4, largest_block=1 << 11)
        masses = np.exp(tilt.log_masses - logsumexp(tilt.log_masses, axis=1)[:, None])
        with wide_jax():
            self._running = jnp.asarray(np.cumsum(masses, axis=1))
            self._gram = jnp.asarray(gram)
            self._root = jnp.asarray(factor.root.T)
            self._normalisers = jnp.asarray(tilt.log_normalisers)
            self._members = jnp.asarray(_members(bins, tilt.spacing))

    @property
    def steepness(self) -> int:
        """The mean over classes moves by the tilt of all modes, the tilt of the class drawn by up to b / n times it."""
        strength = self.tilt.theta * self.tilt.log_masses.shape[0] * math.exp(-self.least_epsilon)
        return math.ceil((1 + self.tilt.share) * strength * 1.01) + 2

    def _range_at(self, epsilon: float) -> float:
        margin = (self.steepness + 2) * self.slack.epsilon + 1e-9
        return math.exp(min(self.tilt.log_range(epsilon) + margin, 700.0))

    def draw(self, seed: int, index: int) -> Draw:
        with wide_jax():
            keys = block_keys(seed, self.direction, index, self.layout.blocks)
            strength = self.tilt.share * self.tilt.theta
            arrays = _losses(
                keys,
                self._running,
                self._normalisers,
                self._gram,
                self._root,
                strength,
                self._members,
                self.layout,
            )
            loss, log_weight = (np.asarray(array) for array in arrays)
        return Draw(loss, log_weight)


@partial(jax.jit, static_argnames=("layout",))
def _losses(
    keys: jax.Array,
    running: jax.Array,
    log_normalisers: jax.Array,
    gram: jax.Array,
    root: jax.Array,
    strength: float,
    classes: jax.Array,
    layout: Layout,
) -> tuple[jax.Array, jax.Array]:
    """Returns losses and log weights."""
    size, bins = layout.block, gram.shape[0]
    diagonal, edges = gram.diagonal(), jnp.asarray(_EDGES)
    left, right = jax.scipy.special.ndtr(edges[:-1]), jax.scipy.special.ndtr(edges[1:])
    upper_left, upper_right = jax.scipy.special.ndtr(-edges[:-1]), jax.scipy.special.ndtr(-edges[1:])
    ends = jnp.where(edges[:-1] < 0, left, upper_left), jnp.where(edges[:-1] < 0, right, upper_right)
    signs = jnp.where(edges[:-1] < 0, 1.0, -1.0)
    belongs = (jnp.arange(bins)[:, None, None] == classes).any(axis=-1).astype(jnp.float64)

    def block(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_class, for_cell, for_place, noise = jax.random.split(key, 4)
        drawn = (jax.random.bits(for_class, (size,), jnp.uint64) % classes.shape[0]).astype(jnp.int64)
        members = classes[drawn]
        uniform = uniforms(for_cell, members.shape)
        cell = jnp.minimum(_cells(running, members, uniform), signs.size - 1)
        tail = ends[0][cell] + (ends[1][cell] - ends[0][cell]) * uniforms(for_place, members.shape)
        normal = signs[cell] * jax.scipy.special.ndtri(tail)
        energy = diagonal[members]
        wanted = jnp.sqrt(energy) * normal
        point = correlated(noise, root, size)
        steps = (wanted - jnp.take_along_axis(point, members, axis=1)) / energy
        spread = jnp.zeros((size, bins)).at[jnp.arange(size)[:, None], members].set(steps)
        point = point + jnp.matmul(spread, gram, precision=jax.lax.Precision.HIGHEST)
        exponents = point - diagonal / 2
        powers = strength * jnp.exp(exponents)
        by_class = jnp.matmul(powers, belongs, precision=jax.lax.Precision.HIGHEST)
        mine = strength * jnp.exp(wanted - energy / 2)
        largest = strength * jnp.exp(jnp.sqrt(energy) * edges[cell] - energy / 2)
        weight = log_normalisers[drawn] - log_mean_exp(-by_class) + (largest - mine).sum(axis=-1)
        return -log_mean_exp(exponents), weight

    loss, log_weight = jax.lax.map(block, keys)
    return loss.ravel(), log_weight.ravel()


def _cells(running: jax.Array, members: jax.Array, uniform: jax.Array) -> jax.Array:
    """The cell of every member by its uniform number, a binary search in the running sums of its bin."""
    last = running.shape[1] - 1
    targets = uniform * running[members, last]

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) // 2
        beyond = running[members, middle] < targets
        return jnp.where(beyond, middle + 1, low), jnp.where(beyond, high, middle)

    start = jnp.zeros_like(members), jnp.full_like(members, last)
    return jax.lax.fori_loop(0, (last + 1).bit_length(), halve, start)[0]
