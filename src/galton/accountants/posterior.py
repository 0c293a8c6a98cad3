"""How much the past of a run can tell about one participation: the first half of MMCC (docs/mechanisms.md).

Column c_j, cut before row i, is all that the rows before i have seen of round j. For non-negative C the odds that
round j was a participation grow, given those rows y, by a factor of at most exp((<c_j, y> - |c_j|^2/2) / sigma^2). The
inner product exceeds a level t with small probability only; where it does not, the chance is at most that of the
inflated odds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.strategies.base import Strategy
from galton.strategies.toeplitz import ToeplitzLike

_TILTS = 2.0 ** np.linspace(-5.0, 1.0, 49)
"""Chernoff parameters tried, relative to that of the Gaussian part alone; every one gives a valid level."""

_MOST_ENTRIES = 1 << 26


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows that share entries and bounds lag by lag, from the diagonal down; some reach fewer lags than others.

    Attributes:
      stops: (lags, rows): how many rows reach how many lags, in increasing order of lags.
      values: entry of C at each lag from the diagonal down, the largest over the group.
      own: |c_j|^2 of that lag's column before the row, largest and least over the group.
      own_least: the same, least.
      first, second, largest: sum, sum of squares and maximum of <c_j, c_l> over the other columns l.
    """

    stops: tuple[tuple[int, int], ...]
    values: FloatArray
    own: FloatArray
    own_least: FloatArray
    first: FloatArray
    second: FloatArray
    largest: FloatArray


@dataclass(frozen=True, eq=False)
class Past:
    """All row groups of a strategy, and the number of (row, column) pairs whose past has anything to tell."""

    groups: tuple[RowGroup, ...]
    pairs: int


