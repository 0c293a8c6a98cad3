"""How far one example can move C x at worst: participations some rounds apart, or one in every epoch."""

from __future__ import annotations

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.strategies.banded import ColumnBanded
from galton.strategies.base import BLOCK, Strategy
from galton.strategies.scaled import Scaled
from galton.strategies.toeplitz import ToeplitzLike
from galton.typechecking import typechecked

ROUNDOFF = 2.0**-53


@typechecked
def min_separation_sensitivity(strategy: Strategy, separation: int) -> float:
    """Returns the sensitivity of C x if an example's participations are at least `separation` rounds apart.

    It is exact for Toeplitz C with non-negative, non-increasing coefficients (the earliest rounds are the worst), and
    for any square C with at most `separation` bands (columns do not overlap, and dynamic programming finds the worst
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
    if strategy.rows == strategy.rounds and _filled_bands(strategy) <= separation:
        return _largest_separated_norm(_squared_column_norms(strategy), separation)
    raise unknown_sensitivity(strategy.kind, separation)


@typechecked
def redrawn_sensitivity(strategy: Strategy, bins: int) -> float:
    """Returns the sensitivity of C x if an example takes part in one round of every epoch, whichever they are.

    With at most bins + 1 bands it is exact up to rounding, which is upwards: only columns of neighbouring epochs
    overlap, and dynamic programming over the epochs finds the worst rounds. For any other C it is an upper bound:

      - More bands (BLT, full Toeplitz): |C| = H + R, where H has the first bins + 1 bands. For a choice s of rounds,
        R s is at most rho, rho_k = the sum over epochs of the largest entry of R in row k. The norm of H s + rho, no
        less than that of |C| s, is maximised exactly.
      - C that is not square (a tree): the sum over epochs of the largest column norm.

    Args:
      strategy: C.
      bins: rounds of an epoch; the last epoch may be partial.

    Returns:
      How far an example whose contributions have norm at most 1 can move C x, at most.

    Example:
      >>> from galton import Toeplitz
      >>> C = Toeplitz(4, [1.0, 1.0])
      >>> round(redrawn_sensitivity(C, bins=2), 6)  # rounds 1 and 2, which have a row in common: 1, 2, 1
      2.44949
      >>> round(C.sensitivity(bins=2), 6)  # rounds 0 and 2, as in every epoch of a fixed order
      2.0
    """
    strategy.check_bins(bins)
    rounding = 1 + 4 * (strategy.rows + 64) * ROUNDOFF
    if strategy.rows != strategy.rounds:
        squares = _squared_column_norms(strategy)
        return rounding * sum(float(np.sqrt(squares[i : i + bins].max())) for i in range(0, squares.size, bins))
    tail = _largest_tails(strategy, bins)
    return rounding * float(np.sqrt(_largest_redrawn_square(strategy, bins, tail)))


def _largest_tails(strategy: Strategy, bins: int) -> FloatArray:
    """Returns, for every row, the sum over epochs of the largest |C[k, t]| with k - t > bins."""
    tails = np.zeros(strategy.rounds)
    for start in range(0, strategy.rounds - bins, bins):
        below = strategy.columns(start, start + bins)[start + bins :]
        tails[start + bins :] += np.tril(np.abs(below), -1).max(axis=1)
    return tails


def _largest_redrawn_square(strategy: Strategy, bins: int, tail: FloatArray) -> float:
    """Returns the largest |H s + tail|^2 over s with one round in every epoch; H: the first bins + 1 bands of |C|.

    Sitting out a partial last epoch is never the worst, as no entry is negative.
    """
    best, before = np.zeros(0), np.zeros((0, 0))
    for start in range(0, strategy.rounds, bins):
        rows = slice(start, start + 2 * bins)
        own = np.triu(np.abs(strategy.columns(start, min(start + bins, strategy.rounds))[rows]), -bins)
        worst = np.square(own).sum(axis=0) + 2 * (tail[rows] @ own)
        if start:
            shared = before[bins:].T @ own[: before.shape[0] - bins]
            worst += (best[:, None] + 2 * shared).max(axis=0)
        best, before = worst, own
    return float(best.max() + tail @ tail)


def unknown_sensitivity(what: str, separation: int) -> InvalidArgument:
    """Returns the error for a strategy whose sensitivity under min-separation is not known exactly."""
    return InvalidArgument(
        "participation",
        "min-separation",
        f"the sensitivity of this {what} strategy is not known exactly: needs non-increasing Toeplitz "
        f"coefficients, or at most {separation} bands; use fixed-order",
    )


def _filled_bands(strategy: Strategy) -> int:
    """Number of diagonals up to the last that is not zero."""
    if isinstance(strategy, ToeplitzLike):
        return int(np.flatnonzero(strategy.full_series)[-1]) + 1
    return strategy.bands


def _squared_column_norms(strategy: Strategy) -> FloatArray:
    if isinstance(strategy, ToeplitzLike):
        return np.cumsum(np.square(strategy.full_series))[::-1]
    if isinstance(strategy, ColumnBanded):
        return np.asarray(np.square(strategy.coefficients).sum(axis=0))
    if isinstance(strategy, Scaled):
        return _squared_column_norms(strategy.inner) * np.square(strategy.weights)
    blocks = range(0, strategy.rounds, BLOCK)
    columns = (strategy.columns(start, min(start + BLOCK, strategy.rounds)) for start in blocks)
    return np.concatenate([np.square(block).sum(axis=0) for block in columns])


def _largest_separated_norm(squares: FloatArray, separation: int) -> float:
    """Root of the largest sum of squared column norms over columns at least `separation` apart."""
    best = np.zeros(squares.size + separation)
    for column in range(squares.size):
        best[column + separation] = max(best[column + separation - 1], best[column] + squares[column])
    return float(np.sqrt(best[-1]))
