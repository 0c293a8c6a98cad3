"""The distribution of the rounds that one example takes part in: data without behaviour, read by accountants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """The distribution of one example's rounds."""


@dataclass(frozen=True)
class KnownBin(Law):
    """Rounds i, i + bins, i + 2 bins, ... for one i that may be chosen in any way, and may be known."""

    bins: int


@dataclass(frozen=True)
class RandomBin(Law):
    """Rounds i, i + bins, ... for one uniform i, independent of all other examples: balls-in-bins."""

    bins: int


@dataclass(frozen=True)
class RedrawnBins(Law):
    """One uniform round of every epoch of `bins` rounds, independently between epochs and between examples.

    Of a partial last epoch an example sits out whose round would lie beyond the end.
    """

    bins: int


@dataclass(frozen=True)
class Coins(Law):
    """Each round with this probability, independently of other rounds and other examples: Poisson sampling."""

    probability: float


@dataclass(frozen=True)
class GroupCoins(Law):
    """Each round of the example's group, one in `groups`, with this probability, independently: cyclic Poisson.

    The group may be known.
    """

    groups: int
    probability: float


@dataclass(frozen=True)
class Renewal(Law):
    """A rest of `separation` - 1 rounds, then each round with this probability; stationary, independent examples."""

    separation: int
    probability: float


@dataclass(frozen=True)
class OncePerEpoch(Law):
    """One round of every epoch, which depends on those of the other examples: reshuffling."""

    bins: int
