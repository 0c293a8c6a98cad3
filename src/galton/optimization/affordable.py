"""How little noise a C may need before its certificate takes more samples than anyone waits for (docs/math.md, 17.7).

Steers the optimiser; nothing here is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
from scipy.optimize import brentq

from galton.accounting.calibration import CHECK_WORK
from galton.gaussian import gaussian_mu
from galton.guarantee import Guarantee
from galton.optimization.averages import groups_of_bins, mode_energies, smooth_log_maximum
from galton.optimization.forms import Form
from galton.sampling.strata import STRATA, log_largest_average

_SHARE = 64
"""Samples of a check for one unit of range over delta: half of what its limits then allow is above the mean."""
_NEIGHBOURS = 2.0
"""A drawn mode attracts as if so many had an inner product of its own energy with it; measured for the square root."""
_SLOPE = 0.5
"""Least slope of the loss in a direction of strata, as a share of the norm of the average mode; measured likewise."""
_MOST_ENERGY = 1e3
_MOST_ORDER = 64


@dataclass(frozen=True)
class LeastNoise:
    """Noise that no C may fall below in a search, since its certificate would take too many samples.

    Attributes:
      multiplier: noise multiplier, positive.
      bins: batches per epoch.
    """

    multiplier: float
    bins: int

    def log_sigma(self, form: Form) -> jax.Array:
        """Returns the logarithm of its standard deviation; the largest mode is nearly one of those in the middles."""
        _, middles = groups_of_bins(self.bins, form.rounds)
        return math.log(self.multiplier) + smooth_log_maximum(mode_energies(form, middles)) / 2


def least_multiplier(bins: int, work: int, guarantee: Guarantee) -> float:
    """Returns the noise multiplier at which the samples that a check affords just do; 0 if they never do.

    An optimum of an unlimited search has modes of high energy, whose tuples condense: the tilt's order is then low, and
    its range thousands of times delta, so that the noise which can be shown to do is far above what would do.

    Args:
      bins: batches per epoch.
      work: multiplications that a sample takes.
      guarantee: what the noise is for.
    """
    mean = gaussian_mu(guarantee.epsilon, guarantee.delta) ** 2
    most = math.log(max(CHECK_WORK / work / _SHARE, 1.0) * guarantee.delta)

    def excess(log_energy: float) -> float:
        return _log_range(bins, guarantee.epsilon, mean, math.exp(log_energy)) - most

    low, high = math.log(mean), math.log(_MOST_ENERGY)
    if low >= high or excess(low) >= 0:
        return 0.0
    energy = high if excess(high) <= 0 else float(brentq(excess, low, high, xtol=1e-4))
    return math.exp(-energy / 2)


def _log_range(bins: int, epsilon: float, mean: float, energy: float) -> float:
    """log R_t for the best t and modes of one energy, every two with the same inner product but for neighbours."""
    best, total = math.inf, 0.0
    for order in range(1, _MOST_ORDER + 1):
        condensed = math.log(_NEIGHBOURS / bins) + order * (energy - mean)
        total += order * mean + max(condensed, 0.0) + math.log1p(math.exp(-abs(condensed)))
        value = total - order * epsilon + log_largest_average(order, _SLOPE * math.sqrt(mean), STRATA)
        if value >= best:
            break
        best = value
    return best
