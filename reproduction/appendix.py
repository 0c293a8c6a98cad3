"""appendix: bandmf and optimized for 8, 16 and 32 epochs of 32, 64 and 128 batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from galton.plots import pyplot
from reproduction import redrawn
from reproduction.banded import ahead, draw_improvement
from reproduction.optimized import BEST, PAPERS, behind, draw_relative, optimized_points
from reproduction.points import POISSON, Maker, Question
from reproduction.result import Recipe, Row, Rows, by_series, listed
from reproduction.series import BALLED, COLUMNS, SAMPLED, rows_of

EPOCHS, BATCHES = (8, 16, 32), (32, 64, 128)
EPSILONS = (0.25, 0.5, 1.0, 4.0, 16.0)
FAMILIES = PAPERS | {"scaled BLT-4": "blt:4+scale"}


def appendix_rows(
    maker: Maker,
    epochs: Sequence[int] = EPOCHS,
    batches: Sequence[int] = BATCHES,
    epsilons: Sequence[float] = EPSILONS,
) -> list[Row]:
    """Rows of all settings."""
    settings = [(passes, bins, epsilon) for passes in epochs for bins in batches for epsilon in epsilons]
    rows: list[Row] = []
    hints: dict[tuple[int, int], dict[str, int]] = {}
    for passes, bins, epsilon in maker.tracked("appendix", settings):
        at = Question(POISSON, "", bins, passes, epsilon)
        rows += rows_of(optimized_points(maker, at, FAMILIES, hints.setdefault((passes, bins), {})))
    return rows


def settings_of(rows: Rows) -> dict[tuple[int, int], list[Row]]:
    """Returns the rows by (epochs, bins)."""
    settings: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        epochs, bins = row["epochs"], row["bins"]
        assert isinstance(epochs, int)
        assert isinstance(bins, int)
        settings.setdefault((epochs, bins), []).append(row)
    return settings


def _text(rows: Rows) -> str:
    lines = [
        "Banded C with its best number of bands, and our best C; its least error relative to Poisson's in brackets."
    ]
    for (epochs, bins), of_setting in settings_of(rows).items():
        _, poisson = ahead(of_setting)
        least = min(by_series(of_setting, "relative")[BEST].values())
        lines.append(
            f"{epochs} epochs of {bins}: Poisson ahead of balls-in-bins with banded C at epsilon {listed(poisson)}, of "
            f"our best C at {listed(behind(of_setting, BEST))} ({least:.3f}). "
            f"{redrawn.redrawn_text(of_setting, redrawn.OPTIMUM, EPSILONS)}"
        )
    return "\n".join(lines)


def _draw(rows: Rows) -> Any:
    """Two pages' worth on one: improvement over no amplification above, optimised C relative to Poisson below."""
    settings = settings_of(rows)
    further = [redrawn.OPTIMUM] if redrawn.OPTIMUM in by_series(rows, "relative") else []
    epochs, batches = sorted({key[0] for key in settings}), sorted({key[1] for key in settings})
    figure = pyplot().figure(figsize=(3.6 * len(batches), 4.6 * len(epochs) + 1), layout="constrained")
    for part, improved in zip(figure.subfigures(2, 1), (True, False), strict=True):
        axes = part.subplots(len(epochs), len(batches), squeeze=False)
        for across, passes in zip(axes, epochs, strict=True):
            for axis, bins in zip(across, batches, strict=True):
                if improved:
                    draw_improvement(axis, settings[passes, bins])
                else:
                    draw_relative(axis, settings[passes, bins], (BALLED, *FAMILIES, *further))
                axis.set_title(f"{passes} epochs of {bins} batches", fontsize=9)
        lines, names = axes[0][0].get_legend_handles_labels()
        part.legend(lines, names, loc="outside lower center", ncols=len(names), fontsize=9)
        for axis in axes[-1]:
            axis.set_xlabel("epsilon")
        part.supylabel("unamplified RMSE / RMSE" if improved else f"RMSE / best banded C, {SAMPLED}", fontsize=10)
    return figure


APPENDIX = Recipe(
    "appendix",
    "Banded and optimised C for 8, 16 and 32 epochs of 32, 64 and 128 batches, delta 1e-5",
    165,
    COLUMNS,
    appendix_rows,
    _text,
    _draw,
    redrawn.optimized_further(
        (bins, epochs, epsilon) for bins in BATCHES for epochs in EPOCHS for epsilon in reversed(EPSILONS)
    ),
)
