"""Checks whether batches are as analysed: every example where it belongs, bins independent and uniform."""

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
    """Counts over all realisations of an audit, and the findings that follow from them."""

    def __init__(self, plan: Plan) -> None:
        scheme = plan.scheme
        self._plan, self._cycle = plan, period_of(scheme)
        probability = scheme.sampling_probability
        self._coins = probability < 1
        rest = [1 - probability] if probability < 1 else []
        self._chances = np.array([probability / self._cycle] * self._cycle + rest)
        self._wrong, self._realisations, self._overflows = 0, 0, 0
        self._pearson, self._totals = np.zeros(3), np.zeros(self._chances.size)
        self._pairs, self._together = 0, 0
        self._times: Ints = np.zeros(plan.rounds + 1, np.int64)

    def add(self, participation: Participation) -> None:
        """Adds more realisations to the counts."""
        self._realisations += participation.sizes.shape[0]
        places, counts = participation.places(self._cycle), participation.counts()
        self._wrong += self._violations(participation, places, counts)
        cells = self._cells(participation)
        self._pearson += pearson(cells, self._chances, self._plan.examples)
        self._totals += cells.sum(axis=0)
        self._overflows += int((participation.sizes[:, : self._cycle] > self._plan.padded_batch_size).sum())
        even = self._plan.examples // 2 * 2
        first, second = (places.reshape(-1, self._plan.examples)[:, start:even:2] for start in (0, 1))
        both_present = (first >= 0) & (second >= 0)
        self._pairs += int(both_present.sum())
        self._together += int((both_present & (first == second)).sum())
        self._times += np.bincount(counts, minlength=self._times.size)[: self._times.size]

    def _cells(self, participation: Participation) -> FloatArray:
        cells = participation.sizes[:, : self._cycle].astype(np.float64)
        if self._chances.size == self._cycle:
            return cells
        return np.concatenate((cells, participation.examples - cells.sum(axis=1, keepdims=True)), axis=1)

    def _violations(self, participation: Participation, places: Ints, counts: Ints) -> int:
        """Returns how often a property that must always hold does not."""
        cut = participation.truncated > 0
        violations = size_violations(participation, self._plan.padded_batch_size)
        violations += int((places[participation.member] != participation.turn % self._cycle).sum())
        violations += participation.member.size - int(participation.matrix(np.arange(participation.total)).nnz)
        if self._coins:
            return violations
        turns = np.arange(participation.rounds)
        violations += int((participation.sizes != participation.sizes[:, turns % self._cycle]).sum())
        violations += int((participation.sizes[:, : self._cycle].sum(axis=1) != participation.examples).sum())
        returns = np.bincount(turns % self._cycle, minlength=self._cycle)
        bins_cut = np.stack([cut[:, place :: self._cycle].any(axis=1) for place in range(self._cycle)], axis=1)
        owner = np.arange(participation.total) // participation.examples
        absent = np.asarray(places < 0)
        whole = np.asarray(~absent & ~bins_cut[owner, places])
        violations += int((counts[whole] != returns[places[whole]]).sum())
        complete = np.asarray(~bins_cut.any(axis=1))
        return violations + int((absent & complete[owner]).sum())

    def findings(self) -> list[Finding]:
        """Returns the findings that follow from the counts."""
        plan, scheme = self._plan, self._plan.scheme
        where = "one group" if self._coins else "exactly one bin, the same one in every epoch"
        words = f"every example is in {where}, and once in a batch at most"
        findings = [exact("batches structure", self._wrong, words)]
        if scheme.inclusion is None:
            return findings
        chance, (value, mean, variance) = plan.truncation.per_batch, self._pearson.tolist()
        findings += [
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
            return findings
        if self._coins:
            return [*findings, self._participations()]
        words = "neighbours share a bin as often as by chance (the statistic is the ratio)"
        return [*findings, binomial("batches pairs", self._together, self._pairs, 1 / self._cycle, words)]

    def _uniform(self) -> Finding:
        trials = self._realisations * self._plan.examples
        value, mean, variance = pearson(self._totals[None], self._chances, trials)
        return chi_square("batches uniformity", value, mean, variance, "all bins are equally likely")

    def _participations(self) -> Finding:
        """Tests how often examples take part, against the mixture of binomials over the groups."""
        scheme = self._plan.scheme
        returns = np.bincount(np.arange(scheme.rounds) % self._cycle, minlength=self._cycle)
        law = sum(_binomial_law(int(n), scheme.sampling_probability, self._times.size) for n in returns) / self._cycle
        trials = int(self._times.sum())
        common = law * trials >= 10
        observed, chances = self._times[common].astype(np.float64), np.asarray(law)[common]
        if chances.sum() < 1 - 1e-12:
            observed, chances = np.append(observed, trials - observed.sum()), np.append(chances, 1 - chances.sum())
        words = "examples take part as often as their coins say"
        return chi_square("batches participations", *pearson(observed[None], chances, trials), words)


def size_violations(participation: Participation, padded_batch_size: int) -> int:
    """Returns how often a batch is out of order, larger than its padded size, or cut although it would have fitted."""
    kept = participation.sizes - participation.truncated
    violations = int(not participation.in_order) + int((kept > padded_batch_size).sum())
    return violations + int(((participation.truncated > 0) & (kept < padded_batch_size)).sum())


def _binomial_law(trials: int, chance: float, size: int) -> FloatArray:
    from scipy.special import gammaln, xlog1py, xlogy

    ks = np.arange(trials + 1)
    logs = gammaln(trials + 1) - gammaln(ks + 1) - gammaln(trials - ks + 1)
    result = np.zeros(size)
    result[: trials + 1] = np.exp(logs + xlogy(ks, chance) + xlog1py(trials - ks, -chance))
    return result
