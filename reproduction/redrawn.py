"""Bins redrawn in every epoch, a series that the paper does not have: banded C, and C optimised for them.

A point takes minutes, so that these rows come after those of the paper, each by itself (`--missing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from reproduction.points import REDRAWN, REDRAWN_OPTIMIZED, Maker, Question
from reproduction.result import Further, Row, Rows, by_series, listed, number
from reproduction.series import BALLED, PLAIN, SAMPLED, row_of

SERIES = "redrawn bins"
OPTIMUM = "scaled BLT-4, redrawn bins"
FAMILY = "blt:4+scale"
Setting = tuple[int, int, float]
"""Bins, epochs and epsilon."""


def banded_further(settings: Iterable[Setting]) -> tuple[Further, ...]:
    """Returns the rows of banded C, the best of at most three numbers of bands, every one calibrated."""
    return tuple(Further(_key(setting, SERIES), _banded) for setting in settings)


def optimized_further(settings: Iterable[Setting]) -> tuple[Further, ...]:
    """Returns the rows of C optimised under redrawn bins."""
    return tuple(Further(_key(setting, OPTIMUM), _optimized) for setting in settings)


def redrawn_text(rows: Rows, series: str, epsilons: Iterable[float]) -> str:
    """Says how redrawn bins compare to Poisson sampling and to bins drawn once, and what is not computed yet."""
    relative = by_series(rows, "relative")
    curve = relative.get(series, {})
    missing = [epsilon for epsilon in epsilons if epsilon not in curve]
    unknown = f"not computed at epsilon {listed(missing)}" if missing else ""
    if not curve:
        return f"{series}: {unknown}."
    once = [value / relative[BALLED][epsilon] for epsilon, value in curve.items()]
    worse = [epsilon for epsilon, value in curve.items() if value > 1]
    parts = [
        f"{series}: RMSE {min(curve.values()):.3f} to {max(curve.values()):.3f} of Poisson's with banded C",
        f"{min(once):.3f} to {max(once):.3f} of that of balls-in-bins with banded C",
        f"behind Poisson at epsilon {listed(worse)}" if worse else "nowhere behind Poisson",
    ]
    return "; ".join([*parts, unknown] if unknown else parts) + "."


def _key(setting: Setting, series: str) -> Row:
    bins, epochs, epsilon = setting
    return {"bins": bins, "epochs": epochs, "epsilon": epsilon, "series": series}


def _banded(maker: Maker, rows: Rows, key: Row) -> Row:
    tried = [_further_row(maker, rows, key, REDRAWN, f"bandmf:{bands}") for bands in _candidates(rows, key)]
    return min(tried, key=lambda row: number(row, "rmse"))


def _candidates(rows: Rows, key: Row) -> list[int]:
    """Numbers of bands that are tried: those of the other series, no more than bins, and the one in the middle."""
    most = int(number(key, "bins"))  # more bands than bins + 1 are bounded only
    few, many = (min(int(number(_of(rows, key, series), "bands")), most) for series in (SAMPLED, BALLED))
    return sorted({few, many, 1 << round(math.log2(few * many) / 2)})


def _optimized(maker: Maker, rows: Rows, key: Row) -> Row:
    return _further_row(maker, rows, key, REDRAWN_OPTIMIZED, FAMILY)


def _further_row(maker: Maker, rows: Rows, key: Row, method: str, strategy: str) -> Row:
    bins, epochs = int(number(key, "bins")), int(number(key, "epochs"))
    point = maker.point(Question(method, strategy, bins, epochs, number(key, "epsilon")))
    plain, poisson = (number(_of(rows, key, series), "rmse") for series in (PLAIN, SAMPLED))
    return row_of(str(key["series"]), point, plain, poisson)


def _of(rows: Rows, key: Row, series: str) -> Row:
    """The row of another series in the same setting."""
    wanted = key | {"series": series}
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))
