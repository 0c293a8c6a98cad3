"""The figures of given matrices over epsilon: dpsgd, bandmf64, bandmf, best-bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reproduction import drawing, redrawn
from reproduction.points import POISSON, Maker, Question
from reproduction.result import Recipe, Row, Rows, by_series, listed
from reproduction.series import (
    BALLED,
    BINS,
    COLUMNS,
    EPOCHS,
    EPSILONS,
    SAMPLED,
    best_of_each,
    rows_of,
    same_matrix,
)

_WHERE = f"{EPOCHS} epochs of {BINS} batches, delta 1e-5"


def matrix_rows(
    maker: Maker, name: str, spec: str, bins: int = BINS, epochs: int = EPOCHS, epsilons: Sequence[float] = EPSILONS
) -> list[Row]:
    """Rows of one C under all three analyses."""
    return [
        row
        for epsilon in maker.tracked(name, epsilons)
        for row in rows_of(same_matrix(maker, spec, bins, epochs, epsilon))
    ]


def bandmf_rows(
    maker: Maker, name: str = "bandmf", bins: int = BINS, epochs: int = EPOCHS, epsilons: Sequence[float] = EPSILONS
) -> list[Row]:
    """Rows of banded C with the best number of bands at every epsilon."""
    hints: dict[str, int] = {}
    rows: list[Row] = []
    for epsilon in maker.tracked(name, epsilons):
        rows += rows_of(best_of_each(maker, Question(POISSON, "", bins, epochs, epsilon), hints))
    return rows


def ahead(rows: Rows) -> tuple[list[float], list[float]]:
    """Returns at which epsilons balls-in-bins and at which Poisson has the smaller error."""
    errors = by_series(rows, "rmse")
    balls, poisson = errors[BALLED], errors[SAMPLED]
    smaller = [epsilon for epsilon in balls if balls[epsilon] < poisson[epsilon]]
    return smaller, [epsilon for epsilon in balls if epsilon not in smaller]


def comparison_text(rows: Rows) -> str:
    """Says who is ahead where, by how much, and whether anybody is worse than not amplifying."""
    balls, poisson = ahead(rows)
    improvement = by_series(rows, "improvement")
    spans = [
        f"{name} improves RMSE by factors of {min(curve.values()):.3g} to {max(curve.values()):.3g}"
        for name, curve in improvement.items()
        if name in (BALLED, SAMPLED)
    ]
    worse = {
        name: [epsilon for epsilon, value in curve.items() if value < 0.999] for name, curve in improvement.items()
    }
    losing = "; ".join(
        f"{name} is worse than that at epsilon {listed(epsilons)}" for name, epsilons in worse.items() if epsilons
    )
    return (
        f"Over the unamplified mechanism {' and '.join(spans)}. "
        f"Balls-in-bins has the smaller error at epsilon {listed(balls)}, Poisson at {listed(poisson)}. "
        f"{losing or 'Nowhere is either worse than not amplifying'}. Every balls-in-bins point is certified: delta <= "
        "1e-5 except with probability 1.5e-8 over both directions."
    )


def draw_improvement(axis: Any, rows: Rows) -> None:
    """Draws the improvement over the unamplified mechanism against epsilon."""
    further = [redrawn.SERIES] if redrawn.SERIES in by_series(rows, "improvement") else []
    drawing.curves(axis, rows, "improvement", only=(BALLED, SAMPLED, *further))
    drawing.at_one(axis, "no amplification")
    drawing.logarithmic(axis)


def _powers_first(epsilon: float) -> tuple[bool, float]:
    """Powers of two are the ticks of the axis."""
    return math.frexp(epsilon)[0] != 0.5, epsilon


def _draw_over(rows: Rows, than: str) -> Any:
    figure, axis = drawing.canvas()
    draw_improvement(axis, rows)
    axis.set(xlabel="epsilon", ylabel=f"RMSE of {than}, unamplified / RMSE")
    axis.legend()
    return figure


def bands_text(rows: Rows) -> str:
    """Says how the chosen number of bands grows."""
    bands = by_series(rows, "bands")
    spans = [
        f"{name} from {min(bands[name].values()):g} (epsilon {min(bands[name]):g}) to {max(bands[name].values()):g} "
        f"(epsilon {max(bands[name]):g})"
        for name in (BALLED, SAMPLED)
    ]
    return (
        f"The best number of bands, a power of two, rises with epsilon: {', '.join(spans)}. Balls-in-bins "
        "amplifies whatever the number of bands and so affords more of them; Poisson pays for bands with sampling "
        "probability and is allowed 64 at most, balls-in-bins 256."
    )


def draw_bands(rows: Rows) -> Any:
    """Draws the chosen number of bands against epsilon."""
    figure, axis = drawing.canvas()
    drawing.curves(axis, rows, "bands", only=(BALLED, SAMPLED))
    axis.set_yscale("log", base=2)
    ticks = [1 << power for power in range(9)]
    axis.set_yticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set(xlabel="epsilon", ylabel="best number of bands")
    axis.legend()
    return figure


DPSGD = Recipe(
    "dpsgd",
    f"Improvement over unamplified DP-SGD, {_WHERE}",
    6,
    COLUMNS,
    lambda maker: matrix_rows(maker, "dpsgd", "identity"),
    comparison_text,
    lambda rows: _draw_over(rows, "DP-SGD"),
)
BANDMF64 = Recipe(
    "bandmf64",
    f"Improvement over the unamplified 64-banded matrix factorisation, {_WHERE}",
    3,
    COLUMNS,
    lambda maker: matrix_rows(maker, "bandmf64", "bandmf:64"),
    comparison_text,
    lambda rows: _draw_over(rows, "64 bands"),
)


def _bandmf_text(rows: Rows) -> str:
    return f"{comparison_text(rows)} {redrawn.redrawn_text(rows, redrawn.SERIES, EPSILONS)}"


BANDMF = Recipe(
    "bandmf",
    f"Improvement over the unamplified 256-banded matrix factorisation, best number of bands, {_WHERE}",
    18,
    COLUMNS,
    bandmf_rows,
    _bandmf_text,
    lambda rows: _draw_over(rows, "256 bands"),
    redrawn.banded_further((BINS, EPOCHS, epsilon) for epsilon in sorted(EPSILONS, key=_powers_first)),
)
BEST_BANDS = Recipe(
    "best-bands",
    f"The best number of bands, {_WHERE}",
    7,
    COLUMNS,
    lambda maker: bandmf_rows(maker, "best-bands"),
    bands_text,
    draw_bands,
)
