"""Power series modulo x^n: products by FFT, and the reciprocal by Newton's iteration."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns the first n coefficients of the product of two series of n coefficients."""
    size = left.shape[0]
    length = 1 << (2 * size - 1).bit_length()
    return jnp.fft.irfft(jnp.fft.rfft(left, length) * jnp.fft.rfft(right, length), length)[:size]


@jax.custom_vjp
def inverse_series(series: jax.Array) -> jax.Array:
    """Returns 1/c as a series: the first column of the inverse of the Toeplitz matrix of c."""
    return _newton(series)


def _newton(series: jax.Array) -> jax.Array:
    size, known = series.shape[0], 1
    inverse = 1.0 / series[:1]
    while known < size:
        known = min(2 * known, size)
        inverse = jnp.pad(inverse, (0, known - inverse.shape[0]))
        inverse = 2 * inverse - product(inverse, product(inverse, series[:known]))
    return inverse


def _inverse_forward(series: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = _newton(series)
    return inverse, inverse


def _inverse_backward(inverse: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    """d(1/c) = -dc / c^2, so the pull-back is a correlation with 1/c^2."""
    return (-product(product(inverse, inverse), cotangent[::-1])[::-1],)


inverse_series.defvjp(_inverse_forward, _inverse_backward)
