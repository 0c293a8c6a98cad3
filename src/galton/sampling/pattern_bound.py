"""A bound on how strongly patterns can attract each other, which the range of the tilted sampler rests on.

Psi(l) = max over patterns s of log E_s' exp(l m_s . m_s') for modes m = C s + tail (docs/math.md, section 10.3). It is
convex in l, so that between two points where it is known the chord is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from galton.errors import FloatArray
from galton.redrawn import Reach
from galton.sampling.chords import Chords, Rays

_LARGEST = 500.0
"""Where l times an entry of the Gram matrix exceeds this, sums would underflow, and no bound is given."""
_FINE = 8
"""Bins next to the boundary of an epoch that are groups of their own; groups further away grow in proportion."""
_GROWTH = 1.2


def boundary_groups(bins: int, reach: int) -> NDArray[np.intp]:
    """Returns the group of each distance from the boundary of an epoch; all distances from `reach` on are one group."""
    groups = np.zeros(bins, np.intp)
    edge, group = 0, 0
    while edge < min(reach, bins):
        width = 1 if edge < _FINE else max(1, int(edge * (_GROWTH - 1)))
        groups[edge : edge + width] = group
        edge, group = edge + width, group + 1
    groups[reach:] = group
    return groups


def _group_maxima(rows: FloatArray, groups: NDArray[np.intp]) -> FloatArray:
    """The largest row of every group, entry by entry."""
    return np.stack([rows[groups == group].max(axis=0) for group in range(int(groups.max()) + 1)])


@dataclass(frozen=True, eq=False)
class FirstPattern:
    """A law of the first pattern of a tilt: prior times exp(sum of nodes and pairs).

    Attributes:
      nodes: (epochs, bins).
      pairs: (epochs - 1, bins, bins), of neighbouring epochs.
      log_bound: logarithm of a bound on its normaliser times its part of all F_l, over the density against the prior.
    """

    nodes: FloatArray
    pairs: FloatArray
    log_bound: float


class PatternBound(Chords):
    """Upper bounds on Psi for one C."""

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        self.reach = reach

    def at_points(self, points: FloatArray) -> FloatArray:
        return np.array([self.largest(float(point)) for point in points])

    @cached_property
    def in_field(self) -> Rays:
        """Bounds on the same where s' is attracted by the average mode, too: by (share * l, l) in the place of l."""
        return Rays(lambda share, points: np.array([self.largest(share * float(at), float(at)) for at in points]))

    @cached_property
    def _largest_entry(self) -> float:
        reach = self.reach
        return float(max(reach.energies.max() + reach.tail_products.max(), reach.tail_energy, 1e-300))

    @cached_property
    def _before(self) -> NDArray[np.intp]:
        """The group of each bin by its effect on the next epoch, 0 being that of the last bin."""
        touching = np.flatnonzero(self.reach.overlap.any(axis=(0, 2)))
        reach = self.reach.bins - int(touching[0]) if touching.size else 0
        return boundary_groups(self.reach.bins, reach)[::-1]

    @cached_property
    def _after(self) -> NDArray[np.intp]:
        """The group of each bin by its effect on the epoch before, 0 being that of the first bin."""
        touching = np.flatnonzero(self.reach.overlap.any(axis=(0, 1)))
        return boundary_groups(self.reach.bins, int(touching[-1]) + 1 if touching.size else 0)

    def _log_means(self, strength: float, epoch: int, field: float = 0.0) -> FloatArray:
        """log E exp(strength * products) in one epoch, by groups of the bins before and after, and its own bin.

        The bins of s' are attracted by the average mode, too, `field` times.
        """
        reach = self.reach
        left = right = np.ones((1, reach.bins))
        if epoch:
            left = np.exp(strength * _group_maxima(reach.overlap[epoch - 1], self._before))
        if epoch + 1 < reach.epochs:
            right = np.exp(strength * _group_maxima(reach.overlap[epoch].T, self._after))
        own = np.exp(strength * (reach.gram[epoch] + reach.tail_products[epoch]))
        outer = (left[:, None] * right[None]).reshape(-1, reach.bins)
        if field:
            outer = outer * np.exp(field * reach.mean_products[epoch])
        with np.errstate(over="ignore"):  # infinity is a bound
            means = (outer @ own.T).reshape(left.shape[0], right.shape[0], reach.bins) / reach.bins
        return np.log(means)

    def _largest_sum(self, terms: Iterable[FloatArray]) -> float:
        """The largest sum, over patterns, of terms of the epochs as `_log_means` has them: dynamic programming."""
        best = np.zeros((1, int(self._after.max()) + 1))  # so far: by groups of the last bin, and of the one to come
        for term in terms:
            earlier = best[:, self._after].T  # by bin, and by group of the bin before
            best = _group_maxima((earlier[:, :, None] + term.transpose(2, 0, 1)).max(axis=1), self._before)
        return float(best.max())

    def largest(self, strength: float, field: float = 0.0) -> float:
        """Returns a bound on Psi at one point by dynamic programming over the bins of neighbouring epochs.

        The average over s' splits into epochs, each of which depends on the bins of s in three epochs. The two outer
        ones enter by groups: their effects are replaced by the largest of the group, entry by entry. That s' is
        attracted by `field` times the average mode, too, is a factor for each of its bins.
        """
        reach = self.reach
        if strength * self._largest_entry > _LARGEST or field * float(reach.mean_products.max()) > _LARGEST:
            return math.inf
        bound = self._largest_sum(
            self._log_means(strength, epoch, field) + strength * reach.tail_products[epoch]
            for epoch in range(reach.epochs)
        )
        bound += strength * reach.tail_energy + field * reach.tail_along_mean
        return bound + 1e-9 * (1 + abs(bound))

    def first_pattern(self, square: float, order: int, field: float = 0.0) -> FirstPattern:
        """Returns a law of the first pattern under which its share of the range is nearly the same for all patterns.

        Args:
          square: of the noise multiplier.
          order: of the tilt.
          field: how often the average mode attracts every pattern; then prior times that attraction is the prior here.
        """
        reach = self.reach
        strengths = np.arange(1, order + 1) / square
        if max(strengths[-1] * self._largest_entry, field * float(reach.mean_products.max())) > _LARGEST:
            return FirstPattern(np.zeros((0, 0)), np.zeros((0, 0, 0)), math.inf)
        nodes = np.zeros((reach.epochs, reach.bins))
        pairs = np.zeros((max(0, reach.epochs - 1), reach.bins, reach.bins))
        excesses = []
        for epoch in range(reach.epochs):
            means = (self._log_means(strength, epoch, field) for strength in strengths)
            term = sum(mean / (1 + index) for index, mean in enumerate(means))
            term = term + order / square * reach.tail_products[epoch]
            alone, before, after = term[-1, -1], term[:, -1], term[-1]
            nodes[epoch] = alone
            if epoch:
                pairs[epoch - 1] += (before - alone)[self._before]
            if epoch + 1 < reach.epochs:
                pairs[epoch] += (after - alone)[self._after].T
            excesses.append(term - before[:, None] - after[None] + alone)
        bound = self._largest_sum(excesses) + order / square * reach.tail_energy
        total, ahead = 0.0, np.zeros(reach.bins)
        for epoch in range(reach.epochs - 1, -1, -1):
            fields = nodes[epoch] + field * reach.mean_products[epoch] + ahead
            peak = float(fields.max())
            total = peak + math.log(float(np.exp(fields - peak).mean()))
            if not epoch:
                break
            ahead = pairs[epoch - 1] + fields
            peaks = ahead.max(axis=1)
            ahead = peaks + np.log(np.exp(ahead - peaks[:, None]).mean(axis=1))
        tails = 1 + float((1 / np.arange(1, order + 1)).sum())  # of the law, and of every factor
        bound += total + tails * field * reach.tail_along_mean
        return FirstPattern(nodes, pairs, bound + 1e-8 * (1 + abs(bound)))
