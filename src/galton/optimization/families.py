"""Families of correlation matrices: free parameters on one side, a strategy on the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument, check_memory
from galton.optimization.forms import BufferForm, Form, MatrixForm, SeriesForm
from galton.strategies import Blt, ColumnBanded, Dense, Scaled, Strategy, Toeplitz
from galton.strategies.grammar import OPTIMIZATION, parse_spec

FAMILIES: dict[str, type[NamedFamily]] = {}
"""By name in `grammar.NOTATIONS`."""
INNER_BUFFERS = 4
"""Buffers of the BLT that a Toeplitz search starts from."""
_LEAST = 1e-30
"""Stands for a zero coefficient, which has no logarithm."""


class Family(ABC):
    """A set of matrices C with free real parameters (logarithms, so that every vector is allowed).

    A new family is a `NamedFamily`, `class NewFamily(NamedFamily, notation="new")`, and an entry of that name in
    `strategies.grammar.NOTATIONS`.
    """

    rounds: int

    @property
    @abstractmethod
    def name(self) -> str:
        """How it is written on the command line."""

    @property
    def columns_are_free(self) -> bool:
        """Whether columns can be scaled one by one without leaving the family."""
        return False

    def check_memory(self, bins: int) -> None:
        """Refuses a search whose modes, or weights shifted by epochs, would not fit into memory.

        Args:
          bins: batches per epoch.
        """
        shifted = 2 * -(-self.rounds // bins) if self.columns_are_free else 0
        purpose = f" for {self.rounds} rounds in epochs of {bins}"
        check_memory("family", self.name, self.rounds * (4 * bins + shifted), purpose)

    @property
    def most_bands(self) -> int:
        """The most bands that a member has."""
        return self.rounds

    @abstractmethod
    def form(self, parameters: jax.Array) -> Form:
        """Returns C as a differentiable value."""

    @abstractmethod
    def strategy(self, parameters: FloatArray) -> Strategy:
        """Returns C as a strategy."""

    @abstractmethod
    def parameters(self, strategy: Strategy) -> FloatArray:
        """Returns the parameters of a member of this family (or of the member that is nearest by truncation)."""

    @abstractmethod
    def contained_family(self) -> Family | None:
        """Returns a smaller family whose optimum the search starts from, so as never to end worse; None for a BLT."""


class NamedFamily(Family):
    """A family with a name of its own."""

    def __init_subclass__(cls, notation: str) -> None:
        FAMILIES[notation] = cls

    @classmethod
    @abstractmethod
    def sized(cls, rounds: int, number: int | None) -> NamedFamily:
        """Returns the family for a run, with the number that followed its name."""


@dataclass(frozen=True)
class BltFamily(NamedFamily, notation="blt"):
    """BLT matrices: logits of the decays and logarithms of the scales."""

    rounds: int
    buffers: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> BltFamily:
        assert number is not None
        return cls(rounds, number)

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
            later = int(np.argmax(np.diff(decay) >= 0)) + 1
            decay[later] = np.nextafter(decay[later - 1], 0)
        return Blt(self.rounds, np.clip(decay, 1e-300, 1 - 1e-12), np.maximum(scale, _LEAST))

    def parameters(self, strategy: Strategy) -> FloatArray:
        if not isinstance(strategy, Blt) or strategy.buffers > self.buffers:
            raise InvalidArgument("start", strategy.kind, f"must be a blt with at most {self.buffers} buffers")
        decay = np.clip(strategy.decay, 1e-12, 1 - 1e-12)
        missing = self.buffers - strategy.buffers
        decay = np.concatenate((decay, np.linspace(0.3, 0.6, missing)))
        scale = np.concatenate((strategy.scale, np.full(missing, 1e-4)))
        return np.concatenate((np.log(decay / (1 - decay)), np.log(scale)))

    def contained_family(self) -> Family | None:
        return None


@dataclass(frozen=True)
class ToeplitzFamily(NamedFamily, notation="toeplitz"):
    """Toeplitz matrices with `bands` bands, c_0 = 1: logarithms of c_k / c_(k-1).

    The parameters are ratios rather than the coefficients themselves, so that each moves the whole tail: a descent in
    the logarithms of single coefficients gets stuck (measured at n = 2048: RMSE 55 instead of 44).
    """

    rounds: int
    bands: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> ToeplitzFamily:
        return cls(rounds, rounds if number is None else number)

    @property
    def name(self) -> str:
        return "toeplitz" if self.bands == self.rounds else f"toeplitz:{self.bands}"

    @property
    def most_bands(self) -> int:
        return self.bands

    def form(self, parameters: jax.Array) -> SeriesForm:
        kept = jnp.concatenate((jnp.ones(1), jnp.exp(jnp.cumsum(parameters))))
        return SeriesForm(jnp.pad(kept, (0, self.rounds - self.bands)))

    def strategy(self, parameters: FloatArray) -> Toeplitz:
        return Toeplitz(self.rounds, np.concatenate(([1.0], np.exp(np.cumsum(parameters)))))

    def parameters(self, strategy: Strategy) -> FloatArray:
        series = strategy.columns(0, 1)[: self.bands, 0]
        return np.diff(np.log(np.maximum(series / series[0], _LEAST)))

    def contained_family(self) -> Family | None:
        return BltFamily(self.rounds, min(INNER_BUFFERS, self.rounds))


@dataclass(frozen=True)
class ScaledFamily(Family):
    """T diag(w): the parameters of T, then the logarithms of w. Written T+scale."""

    inner: BltFamily | ToeplitzFamily

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.inner.rounds

    @property
    def name(self) -> str:
        return f"{self.inner.name}+scale"

    @property
    def most_bands(self) -> int:
        return self.inner.most_bands

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

    def contained_family(self) -> Family | None:
        if isinstance(self.inner, ToeplitzFamily) and self.inner.bands == self.rounds:
            return ScaledFamily(BltFamily(self.rounds, min(INNER_BUFFERS, self.rounds)))
        return self.inner


@dataclass(frozen=True)
class BandedFamily(NamedFamily, notation="banded"):
    """Column-wise banded matrices: logarithms of the entries of every band, column by column."""

    rounds: int
    bands: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> BandedFamily:
        assert number is not None
        return cls(rounds, number)

    @property
    def name(self) -> str:
        return f"banded:{self.bands}"

    @property
    def most_bands(self) -> int:
        return self.bands

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

    def contained_family(self) -> Family | None:
        return ScaledFamily(ToeplitzFamily(self.rounds, self.bands))


@dataclass(frozen=True)
class DenseFamily(NamedFamily, notation="dense"):
    """Every lower-triangular matrix with positive entries: their logarithms."""

    rounds: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> DenseFamily:
        return cls(rounds)

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

    def contained_family(self) -> Family | None:
        return ScaledFamily(ToeplitzFamily(self.rounds, self.rounds))


def parse_family(text: str, rounds: int) -> Family:
    """Returns the family that `text` names (`grammar.OPTIMIZATION`: blt:4+scale, toeplitz:64 and so on).

    Args:
      text: name of the family, with its number.
      rounds: rounds of the run.

    Returns:
      The family; another name is refused, and the error lists all.
    """
    spec = parse_spec(text, rounds, OPTIMIZATION)
    family = FAMILIES[spec.name].sized(rounds, spec.number)
    if not spec.scaled:
        return family
    assert isinstance(family, BltFamily | ToeplitzFamily)
    return ScaledFamily(family)
