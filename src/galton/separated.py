"""The dominating pair of a run whose examples rest after taking part: min-separation (docs/math.md, section 10.7).

A pattern s is a set of rounds at least `separation` apart. C has at most as many bands, so that the columns of a
pattern do not overlap: its mode |C| s is a sum of orthogonal vectors. Rounds come in blocks of `separation`, each of
which holds at most one round of a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from galton.errors import FloatArray, InvalidArgument, count
from galton.pair import ROUNDOFF, DominatingPair, check_noise_multiplier, rounded_digest
from galton.redrawn import MOST_ENTRIES, Reach
from galton.strategies.base import BLOCK, Strategy
from galton.typechecking import typechecked


def separated_batches(separation: int) -> str:
    """Returns the batches in words, as in certificates."""
    return f"min-separation batches in which every example rests for {separation - 1} rounds after taking part"


def named_separation(participation: str) -> int | None:
    """Returns the S of "min-separation:S"; None for another name.

    >>> named_separation("min-separation:8"), named_separation("min-separation:08"), named_separation("bins")
    (8, None, None)
    """
    kind, _, number = participation.partition(":")
    if kind != SeparatedPair.kind or not number.isascii() or not number.isdigit() or str(int(number)) != number:
        return None
    return int(number) or None


@typechecked
@dataclass(frozen=True, eq=False)
class SeparatedPair(DominatingPair):
    """The pair of a run with min-separation batches. `separated_pair` builds it.

    Attributes:
      reach: C at noise multiplier 1, in blocks of `separation` rounds; it has no tail.
      interval: rounds between two participations on average; the number of batches per epoch.
      noise_multiplier: sensitivity-1 noise multiplier; C in force is that of `reach` divided by it.
      strategy: content hash of the strategy that it comes from, or a name.
      rounds: rounds of the run.

    Example:
      >>> from galton import identity
      >>> pair = separated_pair(identity(8), bins=4, separation=2)
      >>> pair.participation, pair.separation, pair.blocks
      ('min-separation:2', 2, 4)
    """

    kind: ClassVar[str] = "min-separation"
    reach: Reach
    interval: int
    noise_multiplier: float = 1.0
    strategy: str = "given matrix"
    rounds: int = 0

    def __post_init__(self) -> None:
        count("separation", self.separation, at_most=self.interval)
        object.__setattr__(self, "noise_multiplier", check_noise_multiplier(self.noise_multiplier))

    @property
    def participation(self) -> str:
        return f"{self.kind}:{self.separation}"

    @property
    def batches(self) -> str:
        return separated_batches(self.separation)

    @property
    def bins(self) -> int:
        return self.interval

    @property
    def separation(self) -> int:
        """Least number of rounds between two participations of an example."""
        return self.reach.bins

    @property
    def blocks(self) -> int:
        """Blocks of `separation` rounds, a partial one included."""
        return self.reach.epochs

    @property
    def probability(self) -> float:
        """Probability that an example that is not resting takes part in a given round."""
        return 1 / (self.interval - self.separation + 1)

    @cached_property
    def largest_energy(self) -> float:
        """The largest squared norm of a mode."""
        if self.separation == self.interval:  # bins drawn once
            return float(self.reach.energies.sum(axis=0).max()) * (1 + 1e-12)
        return self.separated_energy

    @cached_property
    def separated_energy(self) -> float:
        """The largest squared norm of a sum of columns `separation` rounds apart or more, by dynamic programming."""
        energies, rest = self.reach.energies.ravel(), self.separation
        best = np.zeros(energies.size + rest)
        for start in range(energies.size - rest, -1, -rest):
            joined = energies[start : start + rest] + best[start + rest : start + 2 * rest]
            best[start : start + rest] = np.maximum.accumulate(np.append(joined, best[start + rest])[::-1])[:0:-1]
        return float(best[0]) * (1 + 1e-12)

    @cached_property
    def mean_mode(self) -> FloatArray:
        """(blocks, separation): the average of all modes. Every round has the same probability, 1 / bins."""
        mode = self.reach.own.sum(axis=2)
        mode[1:] += self.reach.following.sum(axis=2)
        return mode / self.interval

    @cached_property
    def mean_products(self) -> FloatArray:
        """(blocks, separation): products of the columns and the average mode."""
        return self.reach.columns_along(self.mean_mode)

    @cached_property
    def mean_energy(self) -> float:
        """The average of the squared norms of all modes."""
        return float(self.reach.energies.sum()) / self.interval

    @property
    def mu_upper(self) -> float:
        return float(np.sqrt(self.largest_energy)) / self.noise_multiplier

    @property
    def mu_lower(self) -> float:
        return 0.0

    def at(self, noise_multiplier: float) -> SeparatedPair:
        return replace(self, noise_multiplier=noise_multiplier)

    def fingerprint(self) -> dict[str, Any]:
        parts = {"own": self.reach.own, "following": self.reach.following}
        digests = {name: rounded_digest(values) for name, values in parts.items()}
        return {"separated": {**digests, "interval": self.interval}}


@typechecked
def separated_pair(strategy: Strategy, bins: int, separation: int, noise_multiplier: float = 1.0) -> SeparatedPair:
    """Returns the dominating pair of a run of `strategy` with min-separation batches.

    Formal guarantee: let every contribution of an example have norm at most 1, and let examples be independent of each
    other. After taking part an example rests for separation - 1 rounds, then takes part in each round with probability
    1 / (bins - separation + 1); the process is stationary from the first round on. Then the privacy profile of the run
    under any adjacency is at most that of the pair, which is the exact pair of |C|. Rounding only ever
    raises entries.

    Args:
      strategy: C; square, with at most `separation` bands.
      bins: rounds between two participations of an example on average: batches per epoch.
      separation: least number of rounds between two participations; at most `bins`. 1 is Poisson sampling, `bins` are
        bins that are drawn once.
      noise_multiplier: sensitivity-1 noise multiplier, in the convention of a run of fixed order.

    Returns:
      The pair.

    Example:
      >>> from galton import square_root
      >>> pair = separated_pair(square_root(16, bands=3), bins=4, separation=3, noise_multiplier=2.0)
      >>> pair.participation, pair.probability
      ('min-separation:3', 0.5)
    """
    strategy.check_bins(bins)
    count("separation", separation)
    if separation > bins:
        raise InvalidArgument("separation", separation, f"must be at most the number of bins, {bins}")
    if strategy.rows != strategy.rounds:
        raise InvalidArgument("strategy", strategy.kind, "must be a square matrix for min-separation batches")
    if strategy.bands > separation:
        remedy = f"must be at least the number of bands of C, {strategy.bands}: columns of C must not overlap"
        raise InvalidArgument("separation", separation, remedy)
    rounds = strategy.rounds
    blocks = -(-rounds // separation)
    if blocks * separation**2 > MOST_ENTRIES:
        raise InvalidArgument(
            "separation",
            separation,
            f"must be at most {MOST_ENTRIES // rounds} for so many rounds: C is held in memory",
        )
    with np.errstate(all="ignore"):  # what overflows is refused below
        scale = strategy.sensitivity(bins)
    if not 1e-125 < scale < 1e125:
        raise InvalidArgument("strategy", strategy.kind, "its entries are too large or too small for float64")
    raised = (1 + 8 * (rounds + 64) * ROUNDOFF) / scale
    own = np.zeros((blocks, separation, separation))
    following = np.zeros((max(blocks - 1, 0), separation, separation))
    step = max(1, BLOCK // separation) * separation
    for start in range(0, rounds, step):
        stop = min(start + step, rounds)
        columns = np.zeros((blocks * separation, step))
        columns[:rounds, : stop - start] = np.abs(strategy.columns(start, stop)) * raised
        for block in range(start // separation, -(-stop // separation)):
            first = block * separation
            part = columns[:, first - start : first - start + separation]
            own[block] = part[first : first + separation]
            if block + 1 < blocks:
                following[block] = part[first + separation : first + 2 * separation]
    reach = Reach(own, following, np.zeros((blocks, separation)))
    return SeparatedPair(reach, bins, noise_multiplier, strategy.digest, rounds)
