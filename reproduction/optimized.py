"""optimized: C optimised under balls-in-bins, relative to the best banded C with Poisson sampling.

Beyond the paper: families of our own, and whether the least error over all of them, with searches from other places at
the extremes, closes the gap where one family is behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction import drawing, redrawn
from reproduction.points import BALLS, LONG, OPTIMIZED, POISSON, SHORT, Maker, Point, Question
from reproduction.result import Recipe, Row, Rows, by_series, listed
from reproduction.series import BALLED, BINS, COLUMNS, EPOCHS, SAMPLED, best_of_each, rows_of

POWERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
PAPERS = {"BLT-3": "blt:3", "Toeplitz": "toeplitz"}
"""The families of the paper."""
OURS = {"BLT-4": "blt:4", "scaled BLT-4": "blt:4+scale", "scaled Toeplitz": "toeplitz+scale"}
BANDED, WIDTH = "column-banded", 64
BANDED_EPSILONS = (0.25, 2.0, 16.0)
"""Column-banded C has a hundred thousand parameters and takes minutes: three epsilons must do."""
BEST = "best of ours"
SMALL, LARGE = 0.25, 16.0
"""At these epsilons and beyond, searches start from other places too."""


def optimized_points(
    maker: Maker, at: Question, families: Mapping[str, str], hints: dict[str, int], beyond: bool = False
) -> dict[str, Point]:
    """Returns the banded points of `best_of_each`, one for every family, and the best of all that is ours.

    Args:
      maker: makes the points.
      at: bins, epochs and epsilon; its method and strategy do not matter.
      families: names of the series and families to optimise.
      hints: numbers of bands, see `best_of_each`.
      beyond: whether the best also looks at the classical optimum and at other starts.
    """

    def point_of(method: str, strategy: str, start: str = "") -> Point:
        return maker.point(Question(method, strategy, at.bins, at.epochs, at.epsilon, at.delta, start))

    points = best_of_each(maker, at, hints)
    points |= {name: point_of(OPTIMIZED, family) for name, family in families.items()}
    rivals = [point for point in points.values() if point.question.method in (BALLS, OPTIMIZED)]
    if beyond:
        rivals.append(point_of(BALLS, f"bandmf:{at.rounds}"))
        if at.epsilon <= SMALL:
            rivals.append(point_of(OPTIMIZED, "toeplitz+scale", SHORT))
        if at.epsilon >= LARGE:
            rivals.append(point_of(OPTIMIZED, "toeplitz+scale", LONG))
    return points | {BEST: min(rivals, key=lambda point: point.rmse)}


def optimized_rows(
    maker: Maker,
    bins: int = BINS,
    epochs: int = EPOCHS,
    epsilons: Sequence[float] = POWERS,
    width: int = WIDTH,
    banded: Sequence[float] = BANDED_EPSILONS,
) -> list[Row]:
    """Rows of all families at every epsilon."""
    hints: dict[str, int] = {}
    rows: list[Row] = []
    for epsilon in maker.tracked("optimized", epsilons):
        families = PAPERS | OURS | ({BANDED: f"banded:{width}"} if epsilon in banded else {})
        at = Question(POISSON, "", bins, epochs, epsilon)
        rows += rows_of(optimized_points(maker, at, families, hints, beyond=True))
    return rows


def behind(rows: Rows, series: str) -> list[float]:
    """Returns the epsilons at which a series has a larger error than banded C with Poisson sampling."""
    return [epsilon for epsilon, value in by_series(rows, "relative")[series].items() if value > 1]


def _text(rows: Rows) -> str:
    relative = by_series(rows, "relative")
    parts = []
    for name in (*PAPERS, *OURS, BANDED, BEST):
        curve = relative.get(name)
        if curve:
            lost = behind(rows, name)
            where = f"behind at epsilon {listed(lost)}" if lost else "ahead everywhere"
            parts.append(f"{name} {min(curve.values()):.3f} to {max(curve.values()):.3f}, {where}")
    winners = {row["epsilon"]: row["strategy"] for row in rows if row["series"] == BEST}
    chosen = ", ".join(f"{name} at {epsilon}" for epsilon, name in winners.items())
    other = redrawn.redrawn_text(rows, redrawn.OPTIMUM, POWERS)
    return (
        f"RMSE relative to the best banded Toeplitz C with Poisson sampling: {'; '.join(parts)}. "
        f"The best of ours is {chosen}. Every balls-in-bins point is certified: delta <= 1e-5 except with probability "
        f"1.5e-8 over both directions. {other}"
    )


def draw_relative(axis: Any, rows: Rows, names: Sequence[str]) -> None:
    """Draws errors relative to banded C with Poisson sampling on one axis."""
    drawing.curves(axis, rows, "relative", only=names)
    drawing.at_one(axis, "best banded, Poisson")


def _draw(rows: Rows) -> Any:
    figure, axes = drawing.canvas(columns=2, width=10.5, height=4.2)
    draw_relative(axes[0], rows, (BALLED, *PAPERS, BEST))
    further = [redrawn.OPTIMUM] if redrawn.OPTIMUM in by_series(rows, "relative") else []
    draw_relative(axes[1], rows, (*OURS, BANDED, BEST, *further))
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis, title in zip(axes, ("families of the paper", "families of our own"), strict=True):
        axis.set(xlabel="epsilon", title=title, ylim=(low, high))
        axis.legend(fontsize=8)
    axes[0].set_ylabel(f"RMSE relative to best banded C, {SAMPLED}")
    return figure


OPTIMIZED_RECIPE = Recipe(
    "optimized",
    f"C optimised under balls-in-bins, RMSE relative to the best banded C with Poisson sampling, {EPOCHS} epochs of "
    f"{BINS} batches, delta 1e-5",
    40,
    COLUMNS,
    optimized_rows,
    _text,
    _draw,
    redrawn.optimized_further((BINS, EPOCHS, epsilon) for epsilon in reversed(POWERS)),
)
