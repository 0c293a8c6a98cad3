"""The privacy curve of a plan, by the accountant that its guarantee rests on, truncation included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from galton.accountants import Curve
from galton.accounting import Options
from galton.cache import Cache, default_cache
from galton.guarantee import LARGEST_EPSILON
from galton.plan import Plan
from galton.provenance import versions

REACH = 1.5
"""The curve goes from 0 to this many times the plan's epsilon, and to where delta is the least of `DELTAS`."""
DELTAS = tuple(float(f"1e-{digits}") for digits in range(5, 13))
"""At these deltas epsilon is told."""
_FREE = 0.01
"""A share of delta that truncation may cost without a place of its own."""


def privacy_curve(
    plan: Plan,
    options: Options | None = None,
    cache: Cache | None = None,
    points: int = 19,
    deltas: Sequence[float] = DELTAS,
) -> Curve:
    """Returns the privacy curve of a plan, from the cache if it was computed before.

    Formal guarantee: `uppers` are upper bounds on delta under the plan's adjacency, if the run follows the plan:
    with certainty, or all at once with the probability that `words` names.

    Args:
      plan: the plan.
      options: seed, workers and progress, for batches whose curve is sampled.
      cache: where curves are kept (default: the user's).
      points: number of epsilons on the curve; the plan's own is one of them if points - 1 is a multiple of 3.
      deltas: epsilon is wanted at these: the curve gets a point near each.

    Returns:
      The curve, from epsilon 0 to REACH times the plan's, or to the last of the points for `deltas`.

    Example:
      >>> from galton import Guarantee, make_plan
      >>> claim = Guarantee(2.0, 1e-5, "zero-out")
      >>> plan = make_plan(claim, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity")
      >>> 1.99 < privacy_curve(plan).epsilon(1e-5) < 2.01
      True
    """
    options, guarantee = options or Options(), plan.guarantee
    cache = cache or default_cache()
    key = {
        "what": "curve of a report",
        "plan": plan.digest,
        "points": points,
        "deltas": list(deltas),
        "seed": options.seed,
        "versions": versions(),
    }
    known = cache.get(key, __name__)
    if known is not None:
        return Curve.from_json(known)
    even = np.linspace(0.0, REACH, points) * guarantee.epsilon
    grid = np.union1d(even, _places(plan, deltas, options)).tolist()
    curve = plan.accountant.curve(plan.run, guarantee, grid, options)
    truncation_deltas = [plan.truncation.delta(epsilon, guarantee.adjacency) for epsilon in curve.epsilons]
    claimed = [guarantee.delta if epsilon >= guarantee.epsilon else 1.0 for epsilon in curve.epsilons]
    uppers = np.minimum(np.array(curve.uppers) + np.array(truncation_deltas), claimed)
    curve = replace(curve, uppers=tuple(np.minimum.accumulate(uppers).tolist()))
    cache.put(key, curve.to_json(), __name__)
    return curve


def _places(plan: Plan, deltas: Sequence[float], options: Options) -> list[float]:
    """Epsilons where delta of the run, truncation included, should be just below each of these."""
    if not deltas:
        return []
    adjacency, run = plan.guarantee.adjacency, plan.run
    targets = (*deltas, min(deltas) / 10)  # a limit just above the least delta still has a chord to a point beyond
    placed = []
    for delta, place in zip(targets, plan.accountant.places(run, targets, adjacency, options), strict=True):
        if not place < LARGEST_EPSILON:
            continue
        cost = plan.truncation.delta(place, adjacency)
        if cost >= delta / 2:
            continue
        if cost > _FREE * delta:
            (place,) = plan.accountant.places(run, [delta - 1.1 * cost], adjacency, options)
        placed.append(place)
    return placed


def relies_on_secrecy(plan: Plan) -> bool:
    """Whether the guarantee is weaker once the batches are known."""
    return plan.leak.delta_at_epsilon > plan.guarantee.delta * (1 + 1e-6)
