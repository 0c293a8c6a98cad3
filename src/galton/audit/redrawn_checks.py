"""Checks whether batches are as analysed where bins are redrawn: one bin in every epoch, uniform, each time afresh."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from galton.audit.batch_checks import RARE, size_violations
from galton.audit.checks import Finding, binomial, chernoff, chi_square, exact, pearson
from galton.audit.participation import Participation
from galton.errors import FloatArray
from galton.plan.plan import Plan

_MOST_CELLS = 16
"""Bins are joined into at most so many groups for the test that epochs are independent."""
_LEAST_EXPECTED = 5
"""Expected number of examples in a cell of that test, at the least number of realisations."""


class RedrawnTally:
    """Counts over all realisations of an audit, and the findings that follow from them, for the law `RedrawnBins`.

    Two epochs of a realisation are compared at a time, and no epoch twice, so that all comparisons are independent:
    neighbouring epochs in every other realisation, epochs further apart in the rest.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._whole, self._partial = divmod(plan.rounds, plan.bins)
        pairs = 4 * plan.examples * (self._whole // 2)
        self._groups = min(plan.bins, _MOST_CELLS, max(2, math.isqrt(pairs // _LEAST_EXPECTED)))
        self._wrong, self._realisations, self._overflows = 0, 0, 0
        self._sizes = np.zeros(3)
        self._totals, self._partial_totals = np.zeros(plan.bins), np.zeros(self._partial + 1)
        self._pairs, self._together = 0, 0
        self._table = np.zeros((self._groups, self._groups))
        self._twice_pairs, self._twice_together = 0, 0

    def add(self, participation: Participation) -> None:
        """Adds more realisations to the counts."""
        plan, epochs = self._plan, self._plan.epochs
        bins = np.full((participation.total, epochs), -1, np.int32)
        bins[participation.member, participation.turn // plan.bins] = participation.turn % plan.bins
        self._wrong += self._violations(participation, bins)
        self._overflows += int((participation.sizes > plan.padded_batch_size).sum())
        self._count_sizes(participation)
        by_realisation = bins[:, : self._whole].reshape(-1, plan.examples, self._whole)
        for places in by_realisation:
            first, second = _epoch_pairs(self._realisations, self._whole)
            self._compare(places, first, second)
            self._realisations += 1

    def _violations(self, participation: Participation, bins: NDArray[np.int32]) -> int:
        """Returns how often a property that must always hold does not."""
        plan = self._plan
        violations = size_violations(participation, plan.padded_batch_size)
        violations += int(participation.member.size - (bins >= 0).sum())  # in two batches of an epoch, or twice in one
        starts = np.arange(0, plan.rounds, plan.bins)
        sizes = np.add.reduceat(participation.sizes, starts, axis=1)
        violations += int((sizes[:, : self._whole] != plan.examples).sum()) + int((sizes > plan.examples).sum())
        cut = np.add.reduceat(participation.truncated, starts, axis=1)[:, : self._whole]
        absent = (bins[:, : self._whole] < 0).reshape(-1, plan.examples, self._whole).sum(axis=1)
        return violations + int((absent != cut).sum())

    def _count_sizes(self, participation: Participation) -> None:
        plan = self._plan
        whole = participation.sizes[:, : self._whole * plan.bins].reshape(-1, plan.bins).astype(np.float64)
        self._sizes += pearson(whole, np.full(plan.bins, 1 / plan.bins), plan.examples)
        self._totals += whole.sum(axis=0)
        if self._partial:
            cells = participation.sizes[:, self._whole * plan.bins :].astype(np.float64)
            cells = np.concatenate((cells, plan.examples - cells.sum(axis=1, keepdims=True)), axis=1)
            self._sizes += pearson(cells, self._partial_chances, plan.examples)
            self._partial_totals += cells.sum(axis=0)

    @property
    def _partial_chances(self) -> FloatArray:
        """Chances of the bins of the partial epoch, and of sitting it out."""
        bins = self._plan.bins
        return np.append(np.full(self._partial, 1 / bins), 1 - self._partial / bins)

    def _compare(self, places: NDArray[np.int32], first: NDArray[np.intp], second: NDArray[np.intp]) -> None:
        """Counts, for one realisation, neighbours who share a bin, and in what bins examples are in two epochs."""
        even = places.shape[0] // 2 * 2
        one_side, other_side = places[:even:2], places[1:even:2]
        present = (one_side >= 0) & (other_side >= 0)
        together = present & (one_side == other_side)
        self._pairs += int(present.sum())
        self._together += int(together.sum())
        self._twice_pairs += int((present[:, first] & present[:, second]).sum())
        self._twice_together += int((together[:, first] & together[:, second]).sum())
        before, after = places[:, first], places[:, second]
        both = (before >= 0) & (after >= 0)
        cells = self._group_of(before[both]) * self._groups + self._group_of(after[both])
        self._table += np.bincount(cells, minlength=self._table.size).reshape(self._table.shape)

    def _group_of(self, bins: NDArray[np.int32]) -> NDArray[np.int64]:
        return bins.astype(np.int64) * self._groups // self._plan.bins

    def findings(self) -> list[Finding]:
        """Returns the findings that follow from the counts."""
        plan, chance = self._plan, self._plan.truncation.per_batch
        value, mean, variance = self._sizes.tolist()
        words = "every example is in exactly one batch of every epoch"
        findings = [
            exact("batches structure", self._wrong, words),
            chi_square("batches sizes", value, mean, variance, "sizes vary as independent examples make them"),
            self._uniform(),
            chernoff(
                "batches truncation",
                self._overflows,
                self._realisations * plan.rounds,
                chance,
                f"batches overflow as predicted, with probability {chance:.2g} each",
            ),
        ]
        if plan.truncation.probability > RARE:
            return findings
        words = "neighbours share a bin as often as by chance (the statistic is the ratio)"
        findings.append(binomial("batches pairs", self._together, self._pairs, 1 / plan.bins, words))
        if self._whole < 2 or plan.bins == 1:
            return findings
        words = "neighbours share a bin in both of two epochs as often as by chance (the statistic is the ratio)"
        return [
            *findings,
            self._redraws(),
            binomial("batches company", self._twice_together, self._twice_pairs, 1 / plan.bins**2, words),
        ]

    def _uniform(self) -> Finding:
        plan = self._plan
        trials = self._realisations * plan.examples
        moments = np.array(pearson(self._totals[None], np.full(plan.bins, 1 / plan.bins), trials * self._whole))
        if self._partial:
            moments += pearson(self._partial_totals[None], self._partial_chances, trials)
        value, mean, variance = moments.tolist()
        return chi_square("batches uniformity", value, mean, variance, "all bins are equally likely")

    def _redraws(self) -> Finding:
        """Tests that the bins of two epochs are independent, on pairs of groups of bins."""
        sizes = np.bincount(self._group_of(np.arange(self._plan.bins, dtype=np.int32))) / self._plan.bins
        moments = pearson(self._table.reshape(1, -1), np.outer(sizes, sizes).ravel(), int(self._table.sum()))
        return chi_square("batches redraws", *moments, "the bin of an epoch says nothing about that of another")


def _epoch_pairs(realisation: int, epochs: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns epochs to be compared, and those with which; no epoch occurs twice.

    Every other realisation compares neighbours, (0, 1), (2, 3), ... and (1, 2), (3, 4), ... in turn; those between
    compare epochs 2, 3, ... apart, in turn.
    """
    turn = realisation // 2
    if realisation % 2 == 0 or epochs < 3:
        lag, offset = 1, turn % 2 if epochs > 2 else 0
    else:
        lag, offset = 2 + turn % (epochs - 2), 0
    candidates = np.arange(offset, epochs - lag)
    first = candidates[(candidates - offset) // lag % 2 == 0]
    return first, first + lag
