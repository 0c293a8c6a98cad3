"""Families of correlation matrices: free parameters on one side, a strategy on the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.optimization.forms import BufferForm, Form, MatrixForm, SeriesForm
from galton.strategies import Blt, ColumnBanded, Dense, Scaled, Strategy, Toeplitz

HELP = "blt:D, toeplitz, toeplitz:W, each also with +scale, banded:W or dense"
MOST_BUFFERS = 10
MOST_DENSE = 1024
_LEAST = 1e-30
"""What stands for a zero coefficient, so that it has a logarithm."""


class Family(ABC):
    """A set of matrices C with free real parameters (logarithms, so that every vector is allowed).

    A new family implements `form`, `strategy` and `parameters` and gets a line in `parse_family`.
    """

    rounds: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The word for it on the command line."""

    @property
    def columns_are_free(self) -> bool:
        """Whether columns can be scaled one by one without leaving the family."""
        return False

    @abstractmethod
    def form(self, parameters: jax.Array) -> Form:
        """Returns C as a differentiable value."""

    @abstractmethod
    def strategy(self, parameters: FloatArray) -> Strategy:
        """Returns C as a strategy."""

    @abstractmethod
    def parameters(self, strategy: Strategy) -> FloatArray:
        """Returns the parameters of a member of this family (or of the member that is nearest by truncation)."""


@dataclass(frozen=True)
class BltFamily(Family):
    """BLT matrices: logits of the decays and logarithms of the scales."""

    rounds: int
    buffers: int

    @property
    def name(self) -> str:
        return f"blt:{self.buffers}"

    def form(self, parameters: jax.Array) -> BufferForm:
        return BufferForm.of(
            self.rounds, jax.nn.sigmoid(parameters[: self.buffers]), jnp.exp(parameters[self.buffers :])
        )

    def strategy(self, parameters: FloatArray) -> Blt:
        decay = 1 / (1 + np.exp(-parameters[: self.buffers]))
        order = np.argsort(-decay, kind="stable")
        decay, scale = decay[order], np.exp(parameters[self.buffers :])[order]
        while (np.diff(decay) >= 0).any():  # two decays that have met differ by rounding only
            at = int(np.argmax(np.diff(decay) >= 0)) + 1
            decay[at] = np.nextafter(decay[at - 1], 0)
        return Blt(self.rounds, np.clip(decay, 1e-300, 1 - 1e-12), np.maximum(scale, _LEAST))

    def parameters(self, strategy: Strategy) -> FloatArray:
        if not isinstance(strategy, Blt) or strategy.buffers > self.buffers:
            raise InvalidArgument("start", strategy.kind, f"must be a blt with at most {self.buffers} buffers")
        decay = np.clip(strategy.decay, 1e-12, 1 - 1e-12)
        missing = self.buffers - strategy.buffers
        decay = np.concatenate((decay, np.linspace(0.3, 0.6, missing)))
        scale = np.concatenate((strategy.scale, np.full(missing, 1e-4)))
        return np.concatenate((np.log(decay / (1 - decay)), np.log(scale)))


@dataclass(frozen=True)
class ToeplitzFamily(Family):
    """Toeplitz matrices with `bands` bands, c_0 = 1: logarithms of c_k / c_(k-1).

    Ratios and not the coefficients themselves, so that one parameter moves the whole tail: a descent in the logarithms
    of single coefficients gets stuck (measured at n = 2048: RMSE 55 instead of 44).
    """

    rounds: int
    bands: int

    @property
    def name(self) -> str:
        return "toeplitz" if self.bands == self.rounds else f"toeplitz:{self.bands}"

    def form(self, parameters: jax.Array) -> SeriesForm:
        kept = jnp.concatenate((jnp.ones(1), jnp.exp(jnp.cumsum(parameters))))
        return SeriesForm(jnp.pad(kept, (0, self.rounds - self.bands)))

    def strategy(self, parameters: FloatArray) -> Toeplitz:
        return Toeplitz(self.rounds, np.concatenate(([1.0], np.exp(np.cumsum(parameters)))))

    def parameters(self, strategy: Strategy) -> FloatArray:
        series = strategy.columns(0, 1)[: self.bands, 0]
        return np.diff(np.log(np.maximum(series / series[0], _LEAST)))


