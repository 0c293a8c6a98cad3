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
from galton.guarantee import Adjacency
from galton.sampling.schedule import Progress


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

        delta at 0, or what (epsilon, delta) at another epsilon implies for it: 1 - 2 (1 - delta) / (1 + e^epsilon).
        """
        pairs = zip(self.epsilons, self.uppers, strict=True)
        return min(1 - 2 * (1 - upper) / (1 + math.exp(min(epsilon, 700.0))) for epsilon, upper in pairs)

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
