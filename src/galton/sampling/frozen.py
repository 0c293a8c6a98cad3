"""The quick estimator: delta on frozen draws, smooth in noise multiplier and epsilon (docs/math.md, section 3.3).

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
from numpy.typing import NDArray
from scipy.optimize import brentq

from galton.errors import FloatArray
from galton.guarantee import Direction
from galton.pair import Pair
from galton.sampling.base import chunk_key, placed, wide_jax
from galton.sampling.factor import upward_factor
from galton.sampling.halfspace import half_space
from galton.sampling.kernels import correlated, log_mean_exp

BLOCK = 1 << 12
"""Samples evaluated at a time; all numbers of samples are multiples of it, so that nothing is compiled twice."""

_SHARPNESS = (np.inf, 1.0, 0.5, 0.25, 0.0)
"""How strongly a proposal keeps to one mode: inf is the mode alone, 0 all modes alike."""
_ALL_CENTRES, _CENTRES = 512, 256
"""Up to so many modes each has proposals of its own; of more, so many, evenly spread, stand for their neighbours."""


_JUDGED = 32
"""Proposals whose median loss decides how far out all are: at most so many, evenly spread."""


class Estimate(NamedTuple):
    """An estimate of delta and its standard error, relative to it."""

    delta: float
    relative_error: float


class Proposals(NamedTuple):
    """The proposals N(G c, G): counts c as columns, their energies c G c / 2 and the logarithms of their weights."""

    counts: jax.Array
    energies: jax.Array
    log_weights: jax.Array


def centres_of(modes: int) -> NDArray[np.intp]:
    """Returns the modes that an estimate draws first: all, or of many the middles of equal groups of neighbours.

    The mean over all modes of what a mode contributes to delta is then that over these: neighbours are alike.
    """
    number = modes if modes <= _ALL_CENTRES else _CENTRES
    return np.floor((np.arange(number) + 0.5) * modes / number).astype(np.intp)


def proposals(
    gram: FloatArray, direction: Direction, epsilon: float, centres: NDArray[np.intp] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Returns rows of counts c of proposals N(G c, G), designed for this Gram matrix, and their probabilities.

    Args:
      gram: G, noise included.
      direction: mixture-first or replace.
      epsilon: where the loss at the centres of proposals is to be.
      centres: modes around which proposals are made; all if None.
    """
    sharpnesses = _SHARPNESS if len(gram) > 1 else _SHARPNESS[:1]
    centres = np.arange(len(gram)) if centres is None else centres
    rows = [_proposal_counts(gram, direction, epsilon, sharpness, centres) for sharpness in sharpnesses]
    return np.concatenate(rows), np.concatenate([np.full(len(row), 1 / len(row) / len(rows)) for row in rows])


def choose_proposals(
    probabilities: FloatArray, direction: Direction, shape: tuple[int, ...], seed: int
) -> NDArray[np.intp]:
    """Returns which proposal each sample comes from."""
    random = np.random.default_rng([seed, direction.stream])
    return np.minimum(np.searchsorted(np.cumsum(probabilities), random.random(shape)), len(probabilities) - 1)


class FrozenMixture:
    """Mixture-first and replace: importance sampling from a mixture of proposals N(G c, G), c rows of counts.

    The counts are s * softmax(s * sharpness * G[i]) for every mode i of `centres_of`, with s such that the loss at the
    centre of the proposal is epsilon. They are designed at (pair, epsilon) and then frozen with the normals.
    """

    def __init__(self, pair: Pair, direction: Direction, epsilon: float, blocks: int, seed: int) -> None:
        self.direction = direction
        unit = upward_factor(pair.unit)
        centres = centres_of(pair.modes)
        self._first = centres if centres.size < pair.modes else None
        counts, weight = proposals(pair.gram, direction, epsilon, centres)
        images = counts @ unit.gram
        chosen = choose_proposals(weight, direction, (blocks, BLOCK), seed)
        with wide_jax():
            root = placed(unit.root.T)
            self._proposals = Proposals(
                placed(counts.T),
                placed(np.einsum("ij,ij->i", counts, images) / 2),
                placed(np.log(weight)),
            )
            self._half = placed(unit.gram.diagonal() / 2)
            self._blocks = [
                (_correlated_block(chunk_key(seed, direction, index), root), placed(images[chosen[index]]))
                for index in range(blocks)
            ]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        replace = self.direction is Direction.REPLACE
        with wide_jax():
            values = [
                _mixture_values(
                    noise, centre, self._proposals, self._first, self._half, noise_multiplier, epsilon, replace
                )
                for noise, centre in self._blocks
            ]
            return estimate_from(values)


