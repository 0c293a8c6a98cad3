"""Sums over all patterns of a run whose bins are redrawn in every epoch (docs/math.md, section 10).

Arrays of a sample have the shape (samples, epochs, bins). Only neighbouring epochs interact, so that a sum over
bins^epochs patterns is a product of matrices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from galton.sampling.kernels import categorical


def to_columns(points: jax.Array, own: jax.Array, following: jax.Array) -> jax.Array:
    """Returns C^T x: the product of every column of C with the point."""
    columns = jnp.einsum("nek,ekj->nej", points, own, precision=jax.lax.Precision.HIGHEST)
    across = jnp.einsum("nek,ekj->nej", points[:, 1:], following, precision=jax.lax.Precision.HIGHEST)
    return columns + jnp.pad(across, ((0, 0), (0, 1), (0, 0)))


def to_rows(counts: jax.Array, own: jax.Array, following: jax.Array) -> jax.Array:
    """Returns C s, for how often each round is in a sum of patterns."""
    rows = jnp.einsum("nej,ekj->nek", counts, own, precision=jax.lax.Precision.HIGHEST)
    across = jnp.einsum("nej,ekj->nek", counts[:, :-1], following, precision=jax.lax.Precision.HIGHEST)
    return rows + jnp.pad(across, ((0, 0), (1, 0), (0, 0)))


def log_mean_pattern(fields: jax.Array, repulsion: jax.Array) -> jax.Array:
    """Returns log E_s exp(sum of the fields of a pattern's rounds) * (products of `repulsion` over its neighbours).

    The forward recursion: in epoch e, `running` is proportional to the sum over all patterns that end in each bin.
    Every term is positive, so that relative errors add up and never cancel.

    Args:
      fields: (samples, epochs, bins).
      repulsion: (epochs - 1, bins, bins), exp(-overlap).
    """
    bins, least = fields.shape[-1], float(np.finfo(fields.dtype).tiny)
    peaks = fields.max(axis=-1)
    weights = jnp.exp(fields - peaks[..., None]) / bins

    def advance(
        state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        running, level = state
        weight, matrix = inputs
        running = jnp.matmul(running, matrix, precision=jax.lax.Precision.HIGHEST) * weight
        total = jnp.maximum(running.sum(axis=-1), least)  # zero only where the slack is hopeless anyway
        return (running / total[:, None], level + jnp.log(total)), None

    total = weights[:, 0].sum(axis=-1)
    start = (weights[:, 0] / total[:, None], jnp.log(total))
    (_, level), _ = jax.lax.scan(advance, start, (jnp.moveaxis(weights[:, 1:], 1, 0), repulsion))
    return level + peaks.sum(axis=-1)


def uniform_patterns(key: jax.Array, samples: int, epochs: int, bins: int) -> jax.Array:
    """Returns the bins (samples, epochs) of patterns drawn from the prior."""
    return jax.random.randint(key, (samples, epochs), 0, bins)


def draw_patterns(key: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws one bin an epoch with probability proportional to the weights; also returns the epochs' mean weights."""
    samples, epochs, bins = weights.shape
    uniform = jax.random.uniform(key, (samples * epochs,), jnp.float64)
    chosen, totals = categorical(weights.reshape(samples * epochs, bins), uniform)
    return chosen.reshape(samples, epochs), totals.reshape(samples, epochs) / bins


def one_hot(chosen: jax.Array, bins: int) -> jax.Array:
    """Returns patterns as 0 and 1 for each round."""
    return (chosen[..., None] == jnp.arange(bins)).astype(jnp.float64)
