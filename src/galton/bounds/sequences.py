"""Confidence sequences: bounds that hold at all sample sizes at once, so that stopping early is valid.

Both work on X = V / R in [0, 1], in blocks whose bets are fixed from earlier blocks only (docs/math.md, section 2;
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize_scalar

from galton.bounds.samples import checked
from galton.errors import FloatArray, InvalidArgument, array, positive, probability
from galton.typechecking import typechecked

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


@typechecked
class EmpiricalBernstein:
    """Limits on the mean of samples in [0, R] that hold at all sample sizes at once: stop whenever you like.

    Their width depends on the variance of the samples rather than on the range.

    Formal guarantee: for independent samples, the upper limit is ever below the mean with probability at most
    `failure`, and the lower limit is ever above it with probability at most `failure`. With predictable bets l_i in
    (0, 1), running means m_i and psi(l) = -log(1-l) - l, the upper limit on the mean of X = V / R is
    (sum l_i X_i + log(1/failure) + sum (X_i - m_(i-1))^2 psi(l_i)) / sum l_i; the lower limit mirrors it. Nothing is
    bet on the first block, which only gives a first idea of the variance.

    Args:
      value_range: R.
      failure: probability with which each of the two limits may ever be wrong.
      rel_width: relative half-width at which you want to stop; the bets are tuned for it.
      budget: the most samples that you may take; the bets are tuned for it too.

    Example:
      >>> import numpy as np
      >>> limits = EmpiricalBernstein(value_range=1.0, failure=1e-3, rel_width=0.05, budget=10_000)
      >>> limits.add(np.random.default_rng(0).random(10_000))
      >>> 0.45 < limits.lower() < 0.5 < limits.upper() < 0.55
      True
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
        """Mean of all samples seen."""
        return self._sum / max(self._count, 1) * self.value_range

    def add(self, values: FloatArray) -> None:
        """Takes in further samples.

        Args:
          values: samples of V, each in [0, R].
        """
        for block in _blocks(checked(values, self.value_range) / self.value_range, self._count):
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
        """Returns the present upper limit."""
        if not self._bets:
            return self.value_range
        limit = (self._bet_sum + self._log + self._penalty) / self._bets
        return min(limit * (1 + 1e-12), 1.0) * self.value_range

    def lower(self) -> float:
        """Returns the present lower limit."""
        if not self._bets:
            return 0.0
        limit = (self._bet_sum - self._log - self._penalty) / self._bets
        return max(limit * (1 - 1e-12), 0.0) * self.value_range


@typechecked
class BettingTest:
    """Tests the claims "the mean is below c" on samples in [0, R], valid at all sample sizes at once.

    Formal guarantee: for independent samples, the probability that any false claim is ever proved is at most
    `failure`. If the mean were c or more, the capital prod(1 + l_i (c/R - X_i)), X = V / R, would be a supermartingale
    for any predictable bets 0 <= l_i < 1/(1 - c/R), and would ever reach 1/failure with probability at most `failure`
    (Ville). All claims share the same bets, so that larger claims have more capital; together they give an upper
    limit.

    The bets are Kelly's for the samples seen so far and the smallest claim. Nothing is bet on the first block.

    Args:
      claims: values of c, increasing, each in (0, R).
      value_range: R.
      failure: probability with which any claim may ever be proved wrongly.

    Example:
      >>> import numpy as np
      >>> test = BettingTest(np.array([0.55, 0.6]), value_range=1.0, failure=1e-3)
      >>> test.add(np.random.default_rng(0).random(10_000))
      >>> test.accepted, test.upper()
      (True, 0.55)
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
        """Mean of all samples seen."""
        return self._sum / max(self._count, 1) * self.value_range

    @property
    def accepted(self) -> bool:
        """Whether the smallest claim has been proved."""
        return bool(self._proved[0])

    def upper(self) -> float:
        """Returns the smallest claim proved so far, or R if none is."""
        return float(self.claims[np.argmax(self._proved)]) if self._proved.any() else self.value_range

    def add(self, values: FloatArray) -> None:
        """Takes in further samples.

        Args:
          values: samples of V, each in [0, R].
        """
        for block in _blocks(checked(values, self.value_range) / self.value_range, self._count):
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
    """sum log(1 + bet (claim - X)) for every claim; the many X = 0 are counted rather than evaluated."""
    hits = block[block > 0]
    zeros = (block.size - hits.size) * np.log1p(bet * claims)
    return np.asarray(zeros + np.log1p(bet * (claims[:, None] - hits)).sum(axis=1))
