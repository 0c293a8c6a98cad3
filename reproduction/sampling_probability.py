"""sampling-probability: 128 rounds at (1, 1e-5), from one batch per epoch to one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction import drawing
from reproduction.points import POISSON, Maker, Question
from reproduction.result import Recipe, Row, Rows, by_series, listed
from reproduction.series import BALLED, COLUMNS, PLAIN, SAMPLED, best_of_each, rows_of

ROUNDS, EPSILON = 128, 1.0
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def probability_rows(maker: Maker, rounds: int = ROUNDS, batches: Sequence[int] = BATCHES) -> list[Row]:
    """Rows by batches per epoch, with the best number of bands for each."""
    hints: dict[str, int] = {}
    rows: list[Row] = []
    for bins in maker.tracked("sampling-probability", batches):
        at = Question(POISSON, "", bins, rounds // bins, EPSILON)
        hints = {name: min(hint, bins) for name, hint in hints.items()}
        rows += rows_of(best_of_each(maker, at, hints))
    return rows


def _text(rows: Rows) -> str:
    errors, improvement = by_series(rows, "rmse", "bins"), by_series(rows, "improvement", "bins")
    balls, poisson = errors[BALLED], errors[SAMPLED]
    closest = max(balls[bins] / poisson[bins] for bins in balls)
    most = max(balls)
    ahead = [bins for bins in balls if balls[bins] < poisson[bins]]
    return (
        f"With more batches per epoch, that is a smaller sampling probability, both schemes gain: at {most:g} batches "
        f"balls-in-bins is {improvement[BALLED][most]:.3g} and Poisson {improvement[SAMPLED][most]:.3g} times better "
        f"than no amplification. Balls-in-bins has the smaller error at {listed(ahead)} batches per epoch, "
        f"and nowhere is its error more than {closest:.3g} times that of Poisson."
    )


def _draw(rows: Rows) -> Any:
    figure, axis = drawing.canvas()
    drawing.curves(axis, rows, "rmse", "bins", (PLAIN, BALLED, SAMPLED))
    drawing.logarithmic(axis)
    axis.set(xlabel="batches per epoch (1 / sampling probability)", ylabel="RMSE")
    axis.legend()
    return figure


SAMPLING_PROBABILITY = Recipe(
    "sampling-probability",
    f"RMSE against batches per epoch, {ROUNDS} rounds, epsilon 1, delta 1e-5, best number of bands",
    20,
    COLUMNS,
    probability_rows,
    _text,
    _draw,
)
