"""Families of correlation matrices: free parameters on one side, a strategy on the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument, check_memory
from galton.optimization.forms import BufferForm, Form, MatrixForm, SeriesForm
from galton.optimization.series import inverse_series
from galton.strategies import (
    BandedInverse,
    Blt,
    ColumnBanded,
    Dense,
    Scaled,
    Strategy,
    Toeplitz,
    banded_inverse_root,
    square_root,
)
from galton.strategies.grammar import OPTIMIZATION, parse_spec

FAMILIES: dict[str, type[NamedFamily]] = {}
"""By name in `grammar.NOTATIONS`."""
INNER_BUFFERS = 4
"""Buffers of the BLT that a Toeplitz search starts from."""
_AVERAGED = 512
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
        columns = min(bins, self.most_columns)
        check_memory("family", self.name, self.rounds * (4 * columns + shifted), purpose)

    @property
    def most_columns(self) -> int:
        """The most columns of the modes that a search holds in memory: all, or some averages of them."""
        return _AVERAGED

    @property
    def most_bands(self) -> int:
        """The most bands that a member has."""
        return self.rounds

    def with_weights(self, most: int) -> Family:
        """Returns the family with at most so many free weights of rounds; by default it has none.

        Args:
          most: number of weights, evenly spaced over the run; the others are interpolated between them.
        """
        return self

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
        """Returns a smaller family whose optimum the search starts from, so as never to end worse, if there is one."""

    def simple_members(self) -> list[Strategy]:
        """Returns members, given by a formula, that a search may start from."""
        return []


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

    def simple_members(self) -> list[Strategy]:
        return [square_root(self.rounds, self.bands)] if self.bands < self.rounds else []


@dataclass(frozen=True)
class InverseFamily(NamedFamily, notation="inverse"):
    """Matrices whose inverse has `bands` Toeplitz bands 1, -r_1, -r_2, ..., r_k > 0, with a sum of r_k below 1.

    The parameters are the logarithms of r_k over what is left of the sum. A sum above 1 would let C grow without end.
    """

    rounds: int
    bands: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> InverseFamily:
        assert number is not None
        return cls(rounds, number)

    @property
    def name(self) -> str:
        return f"inverse:{self.bands}"

    def form(self, parameters: jax.Array) -> SeriesForm:
        taken = jax.nn.softmax(jnp.append(parameters, 0.0))[:-1]
        return _inverse_form(jnp.concatenate((jnp.ones(1), -taken)), self.rounds)

    def strategy(self, parameters: FloatArray) -> BandedInverse:
        logits = np.append(parameters, 0.0)
        shares = np.exp(logits - logits.max())
        return BandedInverse(self.rounds, np.concatenate(([1.0], -shares[:-1] / shares.sum())))

    def parameters(self, strategy: Strategy) -> FloatArray:
        inverse = strategy.inverse_columns(0, 1)[: self.bands, 0]
        taken = np.maximum(-inverse[1:] / inverse[0], _LEAST)
        return np.log(taken / max(1 - float(taken.sum()), 1e-6))

    def contained_family(self) -> Family | None:
        return None

    def simple_members(self) -> list[Strategy]:
        return [banded_inverse_root(self.rounds, self.bands)]


@dataclass(frozen=True)
class InverseRootFamily(NamedFamily, notation="bifr"):
    """Banded inverse roots (1 - x)^power: the logit of the power."""

    rounds: int
    bands: int

    @classmethod
    def sized(cls, rounds: int, number: int | None) -> InverseRootFamily:
        assert number is not None
        return cls(rounds, number)

    @property
    def name(self) -> str:
        return f"bifr:{self.bands}"

    def form(self, parameters: jax.Array) -> SeriesForm:
        steps = jnp.arange(1, self.bands)
        inverse = jnp.cumprod((steps - 1 - jax.nn.sigmoid(parameters[0])) / steps)
        return _inverse_form(jnp.concatenate((jnp.ones(1), inverse)), self.rounds)

    def strategy(self, parameters: FloatArray) -> BandedInverse:
        power = 1 / (1 + np.exp(-parameters[0]))
        return banded_inverse_root(self.rounds, self.bands, float(np.clip(power, 1e-12, 1 - 1e-12)))

    def parameters(self, strategy: Strategy) -> FloatArray:
        inverse = strategy.inverse_columns(0, 1)[:2, 0]
        power = np.clip(-inverse[-1] / inverse[0] if self.rounds > 1 else 0.5, 1e-6, 1 - 1e-6)
        return np.array([np.log(power / (1 - power))])

    def contained_family(self) -> Family | None:
        return None

    def simple_members(self) -> list[Strategy]:
        return [banded_inverse_root(self.rounds, self.bands)]


def _inverse_form(inverse: jax.Array, rounds: int) -> SeriesForm:
    """C as a differentiable value, from the bands of its inverse."""
    return SeriesForm(inverse_series(jnp.pad(inverse, (0, rounds - inverse.shape[0]))))


@dataclass(frozen=True)
class ScaledFamily(Family):
    """T diag(w): the parameters of T, then the logarithms of w. Written T+scale.

    Attributes:
      inner: the family of T.
      free: how many logarithms of w are parameters, evenly spaced and interpolated between; 0 for all.
    """

    inner: BltFamily | ToeplitzFamily | InverseFamily
    free: int = 0

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

    def with_weights(self, most: int) -> ScaledFamily:
        return replace(self, free=0 if most >= self.rounds else max(2, most))

    @property
    def _places(self) -> FloatArray:
        """The rounds whose weights are parameters, fractions included."""
        return np.linspace(0, self.rounds - 1, self.free or self.rounds)

    def form(self, parameters: jax.Array) -> SeriesForm:
        places = self._places
        logarithms = parameters[-len(places) :]
        if self.free:
            logarithms = jnp.interp(jnp.arange(self.rounds), places, logarithms)
        weights, inner = jnp.exp(logarithms), self.inner.form(parameters[: -len(places)])
        if isinstance(inner, BufferForm):
            return BufferForm(inner.series, weights, inner.decay, inner.scale)
        return SeriesForm(inner.series, weights)

    def strategy(self, parameters: FloatArray) -> Scaled:
        places = self._places
        logarithms = np.interp(np.arange(self.rounds), places, parameters[-len(places) :])
        return Scaled(self.inner.strategy(parameters[: -len(places)]), np.exp(logarithms))

    def parameters(self, strategy: Strategy) -> FloatArray:
        inner, weights = strategy, np.ones(self.rounds)
        if isinstance(strategy, Scaled):
            inner, weights = strategy.inner, strategy.weights
        logarithms = np.interp(self._places, np.arange(self.rounds), np.log(weights))
        return np.concatenate((self.inner.parameters(inner), logarithms))

    def contained_family(self) -> Family | None:
        if isinstance(self.inner, ToeplitzFamily) and self.inner.bands == self.rounds:
            return ScaledFamily(BltFamily(self.rounds, min(INNER_BUFFERS, self.rounds)), self.free)
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

    @property
    def most_columns(self) -> int:
        return self.rounds

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

    @property
    def most_columns(self) -> int:
        return self.rounds

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
    assert isinstance(family, BltFamily | ToeplitzFamily | InverseFamily)
    return ScaledFamily(family)
