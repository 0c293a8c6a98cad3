"""The dominating pair of a run whose bins are redrawn in every epoch (docs/math.md, section 10).

A pattern s has one round in every epoch. Its mode is |C| s, and the pair is the mixture over all patterns against
noise alone. Columns of C that reach no further than the next epoch are kept as they are; what reaches further is
replaced by its largest value over all patterns, the tail, which every pattern then shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.many_bins import pair_of_bins
from galton.pair import BATCHES, REDRAWN, ROUNDOFF, DominatingPair, check_noise_multiplier, rounded_digest
from galton.strategies.base import Strategy
from galton.typechecking import typechecked

MOST_ENTRIES = 40_000_000
"""The most entries of C, epoch by epoch, that are held in memory."""


@dataclass(frozen=True, eq=False)
class Reach:
    """C for a sensitivity of 1 over a run of fixed order, in blocks of an epoch; no entry below the exact one.

    Attributes:
      own: (epochs, bins, bins): rows and columns of the same epoch.
      following: (epochs - 1, bins, bins): rows of the next epoch, columns of this one.
      tail: (epochs, bins): the shift in each row that stands for all of C that reaches further.
    """

    own: FloatArray
    following: FloatArray
    tail: FloatArray

    def __post_init__(self) -> None:
        for name, values in (("own", self.own), ("following", self.following), ("tail", self.tail)):
            if not np.isfinite(values).all() or (values < 0).any():
                raise InvalidArgument(name, float(values.min(initial=0.0)), "must have finite entries, none negative")

    @property
    def epochs(self) -> int:
        """Epochs, a partial one included."""
        return self.own.shape[0]

    @property
    def bins(self) -> int:
        """Batches per epoch."""
        return self.own.shape[1]

    @cached_property
    def gram(self) -> FloatArray:
        """(epochs, bins, bins): products of columns of the same epoch."""
        gram = np.matmul(self.own.transpose(0, 2, 1), self.own)
        gram[:-1] += np.matmul(self.following.transpose(0, 2, 1), self.following)
        return gram

    @cached_property
    def overlap(self) -> FloatArray:
        """(epochs - 1, bins, bins): products of a column of one epoch (first index) and one of the next."""
        return np.matmul(self.following.transpose(0, 2, 1), self.own[1:])

    @cached_property
    def energies(self) -> FloatArray:
        """(epochs, bins): squared norms of the columns."""
        return np.ascontiguousarray(np.diagonal(self.gram, axis1=1, axis2=2))

    @cached_property
    def tail_products(self) -> FloatArray:
        """(epochs, bins): products of the columns and the tail."""
        return self.columns_along(self.tail)

    def columns_along(self, point: FloatArray) -> FloatArray:
        """Returns the products of all columns and a point, both (epochs, bins); the tail aside."""
        products = np.einsum("ekj,ek->ej", self.own, point)
        products[:-1] += np.einsum("ekj,ek->ej", self.following, point[1:])
        return products

    @cached_property
    def tail_energy(self) -> float:
        """Squared norm of the tail."""
        return float(np.square(self.tail).sum())

    @cached_property
    def largest_energy(self) -> float:
        """The largest squared norm of a mode, by dynamic programming over the bins of neighbouring epochs."""
        nodes = self.energies + 2 * self.tail_products
        best = nodes[0]
        for epoch in range(1, self.epochs):
            best = nodes[epoch] + (best[:, None] + 2 * self.overlap[epoch - 1]).max(axis=0)
        return (float(best.max()) + self.tail_energy) * (1 + 1e-12)

    @cached_property
    def independent(self) -> bool:
        """Whether every column has one entry, in its own row, and all are alike: C = I and whole epochs."""
        apart = np.count_nonzero(self.own) == np.count_nonzero(np.diagonal(self.own, axis1=1, axis2=2))
        energies = self.energies
        alike = bool(energies.min() >= (1 - 1e-9) * energies.max())
        return apart and alike and not self.following.any() and not self.tail.any()

    @cached_property
    def mean_mode(self) -> FloatArray:
        """(epochs, bins): the average of all modes."""
        mode = self.own.mean(axis=2) + self.tail
        mode[1:] += self.following.mean(axis=2)
        return mode

    @cached_property
    def mean_products(self) -> FloatArray:
        """(epochs, bins): products of the columns and the average mode."""
        return self.columns_along(self.mean_mode)

    @cached_property
    def tail_along_mean(self) -> float:
        """Product of the tail and the average mode."""
        return float((self.tail * self.mean_mode).sum())

    @cached_property
    def least_along_mean(self) -> float:
        """The smallest component of a mode along the average mode, rounded down."""
        mean = self.mean_mode
        least = self.mean_products.min(axis=1).sum() + self.tail_along_mean
        return float(least) / float(np.linalg.norm(mean)) * (1 - 1e-9)

    @cached_property
    def mean_energy(self) -> float:
        """The average of the squared norms of all modes."""
        return float(
            self.energies.mean(axis=1).sum()
            + 2 * self.overlap.mean(axis=(1, 2)).sum()
            + 2 * self.tail_products.mean(axis=1).sum()
            + self.tail_energy
        )


@typechecked
@dataclass(frozen=True, eq=False)
class RedrawnPair(DominatingPair):
    """The pair of a balls-in-bins run whose bins are redrawn in every epoch. `pattern_pair` builds it.

    Attributes:
      reach: C at noise multiplier 1.
      noise_multiplier: sensitivity-1 noise multiplier; C in force is that of `reach` divided by it.
      strategy: content hash of the strategy that it comes from, or a name.
      rounds: rounds of the run.

    Example:
      >>> from galton import identity
      >>> pair = pattern_pair(identity(8), bins=4, noise_multiplier=2.0)
      >>> pair.epochs, round(pair.mu_upper, 6), pair.batches
      (2, 0.5, 'balls-in-bins batches redrawn in every epoch')
    """

    participation: ClassVar[str] = REDRAWN
    batches: ClassVar[str] = BATCHES[REDRAWN]
    reach: Reach
    noise_multiplier: float = 1.0
    strategy: str = "given matrix"
    rounds: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", check_noise_multiplier(self.noise_multiplier))

    @property
    def bins(self) -> int:
        return self.reach.bins

    @property
    def epochs(self) -> int:
        """Epochs of the run, a partial one included."""
        return self.reach.epochs

    @property
    def mu_upper(self) -> float:
        return float(np.sqrt(self.reach.largest_energy)) / self.noise_multiplier

    @property
    def mu_lower(self) -> float:
        return float(np.sqrt(self.reach.tail_energy)) / self.noise_multiplier * (1 - 1e-12)

    def at(self, noise_multiplier: float) -> RedrawnPair:
        return replace(self, noise_multiplier=noise_multiplier)

    def fingerprint(self) -> dict[str, Any]:
        reach = self.reach
        parts = {"own": reach.own, "following": reach.following, "tail": reach.tail}
        return {"redrawn": {name: rounded_digest(values) for name, values in parts.items()}}


@typechecked
def redrawn_pair(strategy: Strategy, bins: int, noise_multiplier: float = 1.0) -> DominatingPair:
    """Returns the dominating pair of a run of `strategy` with `bins` batches per epoch, redrawn in every epoch.

    Formal guarantee: let every contribution of an example have norm at most 1, and let every example be in one of
    `bins` batches of every epoch, chosen uniformly and independently of its other epochs and of other examples. Then
    the privacy profile of the run, under any adjacency, is at most that of the pair. It is the exact pair of
    |C| if C has at most bins + 1 bands, and an upper bound otherwise; with one epoch or one bin it is the pair of bins
    drawn once, which are the same batches then. Rounding only ever raises entries.

    Args:
      strategy: C; square.
      bins: batches per epoch.
      noise_multiplier: sensitivity-1 noise multiplier, in the convention of a run of fixed order.

    Returns:
      The pair.

    Example:
      >>> from galton import square_root
      >>> pair = redrawn_pair(square_root(16, bands=3), bins=4, noise_multiplier=2.0)
      >>> pair.bins, pair.participation
      (4, 'redrawn')
    """
    strategy.check_bins(bins)
    if bins not in (1, strategy.rounds):
        return pattern_pair(strategy, bins, noise_multiplier)
    _check_square(strategy)
    return replace(pair_of_bins(strategy, bins), participation=REDRAWN, noise_multiplier=noise_multiplier)


def pattern_pair(strategy: Strategy, bins: int, noise_multiplier: float = 1.0) -> RedrawnPair:
    """Returns the pair of `redrawn_pair` by patterns of bins, whatever the number of epochs and bins.

    Args:
      strategy: C; square.
      bins: batches per epoch.
      noise_multiplier: sensitivity-1 noise multiplier, in the convention of a run of fixed order.
    """
    strategy.check_bins(bins)
    _check_square(strategy)
    epochs = -(-strategy.rounds // bins)
    if epochs * bins * bins > MOST_ENTRIES:
        remedy = (
            f"must be at most {int((MOST_ENTRIES / epochs) ** 0.5)} for {epochs} redrawn epochs: C is held in memory"
        )
        raise InvalidArgument("bins", bins, remedy)
    with np.errstate(all="ignore"):  # what overflows is refused below
        scale = strategy.sensitivity(bins)
    if not 1e-125 < scale < 1e125:
        raise InvalidArgument("strategy", strategy.kind, "its entries are too large or too small for float64")
    raised = (1 + 8 * (strategy.rounds + 64) * ROUNDOFF) / scale
    own, following, tail = (
        np.zeros(shape) for shape in ((epochs, bins, bins), (epochs - 1, bins, bins), (epochs, bins))
    )
    late = np.arange(bins)[:, None] > np.arange(bins)  # more than `bins` rounds after the column's own
    for epoch in range(epochs):
        start, stop = epoch * bins, min((epoch + 1) * bins, strategy.rounds)
        block = np.zeros((epochs * bins, bins))
        block[: strategy.rounds, : stop - start] = np.abs(strategy.columns(start, stop))
        rows = block.reshape(epochs, bins, bins) * raised
        own[epoch] = rows[epoch]
        if epoch + 1 < epochs:
            following[epoch] = np.where(late, 0.0, rows[epoch + 1])
            tail[epoch + 1] += np.where(late, rows[epoch + 1], 0.0).max(axis=1)
            tail[epoch + 2 :] += rows[epoch + 2 :].max(axis=2)
    tail *= 1 + 4 * epochs * ROUNDOFF
    return RedrawnPair(Reach(own, following, tail), noise_multiplier, strategy.digest, strategy.rounds)


def _check_square(strategy: Strategy) -> None:
    if strategy.rows != strategy.rounds:
        raise InvalidArgument(
            "strategy", strategy.kind, "must be a square matrix for bins redrawn in every epoch; take another strategy"
        )
