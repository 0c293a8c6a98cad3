"""A plan whose noise leaves room for other releases: the budget is for all of them together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from galton.accountants.losses import Aim, Loss
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.options import derived_seed
from galton.budget.composed import Composed, all_events, common_adjacency, compose, stated
from galton.budget.events import Event, GaussianEvent
from galton.budget.sources import Source
from galton.budget.tuning import TunedEvent
from galton.budget.whole import Whole
from galton.errors import GaltonError, InvalidArgument
from galton.gaussian import gaussian_epsilon, gaussian_mu
from galton.guarantee import Guarantee, as_guarantee
from galton.plan.make import for_search, make_plan, replan
from galton.plan.plan import Plan
from galton.plan.tuning import Tuning
from galton.typechecking import typechecked

ATTEMPTS = 5
"""Plans that may be tried; delta has room for the failure probabilities of all of them."""
_AIM, _ENOUGH = 0.997, 0.985
"""Share of epsilon that an attempt aims at, and from which on no more noise is saved."""
_LEAST_SHARE, _GUESS, _COARSE = 0.02, 1.01, 1e-3
"""Of the first guess: the least part of the budget, the factor by which it may be off, and its grid."""


class PlanWithin(NamedTuple):
    """A plan, and the guarantee of its run together with other releases. The example of `make_plan_within` shows one.

    Attributes:
      plan: the plan; its own guarantee is the part of the budget that it takes.
      composed: the guarantee of all together.
    """

    plan: Plan
    composed: Composed


@typechecked
def make_plan_within(
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    others: Sequence[Source] = (),
    tuning: Tuning | None = None,
    options: Options | None = None,
    **settings: Any,
) -> PlanWithin:
    """Makes a plan whose run, or search, together with other releases about the same data has a guarantee.

    The strategy is chosen once, for about the part of the budget that is left; then noise is calibrated, proved, and
    composed with the others, until the whole meets the guarantee with at most 1.5% of epsilon to spare.

    Formal guarantee: to make the plan, and to train by it and release only if that succeeds, meets the guarantee
    together with the other releases. The failure probabilities of all compositions that were tried are part of delta
    (docs/math.md, section 13.3).

    Args:
      epsilon: the guarantee of all releases together; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: of the guarantee, unless the first argument is all of it.
      others: what else is released, or was: as in `compose`. A plan that was made for a search counts as the search.
      tuning: how many runs by the plan there will be, of which the best is released; None is a single run. The plan
        remembers it.
      options: seed, workers and progress of the accountant.
      settings: examples, batch_size, epochs and all else that `make_plan` takes.

    Returns:
      The plan, and the guarantee of the whole.

    Example:
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan, composed = make_plan_within(
      ...     guarantee, others=["gaussian:sigma=2"], examples=64, batch_size=16, epochs=1, batching="fixed-order",
      ...     strategy="identity"
      ... )
      >>> plan.guarantee.epsilon < composed.epsilon <= 4
      True
    """
    whole_guarantee = as_guarantee(epsilon, delta)
    options = options or Options()
    seed = options.fresh_seed()
    unknown = set(settings) - set(inspect.signature(make_plan).parameters)
    if unknown:
        raise InvalidArgument("settings", sorted(unknown), "must be arguments of make_plan")
    if not others and tuning is None:
        raise InvalidArgument("others", list(others), "must name at least one release, unless runs are tuned")
    try:
        parts = all_events(others) if others else []
        common_adjacency(parts, whole_guarantee.adjacency)
    except InvalidArgument as error:
        argument = "others" if error.argument == "events" else error.argument
        raise InvalidArgument(argument, error.value, error.remedy) from None
    failure = FAILURE_SHARE * whole_guarantee.delta
    target = whole_guarantee.with_delta(whole_guarantee.delta - (ATTEMPTS - 1) * failure)
    aim = Aim(target.directions, target.delta, failure / max(1, len(parts)), options)
    settled = [event.settled(aim) for event in parts]
    own = _share_left(settled, aim, target, tuning)
    plan = make_plan(replace(target, epsilon=own), options=options, **settings)
    if tuning is not None:
        plan = for_search(plan, tuning)
    best: PlanWithin | None = None
    for attempt in range(1, ATTEMPTS + 1):
        fresh = replace(options, seed=derived_seed(seed, f"attempt {attempt}"))  # noise depends on the samples before
        composed = compose([plan, *settled], delta=target.delta, failure=failure, options=fresh)
        fits = composed.epsilon <= target.epsilon
        if fits and (best is None or composed.epsilon > best.composed.epsilon):
            best = PlanWithin(plan, composed)
        if attempt == ATTEMPTS or (fits and composed.epsilon >= _ENOUGH * target.epsilon):
            break
        # Losses add up like vectors at right angles, about: the part changes by more than the whole.
        step = (_AIM * target.epsilon - composed.epsilon) * max(1.0, composed.epsilon / own)
        own = max(own + step, own / 2)
        plan = replan(plan, replace(target, epsilon=own), options)
    if best is None:
        raise GaltonError(
            f"plan: the whole has epsilon {composed.epsilon:.4g} after {ATTEMPTS} attempts, above {target.epsilon:g}"
        )
    spent = best.composed.analysis_failure
    tried = (attempt - 1) * failure if spent else 0.0  # by others that were not taken
    return PlanWithin(best.plan, stated(best.composed, target.delta + tried, spent + tried))


def _share_left(others: Sequence[Event], aim: Aim, target: Guarantee, tuning: Tuning | None) -> float:
    """The epsilon that is left for a run, if its loss were that of a Gaussian mechanism."""
    losses = [event.loss(aim) for event in others]
    displacement = math.fsum(event.displacement for event in others)

    def whole(*more: Loss) -> Whole:
        return Whole((*losses, *more), target.directions, target.adjacency, displacement, _COARSE * target.epsilon)

    def enough(mu: float) -> bool:
        run = GaussianEvent(target.sides / mu)
        part = run if tuning is None else TunedEvent(run, tuning)
        return whole(part.loss(aim)).delta(target.epsilon) <= target.delta

    if losses and whole().delta(target.epsilon) > target.delta:
        remedy = f"leave nothing: by themselves they are ({whole().epsilon(target.delta):.4g}, {target.delta:.4g})-DP"
        raise InvalidArgument("others", [event.words for event in others], remedy)
    high = gaussian_mu(target.epsilon, target.delta)
    low = _LEAST_SHARE * high
    while high / low > _GUESS:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return max(gaussian_epsilon(target.delta, low), _LEAST_SHARE * target.epsilon)
