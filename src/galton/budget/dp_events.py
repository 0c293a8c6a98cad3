"""Plans as events of dp-accounting, and an accountant of dp-accounting that understands them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from galton.accounting import Options
from galton.budget.distribution import privacy_loss_distribution
from galton.errors import MissingExtra
from galton.guarantee import Adjacency
from galton.plan import Plan

try:
    import attr
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant
except ImportError:
    raise MissingExtra("galton.budget.dp_events", "dp-accounting", "dp-accounting") from None

RELATIONS = {
    Adjacency.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE: NeighboringRelation.REPLACE_ONE,
    Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
}
"""Adjacencies that dp-accounting has a name for."""


@attr.s(frozen=True, eq=False, auto_attribs=True)
class PlanDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A training run by a plan.

    `CertifiedAccountant` understands it; other accountants of dp-accounting answer that they do not support it.
    `galton.compose` takes it, too, alone or within other events, for the plan that it is.

    Attributes:
      plan: the plan.
      delta: the delta that its loss is sharp for.
      failure: probability that samples of the analysis may fail with; None is 0.0015 * delta.
      options: how to sample.

    Example:
      >>> import dp_accounting
      >>> import galton
      >>> guarantee = galton.Guarantee(epsilon=1, delta=1e-5, adjacency="zero-out")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> event = dp_accounting.ComposedDpEvent([PlanDpEvent(plan), dp_accounting.GaussianDpEvent(8.0)])
      >>> galton.compose([event], delta=guarantee.delta, adjacency="zero-out").epsilon > plan.guarantee.epsilon
      True
    """

    plan: Plan = attr.ib(repr=lambda plan: plan.digest[:15])
    delta: float = 1e-5
    failure: float | None = None
    options: Options | None = None


class CertifiedAccountant(PLDAccountant):  # type: ignore[misc]
    """dp-accounting's accountant by privacy loss distributions, that also composes plans.

    Formal guarantee: that of `galton.privacy_loss_distribution` for every plan, and dp-accounting's own for their
    composition, which does not bound the rounding of FFTs. The failure probabilities of plans are in all answers.

    Example:
      >>> import dp_accounting
      >>> import galton
      >>> guarantee = galton.Guarantee(epsilon=1, delta=1e-5, adjacency="zero-out")
      >>> plan = galton.make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> accountant = CertifiedAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
      >>> _ = accountant.compose(PlanDpEvent(plan))
      >>> 0.99 < accountant.get_epsilon(guarantee.delta) < 1.01
      True
      >>> _ = accountant.compose(dp_accounting.GaussianDpEvent(8.0))
      >>> accountant.get_epsilon(guarantee.delta) > 1.01
      True
    """

    _unit: str | None = None
    """What the plans so far protect."""

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if not isinstance(event, PlanDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        adjacency = event.plan.guarantee.adjacency
        if RELATIONS.get(adjacency) is not self.neighboring_relation:
            words = f"the plan is for {adjacency} adjacency, not for {self.neighboring_relation.name}"
            return self.CompositionErrorDetails(invalid_event=event, error_message=words)
        if self._unit not in (None, event.plan.unit):
            words = f"the plan protects one {event.plan.unit}, and others one {self._unit}"
            return self.CompositionErrorDetails(invalid_event=event, error_message=words)
        if do_compose:
            self._unit = event.plan.unit
            distribution = self._distribution(event)
            many = distribution if count == 1 else distribution.self_compose(count)
            self._pld: Any = self._pld.compose(many)
        return None

    def _distribution(self, event: PlanDpEvent) -> Any:
        if event not in self._distributions:  # sampled once, however often it is composed
            self._distributions[event] = privacy_loss_distribution(
                event.plan,
                delta=event.delta,
                failure=event.failure,
                interval=self._value_discretization_interval,
                options=event.options,
            )
        return self._distributions[event]

    @cached_property
    def _distributions(self) -> dict[PlanDpEvent, Any]:
        return {}
