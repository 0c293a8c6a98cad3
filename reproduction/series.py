"""Mechanisms side by side in one setting, as rows: what all figures over epsilon have in common."""

from __future__ import annotations

from collections.abc import Mapping

from galton.optimization.bands import best_bands
from reproduction.points import BALLS, ESTIMATE, POISSON, UNAMPLIFIED, Maker, Point, Question
from reproduction.result import Row

BINS, EPOCHS = 128, 16
"""The paper's main setting: 2048 rounds."""
EPSILONS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.2, 16.0)
MOST_BANDS, MOST_POISSON = 256, 64
PLAIN, SAMPLED, BALLED = "unamplified", "Poisson", "balls-in-bins"
"""Names of the series."""

COLUMNS = (
    *("bins", "epochs", "epsilon", "series", "strategy", "bands", "rmse", "improvement", "relative"),
    *("noise_multiplier", "delta_upper", "samples"),
)
"""improvement: RMSE of the unamplified series over this one's; relative: this one's RMSE over that of Poisson."""


def rows_of(points: Mapping[str, Point]) -> list[Row]:
    """Returns one row a series, with its error relative to the unamplified and to the Poisson series."""
    plain, poisson = points[PLAIN].rmse, points[SAMPLED].rmse
    return [row_of(name, point, plain, poisson) for name, point in points.items()]


def row_of(series: str, point: Point, plain: float, poisson: float) -> Row:
    """Returns the row of a point; `plain` and `poisson` are the errors that its own is relative to."""
    return {
        "bins": point.question.bins,
        "epochs": point.question.epochs,
        "epsilon": point.question.epsilon,
        "series": series,
        "strategy": point.question.words,
        "bands": point.question.bands,
        "rmse": point.rmse,
        "improvement": plain / point.rmse,
        "relative": point.rmse / poisson,
        "noise_multiplier": point.noise_multiplier,
        "delta_upper": point.delta_upper,
        "samples": point.samples,
    }


def same_matrix(maker: Maker, spec: str, bins: int, epochs: int, epsilon: float) -> dict[str, Point]:
    """Returns one C unamplified, with balls-in-bins and with Poisson sampling."""
    methods = {PLAIN: UNAMPLIFIED, BALLED: BALLS, SAMPLED: POISSON}
    return {name: maker.point(Question(method, spec, bins, epochs, epsilon)) for name, method in methods.items()}


def best_banded(maker: Maker, method: str, at: Question, most: int, hint: int) -> Point:
    """Returns the point of the number of bands, a power of two of at most `most`, with the least error.

    Balls-in-bins is judged by quick estimates, and the one chosen is then certified.

    Args:
      maker: makes the points.
      method: whose error counts.
      at: bins, epochs and epsilon; its method and strategy do not matter.
      most: the largest number of bands.
      hint: where the search for the number begins, the choice at a nearby epsilon.
    """

    def question(method: str, bands: int) -> Question:
        return Question(method, f"bandmf:{bands}", at.bins, at.epochs, at.epsilon, at.delta)

    judge = ESTIMATE if method == BALLS else method
    chosen = best_bands(lambda bands: maker.point(question(judge, bands)).rmse, most, hint)
    return maker.point(question(method, chosen))


def best_of_each(maker: Maker, at: Question, hints: dict[str, int]) -> dict[str, Point]:
    """Returns banded C: the widest unamplified, and with its best number of bands balls-in-bins and Poisson.

    Remembers in `hints` what was chosen, for the next epsilon.
    """
    wide = f"bandmf:{min(MOST_BANDS, at.rounds)}"
    points = {PLAIN: maker.point(Question(UNAMPLIFIED, wide, at.bins, at.epochs, at.epsilon))}
    limits = {BALLED: (BALLS, min(MOST_BANDS, at.rounds)), SAMPLED: (POISSON, min(MOST_POISSON, at.bins))}
    for name, (method, most) in limits.items():
        points[name] = best_banded(maker, method, at, most, hints.get(name, 4))
        hints[name] = points[name].question.bands or 1
    return points
