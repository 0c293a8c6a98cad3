"""Checks whether min-separation batches are as analysed: rests, waits, and a stationary start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from galton.audit.batch_checks import RARE, size_violations
from galton.audit.checks import Finding, binomial, chernoff, chi_square, exact, pearson
from galton.audit.participation import Participation
from galton.batching.laws import Renewal
from galton.errors import FloatArray
from galton.plan.plan import Plan

_LEAST_EXPECTED = 10
"""Expected number of examples in a cell of a test; rarer cells are joined."""
_NEVER = -1


class SeparationTally:
    """Counts over all realisations of an audit, and the findings that follow from them, for the law `Renewal`.

    Of every example, two numbers are tested, which are independent of each other and of other examples: the first
    round that it takes part in, and how long it then waits once it has rested.
    """

    def __init__(self, plan: Plan, law: Renewal) -> None:
        self._plan, self._law = plan, law
        self._early = min(law.separation, plan.rounds)  # no example is twice in these rounds
        self._sure = law.probability == 1  # bins drawn once: nothing is left to chance after the first round
        self._waits = 0 if self._sure else max(0, min(plan.rounds - 2 * law.separation, 2 * round(1 / law.probability)))
        self._wrong, self._realisations, self._overflows = 0, 0, 0
        self._sizes, self._totals = np.zeros(3), np.zeros(self._early_chances.size)
        self._firsts, self._waited = np.zeros(plan.rounds + 1), np.zeros(self._waits + 1)
        self._pairs, self._together, self._last = 0, 0, 0

    def add(self, participation: Participation) -> None:
        """Adds more realisations to the counts."""
        plan, rest = self._plan, self._law.separation
        self._realisations += participation.sizes.shape[0]
        order = np.lexsort((participation.turn, participation.member))
        member, turn = participation.member[order], participation.turn[order]
        again = member[1:] == member[:-1]
        self._wrong += size_violations(participation, plan.padded_batch_size)
        gaps = np.diff(turn)[again]
        self._wrong += int(((gaps != rest) if self._sure else (gaps < rest)).sum())
        cells = participation.sizes[:, : self._early].astype(np.float64)
        later = plan.examples - cells.sum(axis=1, keepdims=True)
        if self._early < plan.bins:
            cells = np.concatenate((cells, later), axis=1)
        else:
            self._wrong += int(np.abs(later).sum())
        self._sizes += pearson(cells, self._early_chances, plan.examples)
        self._totals += cells.sum(axis=0)
        self._overflows += int((participation.sizes[:, : self._early] > plan.padded_batch_size).sum())
        self._last += int(participation.sizes[:, -1].sum())
        begins = np.append(True, ~again) if member.size else np.zeros(0, bool)
        first = np.full(participation.total, _NEVER)
        first[member[begins]] = turn[begins]
        self._firsts += np.bincount(np.where(first == _NEVER, plan.rounds, first), minlength=plan.rounds + 1)
        self._compare(first)
        self._count_waits(member, turn, begins, first)

    def _compare(self, first: NDArray[np.int64]) -> None:
        """Counts neighbours who take part for the first time in the same round."""
        even = self._plan.examples // 2 * 2
        one_side, other_side = (first.reshape(-1, self._plan.examples)[:, start:even:2] for start in (0, 1))
        self._pairs += one_side.size
        self._together += int((one_side == other_side).sum())

    def _count_waits(
        self, member: NDArray[np.int64], turn: NDArray[np.int64], begins: NDArray[np.bool_], first: NDArray[np.int64]
    ) -> None:
        """Counts how long examples wait after their first rest, of those whose wait the run is long enough to see."""
        if not self._waits:
            return
        rest = self._law.separation
        watched = (first != _NEVER) & (first + rest + self._waits <= self._plan.rounds)
        second = np.full(first.size, self._plan.rounds)
        follows = np.flatnonzero(np.append(False, begins[:-1]) & ~begins) if member.size else np.zeros(0, np.int64)
        second[member[follows]] = turn[follows]
        waited = np.clip(second[watched] - first[watched] - rest, 0, self._waits)
        self._waited += np.bincount(waited, minlength=self._waits + 1)

    @property
    def _early_chances(self) -> FloatArray:
        """Chances of the first rounds, and of beginning later."""
        bins = self._plan.bins
        later = [1 - self._early / bins] if self._early < bins else []
        return np.array([1 / bins] * self._early + later)

    @property
    def _first_chances(self) -> FloatArray:
        """P(first round = k) = P(gap > k) / bins; and of never taking part."""
        late = np.maximum(np.arange(self._plan.rounds) - self._law.separation + 1, 0)
        chances = (1 - self._law.probability) ** late / self._plan.bins
        return np.append(chances, max(0.0, 1 - chances.sum()))

    def findings(self) -> list[Finding]:
        """Returns the findings that follow from the counts."""
        plan, overflow = self._plan, self._plan.truncation.per_batch
        trials = self._realisations * plan.examples
        words = f"nobody takes part again within {self._law.separation} rounds, or twice in a batch"
        value, mean, variance = self._sizes.tolist()
        findings = [
            exact("batches structure", self._wrong, words),
            chi_square("batches sizes", value, mean, variance, "sizes vary as independent examples make them"),
            chi_square(
                "batches start",
                *pearson(self._totals[None], self._early_chances, trials),
                "from the first round on all rounds are equally likely",
            ),
            chernoff(
                "batches truncation",
                self._overflows,
                self._realisations * self._early,
                overflow,
                f"batches overflow as predicted, with probability {overflow:.2g} each",
            ),
            binomial(
                "batches end", self._last, trials, 1 / plan.bins, "the last round is as likely as any (the ratio)"
            ),
        ]
        if plan.truncation.probability > RARE:
            return findings
        chances = self._first_chances
        words = "neighbours begin in the same round as often as by chance (the statistic is the ratio)"
        findings.append(binomial("batches pairs", self._together, self._pairs, float((chances**2).sum()), words))
        findings.append(_chi_square("batches firsts", self._firsts, chances, "first rounds come as analysed"))
        if self._waited.sum():
            chance = self._law.probability
            waits = chance * np.power(1 - chance, np.arange(self._waits, dtype=np.float64))
            waits = np.append(waits, max(0.0, 1 - float(waits.sum())))
            findings.append(_chi_square("batches waits", self._waited, waits, "after its rest an example takes coins"))
        return findings


def _chi_square(name: str, observed: FloatArray, chances: FloatArray, words: str) -> Finding:
    """Pearson's test, cells joined from the rarest on until all are common."""
    trials = int(observed.sum())
    order = np.argsort(chances)
    rare = int(np.searchsorted(np.cumsum(chances[order]) * trials, _LEAST_EXPECTED)) + 1
    joined = order[:rare] if chances[order[0]] * trials < _LEAST_EXPECTED else order[:0]
    common = np.setdiff1d(order, joined)
    cells, expected = observed[common], chances[common]
    if joined.size:
        cells, expected = np.append(cells, observed[joined].sum()), np.append(expected, chances[joined].sum())
    return chi_square(name, *pearson(cells[None], expected / expected.sum(), trials), words)
