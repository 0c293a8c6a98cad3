"""Are the batches what was analysed? Every example where it belongs, and bins as independent throws make them."""

from __future__ import annotations

import numpy as np

from galton.accountants.attacks import period_of
from galton.audit.checks import Finding, binomial, chernoff, chi_square, exact, pearson
from galton.audit.participation import Ints, Participation
from galton.errors import FloatArray
from galton.plan.plan import Plan

RARE = 1e-6
"""Planned truncation below this probability does not disturb a test."""


class BatchTally:
    """Counts over all realisations of an audit, and what they say."""

    def __init__(self, plan: Plan) -> None:
        scheme = plan.scheme
        self._plan, self._cycle = plan, period_of(scheme)
        taken = scheme.sampling_probability
        self._coins = taken < 1
        rest = [1 - taken] if taken < 1 else []
        self._chances = np.array([taken / self._cycle] * self._cycle + rest)
        self._wrong, self._realisations, self._overflows = 0, 0, 0
        self._pearson, self._totals = np.zeros(3), np.zeros(self._chances.size)
        self._pairs, self._together = 0, 0
        self._often: Ints = np.zeros(plan.rounds + 1, np.int64)

    def add(self, seen: Participation) -> None:
        """Takes in more realisations."""
        self._realisations += seen.sizes.shape[0]
        places, counts = seen.places(self._cycle), seen.counts()
        self._wrong += self._violations(seen, places, counts)
        cells = self._cells(seen)
        self._pearson += pearson(cells, self._chances, self._plan.examples)
        self._totals += cells.sum(axis=0)
        self._overflows += int((seen.sizes[:, : self._cycle] > self._plan.padded_batch_size).sum())
        even = self._plan.examples // 2 * 2
        first, second = (places.reshape(-1, self._plan.examples)[:, start:even:2] for start in (0, 1))
        met = (first >= 0) & (second >= 0)
        self._pairs += int(met.sum())
        self._together += int((met & (first == second)).sum())
        self._often += np.bincount(counts, minlength=self._often.size)[: self._often.size]

    def _cells(self, seen: Participation) -> FloatArray:
        cells = seen.sizes[:, : self._cycle].astype(np.float64)
        if self._chances.size == self._cycle:
            return cells
        return np.concatenate((cells, seen.examples - cells.sum(axis=1, keepdims=True)), axis=1)

    def _violations(self, seen: Participation, places: Ints, counts: Ints) -> int:
        """How often something is not as it always must be."""
        kept = seen.sizes - seen.truncated
        cut = seen.truncated > 0
        wrong = int(not seen.in_order)
        size = self._plan.padded_batch_size
        wrong += int((kept > size).sum()) + int((cut & (kept < size)).sum())
        wrong += int((places[seen.member] != seen.turn % self._cycle).sum())
        wrong += seen.member.size - int(seen.matrix(np.arange(seen.total)).nnz)
        if self._coins:
            return wrong
        turns = np.arange(seen.rounds)
        wrong += int((seen.sizes != seen.sizes[:, turns % self._cycle]).sum())
        wrong += int((seen.sizes[:, : self._cycle].sum(axis=1) != seen.examples).sum())
        returns = np.bincount(turns % self._cycle, minlength=self._cycle)
        bins_cut = np.stack([cut[:, place :: self._cycle].any(axis=1) for place in range(self._cycle)], axis=1)
        owner = np.arange(seen.total) // seen.examples
        absent = np.asarray(places < 0)
        whole = np.asarray(~absent & ~bins_cut[owner, places])
        wrong += int((counts[whole] != returns[places[whole]]).sum())
        complete = np.asarray(~bins_cut.any(axis=1))
        return wrong + int((absent & complete[owner]).sum())

    def findings(self) -> list[Finding]:
        """Returns what the counts say."""
        plan, scheme = self._plan, self._plan.scheme
        where = "one group" if self._coins else "exactly one bin, the same one in every epoch"
        found = [exact("batches structure", self._wrong, f"every example is in {where}, and once in a batch at most")]
        if scheme.inclusion is None:
            return found
        chance, (value, mean, variance) = plan.truncation.per_batch, self._pearson.tolist()
        found += [
            chi_square("batches sizes", value, mean, variance, "sizes vary as independent examples make them"),
            self._uniform(),
            chernoff(
                "batches truncation",
                self._overflows,
                self._realisations * self._cycle,
                chance,
                f"batches overflow as predicted, with probability {chance:.2g} each",
            ),
        ]
        if plan.truncation.probability > RARE:
            return found
        if self._coins:
            return [*found, self._participations()]
        words = "neighbours share a bin as often as by chance (the statistic is the ratio)"
        return [*found, binomial("batches pairs", self._together, self._pairs, 1 / self._cycle, words)]

    def _uniform(self) -> Finding:
        trials = self._realisations * self._plan.examples
        value, mean, variance = pearson(self._totals[None], self._chances, trials)
        return chi_square("batches uniformity", value, mean, variance, "all bins are equally likely")

    def _participations(self) -> Finding:
        """How often examples take part, against the mixture of binomials over the groups."""
        scheme = self._plan.scheme
        returns = np.bincount(np.arange(scheme.rounds) % self._cycle, minlength=self._cycle)
        law = sum(_binomial_law(int(n), scheme.sampling_probability, self._often.size) for n in returns) / self._cycle
        trials = int(self._often.sum())
        common = law * trials >= 10
        observed, chances = self._often[common].astype(np.float64), np.asarray(law)[common]
        if chances.sum() < 1 - 1e-12:
            observed, chances = np.append(observed, trials - observed.sum()), np.append(chances, 1 - chances.sum())
        words = "examples take part as often as their coins say"
        return chi_square("batches participations", *pearson(observed[None], chances, trials), words)


def _binomial_law(trials: int, chance: float, size: int) -> FloatArray:
    from scipy.special import gammaln, xlog1py, xlogy

    ks = np.arange(trials + 1)
    logs = gammaln(trials + 1) - gammaln(ks + 1) - gammaln(trials - ks + 1)
    result = np.zeros(size)
    result[: trials + 1] = np.exp(logs + xlogy(ks, chance) + xlog1py(trials - ks, -chance))
    return result
