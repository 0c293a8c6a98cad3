"""Sums over all patterns of a run whose bins are redrawn in every epoch (docs/math.md, section 10).

Arrays have the shape (epochs, samples, bins), so that products with C are batches of large matrix products. Only
neighbouring epochs interact, so that a sum over bins^epochs patterns is a product of matrices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from galton.sampling.kernels import categorical


def to_columns(points: jax.Array, own: jax.Array, following: jax.Array) -> jax.Array:
    """Returns C^T x: the product of every column of C with the point."""
    columns = jnp.einsum("enk,ekj->enj", points, own, precision=jax.lax.Precision.HIGHEST)
    across = jnp.einsum("enk,ekj->enj", points[1:], following, precision=jax.lax.Precision.HIGHEST)
    return columns + jnp.pad(across, ((0, 1), (0, 0), (0, 0)))


def to_rows(counts: jax.Array, own: jax.Array, following: jax.Array) -> jax.Array:
    """Returns C s, for how often each round is in a sum of patterns."""
    rows = jnp.einsum("enj,ekj->enk", counts, own, precision=jax.lax.Precision.HIGHEST)
    across = jnp.einsum("enj,ekj->enk", counts[:-1], following, precision=jax.lax.Precision.HIGHEST)
    return rows + jnp.pad(across, ((1, 0), (0, 0), (0, 0)))


def finer(values: jax.Array, width: int) -> jax.Array:
    """Cuts blocks (epochs, samples, bins) into shorter ones, of a width that divides the bins."""
    epochs, samples, bins = values.shape
    if width == bins:
        return values
    cut = values.reshape(epochs, samples, bins // width, width).transpose(0, 2, 1, 3)
    return cut.reshape(epochs * (bins // width), samples, width)


def coarser(values: jax.Array, bins: int) -> jax.Array:
    """Undoes `finer`."""
    blocks, samples, width = values.shape
    if width == bins:
        return values
    joined = values.reshape(blocks * width // bins, bins // width, samples, width).transpose(0, 2, 1, 3)
    return joined.reshape(blocks * width // bins, samples, bins)


def _onwards(running: jax.Array, corner: jax.Array) -> jax.Array:
    """Sums over the bin of one epoch, for each bin of the next: only the last bins repel the first ones."""
    width, bins = corner.shape[0], running.shape[-1]
    near = jnp.matmul(running[:, bins - width :], corner, precision=jax.lax.Precision.HIGHEST)
    if width == bins:
        return near
    far = running[:, : bins - width].sum(axis=-1)
    whole = far + running[:, bins - width :].sum(axis=-1)
    return jnp.concatenate((far[:, None] + near, jnp.broadcast_to(whole[:, None], (len(far), bins - width))), axis=-1)


def _backwards(running: jax.Array, corner: jax.Array) -> jax.Array:
    """Sums over the bin of the next epoch, for each bin of this one."""
    return _onwards(running[:, ::-1], corner.T[::-1, ::-1])[:, ::-1]


def log_mean_pattern(fields: jax.Array, repulsion: jax.Array) -> jax.Array:
    """Returns log E_s exp(sum of the fields of a pattern's rounds) * (products of `repulsion` over its neighbours).

    The forward recursion: in epoch e, `running` is proportional to the sum over all patterns that end in each bin.
    Every term is positive, so that relative errors add up and never cancel.

    Args:
      fields: (epochs, samples, bins).
      repulsion: (epochs - 1, width, width), exp(-overlap) of the last bins of an epoch and the first ones of the next;
        others do not overlap.
    """
    bins, least = fields.shape[-1], float(np.finfo(fields.dtype).tiny)
    peaks = fields.max(axis=-1)
    weights = jnp.exp(fields - peaks[..., None]) / bins

    def advance(
        state: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        running, level = state
        weight, matrix = inputs
        running = _onwards(running, matrix) * weight
        total = jnp.maximum(running.sum(axis=-1), least)  # zero only where the slack is hopeless anyway
        return (running / total[:, None], level + jnp.log(total)), None

    total = weights[0].sum(axis=-1)
    start = (weights[0] / total[:, None], jnp.log(total))
    (_, level), _ = jax.lax.scan(advance, start, (weights[1:], repulsion))
    return level + peaks.sum(axis=0)


def log_mean_and_shares(fields: jax.Array, repulsion: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns what `log_mean_pattern` does, and how much of that mean each round has part in, (epochs, samples, bins).

    The forward and the backward recursion; nothing is subtracted in either.
    """
    bins, least = fields.shape[-1], float(np.finfo(fields.dtype).tiny)
    peaks = fields.max(axis=-1)
    weights = jnp.exp(fields - peaks[..., None]) / bins

    def normalised(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.maximum(values.sum(axis=-1), least)
        return values / total[..., None], jnp.log(total)

    def forward(running: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        weight, matrix = inputs
        running, level = normalised(_onwards(running, matrix) * weight)
        return running, (running, level)

    def backward(running: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weight, matrix = inputs
        running, _ = normalised(_backwards(running * weight, matrix))
        return running, running

    start, level = normalised(weights[0])
    _, (starts, levels) = jax.lax.scan(forward, start, (weights[1:], repulsion))
    end = jnp.ones_like(start) / bins
    _, ends = jax.lax.scan(backward, end, (weights[1:], repulsion), reverse=True)
    shares, _ = normalised(jnp.concatenate((start[None], starts)) * jnp.concatenate((ends, end[None])))
    return level + levels.sum(axis=0) + peaks.sum(axis=0), shares


def uniform_patterns(key: jax.Array, samples: int, epochs: int, bins: int) -> jax.Array:
    """Returns the bins (epochs, samples) of patterns drawn from the prior."""
    return jax.random.randint(key, (epochs, samples), 0, bins)


def draw_patterns(key: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws one bin an epoch with probability proportional to the weights; also returns the epochs' mean weights."""
    epochs, samples, bins = weights.shape
    uniform = jax.random.uniform(key, (epochs * samples,), jnp.float64)
    chosen, totals = categorical(weights.reshape(epochs * samples, bins), uniform)
    return chosen.reshape(epochs, samples), totals.reshape(epochs, samples) / bins


def one_hot(chosen: jax.Array, bins: int) -> jax.Array:
    """Returns patterns as 0 and 1 for each round."""
    return (chosen[..., None] == jnp.arange(bins)).astype(jnp.float64)
