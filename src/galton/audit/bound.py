"""A lower confidence bound on epsilon from counts of right and wrong guesses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv

from galton.errors import FloatArray

CANDIDATES = 256
"""Number of thresholds that are compared."""
PILOT = 10
"""One trial in this many serves to choose a test, and does not count."""


@dataclass(frozen=True)
class Limit:
    """The lower bound on epsilon that the guesses of one test prove, at one delta.

    Attributes:
      delta: of the bound.
      epsilon_lower: epsilon at this delta, and at any smaller one, is at least this.
      direction: which of the two data sets the test is to recognise, a value of `Direction`.
      threshold: the test recognises it if the log ratio is above this.
      hits: how often it recognised that data set.
      hit_trials: trials with that data set.
      errors: how often it took the other data set for it.
      error_trials: trials with the other data set.
    """

    delta: float
    epsilon_lower: float
    direction: str
    threshold: float
    hits: int
    hit_trials: int
    errors: int
    error_trials: int


def rate_lower(successes: FloatArray | float, trials: int, failure: float) -> FloatArray:
    """Clopper and Pearson's lower limit on a probability."""
    counts = np.asarray(successes, np.float64)
    return np.where(counts > 0, betaincinv(np.maximum(counts, 1e-300), trials - counts + 1, failure), 0.0)


def rate_upper(successes: FloatArray | float, trials: int, failure: float) -> FloatArray:
    """Clopper and Pearson's upper limit on a probability."""
    counts = np.asarray(successes, np.float64)
    return np.where(counts < trials, betainccinv(counts + 1, np.maximum(trials - counts, 1e-300), failure), 1.0)


def epsilon_from_rates(
    hits: FloatArray | float,
    hit_trials: int,
    errors: FloatArray | float,
    error_trials: int,
    delta: float,
    failure: float,
) -> FloatArray:
    """Returns log((p - delta) / q) with p at its lower and q at its upper limit, at least 0.

    Formal guarantee: for trials that are independent and a test fixed beforehand, P(S) <= e^eps Q(S) + delta; so this
    exceeds epsilon with probability at most 2 * failure.
    """
    gain = rate_lower(hits, hit_trials, failure) - delta
    wrong = rate_upper(errors, error_trials, failure)
    return np.where(gain > wrong, np.log(np.maximum(gain, 1e-300) / wrong), 0.0)


@dataclass(frozen=True)
class Design:
    """The setting for which a test is chosen.

    Attributes:
      delta: where epsilon is wanted.
      hit_trials, error_trials: how many trials will count.
      failure: probability that either rate's limit may be wrong.
    """

    delta: float
    hit_trials: int
    error_trials: int
    failure: float

    def best(self, thresholds: FloatArray, hit_rates: FloatArray, error_rates: FloatArray) -> float:
        """Returns the threshold that would prove most, if these were the rates."""
        hits, errors = hit_rates * self.hit_trials, np.minimum(error_rates, 1.0) * self.error_trials
        proved = epsilon_from_rates(hits, self.hit_trials, errors, self.error_trials, self.delta, self.failure)
        return float(thresholds[int(np.argmax(proved))])


def modelled_threshold(design: Design, expected: FloatArray) -> float:
    """Chooses by a sample of the log ratio from the accountant's model; errors by Q(L > t) = E_P[e^-L; L > t]."""
    ordered = np.sort(expected)[::-1]
    weight = np.cumsum(np.exp(np.minimum(-ordered, 50.0))) / ordered.size
    ranks = _ranks(ordered.size)
    return design.best(ordered[ranks], ranks / ordered.size, weight[ranks - 1])


def observed_threshold(design: Design, first: FloatArray, second: FloatArray) -> float:
    """Chooses by trials, which must not count afterwards: what really runs may not be what was analysed."""
    ordered, other = np.sort(first)[::-1], np.sort(second)
    ranks = _ranks(ordered.size)
    above = other.size - np.searchsorted(other, ordered[ranks], side="right")
    return design.best(ordered[ranks], ranks / ordered.size, (above + 1) / other.size)


def _ranks(size: int) -> NDArray[np.int64]:
    return np.unique(np.geomspace(1, max(1, size - 1), CANDIDATES).astype(np.int64))


def limit(
    direction: str, first: FloatArray, second: FloatArray, expected: FloatArray, delta: float, failure: float
) -> Limit:
    """Bounds epsilon in one direction, by the better of two tests.

    Args:
      direction: its name.
      first, second: log of the ratio of first to second, in trials of either; a tenth of them chooses a test and does
        not count.
      expected: the same by the accountant's model, under the first.
      delta: where.
      failure: probability that the bound is wrong.
    """
    pilots = first.size // PILOT, second.size // PILOT
    left, right = first[pilots[0] :], second[pilots[1] :]
    design = Design(delta, left.size, right.size, failure / 4)
    thresholds = {modelled_threshold(design, expected)}
    if min(pilots) > 1:
        thresholds.add(observed_threshold(design, first[: pilots[0]], second[: pilots[1]]))
    limits = (_limit_at(threshold, direction, left, right, design) for threshold in thresholds)
    return max(limits, key=lambda proved: proved.epsilon_lower)


def _limit_at(threshold: float, direction: str, first: FloatArray, second: FloatArray, design: Design) -> Limit:
    """Counts how often the log ratio is above the threshold, and says what that proves."""
    hits, errors = int((first > threshold).sum()), int((second > threshold).sum())
    proved = float(epsilon_from_rates(hits, first.size, errors, second.size, design.delta, design.failure))
    return Limit(design.delta, proved, direction, threshold, hits, first.size, errors, second.size)


def visible_delta(delta: float, trials: int, least: int = 200) -> float:
    """Returns `delta`, or the next larger number 1, 2 or 5 times a power of ten that so many trials can resolve."""
    if delta * trials >= least:
        return delta
    power = 10.0 ** math.floor(math.log10(least / trials))
    return max(delta, min(0.1, next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power * trials >= least)))
