"""Fixed-sample bounds for independent 0 <= V <= R with mean delta, each by two exponents (docs/math.md, section 2).

Everything is in units of the range: q = observed mean / R, p = true mean / R. `below(q, p)` is the rate x such that
Pr[observed <= q] <= exp(-s x) when the truth is p >= q; `above(q, p)` the rate for observing at least q when the
truth is p <= q. A bound is only valid for a number of samples fixed beforehand: its value must not decide when to stop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from galton.errors import InvalidArgument, count, non_negative, positive, probability


class Bound(ABC):
    """A fixed-sample bound in all its uses: failure probability, required samples, confidence limits."""

    name: ClassVar[str]

    @abstractmethod
    def below(self, q: float, p: float) -> float:
        """Rate of seeing at most q when the truth is p >= q.

        Args:
          q: the observed mean, as a share of the range.
          p: the true mean, likewise.

        Returns:
          x with Pr[mean of s values <= q] <= e^(-s x).
        """

    @abstractmethod
    def above(self, q: float, p: float) -> float:
        """Rate of seeing at least q when the truth is p <= q.

        Args:
          q: the observed mean, as a share of the range.
          p: the true mean, likewise.

        Returns:
          x with Pr[mean of s values >= q] <= e^(-s x).
        """

    def failure_probability(self, mean: float, claim: float, samples: int, value_range: float = 1.0) -> float:
        """Returns a bound on the probability that the mean of `samples` values is at most `mean`.

        Args:
          mean: the observed mean.
          claim: the true mean is at least this.
          samples: number of samples, fixed beforehand.
          value_range: R.
        """
        q, p = _in_units_of_range(mean, claim, value_range)
        return math.exp(-count("samples", samples) * self.below(q, p))

    def samples_needed(self, mean: float, claim: float, failure: float, value_range: float = 1.0) -> int:
        """Returns how many samples make an observed `mean` prove that the true mean is below `claim`.

        Args:
          mean: the observed mean.
          claim: what is to be proved; above `mean`.
          failure: probability with which a false claim may be proved.
          value_range: R.
        """
        q, p = _in_units_of_range(mean, claim, value_range)
        rate = self.below(q, p)
        if not rate > 0:
            raise InvalidArgument("claim", claim, f"must be above the mean {mean}: no number of samples proves it")
        return max(1, math.ceil(-math.log(probability("failure", failure)) / rate))

    def upper(self, mean: float, samples: int, failure: float, value_range: float = 1.0) -> float:
        """Returns an upper confidence limit on the mean: below the truth with probability at most `failure`.

        Args:
          mean: the observed mean.
          samples: number of samples, fixed beforehand.
          failure: probability with which the limit may be wrong.
          value_range: R.
        """
        q, _ = _in_units_of_range(mean, value_range, value_range)
        target = -math.log(probability("failure", failure)) / count("samples", samples)
        if not self.below(q, 1.0) > target:
            return value_range
        low, high = q, 1.0
        for _ in range(200):
            middle = _midpoint(low, high)
            if self.below(q, middle) > target:
                high = middle
            else:
                low = middle
        return min(high * value_range * (1 + 1e-14), value_range)

    def lower(self, mean: float, samples: int, failure: float, value_range: float = 1.0) -> float:
        """Returns a lower confidence limit on the mean: above the truth with probability at most `failure`.

        Args:
          mean: the observed mean.
          samples: number of samples, fixed beforehand.
          failure: probability with which the limit may be wrong.
          value_range: R.
        """
        q, _ = _in_units_of_range(mean, value_range, value_range)
        target = -math.log(probability("failure", failure)) / count("samples", samples)
        if q == 0 or not self.above(q, 0.0) > target:
            return 0.0
        low, high = 0.0, q
        for _ in range(200):
            middle = _midpoint(low, high)
            if self.above(q, middle) > target:
                low = middle
            else:
                high = middle
        return low * value_range * (1 - 1e-14)


class Bernstein(Bound):
    """The bound of the paper: Bernstein's inequality with variance at most R * mean."""

    name = "bernstein"

    def below(self, q: float, p: float) -> float:
        return _ratio_or_zero((p - q) ** 2, 8 * p / 3 - 2 * q / 3)

    def above(self, q: float, p: float) -> float:
        return _ratio_or_zero((q - p) ** 2, 4 * p / 3 + 2 * q / 3)


class OneSided(Bound):
    """Uses only V >= 0 and E V^2 <= R E V for the upper limit; always sharper than Bernstein there.

    No such shortcut exists for the lower limit, which is Bernstein's.
    """

    name = "one-sided"

    def below(self, q: float, p: float) -> float:
        return _ratio_or_zero((p - q) ** 2, 2 * p)

    def above(self, q: float, p: float) -> float:
        return _ratio_or_zero((q - p) ** 2, 4 * p / 3 + 2 * q / 3)


class ChernoffKL(Bound):
    """Chernoff's bound with the Bernoulli relative entropy: the sharpest that knows only the range."""

    name = "kl"

    def below(self, q: float, p: float) -> float:
        return _relative_entropy(q, p)

    def above(self, q: float, p: float) -> float:
        return _relative_entropy(q, p)


BOUNDS: dict[str, Bound] = {bound.name: bound for bound in (ChernoffKL(), OneSided(), Bernstein())}
"""The fixed-sample bounds by name, the sharpest first.

Example:
  >>> from galton import BOUNDS
  >>> needed = {name: bound.samples_needed(0.9e-5, claim=1e-5, failure=1e-8) for name, bound in BOUNDS.items()}
  >>> {name: samples // 10**6 for name, samples in needed.items()}  # in millions, for values up to 1
  {'kl': 355, 'one-sided': 368, 'bernstein': 380}
"""


def _relative_entropy(q: float, p: float) -> float:
    if p <= 0:
        return 0.0 if q <= 0 else math.inf
    if p >= 1:
        return 0.0 if q >= 1 else math.inf
    first = q * math.log(q / p) if q > 0 else 0.0
    second = (1 - q) * (math.log1p(-q) - math.log1p(-p)) if q < 1 else 0.0
    return max(first + second, 0.0)


def _ratio_or_zero(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


def _midpoint(low: float, high: float) -> float:
    """The geometric mean where the interval spans orders of magnitude, else the arithmetic mean."""
    if low > 0 and high > 2 * low:
        return math.sqrt(low) * math.sqrt(high)
    if low == 0 and high > 1e-290:
        return high * 0.0625
    return (low + high) / 2


def _in_units_of_range(mean: float, claim: float, value_range: float) -> tuple[float, float]:
    positive("value_range", value_range)
    non_negative("mean", mean)
    positive("claim", claim)
    if mean > value_range * (1 + 1e-9):
        raise InvalidArgument("mean", mean, f"must not exceed the range {value_range}")
    mean = min(mean, value_range)
    if claim > value_range or claim < mean:
        raise InvalidArgument("claim", claim, f"must lie between the mean {mean} and the range {value_range}")
    return mean / value_range, claim / value_range
