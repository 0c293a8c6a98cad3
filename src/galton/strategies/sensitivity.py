"""How far one example can move C x if its participations are only known to be some rounds apart."""

from __future__ import annotations

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.strategies.banded import ColumnBanded
from galton.strategies.base import Strategy
from galton.strategies.toeplitz import ToeplitzLike


def min_separation_sensitivity(strategy: Strategy, separation: int) -> float:
    """Returns the sensitivity of C x if an example's participations are at least `separation` rounds apart.

    It is exact for Toeplitz C with non-negative, non-increasing coefficients (the earliest rounds are the worst), and
    for banded C with at most `separation` bands (columns do not overlap, and dynamic programming finds the worst
    choice). Any other C is refused with `InvalidArgument`.

    Args:
      strategy: C.
      separation: the least distance between two participations, in rounds.

    Returns:
      How far an example whose contributions have norm at most 1 can move C x.

    Example:
      >>> from galton import identity
      >>> min_separation_sensitivity(identity(8), separation=2)  # at most four participations
      2.0
    """
    strategy.check_bins(separation)
    if isinstance(strategy, ToeplitzLike):
        series = strategy.full_series
        if (series >= 0).all() and (np.diff(series) <= 1e-12 * series[0]).all():
            return strategy.sensitivity(separation)
    if isinstance(strategy, ColumnBanded) and strategy.coefficients.shape[0] <= separation:
        return _largest_separated_norm(np.square(strategy.coefficients).sum(axis=0), separation)
    if isinstance(strategy, ToeplitzLike) and np.flatnonzero(strategy.full_series)[-1] < separation:
        tails = np.cumsum(np.square(strategy.full_series))[::-1]
        return _largest_separated_norm(tails, separation)
    raise unknown_sensitivity(strategy.kind, separation)


def unknown_sensitivity(what: str, separation: int) -> InvalidArgument:
    """Returns the error for a strategy whose sensitivity under min-separation is not known exactly."""
    return InvalidArgument(
        "participation",
        "min-separation",
        f"the sensitivity of this {what} strategy is not known exactly: needs non-increasing Toeplitz "
        f"coefficients, or at most {separation} bands; use fixed-order",
    )


def _largest_separated_norm(squares: FloatArray, separation: int) -> float:
    """Root of the largest sum of squared column norms over columns at least `separation` apart."""
    best = np.zeros(squares.size + separation)
    for column in range(squares.size):
        best[column + separation] = max(best[column + separation - 1], best[column] + squares[column])
    return float(np.sqrt(best[-1]))
