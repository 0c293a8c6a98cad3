"""A fixed number of samples behind the same interface as the confidence sequences."""

from __future__ import annotations

from galton.bounds.exponents import Bound
from galton.bounds.samples import checked
from galton.errors import FloatArray, positive, probability


class FixedSample:
    """Limits by a fixed-sample bound: valid only if the number of samples was fixed beforehand."""

    def __init__(self, bound: Bound, value_range: float, failure: float) -> None:
        self._bound = bound
        self.value_range = positive("value_range", value_range)
        self._failure = probability("failure", failure)
        self._count, self._sum = 0, 0.0

    @property
    def samples(self) -> int:
        """Samples seen."""
        return self._count

    @property
    def mean(self) -> float:
        """Mean of all samples seen."""
        return self._sum / max(self._count, 1)

    def add(self, values: FloatArray) -> None:
        """Takes in further samples.

        Args:
          values: samples of V, each in [0, R].
        """
        self._count += values.size
        self._sum += float(checked(values, self.value_range).sum())

    def upper(self) -> float:
        """Returns the upper limit."""
        mean = min(self.mean * (1 + 1e-12), self.value_range)
        return self._bound.upper(mean, self._count, self._failure, self.value_range)

    def lower(self) -> float:
        """Returns the lower limit."""
        mean = min(self.mean * (1 - 1e-12), self.value_range)
        return self._bound.lower(mean, self._count, self._failure, self.value_range)
