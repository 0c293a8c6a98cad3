"""How one example takes part in a run: data without behaviour, which accountants interpret."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """The distribution of one example's rounds."""


@dataclass(frozen=True)
class KnownBin(Law):
    """Rounds i, i + bins, i + 2 bins, ... of one i that was chosen in any way, and may be known."""

    bins: int


@dataclass(frozen=True)
class RandomBin(Law):
    """Rounds i, i + bins, ... of one uniform i, independent of all other examples: balls-in-bins."""

    bins: int


@dataclass(frozen=True)
class Coins(Law):
    """Every round with this probability, independently of other rounds and other examples: Poisson sampling."""

    probability: float


@dataclass(frozen=True)
class GroupCoins(Law):
    """Every `groups`-th round, from one's group's first, with this probability, independently: cyclic Poisson.

    The group may be known.
    """

    groups: int
    probability: float


@dataclass(frozen=True)
class Renewal(Law):
    """At least `separation` rounds apart, then every round with this probability; stationary; independent examples."""

    separation: int
    probability: float


@dataclass(frozen=True)
class OncePerEpoch(Law):
    """One round of every epoch, in an order that depends on the other examples' (shuffling anew)."""

    bins: int
