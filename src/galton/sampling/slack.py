"""What floating point may do to a privacy loss, bounded once and for all (docs/math.md, section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable

from galton.sampling.base import Slack
from galton.sampling.normals import ERROR, lost_probability

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
PREFERRED_SLACK = 2e-3
"""float32 is used while its slack in epsilon stays below this."""

_EXPONENT = 46.0
"""|z|^2 > r + 2 sqrt(r x) + 2 x has probability below e^-x (Laurent and Massart): with x = 46, below 2e-20."""


def norm_bound(draws: int) -> float:
    """Returns a bound on the norm of `draws` standard normals that fails with probability below e^-46."""
    return math.sqrt(draws + 2 * math.sqrt(draws * _EXPONENT) + 2 * _EXPONENT)


def loss_slack(bins: int, draws: int, largest: float, reach: float, residual: float, dtype: str) -> Slack:
    """Bounds the error of L = log mean exp(A), A = root z + centre, for |centre| <= reach and diag(G) <= largest.

    L moves by no more than the largest error of an A_k. With s = sqrt(largest), |z| <= rho and unit roundoff u:
      normals      s |dz|, |dz| <= ERROR * (rho + sqrt(r))
      product      gamma_(r+2) s rho: r products and sums in any order, and the rounding of the factor
      centre, sum  2 u (reach + s rho)
      log mean exp 2 (b + 16) u: exponentials, their arguments and their sum; 4 u (|L| + log b) the logarithm
      Gram matrix  2 * residual of its factor
    """
    unit = UNIT_ROUNDOFF[dtype]
    spread = math.sqrt(largest)
    rho = norm_bound(draws)
    gamma = (draws + 2) * unit / (1 - (draws + 2) * unit)
    size = reach + spread * rho
    error = spread * ERROR[dtype] * (rho + math.sqrt(draws))
    error += gamma * spread * rho + 2 * unit * size
    error += 2 * (bins + 16) * unit + 4 * unit * (size + math.log(bins))
    error += 2 * residual
    return Slack(1.01 * error, lost_probability(draws) + math.exp(-_EXPONENT))


def choose_dtype(slack: Callable[[str], Slack]) -> str:
    """Returns float32 where its slack in epsilon is small enough to be free, else float64."""
    return "float32" if slack("float32").epsilon <= PREFERRED_SLACK else "float64"
