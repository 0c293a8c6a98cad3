"""Bounds on what floating point may do to a privacy loss (docs/math.md, section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.sampling.base import Slack
from galton.sampling.normals import ERROR, lost_probability

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
FREE_SLACK = 1e-3
"""float32 is used while its slack changes delta by less than about this, relatively."""

_EXPONENT = 46.0
"""|z|^2 > r + 2 sqrt(r x) + 2 x has probability below e^-x (Laurent and Massart): with x = 46, below 2e-20."""
UNLIKELY = math.exp(-_EXPONENT)
"""Probability with which `norm_bound` fails."""


def norm_bound(draws: int) -> float:
    """Returns a bound on the norm of `draws` standard normals that fails with probability below e^-46."""
    return math.sqrt(draws + 2 * math.sqrt(draws * _EXPONENT) + 2 * _EXPONENT)


def loss_slack(bins: int, largest: float, reach: float, residual: float, dtype: str, moved: float = 0.0) -> Slack:
    """Bounds the error of L = log mean exp(A), A = root z + centre, for |centre| <= reach and diag(G) <= largest.

    `moved` bounds how far z is moved along a unit vector before it is used (the half-space sampler; 0 otherwise).
    L moves by no more than the largest error of an A_k. With s = sqrt(largest), r = bins normals, |z| <= rho and unit
    roundoff u:
      normals      s |dz|, |dz| <= ERROR * (rho + sqrt(r)); moving them adds gamma_(r+4) * (2 rho + moved)
      product      gamma_(r+2) s (rho + moved): r products and sums in any order, and the rounding of the factor
      centre, sum  2 u (reach + s rho)
      log mean exp 2 (b + 16) u: exponentials, their arguments and their sum; 4 u (|L| + log b) the logarithm
      Gram matrix  2 * residual of its factor
    """
    unit = UNIT_ROUNDOFF[dtype]
    spread = math.sqrt(largest)
    rho = norm_bound(bins)
    gamma = (bins + 4) * unit / (1 - (bins + 4) * unit)
    size = reach + spread * (rho + moved)
    error = spread * ERROR[dtype] * (rho + math.sqrt(bins))
    error += spread * gamma * (2 * rho + moved if moved else 0.0)
    error += gamma * spread * (rho + moved) + 2 * unit * size
    error += 2 * (bins + 16) * unit + 4 * unit * (size + math.log(bins))
    error += 2 * residual
    return Slack(1.01 * error, lost_probability(bins) + UNLIKELY)


def choose_dtype(slack: Callable[[str], Slack], order: int = 1) -> str:
    """Returns float32 where its slack is small enough to be free, else float64.

    Near an estimator of order t, delta falls like exp(-t eps), and the weight carries exp(t * slack) more.
    """
    return "float32" if (2 * order + 1) * slack("float32").epsilon <= FREE_SLACK else "float64"