@dataclass(frozen=True)
class ScaledFamily(Family):
    """T diag(w): the parameters of T, then the logarithms of w."""

    inner: BltFamily | ToeplitzFamily

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.inner.rounds

    @property
    def name(self) -> str:
        return f"{self.inner.name}+scale"

    @property
    def columns_are_free(self) -> bool:
        return True

    def form(self, parameters: jax.Array) -> SeriesForm:
        weights = jnp.exp(parameters[-self.rounds :])
        inner = self.inner.form(parameters[: -self.rounds])
        if isinstance(inner, BufferForm):
            return BufferForm(inner.series, weights, inner.decay, inner.scale)
        return SeriesForm(inner.series, weights)

    def strategy(self, parameters: FloatArray) -> Scaled:
        return Scaled(self.inner.strategy(parameters[: -self.rounds]), np.exp(parameters[-self.rounds :]))

    def parameters(self, strategy: Strategy) -> FloatArray:
        inner, weights = strategy, np.ones(self.rounds)
        if isinstance(strategy, Scaled):
            inner, weights = strategy.inner, strategy.weights
        return np.concatenate((self.inner.parameters(inner), np.log(weights)))


@dataclass(frozen=True)
class BandedFamily(Family):
    """Column-wise banded matrices: logarithms of the entries of every band, column by column."""

    rounds: int
    bands: int

    @property
    def name(self) -> str:
        return f"banded:{self.bands}"

    @property
    def columns_are_free(self) -> bool:
        return True

    def form(self, parameters: jax.Array) -> MatrixForm:
        live = jnp.arange(self.bands)[:, None] + jnp.arange(self.rounds) < self.rounds
        bands = jnp.where(live, jnp.exp(parameters.reshape(self.bands, self.rounds)), 0.0)
        # Column s, moved down by s, without a gather: rows one entry longer than the matrix is wide, read across.
        columns = jnp.pad(bands.T, ((0, 0), (0, self.rounds + 1 - self.bands)))
        return MatrixForm(columns.reshape(-1)[: self.rounds**2].reshape(self.rounds, self.rounds).T)

    def strategy(self, parameters: FloatArray) -> ColumnBanded:
        live = np.arange(self.bands)[:, None] + np.arange(self.rounds) < self.rounds
        return ColumnBanded(np.where(live, np.exp(parameters.reshape(self.bands, self.rounds)), 0.0))

    def parameters(self, strategy: Strategy) -> FloatArray:
        entries = np.full((self.bands, self.rounds), _LEAST)
        matrix = strategy.matrix()
        for band in range(self.bands):
            entries[band, : self.rounds - band] = np.diagonal(matrix, -band)
        return np.log(np.maximum(entries, _LEAST)).ravel()


@dataclass(frozen=True)
class DenseFamily(Family):
    """Every lower-triangular matrix with positive entries: their logarithms."""

    rounds: int

    @property
    def name(self) -> str:
        return "dense"

    @property
    def columns_are_free(self) -> bool:
        return True

    def form(self, parameters: jax.Array) -> MatrixForm:
        return MatrixForm(jnp.tril(jnp.exp(parameters.reshape(self.rounds, self.rounds))))

    def strategy(self, parameters: FloatArray) -> Dense:
        return Dense(np.tril(np.exp(parameters.reshape(self.rounds, self.rounds))))

    def parameters(self, strategy: Strategy) -> FloatArray:
        return np.log(np.maximum(np.tril(strategy.matrix()), _LEAST)).ravel()


def parse_family(text: str, rounds: int) -> Family:
    """Reads blt:D, toeplitz, toeplitz:W (each also with +scale), banded:W or dense."""
    base, plus, scale = text.partition("+")
    name, colon, argument = base.partition(":")
    if (plus and scale != "scale") or (plus and name not in ("blt", "toeplitz")):
        raise InvalidArgument("family", text, f"must be {HELP}")
    inner: BltFamily | ToeplitzFamily
    if name == "blt" and colon:
        inner = BltFamily(rounds, _size(text, argument, "number of buffers", min(MOST_BUFFERS, rounds)))
    elif name == "toeplitz":
        inner = ToeplitzFamily(rounds, _size(text, argument, "number of bands", rounds) if colon else rounds)
    elif name == "banded" and colon:
        return BandedFamily(rounds, _size(text, argument, "number of bands", rounds))
    elif text == "dense":
        if rounds > MOST_DENSE:
            raise InvalidArgument("family", text, f"is for at most {MOST_DENSE} rounds, not {rounds}: take banded:W")
        return DenseFamily(rounds)
    else:
        raise InvalidArgument("family", text, f"must be {HELP}")
    return ScaledFamily(inner) if plus else inner


def _size(text: str, argument: str, what: str, largest: int) -> int:
    if not (argument.isascii() and argument.isdigit()) or not 1 <= int(argument[:12]) <= largest:
        raise InvalidArgument("family", text, f"the {what} must be a whole number from 1 to {largest}")
    return int(argument[:12])
