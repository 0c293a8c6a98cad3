"""Bins redrawn in every epoch beside bins drawn once, min-separation, banded C with cyclic Poisson, and DP-SGD.

For each setting and epsilon: the C of each family optimised under its own participation, the noise calibrated and then
certified (tau 1.05), prefix RMSE, and how long it all took. Min-separation chooses S, which is also the number of its
bands. Cyclic Poisson takes the best banded Toeplitz C, DP-SGD Poisson batches. Cells that are in the results already
are not computed again, so that a run can be stopped and goes on:

    python benchmarks/redrawn.py                                             everything, then the plots
    python benchmarks/redrawn.py --settings 32x16 --epsilon 1,4 --mechanisms "redrawn;one draw" --again
    python benchmarks/redrawn.py --plot
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import galton
from benchmarks.common import RESULTS, markdown, write
from galton import plots
from galton.accountants import Setting
from galton.comparison.registry import find_mechanism
from galton.optimization.participation import find_participation

DELTA = 1e-5
SETTINGS = "32x16,128x16"
EPSILONS = "0.25,0.5,1,2,4,8,16"
OPTIMISED = {
    "redrawn": ("redrawn", "blt:4+scale"),
    "redrawn, 16 bands": ("redrawn", "toeplitz:16+scale"),
    "one draw": ("bins", "toeplitz+scale"),
    "min-separation": ("min-separation:auto", "toeplitz+scale"),
}
"""Participation and family of C, optimised, calibrated and certified here."""
COMPARED = {"cyclic Poisson": "bandmf-cyclic-poisson", "DP-SGD, Poisson": "dpsgd-poisson"}
"""Rows of `galton compare`, each with the C that it takes itself."""
BASELINE = "cyclic Poisson"
STYLES = {
    "redrawn": ("bins redrawn in every epoch, BLT", "C3", "o"),
    "redrawn, 16 bands": ("bins redrawn in every epoch, 16 bands", "C1", "D"),
    "one draw": ("bins drawn once", "C0", "s"),
    "min-separation": ("min-separation, S chosen", "C2", "P"),
    "cyclic Poisson": ("banded C, cyclic Poisson", "0.4", "v"),
    "DP-SGD, Poisson": ("DP-SGD, Poisson", "0.6", "^"),
}
"""Label, colour and marker of a curve."""


class Clock(NamedTuple):
    """Wall and processor time, which differ on a busy machine."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clock:
        """Reads both."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, name: str) -> dict[str, float]:
        """Returns what has passed since."""
        later = Clock.now()
        return {
            f"{name}_seconds": round(later.wall - self.wall, 1),
            f"{name}_cpu_seconds": round(later.processor - self.processor, 1),
        }


def optimised(name: str, bins: int, epochs: int, epsilon: float) -> dict[str, Any]:
    """Optimises, calibrates and certifies; every step is timed."""
    participation, family = OPTIMISED[name]
    begun = Clock.now()
    optimum = galton.optimize(
        family, bins, bins * epochs, epsilon, DELTA, participation=participation, options=galton.Options(seed=1)
    )
    searched = begun.since("optimise")
    way = find_participation(optimum.participation, bins)
    pair = way.pair(optimum.strategy, bins).at(optimum.noise_multiplier)
    begun = Clock.now()
    with tempfile.TemporaryDirectory() as folder:
        ledger = galton.Ledger(Path(folder) / "attempts.json")
        certificate = galton.certify(pair, epsilon, DELTA, options=galton.Options(seed=2), ledger=ledger)
    return {
        "family": optimum.family,
        "participation": optimum.participation,
        "rmse": optimum.rmse,
        "noise_multiplier": optimum.noise_multiplier,
        "certified": certificate.accepted,
        "certify_samples": certificate.samples,
        **searched,
        **begun.since("certify"),
    }


def compared(name: str, bins: int, epochs: int, epsilon: float) -> dict[str, Any]:
    """The row of `galton compare`."""
    begun = Clock.now()
    row = find_mechanism(COMPARED[name]).row(Setting(bins, epochs, galton.Guarantee(epsilon, DELTA)))
    return {"family": COMPARED[name], "rmse": row.rmse, **begun.since("optimise")}


def rows_so_far() -> list[dict[str, Any]]:
    """The cells that were computed before."""
    path = RESULTS / "redrawn.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def tabulate(rows: list[dict[str, Any]]) -> None:
    """Writes results/redrawn.{json,md}."""
    names = [*OPTIMISED, *COMPARED]
    rows.sort(key=lambda row: (row["bins"], row["epochs"], row["epsilon"], names.index(row["mechanism"])))
    write("redrawn", rows, delta=DELTA, error="prefix RMSE, clip norm 1")
    header = ("bins x epochs", "epsilon", "mechanism", "C", "RMSE", "certified", "search, CPU", "certificate, CPU")
    cells = [
        (
            f"{row['bins']} x {row['epochs']}",
            f"{row['epsilon']:g}",
            row["mechanism"],
            row["family"],
            f"{row['rmse']:.4g}",
            {True: "yes", False: "NO", None: "deterministic"}[row.get("certified")],
            f"{row['optimise_cpu_seconds']:.0f} s",
            f"{row['certify_cpu_seconds']:.0f} s, {row['certify_samples']:,} samples" if "certified" in row else "",
        )
        for row in rows
    ]
    markdown("redrawn", header, cells)


def draw(rows: list[dict[str, Any]]) -> Path:
    """Plots the errors relative to banded C with cyclic Poisson batches, one panel a setting that has these."""
    settings = sorted({(row["bins"], row["epochs"]) for row in rows if row["mechanism"] == BASELINE})
    figure, panels = plots.pyplot().subplots(
        1, len(settings), figsize=(1.2 + 4.2 * len(settings), 4.8), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (bins, epochs) in zip(panels[0], settings, strict=True):
        own = [row for row in rows if (row["bins"], row["epochs"]) == (bins, epochs)]
        baseline = {row["epsilon"]: row["rmse"] for row in own if row["mechanism"] == BASELINE}
        for name, (label, colour, marker) in STYLES.items():
            points = sorted(
                (row["epsilon"], row["rmse"] / baseline[row["epsilon"]])
                for row in own
                if row["mechanism"] == name and row["epsilon"] in baseline
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=label)
        ticks = sorted(baseline)
        axes.set(xscale="log", xlabel="ε at δ = 1e-5", title=f"{bins} batches per epoch, {epochs} epochs")
        axes.set(ylim=(0.65, 1.25))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("prefix-sum RMSE relative to\nbanded C with cyclic Poisson")
    lines = {line.get_label(): line for axes in panels[0] for line in axes.get_lines()}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(settings), frameon=False)
    path = RESULTS / "redrawn.png"
    plots.save(figure, path)
    return path


def parse_settings(text: str) -> list[tuple[int, int]]:
    """Reads 32x16,128x16: bins and epochs."""
    return [(int(bins), int(epochs)) for bins, _, epochs in (part.partition("x") for part in text.split(","))]


def main() -> None:
    """Computes the cells that are missing, and draws all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=SETTINGS, help="bins x epochs")
    parser.add_argument("--epsilon", default=EPSILONS)
    parser.add_argument("--mechanisms", default=";".join(STYLES), help="separated by semicolons")
    parser.add_argument("--again", action="store_true", help="also cells that are in the results")
    parser.add_argument("--plot", action="store_true", help="draw what there is, and compute nothing")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    rows, settings = rows_so_far(), parse_settings(arguments.settings)
    if not arguments.plot:
        for name in arguments.mechanisms.split(";"):
            for bins, epochs in settings:
                for epsilon in (float(part) for part in arguments.epsilon.split(",")):
                    cell = {"bins": bins, "epochs": epochs, "epsilon": epsilon, "mechanism": name}
                    known = [row for row in rows if all(row[key] == value for key, value in cell.items())]
                    if known and not arguments.again:
                        continue
                    make = optimised if name in OPTIMISED else compared
                    row = cell | make(name, bins, epochs, epsilon)
                    rows = [other for other in rows if other not in known] + [row]
                    tabulate(rows)
                    print(row, flush=True)
    print(draw(rows))


if __name__ == "__main__":
    main()
