"""Optimising C: our figures, the paper's timing table on this machine, and the effect of the number of samples.

python benchmarks/optimize.py figures | timing | samples | rounds     (one part), or nothing for all
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import galton
from benchmarks.common import RESULTS, markdown, write
from benchmarks.many_bins import peak_gigabytes
from galton.accounting.calibration import DEFAULT_TAU
from reproduction.sample_counts import EPSILONS
from reproduction.sample_study import Study
from reproduction.timings import BATCHES, EPOCHS, PAPER, paper_method

DELTA = 1e-5
GOALS = {
    ("blt:4", 1.0): (44.3, 60),
    ("blt:4", 4.0): (13.95, 60),
    ("toeplitz", 1.0): (44.3, None),
    ("toeplitz", 4.0): (13.95, None),
    ("blt:4+scale", 0.5): (77.9, 120),
    ("blt:4+scale", 1.0): (42.2, 120),
    ("blt:4+scale", 4.0): (13.35, 120),
    ("blt:4+scale", 8.0): (8.05, 120),
}
POISSON = {0.5: 82.7, 1.0: 45.4, 4.0: 15.3, 8.0: 9.48}
"""RMSE of the best banded Toeplitz C with Poisson sampling, from the issue."""
POWERS = (5, 8, 11, 14, 17)
"""Numbers of samples in the study of samples, as powers of two."""


def alone(*arguments: str) -> dict[str, Any]:
    """Runs one cell in a process of its own, so that compilation is part of the time and memory is its own."""
    process = subprocess.run([sys.executable, __file__, "cell", *arguments], capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def cell(family: str, bins: int, rounds: int, epsilon: float) -> dict[str, Any]:
    """The default method with its certified result."""
    begun = time.perf_counter()
    optimized = galton.optimize(family, bins, rounds, epsilon, DELTA, options=galton.Options(seed=1))
    return {
        "family": family,
        "bins": bins,
        "rounds": rounds,
        "epsilon": epsilon,
        "rmse": optimized.rmse,
        "noise_multiplier": optimized.noise_multiplier,
        "delta_upper": optimized.calibration.check.upper,
        "iterations": len(optimized.history),
        "seconds": time.perf_counter() - begun,
        "peak_gigabytes": peak_gigabytes(),
    }


def figures() -> None:
    """n = 2048, 128 bins: RMSE with a fresh certified multiplier, and the time of the whole."""
    rows = []
    for (family, epsilon), (goal, limit) in GOALS.items():
        rows.append(
            alone(family, "128", "2048", str(epsilon))
            | {"goal": goal, "limit_seconds": limit, "banded_poisson": POISSON[epsilon]}
        )
        print(rows[-1])
        write("optimize_figures", rows)
    table = [
        (
            row["family"],
            f"{row['epsilon']:g}",
            f"{row['rmse']:.2f}",
            f"{row['goal']:g}",
            f"{row['banded_poisson']:g}",
            f"{row['noise_multiplier']:.4f}",
            f"{row['seconds']:.0f}",
        )
        for row in rows
    ]
    header = ("family", "epsilon", "RMSE", "goal", "banded, Poisson", "multiplier", "seconds")
    markdown("optimize_figures", header, table)


def rounds() -> None:
    """Scaled families at 10,000 rounds."""
    rows = []
    for family, bins in (("blt:4+scale", 100), ("toeplitz+scale", 100)):
        rows.append(alone(family, str(bins), "10000", "1"))
        print(rows[-1])
        write("optimize_rounds", rows)
    table = [
        (row["family"], str(row["bins"]), f"{row['rmse']:.2f}", f"{row['seconds']:.0f}", f"{row['peak_gigabytes']:.1f}")
        for row in rows
    ]
    markdown("optimize_rounds", ("family", "bins", "RMSE", "seconds", "peak GB"), table)


def timing() -> None:
    """The paper's table: seconds of 300 of its iterations here (extrapolated), on its V100, and of our method."""
    rows: list[dict[str, Any]] = []
    for bins in BATCHES:
        for epochs in EPOCHS:
            ours = alone("blt:4", str(bins), str(bins * epochs), "1")
            row: dict[str, Any] = {"bins": bins, "epochs": epochs, "ours": ours} | paper_method(bins, epochs)
            rows.append(row)
            print(row)
            write("optimize_timing", rows)
    table = [
        (
            str(row["bins"]),
            str(row["epochs"]),
            f"{row['ours']['seconds']:.0f}",
            f"{row['ours']['rmse']:.2f}",
            f"{row['paper_rmse']:.2f}",
            *(
                text
                for samples in PAPER
                for text in (
                    f"{row[str(samples)]['seconds_300_extrapolated']:.0f}*",
                    str(row[str(samples)]["paper_v100"] or "out of memory"),
                )
            ),
        )
        for row in rows
    ]
    header = (
        *("bins", "epochs", "ours, s", "our RMSE", "RMSE of 300 steps"),
        *("131,072 here, s", "V100, s", "1,048,576 here, s", "V100, s"),
    )
    markdown("optimize_timing", header, table)


def samples() -> None:
    """Final RMSE on fresh samples, by samples per iteration of the search; plain and tilted draws."""
    rows = []
    for epsilon in EPSILONS:
        study = Study(epsilon, tau=DEFAULT_TAU)
        for estimator in ("plain", "tilted"):
            for power in POWERS:
                row: dict[str, Any] = {"epsilon": epsilon, "estimator": estimator, "samples": 1 << power}
                rows.append(row | {"rmse": study.rmse(estimator, 1 << power)})
                print(rows[-1])
                write("optimize_samples", rows)
    table = []
    for power in POWERS:
        cells = []
        for estimator in ("plain", "tilted"):
            for epsilon in EPSILONS:
                (row,) = (
                    candidate
                    for candidate in rows
                    if (candidate["samples"], candidate["estimator"], candidate["epsilon"])
                    == (1 << power, estimator, epsilon)
                )
                cells.append("too few" if row["rmse"] is None else f"{row['rmse']:.2f}")
        table.append((f"2^{power}", *cells))
    header = ("samples", *(f"{estimator} {epsilon:g}" for estimator in ("plain", "tilted") for epsilon in EPSILONS))
    markdown("optimize_samples", header, table)


PARTS = {"figures": figures, "timing": timing, "samples": samples, "rounds": rounds}

if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    if sys.argv[1:2] == ["cell"]:
        print(json.dumps(cell(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))))
    else:
        for name in sys.argv[1:] or list(PARTS):
            PARTS[name]()
