"""The privacy curve of a run, as accountants give it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from galton import files
from galton.accounting.curve import trade_off
from galton.errors import FloatArray
from galton.gaussian import gaussian_delta, gaussian_mu
from galton.guarantee import Adjacency
from galton.sampling.schedule import Progress

_PARTS = 32
"""Parts between two points of a curve in which a Gaussian curve is held against the chord."""


@dataclass(frozen=True)
class Curve:
    """delta(epsilon) of a run.

    Attributes:
      epsilons: increasing.
      uppers: delta is at most this.
      estimates: delta is about this; empty where `uppers` is all there is.
      words: where the curve comes from, and how sure it is.
      adjacency: which data sets are neighbours.
    """

    epsilons: tuple[float, ...]
    uppers: tuple[float, ...]
    estimates: tuple[float, ...]
    words: str
    adjacency: Adjacency

    @property
    def advantage(self) -> float:
        """Upper limit on true-positive rate minus false-positive rate of any test of "was this example used".

        delta at 0, or what (epsilon, delta) at another epsilon implies for it: 1 - 2 (1 - delta) / (1 + e^epsilon) if
        it is bounded both ways, else 1 - (1 - delta) / e^epsilon (docs/math.md, section 14.1).
        """
        pairs = [
            (math.exp(min(epsilon, 700.0)), upper) for epsilon, upper in zip(self.epsilons, self.uppers, strict=True)
        ]
        if self.adjacency.both_ways:
            return min(1 - 2 * (1 - upper) / (1 + growth) for growth, upper in pairs)
        return min(1 - (1 - upper) / growth for growth, upper in pairs)

    def rates(self) -> tuple[FloatArray, FloatArray]:
        """Returns the trade-off curve: false-positive rates, and the least false-negative rates."""
        return trade_off(np.array(self.epsilons), np.array(self.uppers), self.adjacency)

    def hits(self, false_positives: float) -> float:
        """Returns an upper limit on the true-positive rate of any test with this false-positive rate.

        Args:
          false_positives: rate of false alarms, from 0 to 1.

        Returns:
          A rate from 0 to 1.
        """
        rates, misses = self.rates()
        above = min(int(np.searchsorted(rates, false_positives * (1 - 1e-12))), rates.size - 1)
        return float(1 - misses[above])

    def epsilon(self, delta: float) -> float | None:
        """Returns an epsilon at which delta of the run is at most this.

        Between two points delta lies below the chord, as a function of e^epsilon, in which it is convex
        (docs/math.md, section 14.1).

        Args:
          delta: where, above 0.

        Returns:
          An upper bound on epsilon; None if the curve does not go so far.
        """
        index = next((index for index, upper in enumerate(self.uppers) if upper <= delta), None)
        if index is None or index == 0:
            return None if index is None else self.epsilons[0]
        (start, high), (end, low) = self._point(index - 1), self._point(index)
        chord = start + math.log1p((high - delta) / (high - low) * math.expm1(min(end - start, 700.0)))
        return min(end, chord * (1 + 1e-12))

    def dominating_mu(self) -> float | None:
        """Returns a mu: no test of this run beats that of N(mu, 1) against N(0, 1), but for the last delta.

        Formal guarantee: delta(epsilon) <= max(gaussian_delta(epsilon, mu), the curve's last delta) at every
        epsilon >= 0, if the curve's limits hold (docs/math.md, section 14.2).

        Returns:
          mu; None if one of the limits is 1, or the adjacency bounds one direction only, which is no trade-off curve.
        """
        if not self.adjacency.both_ways or self.uppers[0] >= 1 or self.epsilons[0] > 0:
            return None
        mu = 0.0
        for index in range(1, len(self.epsilons)):
            (start, high), (end, low) = self._point(index - 1), self._point(index)
            steps = np.linspace(0.0, end - start, _PARTS + 1)
            chords = high - (high - low) * np.expm1(steps) / math.expm1(min(end - start, 700.0))
            for step, upper in zip(steps[1:].tolist(), chords[:-1].tolist(), strict=True):
                if upper > 0 and gaussian_delta(start + step, mu) < upper:
                    mu = gaussian_mu(start + step, upper) * (1 + 1e-9)
        return mu

    def _point(self, index: int) -> tuple[float, float]:
        return self.epsilons[index], self.uppers[index]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        body: dict[str, Any] = files.plain(asdict(self))
        return body

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Curve:
        """Rebuilds a curve from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The curve.
        """
        return cls(
            tuple(value["epsilons"]),
            tuple(value["uppers"]),
            tuple(value["estimates"]),
            value["words"],
            Adjacency(value["adjacency"]),
        )


def point_by_point(
    epsilons: Sequence[float], delta: Callable[[float], float], progress: Progress | None
) -> tuple[float, ...]:
    """Returns delta at every epsilon, telling how far it is."""
    values = []
    for index, epsilon in enumerate(epsilons):
        if progress is not None:
            progress("points of the curve", index, len(epsilons))
        values.append(delta(epsilon))
    return tuple(values)
