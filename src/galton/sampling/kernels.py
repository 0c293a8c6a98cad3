"""The two inner loops that every sampler shares."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from galton.sampling.normals import standard_normals


def log_mean_exp(values: jax.Array) -> jax.Array:
    """Returns the logarithm of the mean of exp over the last axis."""
    peak = values.max(axis=-1)
    total = jnp.exp(values - peak[..., None]).sum(axis=-1)
    return peak + jnp.log(total) - jnp.log(jnp.asarray(values.shape[-1], values.dtype))


def correlated(key: jax.Array, root: jax.Array, size: int) -> jax.Array:
    """Draws `size` vectors from N(0, G), where `root` is the transposed factor of G."""
    normals = standard_normals(key, (size, root.shape[0]), root.dtype)
    return jnp.matmul(normals, root, precision=jax.lax.Precision.HIGHEST)


def categorical(weights: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws one index per row with probability proportional to the weights; also returns the rows' totals.

    The inversion has two steps, first a group and then a member, to avoid a cumulative sum over the whole row.
    """
    rows, bins = weights.shape
    width = 1 << ((bins - 1).bit_length() + 1) // 2
    groups = -(-bins // width)
    blocks = jnp.pad(weights, ((0, 0), (0, groups * width - bins))).reshape(rows, groups, width)
    sums = blocks.sum(axis=-1)
    total = sums.sum(axis=-1)
    group, rest = _invert_cumulative(sums, uniform * total)
    member, _ = _invert_cumulative(jnp.take_along_axis(blocks, group[:, None, None], axis=1)[:, 0], rest)
    return jnp.minimum(group * width + member, bins - 1), total


def _invert_cumulative(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First index at which the running sum exceeds `target` (else the last with weight), and the remainder."""
    size = weights.shape[-1]
    running = jnp.matmul(weights, jnp.triu(jnp.ones((size, size), weights.dtype)), precision=jax.lax.Precision.HIGHEST)
    last = size - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=-1)
    index = jnp.minimum((running <= target[:, None]).sum(axis=-1), last)
    before = jnp.take_along_axis(running - weights, index[:, None], axis=-1)[:, 0]
    return index, jnp.maximum(target - before, 0.0)
