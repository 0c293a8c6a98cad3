"""Bins redrawn in every epoch beside bins drawn once, banded C with cyclic Poisson batches, and independent noise.

For each setting and epsilon: the C of each family optimised under its own participation, the noise calibrated and then
certified (tau 1.05), prefix RMSE, and how long it all took. Cyclic Poisson takes the best banded Toeplitz C, DP-SGD
Poisson batches. A cell that is in the results already is not computed again:

    python benchmarks/redrawn.py --bins 32 --epochs 16 --epsilon 1,4
    python benchmarks/redrawn.py --plot
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import galton
from benchmarks.common import RESULTS, markdown, write
from galton import plots
from galton.accountants import Setting
from galton.comparison.registry import find_mechanism
from galton.optimization.participation import find_participation

DELTA = 1e-5
FAMILIES = {"one draw": ("bins", "toeplitz+scale"), "redrawn": ("redrawn", "blt:4+scale")}
OTHERS = {"cyclic Poisson": "bandmf-cyclic-poisson", "DP-SGD, Poisson": "dpsgd-poisson"}
BASELINE = "cyclic Poisson"


def optimised(name: str, bins: int, epochs: int, epsilon: float) -> dict[str, Any]:
    """Optimises, calibrates and certifies; every step is timed."""
    participation, family = FAMILIES[name]
    rounds = bins * epochs
    begun = time.perf_counter()
    optimum = galton.optimize(
        family, bins, rounds, epsilon, DELTA, participation=participation, options=galton.Options(seed=1)
    )
    searched = time.perf_counter() - begun
    pair = find_participation(participation).pair(optimum.strategy, bins).at(optimum.noise_multiplier)
    with tempfile.TemporaryDirectory() as folder:
        ledger = galton.Ledger(Path(folder) / "attempts.json")
        certificate = galton.certify(pair, epsilon, DELTA, options=galton.Options(seed=2), ledger=ledger)
    return {
        "family": family,
        "rmse": optimum.rmse,
        "certified": certificate.accepted,
        "optimise_seconds": round(searched, 1),
        "certify_seconds": round(certificate.seconds, 1),
        "certify_samples": certificate.samples,
    }


def compared(name: str, bins: int, epochs: int, epsilon: float) -> dict[str, Any]:
    """The row of `galton compare`."""
    begun = time.perf_counter()
    setting = Setting(bins, epochs, galton.Guarantee(epsilon, DELTA))
    row = find_mechanism(OTHERS[name]).row(setting)
    return {"family": OTHERS[name], "rmse": row.rmse, "optimise_seconds": round(time.perf_counter() - begun, 1)}


def rows_so_far() -> list[dict[str, Any]]:
    """The cells that were computed before."""
    path = RESULTS / "redrawn.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def tabulate(rows: list[dict[str, Any]]) -> None:
    """Writes results/redrawn.{json,md}."""
    rows.sort(key=lambda row: (row["bins"], row["epochs"], row["epsilon"], row["mechanism"]))
    write("redrawn", rows, delta=DELTA, error="prefix RMSE, clip norm 1")
    header = ("bins x epochs", "epsilon", "mechanism", "C", "RMSE", "certified", "search", "certificate")
    cells = [
        (
            f"{row['bins']} x {row['epochs']}",
            f"{row['epsilon']:g}",
            row["mechanism"],
            row["family"],
            f"{row['rmse']:.4g}",
            {True: "yes", False: "NO", None: "deterministic"}[row.get("certified")],
            f"{row['optimise_seconds']:.0f} s",
            f"{row['certify_seconds']:.0f} s, {row['certify_samples']:,} samples" if "certify_seconds" in row else "",
        )
        for row in rows
    ]
    markdown("redrawn", header, cells)


def draw(rows: list[dict[str, Any]], bins: int, epochs: int) -> Path:
    """Plots the errors relative to banded C with cyclic Poisson batches."""
    own = [row for row in rows if (row["bins"], row["epochs"]) == (bins, epochs)]
    baseline = {row["epsilon"]: row["rmse"] for row in own if row["mechanism"] == BASELINE}
    figure, axes = plots.pyplot().subplots(figsize=(7, 4.5), layout="constrained")
    for name in (*FAMILIES, *OTHERS):
        points = sorted(
            (row["epsilon"], row["rmse"] / baseline[row["epsilon"]])
            for row in own
            if row["mechanism"] == name and row["epsilon"] in baseline
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xscale="log", xlabel="epsilon", ylabel=f"RMSE relative to {BASELINE}")
    axes.set_title(f"{bins} bins, {epochs} epochs")
    axes.legend()
    path = RESULTS / f"redrawn-{bins}x{epochs}.png"
    plots.save(figure, path)
    return path


def main() -> None:
    """Runs the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bins", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--epsilon", default="0.5,1,4,8,16")
    parser.add_argument("--plot", action="store_true", help="draw what there is, and compute nothing")
    arguments = parser.parse_args()
    rows = rows_so_far()
    if arguments.plot:
        print(draw(rows, arguments.bins, arguments.epochs))
        return
    for epsilon in (float(part) for part in arguments.epsilon.split(",")):
        for name in (*FAMILIES, *OTHERS):
            cell = {"bins": arguments.bins, "epochs": arguments.epochs, "epsilon": epsilon, "mechanism": name}
            if any(all(row[key] == value for key, value in cell.items()) for row in rows):
                continue
            make = optimised if name in FAMILIES else compared
            row = cell | make(name, arguments.bins, arguments.epochs, epsilon)
            rows.append(row)
            tabulate(rows)
            print(row, flush=True)


if __name__ == "__main__":
    main()
