"""samples: what fewer samples per iteration of the search cost, plain (as in the paper) and by importance sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from galton.cache import Json
from reproduction import drawing
from reproduction.points import Maker
from reproduction.result import Recipe, Row, Rows, by_series, listed, number
from reproduction.sample_study import Study
from reproduction.series import EPOCHS

EPSILONS = (0.5, 1.0, 2.0, 4.0)
POWERS: dict[str, tuple[int, ...]] = {
    "plain": (5, 8, 11, 14, 17, 20),
    "tilted": (5, 8, 11, 14),
    "mixture": (5, 8, 11, 14),
}
"""Numbers of samples, as powers of two, by estimator: plain is the paper's, mixture galton's default."""
FEW_BINS = 64
"""Half of the main setting's: a million plain samples an iteration would take an hour there."""
COLUMNS = ("epsilon", "series", "samples", "rmse", "increase")


def sample_rows(
    maker: Maker,
    bins: int = FEW_BINS,
    rounds: int = FEW_BINS * EPOCHS,
    epsilons: Sequence[float] = EPSILONS,
    powers: Mapping[str, Sequence[int]] = POWERS,
) -> list[Row]:
    """Rows of all studies, with the increase over the least RMSE that any of them reached at the same epsilon."""
    rows: list[Row] = []
    cells = [
        (epsilon, name, power) for epsilon in epsilons for name, exponents in powers.items() for power in exponents
    ]
    studies = {epsilon: Study(epsilon, bins, rounds, seed=maker.seed) for epsilon in epsilons}
    for epsilon, estimator, power in maker.tracked("samples", cells):
        inputs: Json = {"what": "samples", "bins": bins, "rounds": rounds, "epsilon": epsilon}
        inputs |= {"estimator": estimator, "samples": 1 << power}
        answer = maker.cached(
            inputs,
            lambda: {"rmse": studies[epsilon].rmse(estimator, 1 << power)},  # noqa: B023
            Study.__module__,
        )
        rows.append({"epsilon": epsilon, "series": estimator, "samples": 1 << power, "rmse": answer["rmse"]})
    for row in rows:
        least = min(
            number(other, "rmse") for other in rows if other["epsilon"] == row["epsilon"] and other["rmse"] is not None
        )
        row["increase"] = None if row["rmse"] is None else number(row, "rmse") / least - 1
    return rows


def enough(rows: Rows, estimator: str, epsilon: float, most: float = 0.01) -> int | None:
    """Returns the least number of samples from which on the increase stays below `most`; None if there is none."""
    study_rows = [row for row in rows if row["series"] == estimator and row["epsilon"] == epsilon]
    samples: int | None = None
    for row in sorted(study_rows, key=lambda row: number(row, "samples"), reverse=True):
        if row["increase"] is None or number(row, "increase") > most:
            break
        samples = int(number(row, "samples"))
    return samples


def _text(rows: Rows) -> str:
    epsilons = list(dict.fromkeys(number(row, "epsilon") for row in rows))
    parts = []
    for estimator in dict.fromkeys(str(row["series"]) for row in rows):
        counts = [enough(rows, estimator, epsilon) for epsilon in epsilons]
        words = ", ".join("more than tried" if count is None else f"{count:,}" for count in counts)
        failed = sorted({int(number(row, "samples")) for row in rows if row["series"] == estimator and not row["rmse"]})
        lost = f" (no search at all somewhere with {listed(failed)})" if failed else ""
        parts.append(f"{estimator}: {words}{lost}")
    return (
        f"Samples per direction from which on RMSE is within 1% of the best, at epsilon {listed(epsilons)}: "
        f"{'; '.join(parts)}. A plain sample has a positive value with a probability of about delta only, so that "
        "below 1/delta samples a search sees nothing, or follows a few of them; importance samples all count."
    )


def _draw(rows: Rows) -> Any:
    epsilons = list(dict.fromkeys(number(row, "epsilon") for row in rows))
    figure, axes = drawing.canvas(columns=len(epsilons), width=3.2 * len(epsilons) + 0.6, height=3.6)
    panels = [axes] if len(epsilons) == 1 else list(axes)
    top = max(number(row, "increase") for row in rows if row["increase"] is not None) * 100
    for axis, epsilon in zip(panels, epsilons, strict=True):
        at_epsilon = [
            row | {"percent": None if row["increase"] is None else 100 * number(row, "increase")}
            for row in rows
            if row["epsilon"] == epsilon
        ]
        drawing.curves(axis, at_epsilon, "percent", "samples", list(by_series(at_epsilon, "percent", "samples")))
        powers = sorted({int(number(row, "samples")).bit_length() - 1 for row in rows})
        axis.set_xticks([1 << power for power in powers], [f"$2^{{{power}}}$" for power in powers])
        axis.minorticks_off()
        axis.set_yscale("symlog", linthresh=1)
        axis.set_ylim(-0.1, max(2.0, 1.5 * top))
        ticks = [0, 0.5, *(tick for tick in (1, 2, 5, 10, 20, 50, 100, 200) if tick <= 1.5 * top)]
        axis.set_yticks(ticks, [f"{tick:g}%" for tick in ticks])
        axis.minorticks_off()
        axis.set(xlabel="samples per iteration", title=f"epsilon {epsilon:g}")
    panels[0].set_ylabel("increase in RMSE")
    panels[0].legend(fontsize=8)
    return figure


SAMPLES = Recipe(
    "samples",
    f"Increase in RMSE from fewer samples per iteration, BLT-4, {EPOCHS} epochs of {FEW_BINS} batches, delta 1e-5",
    14,
    COLUMNS,
    sample_rows,
    _text,
    _draw,
)
