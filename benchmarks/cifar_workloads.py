"""What it would gain to choose C of the CIFAR-10 runs for what their noise is used for, instead of for prefix sums.

Noise in the weights at rate 1 without amplification at epsilon 8 (20 epochs of 100 batches, momentum 0.95, two
cooldowns), divided by 1 / (1 - momentum): root mean square over all iterates, and in the last one.

python benchmarks/cifar_workloads.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.common import markdown, write
from galton.gaussian import gaussian_mu
from galton.optimization import unamplified_optimum
from galton.workloads import Workload, cooldown, momentum

BINS, ROUNDS, BETA, FAMILY = 100, 2000, 0.95, "toeplitz:100"


def main() -> None:
    """Measures and writes results/cifar_workloads.{json,md}."""
    multiplier = 1 / gaussian_mu(8.0, 1e-5)
    used: dict[str, Workload] = {
        f"falling after {start:.0%}": momentum(ROUNDS, BETA, cooldown(ROUNDS, start)) for start in (0.25, 0.75)
    }
    chosen = {"prefix sums": unamplified_optimum(FAMILY, BINS, ROUNDS)}
    chosen |= {name: unamplified_optimum(FAMILY, BINS, ROUNDS, workload) for name, workload in used.items()}
    rows: list[dict[str, Any]] = []
    for words, strategy in chosen.items():
        row: dict[str, Any] = {"C for": words, "prefix sums": multiplier * strategy.sensitivity(BINS) * strategy.rmse()}
        unit = multiplier * strategy.sensitivity(BINS) * (1 - BETA)
        inverse = np.linalg.inv(strategy.matrix()).astype(np.float64)
        for name, workload in used.items():
            errors = unit * np.linalg.norm(workload.apply(inverse), axis=1)
            row |= {name: float(np.sqrt(np.mean(errors**2))), f"{name}, last": float(errors[-1])}
        rows.append(row)
        print(row, flush=True)
    least: dict[str, Any] = {"C for": "any, at least (last)", "prefix sums": None}
    for name, workload in used.items():
        weights = workload.matrix()[-1] * (1 - BETA)
        largest = max(float(weights[first::BINS].sum()) for first in range(BINS))
        least |= {name: None, f"{name}, last": multiplier * largest}
    rows.append(least)
    write("cifar_workloads", rows, noise_multiplier=multiplier)
    body = [
        [str(value) if isinstance(value, str) else "" if value is None else f"{value:.2f}" for value in row.values()]
        for row in rows
    ]
    markdown("cifar_workloads", list(rows[0]), body)


if __name__ == "__main__":
    main()
