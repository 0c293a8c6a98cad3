"""The dominating pair of a balls-in-bins run, reduced to one small matrix (docs/math.md, section 1).

The pair is P = (1/b) sum_i N(m_i, sigma^2 I) against Q = N(0, sigma^2 I). The modes m_i matter only through their Gram
matrix G = M^T M / sigma^2, and the accountant sees nothing else.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from galton.errors import FloatArray, InvalidArgument, array, check_memory, choice, count, positive
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

ROUNDOFF = 2.0**-53
MOST_BINS = 20_000
ONE_DRAW = "bins"
REDRAWN = "redrawn"
BATCHES = {ONE_DRAW: "balls-in-bins batches", REDRAWN: "balls-in-bins batches redrawn in every epoch"}
"""Batches in words, by participation."""


class DominatingPair(ABC):
    """A mixture of Gaussians against one Gaussian, whose privacy profile is at least that of a run.

    There is one class for each way in which an example takes part; `sampling/toolkits.py` knows how to sample each.

    Attributes:
      noise_multiplier: for C scaled to sensitivity 1 over a run of fixed order, whatever the participation.
      strategy: content hash of the strategy that it comes from, or a name.
      rounds: rounds of the run.

    Example:
      >>> from galton import identity, redrawn_pair, separated_pair
      >>> pairs = [dominating_pair(identity(8), 4), redrawn_pair(identity(8), 4), separated_pair(identity(8), 4, 3)]
      >>> [pair.participation for pair in pairs if isinstance(pair, DominatingPair)]
      ['bins', 'redrawn', 'min-separation:3']
    """

    noise_multiplier: float
    strategy: str
    rounds: int

    @property
    @abstractmethod
    def participation(self) -> str:
        """Name of the way in which an example takes part, as on the command line."""

    @property
    @abstractmethod
    def batches(self) -> str:
        """The same in words, as in certificates."""

    @property
    @abstractmethod
    def bins(self) -> int:
        """Number of batches per epoch."""

    @property
    @abstractmethod
    def mu_upper(self) -> float:
        """Mean shift of the Gaussian mechanism that bounds delta from above: the unamplified run."""

    @property
    @abstractmethod
    def mu_lower(self) -> float:
        """Mean shift of a Gaussian mechanism that bounds delta from below; 0 if none is known."""

    @abstractmethod
    def at(self, noise_multiplier: float) -> Self:
        """Returns the same mechanism with another noise multiplier.

        Args:
          noise_multiplier: sensitivity-1 noise multiplier.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Returns what tells this mechanism from others, to nine digits and whatever its noise, for the ledger."""


def rounded_digest(values: FloatArray) -> str:
    """Returns a hash of the values to nine digits."""
    rounded = np.round(values, 9) + 0.0
    return hashlib.sha256(np.ascontiguousarray(rounded, "<f8").tobytes()).hexdigest()


def check_noise_multiplier(noise_multiplier: float) -> float:
    """Returns the multiplier; raises `InvalidArgument` if its square leaves the range of float64."""
    if not 1e-100 <= positive("noise_multiplier", noise_multiplier) <= 1e100:
        raise InvalidArgument("noise_multiplier", noise_multiplier, "must lie between 1e-100 and 1e100")
    return float(noise_multiplier)


@typechecked
@dataclass(frozen=True, eq=False)
class Pair(DominatingPair):
    """The pair of a balls-in-bins run whose bins are drawn once. `dominating_pair` builds it.

    Attributes:
      unit: the Gram matrix at noise multiplier 1, of shape (modes, modes): symmetric, non-negative, and in no entry
        below the exact matrix. Its largest diagonal entry is 1, rounded up.
      noise_multiplier: sensitivity-1 noise multiplier; the Gram matrix in force is unit / noise_multiplier^2.
      strategy: content hash of the strategy that it comes from, or a name.
      rounds: rounds of the run.
      merged: how many neighbouring bins share a mode, for a bound with fewer modes (docs/math.md, section 5).
      participation: `bins`, or `redrawn` for a run where drawing once and redrawing are the same.

    Example:
      >>> from galton import identity
      >>> dominating_pair(identity(4), bins=2, noise_multiplier=2.0).gram.round(6)
      array([[0.25, 0.  ],
             [0.  , 0.25]])
    """

    unit: FloatArray
    noise_multiplier: float = 1.0
    strategy: str = "given Gram matrix"
    rounds: int = 0
    merged: int = 1
    participation: str = ONE_DRAW

    def __post_init__(self) -> None:
        unit = array("gram", self.unit, 2)
        if unit.shape[0] != unit.shape[1] or not np.array_equal(unit, unit.T):
            raise InvalidArgument("gram", unit.shape, "must be a symmetric square matrix")
        if (unit < 0).any():
            raise InvalidArgument("gram", float(unit.min()), "must not have negative entries")
        if not (unit.diagonal() > 0).all():
            raise InvalidArgument("gram", float(unit.diagonal().min()), "must have a positive diagonal")
        choice("participation", self.participation, tuple(BATCHES))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "noise_multiplier", check_noise_multiplier(self.noise_multiplier))

    @property
    def batches(self) -> str:
        """The participation in words."""
        return BATCHES[self.participation]

    @property
    def modes(self) -> int:
        """Size of the Gram matrix: the number of bins, or of groups of merged bins."""
        return self.unit.shape[0]

    @property
    def bins(self) -> int:
        """Number of batches per epoch."""
        return self.modes * self.merged

    @cached_property
    def gram(self) -> FloatArray:
        """The Gram matrix G = M^T M / sigma^2 in force."""
        return self.unit / self.noise_multiplier**2

    @property
    def mu_upper(self) -> float:
        """Mean shift of the Gaussian mechanism that bounds delta from above: the unamplified run."""
        return float(np.sqrt(self.gram.diagonal().max()))

    @property
    def mu_lower(self) -> float:
        """Mean shift of a Gaussian mechanism that bounds delta from below: all entries of G lowered to the least."""
        return float(np.sqrt(self.gram.min()))

    def at(self, noise_multiplier: float) -> Pair:
        """Returns the same mechanism with another noise multiplier.

        Args:
          noise_multiplier: sensitivity-1 noise multiplier.

        Example:
          >>> from galton import square_root
          >>> pair = dominating_pair(square_root(16), bins=4)
          >>> pair.at(2.0).mu_upper == pair.mu_upper / 2
          True
        """
        return replace(self, noise_multiplier=noise_multiplier)

    def fingerprint(self) -> dict[str, Any]:
        return {"gram": rounded_digest(self.unit), "modes": self.modes}


@typechecked
def dominating_pair(strategy: Strategy, bins: int, noise_multiplier: float = 1.0, merge: int = 1) -> Pair:
    """Returns the dominating pair of a balls-in-bins run of `strategy` with `bins` batches per epoch.

    Formal guarantee: let every contribution of an example have norm at most 1, let every example be in one of `bins`
    batches, chosen uniformly and independently, and let batch i be used in rounds i, i+bins, ... Then the privacy
    profile of the run under add-or-remove adjacency is at most that of the pair. Rounding only ever raises entries of
    the Gram matrix: a sum of n non-negative products in float64 has relative error below 4 n 2^-53, which is added to
    every entry.

    Args:
      strategy: C.
      bins: batches per epoch.
      noise_multiplier: sensitivity-1 noise multiplier.
      merge: merge groups of this many neighbouring bins into one mode each: a rigorous upper bound that costs less
        where there are many bins. Must divide `bins`.

    Returns:
      The pair.

    Example:
      >>> from galton import square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
      >>> pair.bins, pair.noise_multiplier
      (4, 2.0)
    """
    count("merge", merge)
    count("bins", bins)
    if bins > MOST_BINS:
        raise InvalidArgument(
            "bins", bins, f"must be at most {MOST_BINS}: the Gram matrix has bins^2 entries; many_bins_pair needs none"
        )
    if merge > 1:
        check_memory("bins", bins, bins**2)
    else:
        check_memory("merge", merge, 4 * bins**2)
    with np.errstate(all="ignore"):  # what overflows is refused below
        gram = strategy.gram(bins)
    largest = float(gram.diagonal().max())
    if not 1e-250 < largest < 1e250:
        raise InvalidArgument("strategy", strategy.kind, "its entries are too large or too small for float64")
    if merge > 1:
        gram = _merge_bins(gram, merge)
    unit = (gram + gram.T) / (2 * largest)
    unit += 4 * (strategy.rows + 64) * ROUNDOFF
    if merge > 1:
        unit[np.diag_indices_from(unit)] += max(0.0, -1.001 * float(np.linalg.eigvalsh(unit)[0]))
    return Pair(unit, noise_multiplier, strategy.digest, strategy.rounds, merge)


def _merge_bins(gram: FloatArray, merge: int) -> FloatArray:
    """The largest entry of every block; by Kahane's inequality that does not lower delta."""
    bins = gram.shape[0]
    if bins % merge:
        raise InvalidArgument("merge", merge, f"must divide the number of bins, {bins}: groups must be of equal size")
    groups = bins // merge
    return gram.reshape(groups, merge, groups, merge).max(axis=(1, 3))


def groups_for(bins: int, most: int = 1024) -> int:
    """Returns how many neighbouring bins to merge: the smallest divisor that leaves at most `most` modes.

    Up to 2 * most bins are not merged at all.
    """
    if bins <= 2 * most:
        return 1
    size = next(size for size in range(2, bins + 1) if bins % size == 0 and bins // size <= most)
    if bins // size < 64:
        raise InvalidArgument(
            "bins",
            bins,
            "has no divisor that leaves 64 to 1024 modes: take another number of batches per epoch, or, to analyse a "
            "given strategy, merge=1 (--merge 1)",
        )
    return size
