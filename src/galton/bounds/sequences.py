"""Confidence sequences: bounds that hold at all sample sizes at once, so that stopping early is valid.

Both work on X = V / R in [0, 1], in blocks whose bets are fixed from earlier blocks only (docs/math.md, section 2;
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize_scalar

from galton.errors import FloatArray, InvalidArgument, array, positive, probability

_FIRST_BLOCK = 128
_LARGEST_BLOCK = 1 << 14
_REMEMBERED = 1 << 14


def _blocks(values: FloatArray, seen: int) -> Iterator[FloatArray]:
    """Cuts incoming values into blocks that double in size as the sample grows."""
    start = 0
    while start < values.size:
        size = max(_FIRST_BLOCK, min(_LARGEST_BLOCK, 1 << max(0, (seen + start).bit_length() - 1)))
        yield values[start : start + size]
        start += size


class EmpiricalBernstein:
    """A one-sided confidence sequence for the mean that pays for the variance that is there, not for the range.

    With predictable bets l_i in (0, 1), running means m_i and psi(l) = -log(1-l) - l, the mean of X exceeds
    (sum l_i X_i + log(1/failure) + sum (X_i - m_(i-1))^2 psi(l_i)) / sum l_i at any time with probability at most
    `failure`; lower limits by symmetry. The first block is only looked at, so that the bets know the variance.

    Args:
      value_range: R.
      failure: probability with which the limit may ever be wrong.
      rel_width: relative half-width at which the user wants to stop: the bets are tuned for it.
      budget: samples the run may take at most, for the same purpose.
    """

    def __init__(self, value_range: float, failure: float, rel_width: float, budget: int) -> None:
        self.value_range = positive("value_range", value_range)
        self._log = -math.log(probability("failure", failure))
        self._rel_width, self._budget = positive("rel_width", rel_width), budget
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self._bets, self._bet_sum, self._penalty = 0.0, 0.0, 0.0

    @property
    def samples(self) -> int:
        """Samples seen."""
        return self._count

    @property
    def mean(self) -> float:
        """Plain mean of all samples seen."""
        return self._sum / max(self._count, 1) * self.value_range

    def add(self, values: FloatArray) -> None:
        """Takes in further samples of V."""
        for block in _blocks(values / self.value_range, self._count):
            if self._count:
                self._bet(block)
            self._count += block.size
            self._sum += float(block.sum())
            self._squares += float(block @ block)

    def _bet(self, block: FloatArray) -> None:
        mean = (self._sum + 0.5) / (self._count + 1)
        variance = (self._squares + 0.25) / (self._count + 1) - mean**2
        variance = max(variance, 1e-4 * mean)
        wanted = self._rel_width * mean / variance
        affordable = math.sqrt(2 * self._log / (variance * max(self._budget, self._count)))
        bet = min(0.75, max(wanted, affordable))
        self._bets += bet * block.size
        self._bet_sum += bet * float(block.sum())
        self._penalty += float(np.square(block - mean).sum()) * (-math.log1p(-bet) - bet)

    def upper(self) -> float:
        """Returns the upper limit now."""
        if not self._bets:
            return self.value_range
        limit = (self._bet_sum + self._log + self._penalty) / self._bets
        return min(limit * (1 + 1e-12), 1.0) * self.value_range

    def lower(self) -> float:
        """Returns the lower limit now."""
        if not self._bets:
            return 0.0
        limit = (self._bet_sum - self._log - self._penalty) / self._bets
        return max(limit * (1 - 1e-12), 0.0) * self.value_range


class BettingTest:
    """Tests claims "the mean is below c" by betting against the opposite: the capital proves the claim.

    If the mean were c or more, the capital prod(1 + l_i (c/R - X_i)) would be a supermartingale for any predictable
    bets 0 <= l_i < 1/(1 - c/R), and would ever reach 1/failure with probability at most `failure` (Ville). The
    bets are Kelly's for the samples seen so far and the smallest claim; the first block is only looked at. The same
    bets serve larger claims, whose capital is larger: together they give an upper limit.

    Args:
      claims: increasing, each in (0, R).
      value_range: R.
      failure: probability with which any claim may wrongly be proved, at any time.
    """

    def __init__(self, claims: FloatArray, value_range: float, failure: float) -> None:
        self.claims = array("claims", claims, 1)
        self.value_range = positive("value_range", value_range)
        if not (np.diff(self.claims) > 0).all() or not 0 < self.claims[0] < value_range:
            raise InvalidArgument("claims", self.claims.tolist(), f"must increase, from above 0 to below {value_range}")
        self._scaled = self.claims / value_range
        self._target = -math.log(probability("failure", failure))
        self._log_capital = np.zeros(self.claims.size)
        self._largest_bet = 0.99 / (1 - float(self._scaled[0]))
        self._hits, self._zeros = np.empty(0), 0
        self._proved = np.zeros(self.claims.size, bool)
        self._count, self._sum = 0, 0.0

    @property
    def samples(self) -> int:
        """Samples seen."""
        return self._count

    @property
    def mean(self) -> float:
        """Plain mean of all samples seen."""
        return self._sum / max(self._count, 1) * self.value_range

    @property
    def accepted(self) -> bool:
        """Whether the smallest claim has been proved."""
        return bool(self._proved[0])

    def upper(self) -> float:
        """Returns the smallest claim proved so far, or the range."""
        return float(self.claims[np.argmax(self._proved)]) if self._proved.any() else self.value_range

    def add(self, values: FloatArray) -> None:
        """Takes in further samples of V."""
        for block in _blocks(values / self.value_range, self._count):
            bet = self._kelly() if self._count else 0.0
            if bet > 0:
                self._log_capital += _log_growth(block, self._scaled, bet)
                self._proved |= self._log_capital > self._target + 1e-9
            self._count += block.size
            self._sum += float(block.sum())
            if self._hits.size < _REMEMBERED:
                hits = block[block > 0]
                self._hits = np.concatenate((self._hits, hits))
                self._zeros += block.size - hits.size

    def _kelly(self) -> float:
        """The bet that would have grown fastest so far, with half a sample of doubt at the top of the range."""
        claim = float(self._scaled[0])

        def loss(bet: float) -> float:
            growth = self._zeros * math.log1p(bet * claim) + float(np.log1p(bet * (claim - self._hits)).sum())
            return -growth - 0.5 * math.log1p(bet * (claim - 1))

        optimum = minimize_scalar(loss, bounds=(0.0, self._largest_bet), method="bounded", options={"xatol": 1e-4})
        return float(optimum.x) if optimum.fun < 0 else 0.0


def _log_growth(block: FloatArray, claims: FloatArray, bet: float) -> FloatArray:
    """sum log(1 + bet (claim - X)) for every claim; the many X = 0 are counted, not evaluated."""
    hits = block[block > 0]
    zeros = (block.size - hits.size) * np.log1p(bet * claims)
    return np.asarray(zeros + np.log1p(bet * (claims[:, None] - hits)).sum(axis=1))
