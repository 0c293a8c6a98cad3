"""The tables of noise multipliers and of bands in the CIFAR-10 setting: 20 epochs of 100 batches, delta 1e-5."""

from __future__ import annotations

from typing import Any

from reproduction import drawing
from reproduction.points import BALLS, ESTIMATE, OPTIMIZED, POISSON, Maker, Question
from reproduction.result import Recipe, Row, Rows, by_series, number

BINS, EPOCHS = 100, 20
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
BANDMF_POISSON, BANDMF_BALLS, BLT, TOEPLITZ = "bandmf-poisson", "bandmf-balls-in-bins", "blt:4", "toeplitz"

PAPER_BANDS = {BANDMF_POISSON: (2, 4, 8, 16, 32), BANDMF_BALLS: (16, 32, 64, 64, 64)}
PAPER_MULTIPLIERS = {
    BANDMF_POISSON: (1.018, 0.778, 0.606, 0.481, 0.388),
    BANDMF_BALLS: (2.829, 2.071, 1.455, 0.802, 0.470),
    BLT: (2.609, 1.598, 1.079, 0.694, 0.448),
    TOEPLITZ: (2.003, 1.182, 0.864, 0.639, 0.445),
}
_POWERS = (1, 2, 4, 8, 16, 32, 64)
_SIGMA_COLUMNS = ("series", "epsilon", "bands", "multiplier", "paper", "ratio", "rmse", "rmse_with_paper_multiplier")
_BANDS_COLUMNS = ("series", "epsilon", "bands", "paper", "rmse", "rmse_with_paper_bands", "excess")


def cell(series: str, epsilon: float, bands: int | None, estimate: bool = False) -> Question:
    """Returns the question of one cell; balls-in-bins by a quick estimate if that will do."""
    if series in (BLT, TOEPLITZ):
        return Question(OPTIMIZED, series, BINS, EPOCHS, epsilon)
    method = POISSON if series == BANDMF_POISSON else ESTIMATE if estimate else BALLS
    return Question(method, f"bandmf:{bands}", BINS, EPOCHS, epsilon)


def _sigma_rows(maker: Maker) -> list[Row]:
    rows: list[Row] = []
    cells = [(series, index) for series in PAPER_MULTIPLIERS for index in range(len(EPSILONS))]
    for series, index in maker.tracked("sigma-table", cells):
        bands = PAPER_BANDS[series][index] if series in PAPER_BANDS else None
        point = maker.point(cell(series, EPSILONS[index], bands))
        published = PAPER_MULTIPLIERS[series][index]
        rows.append(
            {
                "series": series,
                "epsilon": EPSILONS[index],
                "bands": bands,
                "multiplier": point.noise_multiplier,
                "paper": published,
                "ratio": point.noise_multiplier / published,
                "rmse": point.rmse,
                "rmse_with_paper_multiplier": point.rmse / point.noise_multiplier * published,
            }
        )
    return rows


def worst_ratios(rows: Rows) -> dict[str, float]:
    """Returns how far multipliers are from the paper's, at most, by series."""
    return {name: max(abs(ratio - 1) for ratio in curve.values()) for name, curve in by_series(rows, "ratio").items()}


def _sigma_text(rows: Rows) -> str:
    worst = worst_ratios(rows)
    return (
        f"BandMF with Poisson sampling agrees with the paper within {worst[BANDMF_POISSON]:.2%}, BandMF with "
        f"balls-in-bins within {worst[BANDMF_BALLS]:.2%} (same bands, calibrated to 8e-6). The multipliers of "
        f"optimised C differ by up to {worst[BLT]:.0%} (BLT) and {worst[TOEPLITZ]:.0%} (Toeplitz): a multiplier alone "
        "says nothing about error. Near the optimum error is flat along a valley in which more memory goes with more "
        "noise, and an optimiser stops somewhere in it. The last column is the error our C would have "
        "with the paper's multiplier: where it is above ours, our C needs less noise than that for the same "
        "guarantee; where it is below, that noise would not be enough for our C."
    )


def _draw_sigma(rows: Rows) -> Any:
    figure, axis = drawing.canvas()
    names = {BANDMF_POISSON: "Poisson", BANDMF_BALLS: "balls-in-bins", BLT: "BLT-4", TOEPLITZ: "Toeplitz"}
    drawing.curves(axis, [row | {"series": names[str(row["series"])]} for row in rows], "ratio")
    drawing.at_one(axis, "the paper's")
    axis.set(xlabel="epsilon", ylabel="noise multiplier / the paper's")
    axis.legend()
    return figure


def _bands_rows(maker: Maker) -> list[Row]:
    rows: list[Row] = []
    cells = [(series, index) for series in PAPER_BANDS for index in range(len(EPSILONS))]
    for series, index in maker.tracked("bands-table", cells):
        errors = {bands: maker.point(cell(series, EPSILONS[index], bands, estimate=True)).rmse for bands in _POWERS}
        best, published = min(errors, key=lambda bands: errors[bands]), PAPER_BANDS[series][index]
        rows.append(
            {
                "series": series,
                "epsilon": EPSILONS[index],
                "bands": best,
                "paper": published,
                "rmse": errors[best],
                "rmse_with_paper_bands": errors[published],
                "excess": errors[published] / errors[best] - 1,
            }
        )
    return rows


def _bands_text(rows: Rows) -> str:
    same = sum(row["bands"] == row["paper"] for row in rows)
    return (
        f"Powers of two up to {_POWERS[-1]}, by prefix-sum RMSE; balls-in-bins by quick estimates (about 0.2%). "
        f"{same} of {len(rows)} choices are the paper's; its choice costs at most "
        f"{max(number(row, 'excess') for row in rows):.2%} more than ours."
    )


def _draw_bands(rows: Rows) -> Any:
    figure, axis = drawing.canvas()
    names = {BANDMF_POISSON: "Poisson", BANDMF_BALLS: "balls-in-bins"}
    named: list[Row] = [row | {"series": names[str(row["series"])]} for row in rows]
    drawing.curves(axis, named, "bands")
    theirs = by_series(named, "paper")
    for name, curve in theirs.items():
        look = drawing.style(name) | {"linestyle": "none", "markersize": 13, "markerfacecolor": "none"}
        axis.plot(list(curve), list(curve.values()), label=f"{name}, the paper's", **look)
    axis.set_yscale("log", base=2)
    axis.set_yticks(_POWERS, [str(power) for power in _POWERS])
    axis.minorticks_off()
    axis.set(xlabel="epsilon", ylabel="best number of bands")
    axis.legend()
    return figure


SIGMA_TABLE = Recipe(
    "sigma-table",
    "Noise multipliers, 20 epochs of 100 batches, delta 1e-5",
    6,
    _SIGMA_COLUMNS,
    _sigma_rows,
    _sigma_text,
    _draw_sigma,
)
BANDS_TABLE = Recipe(
    "bands-table",
    "Number of bands chosen, 20 epochs of 100 batches, delta 1e-5",
    4,
    _BANDS_COLUMNS,
    _bands_rows,
    _bands_text,
    _draw_bands,
)
