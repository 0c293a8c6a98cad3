"""The dominating pair of bins drawn once without its Gram matrix: cost and memory grow like n log n (docs/math.md, 17).

For Toeplitz, BLT, banded and scaled C, with any number of bins. The pair is that of `pair.Pair`, sampled in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from galton.errors import InvalidArgument, check_memory, choice, count
from galton.pair import (
    BATCHES,
    MOST_BINS,
    ONE_DRAW,
    ROUNDOFF,
    DominatingPair,
    Pair,
    check_noise_multiplier,
    dominating_pair,
    groups_for,
    rounded_digest,
)
from galton.strategies.base import Strategy
from galton.strategies.modes import Modes
from galton.typechecking import typechecked

FEW_BINS = 512
"""Up to so many bins the Gram matrix is the quicker way."""
_INDEPENDENT = 1e-9
"""Modes are orthogonal if no entry of G beside the diagonal exceeds this share of the largest."""
_LONG_MEMORY, _LONGER_MEMORY = 0.1, 0.2
"""C has long memory if the mean of all entries of G is at least this share of the largest; the second where the Gram
matrix needs no bins merged, and a sample of it takes a third of the time."""
_WORK = 512
"""Multiplications with a matrix that take as long as a round of a sample without: transforms, normals, exponentials."""
_MOST_ERROR = 1e-3
"""Of an FFT, relative to the norm of the average mode."""
_STRUCTURED = "must be Toeplitz, BLT, banded, or one of these scaled; take dominating_pair for other strategies"


@typechecked
@dataclass(frozen=True, eq=False)
class ManyBinsPair(DominatingPair):
    """The pair of a balls-in-bins run whose bins are drawn once. `many_bins_pair` builds it.

    Attributes:
      modes: M for a sensitivity of 1, as a linear map; no entry below the exact one.
      noise_multiplier: sensitivity-1 noise multiplier; the modes in force are those of `modes` divided by it.
      strategy: content hash of the strategy that it comes from, or a name.
      participation: `bins`, or `redrawn` for a run where drawing once and redrawing are the same.

    Example:
      >>> from galton import square_root
      >>> pair = many_bins_pair(square_root(64), bins=32)
      >>> round(pair.at(2.0).mu_upper, 6)
      0.5
    """

    modes: Modes
    noise_multiplier: float = 1.0
    strategy: str = "given modes"
    participation: str = ONE_DRAW

    def __post_init__(self) -> None:
        choice("participation", self.participation, tuple(BATCHES))
        object.__setattr__(self, "noise_multiplier", check_noise_multiplier(self.noise_multiplier))

    @property
    def batches(self) -> str:
        """The participation in words."""
        return BATCHES[self.participation]

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Rounds of the run."""
        return self.modes.rounds

    @property
    def bins(self) -> int:
        """Number of batches per epoch."""
        return self.modes.bins

    @property
    def mu_upper(self) -> float:
        """Mean shift of the Gaussian mechanism that bounds delta from above: the unamplified run."""
        return self.modes.sensitivity / self.noise_multiplier * (1 + 8 * (self.rounds + 64) * ROUNDOFF)

    @property
    def mu_lower(self) -> float:
        """No bound from below is known."""
        return 0.0

    def at(self, noise_multiplier: float) -> ManyBinsPair:
        """Returns the same mechanism with another noise multiplier.

        Args:
          noise_multiplier: sensitivity-1 noise multiplier.
        """
        return replace(self, noise_multiplier=noise_multiplier)

    def fingerprint(self) -> dict[str, Any]:
        modes, middle = self.modes, np.zeros(self.bins)
        middle[self.bins // 2] = 1.0
        parts = {"energies": modes.energies, "middle": modes.adjoint(modes.apply(middle))}
        return {"many bins": {name: rounded_digest(values) for name, values in parts.items()}}


@typechecked
def many_bins_pair(strategy: Strategy, bins: int, noise_multiplier: float = 1.0) -> ManyBinsPair:
    """Returns the dominating pair of a balls-in-bins run without a matrix of bins times bins.

    Formal guarantee: that of `dominating_pair`, for the same mechanism and with no bins merged. Rounding only ever
    raises entries of the modes.

    Args:
      strategy: C; Toeplitz, BLT, banded, or one of these scaled.
      bins: batches per epoch, any number.
      noise_multiplier: sensitivity-1 noise multiplier.

    Returns:
      The pair.

    Example:
      >>> from galton import square_root
      >>> pair = many_bins_pair(square_root(8000), bins=4000, noise_multiplier=2.0)
      >>> pair.bins, round(pair.mu_upper, 6)
      (4000, 0.5)
    """
    count("bins", bins)
    check_memory("bins", bins, 64 * (strategy.rounds + bins))
    with np.errstate(all="ignore"):  # what overflows is refused below
        modes = strategy.linear_modes(bins)
        if modes is None:
            raise InvalidArgument("strategy", strategy.kind, _STRUCTURED)
        scale = modes.sensitivity
        moderate = modes.moderate and 1e-125 < scale < 1e125
    if not moderate:
        raise InvalidArgument("strategy", strategy.kind, "its entries are too large or too small for float64")
    if not modes.error <= _MOST_ERROR * float(np.linalg.norm(modes.apply(np.full(bins, 1 / bins)))):
        raise InvalidArgument("strategy", strategy.kind, "its entries are too far apart for sums by FFT")
    raised = (1 + 8 * (modes.terms + 64) * ROUNDOFF) / scale
    return ManyBinsPair(modes.times(raised), noise_multiplier, strategy.digest)


def _without_matrix(strategy: Strategy, bins: int) -> bool:
    """Whether the Gram matrix is better left alone.

    It is for long memory, where averages over strata take few samples, and for independent noise, which takes none. In
    between certificates take many samples, which are cheaper with a matrix, merged if it has to be.
    """
    modes = None if bins <= FEW_BINS else strategy.linear_modes(bins)
    if modes is None or not _can_have_gram(bins):
        return modes is not None
    average, largest = modes.apply(np.full(bins, 1 / bins)), modes.sensitivity**2
    long = _LONGER_MEMORY if groups_for(bins) == 1 else _LONG_MEMORY
    return float(average @ average) >= long * largest or modes.row_bounds.largest_beside <= _INDEPENDENT * largest


def _can_have_gram(bins: int) -> bool:
    try:
        groups_for(bins)
    except InvalidArgument:
        return False
    return bins <= MOST_BINS


def sample_work(bins: int, rounds: int) -> int:
    """Returns as many multiplications with a matrix as take as long as a sample without one.

    Args:
      bins: batches per epoch.
      rounds: of the run.
    """
    return _WORK * (rounds + bins)


def pair_of_bins(strategy: Strategy, bins: int) -> Pair | ManyBinsPair:
    """Returns the pair of bins drawn once: by its Gram matrix for few bins, else without if C has the structure for it.

    The Gram matrix serves up to 512 bins; and, with bins merged from 2,049 on, C without structure, or with a short
    memory that is not that of independent noise.

    Args:
      strategy: C.
      bins: batches per epoch.
    """
    if _without_matrix(strategy, bins):
        return many_bins_pair(strategy, bins)
    return dominating_pair(strategy, bins, merge=groups_for(bins))
