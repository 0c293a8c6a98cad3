"""How an example takes part, as the optimiser sees it: what the noise depends on, and how that is estimated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.gaussian import unamplified_multiplier
from galton.guarantee import Guarantee
from galton.many_bins import pair_of_bins, sample_work
from galton.optimization.affordable import LeastNoise, least_multiplier
from galton.optimization.averages import groups_of_bins, mode_energies
from galton.optimization.forms import Form
from galton.optimization.noise_level import ESTIMATORS, GramLevel, NoiseLevel
from galton.optimization.pattern_level import PatternLevel, reach_of
from galton.optimization.separated_level import SeparatedLevel
from galton.pair import REDRAWN, DominatingPair, Pair
from galton.redrawn import redrawn_pair
from galton.separated import SeparatedPair, named_separation, separated_pair
from galton.strategies.base import Strategy

MOST_MODES = 512
"""With more bins than this the optimiser averages neighbouring modes; the accountant never does."""
_MOST_WEIGHTS = 128
"""Free weights of a search on averages, which cannot tell what is good for single modes."""
_MOST_DRAWN = 1 << 19
"""Draws times rounds that a search over patterns begins with, unless the draws were fewer than `_FEWEST`."""
_FEWEST = 1 << 8


class Participation(ABC):
    """One way to take part. A new one gets a line in `PARTICIPATIONS`.

    Attributes:
      estimators: how delta can be estimated in a search, the default first.
      usual_samples: draws per direction that a search of a short run begins with.
      tries_longer_memory: whether a search among few bands also starts from the optimum of a BLT, cut to these bands.
    """

    estimators: ClassVar[tuple[str, ...]]
    usual_samples: ClassVar[int]
    tries_longer_memory: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """As on the command line."""

    def most_bands(self, rounds: int) -> int:
        """Returns the most bands of C that can be analysed; by default any number."""
        return rounds

    def samples(self, bins: int, rounds: int) -> int:
        """Returns the draws per direction that a search begins with."""
        return self.usual_samples

    def most_weights(self, bins: int, rounds: int) -> int:
        """Returns how many weights of rounds a search may choose freely; between them they are interpolated."""
        return rounds

    def inner_refreshes(self, bins: int) -> int:
        """Returns how many descents find where a larger family starts."""
        return 1

    def tolerance(self, bins: int) -> float:
        """Returns the gain (of a logarithm) for which a descent does not go on."""
        return 2e-4

    @abstractmethod
    def statistic(self, form: Form, bins: int) -> jax.Array:
        """Returns the array that the noise depends on, differentiably."""

    @abstractmethod
    def level(
        self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, estimator: str, samples: int, seed: int
    ) -> NoiseLevel:
        """Freezes draws at a design."""

    def least_noise(self, bins: int, rounds: int, guarantee: Guarantee) -> LeastNoise | None:
        """Returns the noise below which certificates take too many samples; None if that is no matter."""
        return None

    @abstractmethod
    def sensitivity(self, statistic: FloatArray) -> float:
        """Returns the largest norm of a mode: where the noise level is without amplification."""

    def usual_sigma(self, statistic: FloatArray, guarantee: Guarantee) -> float:
        """Returns a noise level from which that of the guarantee is found; by default that without amplification."""
        return unamplified_multiplier(guarantee) * self.sensitivity(statistic)

    @abstractmethod
    def pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        """Returns the pair that the noise of the result is calibrated with."""


class OneDraw(Participation):
    """Bins drawn once: the statistic is the Gram matrix M^T M."""

    name: ClassVar[str] = Pair.participation
    estimators: ClassVar[tuple[str, ...]] = ESTIMATORS
    usual_samples: ClassVar[int] = 1 << 12

    def samples(self, bins: int, rounds: int) -> int:
        return self.usual_samples if bins <= MOST_MODES else self.usual_samples // 4

    def most_weights(self, bins: int, rounds: int) -> int:
        return rounds if bins <= MOST_MODES else min(rounds, _MOST_WEIGHTS)

    def inner_refreshes(self, bins: int) -> int:
        return 3 if bins <= MOST_MODES else 1

    def tolerance(self, bins: int) -> float:
        """Averages of modes are off by more than what many small steps gain."""
        return super().tolerance(bins) if bins <= MOST_MODES else 1e-3

    def statistic(self, form: Form, bins: int) -> jax.Array:
        if bins <= MOST_MODES:
            modes = form.modes(bins)
            return modes.T @ modes
        averages, middles = groups_of_bins(bins, form.rounds)
        merged = form.combined_modes(jnp.asarray(averages))
        gram = merged @ merged.T
        return gram + jnp.diag((mode_energies(form, middles) - gram.diagonal()) * len(averages) / bins)

    def least_noise(self, bins: int, rounds: int, guarantee: Guarantee) -> LeastNoise | None:
        if bins <= MOST_MODES:
            return None
        multiplier = least_multiplier(bins, min(bins**2, sample_work(bins, rounds)), guarantee)
        return LeastNoise(multiplier, bins) if multiplier else None

    def level(
        self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, estimator: str, samples: int, seed: int
    ) -> NoiseLevel:
        return GramLevel(statistic, log_sigma, guarantee, estimator, samples, seed)

    def sensitivity(self, statistic: FloatArray) -> float:
        return math.sqrt(float(statistic.diagonal().max()))

    def pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        return pair_of_bins(strategy, bins)


class PatternParticipation(Participation):
    """A mixture over patterns of rounds: every round of a run has draws of its own, and a weight to fit to them.

    The draws of a long run are fewer, so that a search takes as long, and its free weights are fewer still: with as
    many weights as draws, C follows its draws to errors that do not exist. A draw has several points, and says more
    than one of bins drawn once.
    """

    estimators: ClassVar[tuple[str, ...]] = ("tilted",)
    usual_samples: ClassVar[int] = 1 << 10
    tries_longer_memory: ClassVar[bool] = False

    def samples(self, bins: int, rounds: int) -> int:
        return max(_FEWEST, min(self.usual_samples, 1 << (_MOST_DRAWN // rounds).bit_length() - 1))

    def most_weights(self, bins: int, rounds: int) -> int:
        return self.samples(bins, rounds) // 2

    @abstractmethod
    def mean_mode(self, statistic: FloatArray) -> FloatArray:
        """Returns the average of all modes."""

    def usual_sigma(self, statistic: FloatArray, guarantee: Guarantee) -> float:
        return unamplified_multiplier(guarantee) * float(np.linalg.norm(self.mean_mode(statistic)))


class Redrawn(PatternParticipation):
    """Bins redrawn in every epoch: the statistic is C in blocks of an epoch, as `pattern_level.reach_of` reads it."""

    name: ClassVar[str] = REDRAWN

    def statistic(self, form: Form, bins: int) -> jax.Array:
        return form.epoch_blocks(bins)

    def level(
        self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, estimator: str, samples: int, seed: int
    ) -> NoiseLevel:
        return PatternLevel(statistic, log_sigma, guarantee, samples, seed)

    def sensitivity(self, statistic: FloatArray) -> float:
        return math.sqrt(reach_of(statistic).largest_energy)

    def mean_mode(self, statistic: FloatArray) -> FloatArray:
        return reach_of(statistic).mean_mode

    def pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        return redrawn_pair(strategy, bins)


@dataclass(frozen=True)
class Separated(PatternParticipation):
    """Min-separation batches: the statistic is C in blocks of `separation` rounds, as `reach_of` reads it.

    Attributes:
      separation: least number of rounds between two participations of an example.
      bins: rounds between two participations on average.
    """

    separation: int
    bins: int

    @property
    def name(self) -> str:
        return f"{SeparatedPair.kind}:{self.separation}"

    def most_bands(self, rounds: int) -> int:
        return self.separation

    def statistic(self, form: Form, bins: int) -> jax.Array:
        return form.epoch_blocks(self.separation)

    def level(
        self, statistic: FloatArray, log_sigma: float, guarantee: Guarantee, estimator: str, samples: int, seed: int
    ) -> NoiseLevel:
        return SeparatedLevel(statistic, self.bins, log_sigma, guarantee, samples, seed)

    def sensitivity(self, statistic: FloatArray) -> float:
        return math.sqrt(SeparatedPair(reach_of(statistic), self.bins).largest_energy)

    def mean_mode(self, statistic: FloatArray) -> FloatArray:
        return SeparatedPair(reach_of(statistic), self.bins).mean_mode

    def pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        return separated_pair(strategy, bins, self.separation)


ONE_DRAW: Participation = OneDraw()
PARTICIPATIONS: dict[str, Participation] = {way.name: way for way in (ONE_DRAW, Redrawn())}


def find_participation(name: str, bins: int) -> Participation:
    """Returns the way of taking part that has this name, for this number of batches per epoch."""
    separation = named_separation(name)
    if separation is not None:
        if separation > bins:
            raise InvalidArgument("participation", name, f"must rest for less than the number of bins, {bins}")
        return Separated(separation, bins)
    if name not in PARTICIPATIONS:
        names = ", ".join((*PARTICIPATIONS, f"{SeparatedPair.kind}:S"))
        raise InvalidArgument("participation", name, f"must be one of {names} (S rounds apart at least)")
    return PARTICIPATIONS[name]
