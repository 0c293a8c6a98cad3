"""Several releases about one data set: events, their composition, and what has been spent."""

from galton.budget.composed import Composed, compose
from galton.budget.distribution import privacy_loss_distribution
from galton.budget.events import Event, GaussianEvent, KnownEvent, LaplaceEvent
from galton.budget.file import Budget, Overspent
from galton.budget.within import PlanWithin, make_plan_within
from galton.plan.tuning import Tuning, parse_tuning

__all__ = [
    "Budget",
    "Composed",
    "Event",
    "GaussianEvent",
    "KnownEvent",
    "LaplaceEvent",
    "Overspent",
    "PlanWithin",
    "Tuning",
    "compose",
    "make_plan_within",
    "parse_tuning",
    "privacy_loss_distribution",
]
