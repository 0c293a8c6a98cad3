"""Tuning: a search, of which a random number of runs is made and the best released (docs/math.md, section 13.4)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from galton.accounting.limits import Limits
from galton.errors import InvalidArgument, positive, real
from galton.fields import Fields
from galton.typechecking import typechecked

_MOST_RUNS = 1e6
_UP = 1 + 1e-9
"""Factor by which rounded numbers are raised."""
_LEFT_OUT = (0.0, 0.02, 0.2)
"""Of a Poisson number of runs: shares of delta for which the best may be one that hardly ever is."""


@typechecked
@dataclass(frozen=True)
class Tuning:
    """A search: independent runs by one plan, of which the best is kept.

    Every run draws its hyperparameters afresh from one distribution that is public, the same for all runs, with
    replacement: uniformly from a list, say. A grid in a fixed order, or every point once, is not covered.

    The number of runs is random and has to be drawn by `draw`, once and before the first run. Only the best run is
    released, and nothing is told of the others, their number included. Which is best may depend on nothing but what the
    runs release: score them on other data, or make the score part of the run and of its privacy.

    Args:
      mean: expected number of runs.
      shape: of a truncated negative binomial distribution, above -1: 1 is geometric, 0 logarithmic, None Poisson.
        Smaller shapes cost less epsilon and make the number of runs vary more. A Poisson number may be 0.

    >>> print(Tuning(20.0, 1.0))
    geometric:mean=20
    """

    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        positive("mean", self.mean)
        if self.mean > _MOST_RUNS:
            raise InvalidArgument("mean", self.mean, f"must be at most {_MOST_RUNS:g}")
        if self.shape is not None and not real("shape", self.shape) > -1:
            raise InvalidArgument("shape", self.shape, "must be above -1")
        if self.shape is not None and not self.mean > 1.001:
            raise InvalidArgument("mean", self.mean, "must be above 1.001: there is at least one run")
        if self.shape is not None and not math.isclose(self._mean_at(self.gamma), self.mean, rel_tol=1e-6):
            raise InvalidArgument("mean", self.mean, f"is out of reach of shape {self.shape:g}; take a larger shape")

    def __str__(self) -> str:
        if self.shape is None:
            return f"poisson:mean={self.mean:g}"
        if self.shape == 1:
            return f"geometric:mean={self.mean:g}"
        return f"negative-binomial:mean={self.mean:g},shape={self.shape:g}"

    @property
    def gamma(self) -> float:
        """The other parameter of a negative binomial distribution, by its mean; below 1."""
        low, high = 1e-12, 1.0 - 1e-9  # the mean falls in gamma
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._mean_at(middle) > self.mean else (low, middle)
        return high

    def _mean_at(self, gamma: float) -> float:
        shape = self.shape or 0.0
        if abs(shape) < 1e-6:
            return (1 / gamma - 1) / math.log(1 / gamma)
        return shape * (1 - gamma) / gamma / -math.expm1(shape * math.log(gamma))

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {"mean": self.mean, "shape": self.shape}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Tuning:
        """Rebuilds it from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The tuning.
        """
        body = Fields("tuning", value, cls)
        return cls(body.real("mean"), body.real_or_none("shape", -1.0))

    def draw(self) -> int:
        """Returns a number of runs, from the random numbers of the operating system.

        Returns:
          The number; keep it secret, and do not draw again.
        """
        level, generator = 0.0, random.SystemRandom()
        uniform = generator.random()
        if self.shape is None:
            runs, mass = 0, math.exp(-self.mean)
            if mass == 0.0:
                raise InvalidArgument("mean", self.mean, "must be at most 700 for a Poisson number of runs")
            while level + mass < uniform and runs < 100 * _MOST_RUNS:
                level, runs = level + mass, runs + 1
                mass *= self.mean / runs
            return runs
        gamma = self.gamma
        runs, mass = 1, self.mean * gamma ** (self.shape + 1)  # f'(0)
        while level + mass < uniform and runs < 100 * _MOST_RUNS:
            level, runs = level + mass, runs + 1
            mass *= (1 - gamma) * (runs - 1 + self.shape) / runs
        return runs

    def limits(self, forward: Limits, backward: Limits) -> Limits:
        """Returns limits on delta of the whole search, in one direction.

        Args:
          forward: limits for a single run in this direction.
          backward: limits in the reverse direction.

        Returns:
          The limits: at epsilon + shift, mean * delta(epsilon); for a Poisson number of runs also at smaller shifts, a
          little more.
        """
        runs = self.mean * _UP
        distance = min(forward.uppers[0], backward.uppers[0])
        least = None if self.shape is None else (1 + self.shape) * self._least(backward) * _UP
        first = (0.0, min(1.0, runs * distance))
        later = []
        for epsilon, upper in zip(forward.epsilons, forward.uppers, strict=True):
            if least is not None:
                later.append((epsilon + least, min(1.0, runs * upper)))
                continue
            for share in _LEFT_OUT:
                lost = share * runs * upper
                shift = self._poisson_shift(backward, distance, lost) * _UP
                later.append((epsilon + shift, min(1.0, (runs * upper + lost) * _UP)))
        epsilons, uppers = zip(first, *sorted(point for point in later if point[0] > 0), strict=True)
        return Limits(tuple(epsilons), tuple(uppers), 0)

    def _poisson_shift(self, limits: Limits, distance: float, lost: float) -> float:
        """How much likelier a place in the order makes an outcome, but for places of this probability altogether."""
        shift = self.mean * distance
        if not 0 < lost < 1:
            return shift
        factors = (
            math.expm1(min(epsilon, 700.0)) * math.log(1 / lost) + self.mean * upper
            for epsilon, upper in zip(limits.epsilons, limits.uppers, strict=True)
        )
        return min(shift, *factors)

    def _least(self, limits: Limits) -> float:
        """The least epsilon with delta(epsilon) <= slope (e^epsilon - 1), slope = gamma / (1 - gamma), by chords."""
        gamma = self.gamma / _UP
        slope = gamma / (1 - gamma)
        points = [
            (math.exp(min(epsilon, 700.0)), upper)
            for epsilon, upper in zip(limits.epsilons, limits.uppers, strict=True)
        ]
        for (left, above), (right, below) in pairwise(points):
            if below <= slope * (right - 1):
                fall = (above - below) / (right - left)
                return min(math.log((above + fall * left + slope) / (slope + fall)) * _UP, math.log(right))
        return math.inf


def parse_tuning(text: str) -> Tuning:
    """Returns the search that a text names: poisson:mean=20, geometric:mean=20, negative-binomial:mean=20,shape=0.5.

    Args:
      text: the name.

    Returns:
      The tuning.
    """
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for part in rest.split(","):
        key, _, number = part.partition("=")
        try:
            given[key] = float(number)
        except ValueError:
            given[key] = None
    wanted = {"poisson": {"mean"}, "geometric": {"mean"}, "negative-binomial": {"mean", "shape"}}.get(name)
    if wanted != set(given) or None in given.values():
        remedy = "must be poisson:mean=M, geometric:mean=M or negative-binomial:mean=M,shape=S"
        raise InvalidArgument("tuning_runs", text, remedy)
    try:
        return Tuning(given["mean"], 1.0 if name == "geometric" else given.get("shape"))
    except InvalidArgument as error:
        raise InvalidArgument("tuning_runs", text, f"{error.argument} {error.remedy}") from None
