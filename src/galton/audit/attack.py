"""The best attack on one canary: its log likelihood ratio, from a few linear statistics of the noisy sums.

The canary contributes the clip norm, always in the same direction, to every batch that it is in: the worst case of
docs/math.md, section 1, for C without negative entries. Sums are in units of the clip norm, r = clip norm / stddev.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from galton.audit.whitening import Whitening
from galton.baselines.figure import bands_of
from galton.batching import CyclicPoisson, Scheme
from galton.errors import FloatArray, InvalidArgument
from galton.plan.plan import Plan

NEARLY_WORST = 0.9
"""Known bins whose |m_i|^2 is at least this share of the largest count as worst-case places."""


class Attack(Protocol):
    """An observer who knows C, the noise and all other examples.

    Attributes:
      weights: (rounds, width); the statistics are weights^T g for noisy sums g.
      replace: whether the other data set has the opposite canary, instead of none.
      silent: whether trials without canary need no batches.
    """

    @property
    def weights(self) -> Any: ...
    @property
    def replace(self) -> bool: ...
    @property
    def silent(self) -> bool: ...

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        """Returns the log likelihood ratio of every column; `own`: its bin or group, if the observer knows it."""

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which canaries are in a worst-case place."""

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """Draws the ratio by the accountant's model, with and without canary; one draw per entry of `own`."""


@dataclass(frozen=True, eq=False)
class Bins:
    """An observer who does not know the bin: L = log (1/b) sum_k exp(y_k - G_kk / 2), y = M^T C g r^2 (section 1.2)."""

    weights: NDArray[np.float32]
    gram: FloatArray
    replace: bool

    @property
    def silent(self) -> bool:
        return not self.replace

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        half = (self.gram.diagonal() / 2).astype(statistics.dtype)[:, None]
        found = _log_mean_exp(statistics - half)
        return found - _log_mean_exp(-statistics - half) if self.replace else found

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        values, vectors = np.linalg.eigh(self.gram)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = [root @ random.standard_normal((root.shape[1], own.size)) for _ in range(2)]
        shifts = [self.gram[:, random.integers(root.shape[0], size=own.size)] for _ in range(2)]
        without = drawn[1] - shifts[1] if self.replace else drawn[1]
        return self.ratio(drawn[0] + shifts[0], own), self.ratio(without, own)


@dataclass(frozen=True, eq=False)
class Known:
    """An observer who knows the bin i: L = y_i - G_ii / 2, Gaussian."""

    weights: NDArray[np.float32]
    gram: FloatArray
    replace: bool
    silent: bool = False

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        seen = statistics[own, np.arange(own.size)].astype(np.float64)
        return 2 * seen if self.replace else seen - self.gram.diagonal()[own] / 2

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        energy = self.gram.diagonal()
        return np.asarray(energy[own] >= NEARLY_WORST * energy.max())

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        energy = self.gram.diagonal()[own]
        noise = np.sqrt(energy) * random.standard_normal((2, own.size))
        if self.replace:
            return 2 * (noise[0] + energy), 2 * (noise[1] - energy)
        return noise[0] + energy / 2, noise[1] - energy / 2


@dataclass(frozen=True, eq=False)
class Coins:
    """An observer who knows the group, not the coins: L = sum over its rounds of log(1 - q + q exp(y_t - d_t / 2)).

    Columns of C of one group have no row in common (at most as many bands as groups), so that the rounds are
    independent: y = C^T C g r^2, d_t = |c_t|^2 r^2.
    """

    weights: Any
    energy: FloatArray
    cycle: int
    chance: float
    replace: bool = False
    silent: bool = False

    def _sum(self, y: NDArray[Any], energy: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            stay, take = np.log1p(-self.chance), np.log(self.chance)
        return np.asarray(np.logaddexp(stay, take + y - energy[:, None] / 2).sum(axis=0, dtype=np.float64))

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        found = np.zeros(own.size)
        for group in range(self.cycle):
            inside = own == group
            found[inside] = self._sum(statistics[group :: self.cycle, inside], self.energy[group :: self.cycle])
        return found

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        sides = [np.zeros(own.size), np.zeros(own.size)]
        for group in range(self.cycle):
            inside, energy = own == group, self.energy[group :: self.cycle]
            shape = (energy.size, int(inside.sum()))
            noise = np.sqrt(energy)[:, None] * random.standard_normal((2, *shape))
            coins = random.random(shape) < self.chance
            sides[0][inside] = self._sum(noise[0] + coins * energy[:, None], energy)
            sides[1][inside] = self._sum(noise[1], energy)
        return sides[0], sides[1]


def attack_on(plan: Plan, whitening: Whitening) -> Attack:
    """Returns the attack that the plan's accountant has to withstand, or says why there is none."""
    accountant, replace = plan.evidence.accountant, plan.adjacency == "replace"
    scale = (plan.clip_norm / plan.stddev) ** 2
    if accountant in ("balls-in-bins", "allocation", "unamplified") and not isinstance(plan.scheme, CyclicPoisson):
        groups = bins_of(plan.scheme)
        modes = whitening.apply(np.eye(groups)[np.arange(plan.rounds) % groups])
        weights = (whitening.adjoint(modes) * scale).astype(np.float32)
        kind = Known if accountant == "unamplified" else Bins
        return kind(weights, modes.T @ modes * scale, replace)
    if (
        accountant != "unamplified"
        and isinstance(plan.scheme, CyclicPoisson)
        and bands_of(plan.strategy) <= plan.scheme.cycle
    ):
        parts = [
            sparse.csc_array(whitening.columns(start, min(start + 256, plan.rounds)))
            for start in range(0, plan.rounds, 256)
        ]
        matrix = sparse.hstack(parts, format="csc")
        square = (matrix.T @ matrix) * scale
        chance = plan.scheme.sampling_probability
        return Coins(square.astype(np.float32).tocsr(), square.diagonal(), plan.scheme.cycle, chance)
    raise InvalidArgument(
        "accountant",
        accountant,
        f"has no exact attack on {plan.scheme.kind} batches here: audited are balls-in-bins, allocation, unamplified "
        "plans with bins, and (cyclic) Poisson plans whose C has at most as many bands as there are groups",
    )


def bins_of(scheme: Scheme) -> int:
    """Returns after how many rounds an example returns: bins, or groups of cyclic Poisson batches."""
    found = getattr(scheme, "cycle", None) or getattr(scheme, "bins", None)
    if not isinstance(found, int) or getattr(scheme, "reshuffle", False):
        raise InvalidArgument("scheme", scheme.kind, "batches that do not return in cycles cannot be audited")
    return found


def _log_mean_exp(x: NDArray[Any]) -> FloatArray:
    top = x.max(axis=0)
    return np.asarray(top + np.log(np.exp(x - top).mean(axis=0)), np.float64)