def chances(group: RowGroup, prior: float, sigma: float, failure: float) -> FloatArray:
    """Returns the inflated chance of participation at every lag; each holds except with probability `failure`.

    <c_j, y> = sum_l x_l <c_j, c_l> + N(0, sigma^2 |c_j|^2), x_l Bernoulli(prior). Chernoff with parameter a bounds its
    level by (K(a) + log(1/failure)) / a, where K adds the participation itself exactly, the others by Bennett's
    inequality from sum, sum of squares and maximum, and the Gaussian part. Under noise alone the level is lower still.
    """
    told = group.own > 0
    own, odds = group.own[told], math.log(prior) - math.log1p(-prior)
    tilt = _TILTS[:, None] * (math.sqrt(-2 * math.log(failure)) / (sigma * np.sqrt(own)))
    top = np.maximum(group.largest[told], 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        itself = np.logaddexp(math.log1p(-prior), math.log(prior) + tilt * own)
        bennett = (np.expm1(tilt * top) - tilt * top) / top**2
        others = prior * (tilt * group.first[told] + group.second[told] * np.where(top > 1e-200, bennett, 0.0))
        level = (itself + others + np.square(tilt * sigma) * own / 2 - math.log(failure)) / tilt
    level = np.where(np.isnan(level), np.inf, level).min(axis=0)
    gain = np.zeros(group.values.size)
    # Both terms are sums of thousands of products at most, right to 1e-11.
    excess = level * (1 + 1e-10) - group.own_least[told] / 2 * (1 - 1e-10)
    gain[told] = np.maximum(excess / sigma**2, 0.0) * (1 + 1e-9)
    return np.asarray(1 / (1 + np.exp(-(odds + gain)))) * (1 + 1e-12)


def past(strategy: Strategy) -> Past:
    """Returns the row groups of a strategy: by a short way if it is Toeplitz, else from all its rows."""
    if strategy.has_negative:
        raise InvalidArgument("strategy", strategy.kind, "must not have negative entries for conditional composition")
    if isinstance(strategy, ToeplitzLike):
        return _toeplitz(np.trim_zeros(strategy.series, "b"), strategy.rounds)
    if strategy.rows * strategy.rounds > _MOST_ENTRIES:
        raise InvalidArgument("strategy", strategy.rows, "has too many rows for conditional composition of a general C")
    return _general(strategy.matrix())


def _edges(size: int, an_octave: int) -> list[int]:
    """Whole numbers up to `size`: each of the first few, then so many an octave."""
    edges = [1]
    while edges[-1] < size:
        edges.append(min(size, max(edges[-1] + 1, math.ceil(edges[-1] * 2 ** (1 / an_octave)))))
    return edges


def _toeplitz(series: FloatArray, rounds: int) -> Past:
    """Row i sees lags 0..i, and the columns at lags u, v before it have <c_u, c_v> = sum_r c[u-r] c[v-r]."""
    bands = series.size
    padded = np.concatenate((series, np.zeros(min(rounds, 2 * bands) - bands)))
    size = padded.size
    gram = np.outer(padded, padded)
    for lag in range(1, size):
        gram[lag, 1:] += gram[lag - 1, :-1]
    inner = np.zeros((size, size))
    inner[1:, 1:] = gram[:-1, :-1]
    own = inner.diagonal().copy()
    inner[np.diag_indices(size)] = 0.0
    inner = inner[:bands]
    sums, squares = np.cumsum(inner, axis=1), np.cumsum(np.square(inner), axis=1)
    maxima = np.maximum.accumulate(inner, axis=1)
    ends = np.array(_edges(size, an_octave=8))
    rows = np.diff(ends, prepend=0)
    rows[-1] += rounds - size
    groups, before = [], 0
    for end in _edges(size, an_octave=2):
        inside = (ends > before) & (ends <= end)
        before = end
        if not inside.any():
            continue
        reached: dict[int, int] = {}
        for last, size_of_part in zip(ends[inside], rows[inside], strict=True):
            lags = min(int(last), bands)
            reached[lags] = reached.get(lags, 0) + int(size_of_part)
        lags = max(reached)
        bound = sums[:lags, end - 1], squares[:lags, end - 1], maxima[:lags, end - 1]
        groups.append(RowGroup(tuple(reached.items()), series[:lags], own[:lags], own[:lags], *bound))
    filled = np.count_nonzero(series[1:]) if bands > 1 else 0
    return Past(tuple(groups), int(filled) * rounds)


def _general(matrix: FloatArray) -> Past:
    """Row by row, with the Gram matrix of all rows before; rows are grouped by their sums and aligned at their ends."""
    rows, rounds = matrix.shape
    inner = np.zeros((rounds, rounds))
    statistics: list[tuple[FloatArray, ...]] = []
    pairs = 0
    for row in matrix:
        used = np.flatnonzero(row)[::-1]
        own = inner[used, used]
        beside = inner[used]
        beside[np.arange(used.size), used] = 0.0
        statistics.append((row[used], own, beside.sum(axis=1), np.square(beside).sum(axis=1), beside.max(axis=1)))
        pairs += int(np.count_nonzero(own))
        inner[np.ix_(used, used)] += np.outer(row[used], row[used])
    order = sorted(range(rows), key=lambda index: (float(statistics[index][0].sum()), index))
    groups: list[RowGroup] = []
    members: list[tuple[FloatArray, ...]] = []
    start = 0.0
    for index in order:
        total = float(statistics[index][0].sum())
        if members and total > start * 1.05:
            groups.append(_merged(members))
            members = []
        start = start if members else total
        members.append(statistics[index])
    groups.append(_merged(members))
    return Past(tuple(groups), pairs)


def _merged(members: list[tuple[FloatArray, ...]]) -> RowGroup:
    """The largest entry and statistics at every lag; a lag that a row does not reach does not bind."""
    length = max(statistics[0].size for statistics in members)
    tops = [np.zeros(length) for _ in range(5)]
    least = np.full(length, np.inf)
    for statistics in members:
        for top, values in zip(tops, statistics, strict=True):
            top[: values.size] = np.maximum(top[: values.size], values)
        own = statistics[1]
        least[: own.size] = np.minimum(least[: own.size], own)
    return RowGroup(((length, len(members)),), tops[0], tops[1], least, *tops[2:])
