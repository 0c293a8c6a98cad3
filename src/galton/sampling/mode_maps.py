"""M and M^T on many points at once, in JAX, without a matrix: what `strategies.modes` is to one point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from galton.sampling.base import placed
from galton.strategies.modes import BandedModes, Modes, ShiftedModes


@partial(jax.tree_util.register_dataclass, data_fields=["spectrum", "weights"], meta_fields=["rounds"])
@dataclass(frozen=True)
class ShiftedMap:
    """`ShiftedModes` by FFT."""

    spectrum: jax.Array
    weights: jax.Array
    rounds: int

    @property
    def _size(self) -> int:
        return 2 * (self.spectrum.size - 1)

    def apply(self, counts: jax.Array) -> jax.Array:
        """Returns M c for rows c."""
        spread = (counts[:, None, :] * self.weights).reshape(counts.shape[0], -1)
        return jnp.fft.irfft(jnp.fft.rfft(spread, self._size) * self.spectrum, self._size)[:, : self.rounds]

    def adjoint(self, points: jax.Array) -> jax.Array:
        """Returns M^T x for rows x."""
        products = jnp.fft.irfft(jnp.fft.rfft(points, self._size) * self.spectrum.conj(), self._size)
        products = products[:, : self.weights.size].reshape(-1, *self.weights.shape)
        return (products * self.weights).sum(axis=1)


@partial(jax.tree_util.register_dataclass, data_fields=["columns"], meta_fields=["rounds"])
@dataclass(frozen=True)
class BandedMap:
    """`BandedModes` band by band; `columns` is (bands, epochs, bins)."""

    columns: jax.Array
    rounds: int

    def apply(self, counts: jax.Array) -> jax.Array:
        """Returns M c for rows c."""
        bands, epochs, bins = self.columns.shape
        total = jnp.zeros((counts.shape[0], epochs * bins + bands))

        def add(band: jax.Array, total: jax.Array) -> jax.Array:
            part = (counts[:, None, :] * self.columns[band]).reshape(counts.shape[0], -1)
            before = jax.lax.dynamic_slice_in_dim(total, band, epochs * bins, axis=1)
            return jax.lax.dynamic_update_slice_in_dim(total, before + part, band, axis=1)

        return jax.lax.fori_loop(0, bands, add, total)[:, : self.rounds]

    def adjoint(self, points: jax.Array) -> jax.Array:
        """Returns M^T x for rows x."""
        bands, epochs, bins = self.columns.shape
        padded = jnp.pad(points, ((0, 0), (0, epochs * bins - self.rounds + bands)))

        def add(band: jax.Array, total: jax.Array) -> jax.Array:
            part = jax.lax.dynamic_slice_in_dim(padded, band, epochs * bins, axis=1)
            return total + (part.reshape(-1, epochs, bins) * self.columns[band]).sum(axis=1)

        return jax.lax.fori_loop(0, bands, add, jnp.zeros((points.shape[0], bins)))


ModeMap = ShiftedMap | BandedMap


def mode_map(modes: Modes) -> ModeMap:
    """Returns the map; call inside `wide_jax()`."""
    if isinstance(modes, ShiftedModes):
        return ShiftedMap(placed(modes.spectrum), placed(modes.weights), modes.rounds)
    assert isinstance(modes, BandedModes)
    return BandedMap(placed(modes.columns), modes.rounds)
