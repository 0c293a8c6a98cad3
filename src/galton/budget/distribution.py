"""A run as a privacy loss distribution of dp-accounting, which dominates the run's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from galton.accountants.losses import both_ways, dominating_atoms
from galton.accounting import Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.budget.composed import all_events, common_adjacency, whole_of
from galton.budget.events import Event
from galton.budget.sources import Source
from galton.budget.whole import curve_limits
from galton.errors import MissingExtra, positive, probability
from galton.guarantee import Adjacency
from galton.loss_grids import LossGrid
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


@typechecked
def privacy_loss_distribution(
    source: Source,
    *,
    delta: float = 1e-5,
    adjacency: Adjacency | None = None,
    failure: float | None = None,
    interval: float = 1e-4,
    options: Options | None = None,
) -> PrivacyLossDistribution:
    """Returns a run as a distribution that dp-accounting composes with anything.

    Upper limits on delta at a grid of epsilons in both directions, all at once, have a lower convex hull that is the
    curve of a discrete pair (docs/math.md, section 13.1). Its losses go to the grid of dp-accounting upwards. The
    epsilon that it gives at `delta` is within 1% of that of a certificate.

    Formal guarantee: except with probability `failure` over the accountant's random numbers, the distribution dominates
    the run's in every direction of the adjacency, at every epsilon. `failure` is part of the mass of an infinite loss:
    what is read off the distribution, composed or not, includes it. That holds for the distribution as it is returned.
    dp-accounting's own composition bounds neither the rounding of its FFTs nor that of its sums: its deltas may be too
    small by about 1e-16 times the number of losses, which matters for deltas below about 1e-10. `galton.compose` bounds
    all rounding.

    Args:
      source: a plan or its folder, a dominating pair, an event or its name: as in `compose`.
      delta: the delta that matters; the curve ends where it is a small share of this.
      adjacency: which data sets are neighbours; by default that of the plan, or add-or-remove. For add or remove alone
        the distribution holds that direction, twice.
      failure: probability that samples may fail with; by default 0.0015 * delta. What needs no samples does not fail.
      interval: distance of losses; dp-accounting composes distributions with equal ones only.
      options: how to sample.

    Returns:
      A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`, pessimistic. For add-or-remove and
      zero-out adjacency it has two directions, for replace one.

    Example:
      >>> from galton import dominating_pair, identity
      >>> distribution = privacy_loss_distribution(dominating_pair(identity(4), bins=1, noise_multiplier=2.0))
      >>> 1.993 < distribution.get_epsilon_for_delta(1e-5) < 2.003  # the Gaussian mechanism: 1.993
      True
    """
    try:
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    except ImportError:
        raise MissingExtra("galton.privacy_loss_distribution", "dp-accounting", "dp-accounting") from None
    probability("delta", delta)
    positive("interval", interval)
    share = FAILURE_SHARE * delta if failure is None else probability("failure", failure)
    losses = dominating_losses(all_events([source]), adjacency, delta, share, interval, options or Options())
    masses = [
        pld_pmf.create_pmf(
            {loss.first + int(index): float(loss.masses[index]) for index in np.flatnonzero(loss.masses)},
            interval,
            min(1.0, loss.infinite),
            True,
        )
        for loss in losses
    ]
    return PrivacyLossDistribution(*masses)


def dominating_losses(
    events: Sequence[Event],
    adjacency: Adjacency | None,
    delta: float,
    failure: float,
    interval: float,
    options: Options,
) -> list[LossGrid]:
    """Returns the loss of all events as one, in every direction, truncation and failures included in infinite ones."""
    common = common_adjacency(events, adjacency)
    whole = whole_of(events, both_ways(common.directions), common, delta, failure, options)
    limits = curve_limits(whole, delta)
    losses = [dominating_atoms(limits[each], limits[each.reverse]).on_grid(interval) for each in common.directions]
    return [LossGrid(interval, loss.first, loss.masses, loss.infinite + whole.failure) for loss in losses]
