"""The epsilon that the plan's accountant proves at a delta other than the plan's."""

from __future__ import annotations

from galton.accounting import Options, epsilon
from galton.baselines.figure import bands_of
from galton.baselines.peers import privacy_loss_distribution
from galton.baselines.poisson import loss_interval
from galton.gaussian import gaussian_epsilon
from galton.pair import dominating_pair, groups_for
from galton.plan.plan import Plan

CONFIDENCE = 1 - 1e-6


def certified_epsilon(plan: Plan, delta: float, seed: int | None = None) -> float:
    """Returns an upper bound on epsilon at `delta`, which must not be below the plan's; the plan's own at its delta.

    What truncation costs at the plan's epsilon is taken off delta: at a larger delta it costs no more.
    """
    if delta == plan.delta:
        return plan.epsilon
    room = delta - plan.truncation.delta(plan.epsilon, plan.adjacency)
    return min(plan.epsilon, _proved(plan, room, seed))


def _proved(plan: Plan, delta: float, seed: int | None) -> float:
    accountant = plan.evidence.accountant
    if accountant == "unamplified":
        sides = 2 if plan.adjacency == "replace" else 1
        return gaussian_epsilon(delta, sides / plan.noise_multiplier * (1 + 1e-9))
    if accountant in ("balls-in-bins", "allocation"):
        pair = dominating_pair(plan.strategy, plan.bins, plan.noise_multiplier, groups_for(plan.bins))
        how = Options(adjacency=plan.adjacency, seed=seed, confidence=CONFIDENCE, rel_width=0.05)
        return epsilon(pair, delta, how).upper
    bands = bands_of(plan.strategy)
    column = plan.noise_multiplier * plan.sensitivity / plan.strategy.column_norm() * (1 - 1e-12)
    chance = bands / plan.bins
    pld = privacy_loss_distribution().from_gaussian_mechanism(
        column,
        sampling_prob=chance,
        value_discretization_interval=loss_interval(chance, column),
        pessimistic_estimate=True,
        use_connect_dots=True,
    )
    return float(pld.self_compose(-(-plan.rounds // bands)).get_epsilon_for_delta(delta))
