"""Tuning: a search, of which a random number of runs is made and the best released (docs/math.md, section 13.4)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from galton.accountants.losses import dominating_atoms
from galton.accounting.limits import Limits
from galton.convolution import UNIT
from galton.errors import FloatArray, InvalidArgument, positive, real
from galton.fields import Fields
from galton.loss_grids import Atoms
from galton.typechecking import typechecked

_MOST_RUNS = 1e6
_POINTS, _LARGEST_EPSILON = 129, 200.0
"""Epsilons at which the delta of a search is bounded."""
_LEFT_OUT = (0.02, 0.2)
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

    @cached_property
    def gamma(self) -> float:
        """The other parameter of a negative binomial distribution, by its mean; below 1."""
        low, high = 1e-12, 1.0 - 1e-9  # the mean falls in gamma
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._mean_at(middle) > self.mean else (low, middle)
        return high

    def _mean_at(self, gamma: float) -> float:
        shape = self.shape or 0.0
        if abs(shape) < 1e-200:
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
        runs, mass = 1, self._mean_at(gamma) * gamma ** (self.shape + 1)  # f'(0)
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
          The limits, from epsilon 0 to where only losses that count as infinite are left.
        """
        run, places = dominating_atoms(forward, backward), _Places(self, dominating_atoms(backward, forward))
        runs = (self.mean if self.shape is None else self._mean_at(self.gamma)) * (1 + places.error)
        last = (float(run.points[-1]) if run.points.size else 0.0) + places.farthest
        epsilons = np.linspace(0.0, min(max(last, 1e-6), _LARGEST_EPSILON), _POINTS).tolist()
        uppers = []
        for epsilon in epsilons:
            upper = runs * places.mean_gain(run, epsilon, 1.0)
            if self.shape is None:
                for lost in [share * upper for share in _LEFT_OUT if 0 < share * upper < 1]:
                    worst = -math.log(lost) / self.mean * (1 + 4 * UNIT)
                    upper = min(upper, (runs * places.mean_gain(run, epsilon, worst) + lost) * (1 + 4 * UNIT))
            uppers.append(min(1.0, upper))
        distance = runs * min(forward.uppers[0], backward.uppers[0])  # at epsilon 0 a union over the runs will do
        return Limits(tuple(epsilons), (min(distance, uppers[0]), *uppers[1:]), 0)

    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """Returns log(f'(1 - beaten) / f'(1)): how likely the best run is one that others beat so often.

        Args:
          beaten: probability that a run is better than the one in question.

        Returns:
          Numbers that are at most 0.
        """
        if self.shape is None:
            return -self.mean * beaten
        return -(1 + self.shape) * np.log1p(beaten * (1 - self.gamma) / self.gamma)

    def turning_points(
        self, slopes: FloatArray, starts: FloatArray, ratios: FloatArray, error: float
    ) -> tuple[FloatArray, FloatArray]:
        """Returns where weight(v) - e^ratio weight(start + slope v) is stationary in v (docs/math.md, section 13.4).

        Args:
          slopes: positive.
          starts: as many, from 0 to 1.
          ratios: in a column.
          error: relative error of weights.

        Returns:
          The places, and how far they may be off; infinite or not a number where there is none.
        """
        with np.errstate(all="ignore"):
            if self.shape is None:
                places = (ratios - self.mean * starts + np.log(slopes)) / (self.mean * (slopes - 1))
                return places, error * ((1 + 1 / self.mean) / np.abs(slopes - 1) + np.abs(places))
            root = np.exp((ratios + np.log(slopes)) / (2 + self.shape))
            odds = self.gamma / (1 - self.gamma)
            places = ((root - 1) * odds - starts) / (slopes - root)
            off = (1 + root) * (1 + odds) + np.abs(places) * (slopes + root)
            return places, error * off / np.abs(slopes - root)


class _Places:
    """What is known of how probable outcomes are that beat a given one, in one run and in its neighbour.

    If they have probability v in the first, they have at most T(v) = min over x of x v + H_x in the second: a concave
    function, straight between its corners.

    Args:
      tuning: the law of the number of runs.
      reverse: the loss of a single run in the reverse direction.
    """

    def __init__(self, tuning: Tuning, reverse: Atoms) -> None:
        self._tuning = tuning
        slopes = np.append(0.0, np.exp(reverse.points))
        heights = np.array([reverse.delta(point) for point in reverse.points.tolist()])
        # A corner is off by a unit of rounding: that moves the curve by no more, as x |H'| is at most 1.
        starts = np.append(1.0, np.minimum(heights * (1 + 1024 * UNIT) + 8 * UNIT, 1.0))
        between = np.clip(-np.diff(starts) / np.diff(slopes), 0.0, 1.0)
        self._slopes, self._starts = slopes[1:], starts[1:]
        self._upper, self._lower = between, np.append(between[1:], 0.0)
        self._corners = np.concatenate(([1.0], between, [0.0]))
        sizes = tuning.mean if tuning.shape is None else 1 + tuning.shape
        self.error = UNIT * (16384 + 64 * sizes)
        """Relative error of weights, and of what else is computed, with losses up to 200; generously."""
        farther = tuning.log_weight(self._corners) - tuning.log_weight(self._reached(self._corners))
        self.farthest = float(farther.max())

    def _reached(self, places: FloatArray) -> FloatArray:
        """T at these places."""
        lines = self._starts + np.multiply.outer(places, self._slopes)
        return np.minimum(lines.min(axis=-1, initial=1.0), 1.0)

    def mean_gain(self, run: Atoms, epsilon: float, worst: float) -> float:
        """Returns the mean over losses l of the largest weight(v) - e^(epsilon - l) weight(T(v)), v at most `worst`.

        Args:
          run: the loss of a single run.
          epsilon: of the search.
          worst: the largest probability of being beaten that counts.

        Returns:
          An upper bound, rounding included.
        """
        tuning = self._tuning
        ratios = np.minimum(epsilon - run.points, 700.0)[:, None]
        less = ratios + math.log1p(-4 * self.error)
        corners = np.minimum(self._corners, worst)
        gains = np.exp(tuning.log_weight(corners)) - np.exp(less + tuning.log_weight(self._reached(corners)))
        inner = (self._lower < worst) & (self._slopes != 1.0)  # a line of slope 1 has no place of its own
        slopes, starts = self._slopes[inner], self._starts[inner]
        low, high = self._lower[inner], np.minimum(self._upper[inner], worst)
        places, off = tuning.turning_points(slopes, starts, ratios, self.error)
        usable = np.isfinite(places) & np.isfinite(off)
        left = np.where(usable, np.clip(places - np.where(usable, off, 0.0), low, high), low)
        right = np.where(usable, np.clip(places + np.where(usable, off, 0.0), low, high), high)
        # What rounding may have moved a place by: each weight is taken where it is worse.
        reached = np.minimum(starts + slopes * right, 1.0)
        inside = np.exp(tuning.log_weight(left)) - np.exp(less + tuning.log_weight(reached))
        largest = np.maximum(gains.max(axis=1), inside.max(axis=1, initial=0.0))
        return (float(run.masses @ np.maximum(largest, 0.0)) + run.infinite) * (1 + 4 * self.error)


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
