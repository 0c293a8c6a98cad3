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
