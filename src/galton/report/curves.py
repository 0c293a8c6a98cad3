"""The privacy curve of a plan, by the accountant that its guarantee rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from galton.accounting import Options, profile
from galton.accounting.curve import trade_off
from galton.baselines import mmcc_delta, subsampled_delta
from galton.batching import CyclicPoisson
from galton.cache import Cache, default_cache
from galton.gaussian import gaussian_delta
from galton.pair import dominating_pair, groups_for
from galton.plan import Plan
from galton.report.numbers import short
from galton.sampling.schedule import Progress

REACH = 1.5
"""The curve goes from 0 to this many times the plan's epsilon."""
_WIDTH = 0.2
_MOST_SAMPLES, _FEWEST_SAMPLES = 1 << 18, 1 << 12
_FULL_MODES = 128
"""Modes up to which a point may take the most samples; beyond, a sample costs their square."""
_MMCC_TAIL = 0.02
_FINER = 4
"""Points of a curve in closed form for every one of another."""
_LEAST_EPSILON = 1e-3
"""Where the curve of an accountant begins that asks for an epsilon above 0, relative to the plan's."""


@dataclass(frozen=True)
class Curve:
    """delta(epsilon) of a run that follows the plan, truncation included.

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
    adjacency: str

    @property
    def advantage(self) -> float:
        """Upper limit on true-positive rate minus false-positive rate of any test of "was this example used".

        delta at 0, or what (epsilon, delta) at another epsilon implies for it: 1 - 2 (1 - delta) / (1 + e^epsilon).
        """
        pairs = zip(self.epsilons, self.uppers, strict=True)
        return min(1 - 2 * (1 - upper) / (1 + math.exp(min(epsilon, 700.0))) for epsilon, upper in pairs)

    def rates(self) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
        """Returns the trade-off curve: false-positive rates, and the least false-negative rates."""
        return trade_off(np.array(self.epsilons), np.array(self.uppers), self.adjacency)

    def hits(self, false_positives: float) -> float:
        """Returns an upper limit on the true-positive rate of any test with this false-positive rate."""
        rates, misses = self.rates()
        above = min(int(np.searchsorted(rates, false_positives * (1 - 1e-12))), rates.size - 1)
        return float(1 - misses[above])

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def curve_from_json(value: dict[str, Any]) -> Curve:
    """Rebuilds a curve from `Curve.to_json()`."""
    numbers = {name: tuple(value[name]) for name in ("epsilons", "uppers", "estimates")}
    return Curve(**numbers, words=value["words"], adjacency=value["adjacency"])


def privacy_curve(plan: Plan, options: Options | None = None, cache: Cache | None = None, points: int = 19) -> Curve:
    """Returns the curve of a plan; one that was computed before comes from the cache.

    Formal guarantee: `uppers` are upper bounds on delta under the plan's adjacency, if the run follows the plan:
    with certainty, or all at once with the probability that `words` names.

    Args:
      plan: the plan.
      options: seed, workers and progress, for batches whose curve is sampled; adjacency is the plan's.
      cache: where curves are kept (default: the user's).
      points: epsilons of the curve; the plan's own is one of them if points - 1 is a multiple of 3.
    """
    options = replace(options or Options(), adjacency=plan.adjacency)
    cache = cache or default_cache()
    key = {"what": "curve of a report", "plan": plan.digest, "points": points, "seed": options.seed}
    known = cache.get(key, __name__)
    if known is not None:
        return curve_from_json(known)
    grid = (np.linspace(0.0, REACH, points) * plan.epsilon).tolist()
    found = _CURVES[plan.evidence.accountant](plan, grid, options)
    lost = [plan.truncation.delta(epsilon, plan.adjacency) for epsilon in found.epsilons]
    claimed = [plan.delta if epsilon >= plan.epsilon else 1.0 for epsilon in found.epsilons]
    uppers = np.minimum(np.array(found.uppers) + np.array(lost), claimed)
    found = replace(found, uppers=tuple(np.minimum.accumulate(uppers).tolist()))
    cache.put(key, found.to_json(), __name__)
    return found


def relies_on_secrecy(plan: Plan) -> bool:
    """Whether the guarantee is weaker once the batches are known."""
    return plan.leak.delta > plan.delta * (1 + 1e-6)


def _sampled(plan: Plan, grid: list[float], options: Options) -> Curve:
    """Balls-in-bins: Monte Carlo, with limits that hold at once."""
    pair = dominating_pair(plan.strategy, plan.bins, plan.noise_multiplier, groups_for(plan.bins))
    most = int(_MOST_SAMPLES * min(1.0, (_FULL_MODES / pair.modes) ** 2))
    found = profile(
        pair, grid, options=replace(options, rel_width=_WIDTH, samples=max(most, _FEWEST_SAMPLES), bound="sequence")
    )
    words = (
        f"Sampled for this page by the balls-in-bins accountant ({found.samples:,} samples, seed {found.seed}): all "
        f"upper limits hold at once with probability {found.confidence:g}. The plan's own point, and that δ is no "
        "larger beyond it, do not rest on these samples but on what is said above."
    )
    return Curve(found.epsilons, found.uppers, found.deltas, words, plan.adjacency)


def _gaussian(plan: Plan, grid: list[float], options: Options) -> Curve:
    """No amplification: closed form."""
    mu = (2 if plan.adjacency == "replace" else 1) / plan.noise_multiplier
    words = "Exact: the Gaussian mechanism in closed form. It does not rely on the batches being secret."
    fine = np.linspace(0.0, grid[-1], _FINER * (len(grid) - 1) + 1).tolist()
    return Curve(tuple(fine), tuple(gaussian_delta(epsilon, mu) for epsilon in fine), (), words, plan.adjacency)


def _poisson(plan: Plan, grid: list[float], options: Options) -> Curve:
    """Poisson and cyclic Poisson: composed privacy loss distribution."""
    assert isinstance(plan.scheme, CyclicPoisson)
    column = plan.noise_multiplier * plan.sensitivity / plan.strategy.column_norm() * (1 - 1e-12)
    chance, steps = plan.scheme.sampling_probability, -(-plan.rounds // plan.scheme.cycle)
    uppers = _each(grid, lambda epsilon: subsampled_delta(column, chance, steps, epsilon), options.progress)
    words = "Upper bound at every ε, with certainty: privacy loss distribution of dp-accounting, pessimistic."
    return Curve(tuple(grid), uppers, (), words, plan.adjacency)


def _mmcc(plan: Plan, grid: list[float], options: Options) -> Curve:
    """Conditional composition."""
    tail = _MMCC_TAIL * plan.delta
    grid = [_LEAST_EPSILON * plan.epsilon, *grid[1:]]

    def at(epsilon: float) -> float:
        return mmcc_delta(plan.strategy, plan.bins, plan.noise_multiplier, epsilon, tail, plan.adjacency)

    words = (
        "Upper bound at every ε, with certainty: conditional composition (MMCC). It is never below "
        f"{short(tail, 3)}, the share of δ that this accountant sets aside."
    )
    return Curve(tuple(grid), _each(grid, at, options.progress), (), words, plan.adjacency)


def _each(grid: list[float], at: Callable[[float], float], progress: Progress | None) -> tuple[float, ...]:
    values = []
    for index, epsilon in enumerate(grid):
        if progress is not None:
            progress("points of the curve", index, len(grid))
        values.append(at(epsilon))
    return tuple(values)


_CURVES: dict[str, Callable[[Plan, list[float], Options], Curve]] = {
    "balls-in-bins": _sampled,
    "allocation": _sampled,
    "unamplified": _gaussian,
    "poisson": _poisson,
    "cyclic-poisson": _poisson,
    "mmcc": _mmcc,
}