class FrozenHalfSpace:
    """Noise-first: the half-space of the design, with its boundary moving smoothly."""

    def __init__(self, pair: Pair, epsilon: float, blocks: int, seed: int) -> None:
        unit = upward_factor(pair.unit)
        weights = half_space(pair.gram, epsilon).weights
        along = unit.root.T @ weights
        length = float(np.linalg.norm(along))
        along /= length
        entropy = float(weights @ np.log(np.maximum(weights * weights.size, 1e-300)))
        self._constants = (length, entropy, float(weights @ unit.gram.diagonal()) / 2)
        across = (np.eye(pair.modes) - np.outer(along, along)) @ unit.root.T
        random = np.random.default_rng([seed, Direction.NOISE_FIRST.stream])
        with wide_jax():
            root = placed(across)
            self._step = placed(unit.root @ along)
            self._half = placed(unit.gram.diagonal() / 2)
            self._blocks = [
                (
                    _correlated_block(chunk_key(seed, Direction.NOISE_FIRST, index), root),
                    placed(1.0 - random.random(BLOCK)),
                )
                for index in range(blocks)
            ]

    def __call__(self, noise_multiplier: float, epsilon: float) -> Estimate:
        """Returns the estimate at this noise multiplier and epsilon on the frozen draws."""
        length, entropy, mean_half = self._constants
        bound = (mean_half / noise_multiplier**2 + entropy - epsilon) * noise_multiplier / length
        with wide_jax():
            values = [
                _half_space_values(noise, uniform, self._step, self._half, noise_multiplier, epsilon, bound)
                for noise, uniform in self._blocks
            ]
            return estimate_from(values)


def estimate_from(blocks: list[jax.Array]) -> Estimate:
    """Returns the mean of the values and its standard error."""
    values = np.concatenate([np.asarray(block) for block in blocks])
    mean = float(values.mean())
    if not mean > 0:
        return Estimate(0.0, np.inf)
    return Estimate(mean, float(values.std() / mean / np.sqrt(values.size)))


def _proposal_counts(
    gram: FloatArray, direction: Direction, epsilon: float, sharpness: float, centres: NDArray[np.intp]
) -> FloatArray:
    """Rows of counts for one sharpness, scaled so that the loss at their centres is about epsilon."""
    bins = gram.shape[0]
    half = gram.diagonal() / 2

    def rows(strength: float, centres: NDArray[np.intp] = centres) -> FloatArray:
        if sharpness == 0:
            return np.full((1, bins), strength / bins)
        if sharpness == np.inf:
            return strength * np.eye(bins)[centres]
        logits = sharpness * strength * gram[centres]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return strength * weights / weights.sum(axis=1, keepdims=True)

    def excess(strength: float) -> float:
        centre = rows(strength, centres[:: -(-centres.size // _JUDGED)]) @ gram
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


@jax.jit
def _correlated_block(key: jax.Array, root: jax.Array) -> jax.Array:
    return correlated(key, root, BLOCK)


@partial(jax.jit, static_argnames=("replace",))
def _mixture_values(
    noise: jax.Array,
    centre: jax.Array,
    proposals: Proposals,
    first: jax.Array | None,
    half: jax.Array,
    multiplier: float,
    epsilon: float,
    replace: bool,
) -> jax.Array:
    square = multiplier * multiplier
    return mixture_values(
        noise / multiplier + centre / square,
        proposals._replace(energies=proposals.energies / square),
        half / square,
        epsilon,
        replace,
        first,
    )


def mixture_values(
    point: jax.Array,
    proposals: Proposals,
    half: jax.Array,
    epsilon: float,
    replace: bool,
    first: jax.Array | None = None,
) -> jax.Array:
    """Returns V at points drawn from the mixture of proposals.

    Args:
      point: the statistics of samples.
      proposals: where they come from.
      half: half the diagonal of the Gram matrix.
      epsilon: of the guarantee.
      replace: whether the second distribution is the mixture on the other side.
      first: modes that are drawn first, as in `centres_of`; all if None.
    """
    exponents = point - half
    mixture = log_mean_exp(exponents)
    drawn = mixture if first is None else log_mean_exp(exponents[:, first])
    densities = point @ proposals.counts - proposals.energies + proposals.log_weights
    proposal = jax.scipy.special.logsumexp(densities, axis=-1)
    loss = mixture - log_mean_exp(-point - half) if replace else mixture
    return jnp.exp(drawn - proposal) * -jnp.expm1(jnp.minimum(epsilon - loss, 0.0))


@jax.jit
def _half_space_values(
    noise: jax.Array,
    uniform: jax.Array,
    step: jax.Array,
    half: jax.Array,
    multiplier: float,
    epsilon: float,
    bound: float,
) -> jax.Array:
    mass = jax.scipy.stats.norm.cdf(bound)
    depth = jax.scipy.special.ndtri(jnp.maximum(uniform * mass, 1e-300))
    point = (noise + depth[:, None] * step) / multiplier
    return mass * -jnp.expm1(jnp.minimum(epsilon + log_mean_exp(point - half / multiplier**2), 0.0))
