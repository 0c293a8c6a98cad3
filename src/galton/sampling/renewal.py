"""Sums over all patterns of a run with min-separation batches (docs/math.md, section 10.7).

Arrays have the shape (blocks, samples, separation). A pattern has at most one round in a block. If it has round j of
one block, it has a round from j on, or none, in the next: a Markov chain, whose state is the first round of a block
that may be taken. Products of columns of one pattern vanish, so that a sum over all patterns is a product of matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.sampling.kernels import categorical
from galton.separated import SeparatedPair


class Renewal(NamedTuple):
    """The prior of patterns.

    Attributes:
      chance: probability of a round that may be taken.
      powers: (separation + 1,), probability that 0, 1, ... rounds in a row are not taken.
      start: (separation,), probability of each state before the first block.
    """

    chance: jax.Array
    powers: jax.Array
    start: jax.Array


def renewal(pair: SeparatedPair) -> Renewal:
    """Returns the prior of a pair; call inside `wide_jax()`."""
    return Renewal(*(jnp.asarray(part) for part in renewal_tables(pair.interval, pair.separation)))


def renewal_tables(interval: int, separation: int) -> tuple[float, FloatArray, FloatArray]:
    """Returns `chance`, `powers` and `start` of the stationary process with this mean interval."""
    wait = interval - separation + 1
    powers = ((wait - 1) / wait) ** np.arange(separation + 1.0)
    start = np.full(separation, 1 / interval)
    start[0] = wait / interval
    return 1 / wait, powers, start


def suffix_sums(values: jax.Array, powers: jax.Array) -> jax.Array:
    """Returns sum over j >= r of powers[j - r] values[j], for every r of the last axis, by doubling."""
    size, step = values.shape[-1], 1
    while step < size:
        later = jnp.pad(values[..., step:], [(0, 0)] * (values.ndim - 1) + [(0, step)])
        values = values + powers[step] * later
        step *= 2
    return values


class Messages(NamedTuple):
    """Sums over the rest of a pattern.

    Attributes:
      weights: (blocks, samples, separation), exp(fields) times the chance of a round, divided by `scale`.
      nothing: (blocks, samples), the weight of taking no round of a block, divided by `scale`.
      values: (blocks, samples, separation), for each state before the *next* block, up to a factor of the sample.
      first: (samples, separation), the same for each state before the first block.
      log_scale: (samples,), logarithm of the factor of `first`.
    """

    weights: jax.Array
    nothing: jax.Array
    values: jax.Array
    first: jax.Array
    log_scale: jax.Array


def messages(fields: jax.Array, prior: Renewal) -> Messages:
    """Sums the rest of all patterns backwards, block by block. All terms are positive: no error is amplified.

    Args:
      fields: (blocks, samples, separation): a pattern's weight is exp of the sum of the fields of its rounds.
      prior: of patterns.
    """
    least = float(np.finfo(fields.dtype).tiny)
    peaks = jnp.maximum(fields.max(axis=-1), 0.0)
    weights = jnp.exp(fields - peaks[..., None]) * prior.chance
    nothing = jnp.exp(-peaks)
    passing = prior.powers[:0:-1]  # from each round of a block to its end without taking one

    def back(
        state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        after, level = state
        weight, none = inputs
        total = suffix_sums(weight * after, prior.powers) + passing * (none * after[:, 0])[:, None]
        largest = jnp.maximum(total.max(axis=-1), least)  # zero only where the slack is hopeless anyway
        return (total / largest[:, None], level + jnp.log(largest)), after

    samples, separation = fields.shape[1:]
    begin = (jnp.ones((samples, separation), fields.dtype), jnp.zeros(samples, fields.dtype))
    (first, level), values = jax.lax.scan(back, begin, (weights, nothing), reverse=True)
    return Messages(weights, nothing, values, first, level + peaks.sum(axis=0))


def log_mean_renewal(fields: jax.Array, prior: Renewal) -> jax.Array:
    """Returns log E_s exp(sum of the fields of a pattern's rounds)."""
    sums = messages(fields, prior)
    total = jnp.maximum(sums.first @ prior.start, float(np.finfo(fields.dtype).tiny))
    return jnp.log(total) + sums.log_scale


def draw_renewals(key: jax.Array, fields: jax.Array, prior: Renewal) -> tuple[jax.Array, jax.Array]:
    """Draws patterns with probability proportional to prior times exp(fields); also returns log E_s exp(fields).

    Returns:
      (blocks, samples), the place of the pattern's round in each block, `separation` if it has none; and (samples,).
    """
    sums = messages(fields, prior)
    blocks, samples, separation = fields.shape
    uniform = jax.random.uniform(key, (blocks + 1, samples), jnp.float64)
    state, total = categorical(sums.first * prior.start, uniform[0])
    places = jnp.arange(separation)

    def forward(state: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        weight, none, after, uniform = inputs
        ahead = places - state[:, None]
        waited = jnp.where(ahead >= 0, prior.powers[jnp.maximum(ahead, 0)], 0.0)
        skip = none * after[:, 0] * prior.powers[separation - state]
        taken, _ = categorical(jnp.concatenate((weight * after * waited, skip[:, None]), axis=1), uniform)
        return jnp.where(taken < separation, taken, 0), taken

    _, taken = jax.lax.scan(forward, state, (sums.weights, sums.nothing, sums.values, uniform[1:]))
    return taken, jnp.log(total) + sums.log_scale


def places_taken(taken: jax.Array, separation: int) -> jax.Array:
    """Returns patterns as 0 and 1 for each round, (blocks, samples, separation)."""
    return (taken[..., None] == jnp.arange(separation)).astype(jnp.float64)
