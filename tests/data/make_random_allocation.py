"""Known answers for the balls-in-bins mechanism with C = I, from `PLD_accounting`.

Run it in an environment of its own and it rewrites `random_allocation.json`, `redrawn_allocation.json` and
`composed_allocation.json` next to this file (`--tables composed_allocation.json` for one of them)::

    pip install PLD_accounting numba
    python make_random_allocation.py

(`numba` is optional: the answers do not depend on it, but without it the run is several times slower.)

With C = I and fixed bins, each example takes part in one uniformly drawn bin out of `bins`, in every epoch.  In units
where its whole contribution has norm one (`noise_multiplier` S is the noise standard deviation for sensitivity 1), any
number of epochs is the same mechanism as one epoch, which is random allocation of one step out of `bins`: the pair is
P = (1 / bins) sum_i N(e_i, S^2 I) and Q = N(0, S^2 I), and

* direction "mixture_first" (REMOVE in the package) is delta = H_{e^epsilon}(P || Q),
* direction "noise_first" (ADD in the package) is delta = H_{e^epsilon}(Q || P),
* direction "max" is the larger of the two, the delta of the mechanism under add-or-remove adjacency.

With bins that are redrawn in every epoch the mechanism is the E-fold composition of one epoch, whose own noise
multiplier is S sqrt(E): `redrawn_allocation.json`. That is also what E runs of one epoch are together.

`composed_allocation.json` has the mechanism together with a Gaussian one of noise multiplier `beside`, sensitivity 1:
the mean of the Gaussian's delta at epsilon - L, in closed form, over the package's losses L.

The package discretises the privacy loss once rounding up and once rounding down through geometric convolutions, so each
row has a bracket [delta_lower, delta_upper] that holds up to float64 arithmetic.  Its relative width is written to each
row as `bracket_width`, (upper - lower) / upper.  Halving the discretisation halves the width.  Tail mass below
`tail_truncation` goes to delta_upper, and is left out of delta_lower.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PLD_accounting import (
    AllocationSchemeConfig,
    BoundType,
    ConvolutionMethod,
    Direction,
    PrivacyParams,
    gaussian_allocation_directional_pld,
)
from scipy.special import ndtr

TAIL_TRUNCATION = 1e-12
SMALLEST_DELTA = 5e-10
"""Rows whose lower bound is below this are left out: the tail truncation would be visible in them."""

WIDEST_BRACKET = 0.06
"""Rows whose relative bracket width is above this are left out as too loose to test against."""

DIRECTIONS = {"mixture_first": Direction.REMOVE, "noise_first": Direction.ADD}


class Case(NamedTuple):
    """One mechanism, the epsilons to ask of it, and the privacy-loss grid step to ask with in each direction."""

    bins: int
    noise_multiplier: float
    epsilons: tuple[float, ...]
    mixture_first_step: float
    noise_first_step: float
    epochs: int = 1
    beside: float | None = None

    def step(self, direction: Direction) -> float:
        """The privacy-loss grid step of one direction."""
        return self.mixture_first_step if direction is Direction.REMOVE else self.noise_first_step


CASES = (
    Case(2, 1.0, (2.0, 4.0), 0.0015, 0.0015),
    Case(2, 3.0, (0.5, 1.0), 0.0007, 0.0007),
    Case(8, 0.7, (2.0, 4.0), 0.006, 0.003),
    Case(8, 1.5, (0.5, 1.0, 2.0), 0.002, 0.0015),
    Case(32, 0.5, (1.0, 4.0, 7.0), 0.016, 0.006),
    Case(32, 0.8, (0.5, 1.0, 2.0), 0.006, 0.003),
    Case(128, 0.45, (1.0, 4.0, 6.0), 0.03, 0.012),
    Case(128, 0.6, (0.75, 1.5, 3.0), 0.01, 0.004),
    Case(1000, 0.4, (0.5, 2.0, 4.0), 0.03, 0.012),
    Case(1000, 0.5, (0.5, 1.0, 3.0), 0.025, 0.012),
)

REDRAWN = (
    Case(8, 0.5, (2.0, 4.0), 0.012, 0.008, 4),
    Case(2, 0.6, (2.0, 4.0), 0.012, 0.008, 4),
    Case(2, 0.5, (2.0, 5.0), 0.012, 0.008, 8),
    Case(4, 0.7, (1.0, 3.0), 0.012, 0.008, 2),
    Case(16, 0.6, (1.0, 2.5), 0.016, 0.012, 2),
    Case(4, 0.5, (2.0, 4.0), 0.012, 0.008, 3),
)

COMPOSED = (
    Case(2, 2.0, (1.0, 2.0), 0.006, 0.006, 1, 2.5),
    Case(8, 1.0, (1.0, 2.5), 0.012, 0.008, 1, 2.0),
)

TABLES = {
    "random_allocation.json": CASES,
    "redrawn_allocation.json": REDRAWN,
    "composed_allocation.json": COMPOSED,
}


def gaussian_delta(epsilons: Any, noise_multiplier: float) -> Any:
    """delta of the Gaussian mechanism at epsilons of either sign (Balle and Wang 2018, theorem 8)."""
    shift = 1 / noise_multiplier
    return ndtr(shift / 2 - epsilons / shift) - np.exp(epsilons) * ndtr(-shift / 2 - epsilons / shift)


def deltas(case: Case, direction: Direction, bound: BoundType) -> list[float]:
    """One bound on delta at each epsilon of a case, in one direction."""
    distribution = gaussian_allocation_directional_pld(
        params=PrivacyParams(
            sigma=case.noise_multiplier * math.sqrt(case.epochs),
            num_steps=case.bins,
            num_selected=1,
            num_epochs=case.epochs,
        ),
        config=AllocationSchemeConfig(
            loss_discretization=case.step(direction),
            tail_truncation=TAIL_TRUNCATION,
            convolution_method=ConvolutionMethod.GEOM,
        ),
        direction=direction,
        bound_type=bound,
    )
    losses, masses = distribution.x_array, distribution.prob_arr
    if case.beside is not None:
        return [
            float(np.sum(masses * gaussian_delta(epsilon - losses, case.beside)) + distribution.p_max)
            for epsilon in case.epsilons
        ]
    return [
        float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))) + distribution.p_max)
        for epsilon in case.epsilons
    ]


def rows_of(case: Case) -> list[dict[str, Any]]:
    """The table rows of one case."""
    start = time.perf_counter()
    lower = {name: deltas(case, d, BoundType.IS_DOMINATED) for name, d in DIRECTIONS.items()}
    upper = {name: deltas(case, d, BoundType.DOMINATES) for name, d in DIRECTIONS.items()}
    seconds = time.perf_counter() - start
    for table in (lower, upper):
        table["max"] = [max(pair) for pair in zip(table["mixture_first"], table["noise_first"], strict=True)]
    rows: list[dict[str, Any]] = []
    for index, epsilon in enumerate(case.epsilons):
        for direction in ("mixture_first", "noise_first", "max"):
            low, high = lower[direction][index], upper[direction][index]
            if low < SMALLEST_DELTA or high - low > WIDEST_BRACKET * high:
                continue
            rows.append(
                {
                    "bins": case.bins,
                    **({"epochs": case.epochs} if case.epochs > 1 else {}),
                    **({"beside": case.beside} if case.beside is not None else {}),
                    "noise_multiplier": case.noise_multiplier,
                    "epsilon": epsilon,
                    "direction": direction,
                    "delta_lower": low,
                    "delta_upper": high,
                    "bracket_width": round((high - low) / high, 5),
                    "loss_discretization": case.step(DIRECTIONS.get(direction, Direction.REMOVE)),
                    "case_seconds": round(seconds, 2),
                }
            )
    return rows


def main() -> None:
    """Compute every case and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--coarsen", type=float, default=1.0, help="multiply every discretisation, for a quick run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES))
    arguments = parser.parse_args()
    for name in arguments.tables:
        write(arguments.folder / name, TABLES[name], arguments.coarsen, arguments.processes)


def write(path: Path, cases: tuple[Case, ...], coarsen: float, processes: int) -> None:
    """Compute the cases of one table and write it."""
    coarse = [
        case._replace(
            mixture_first_step=case.mixture_first_step * coarsen, noise_first_step=case.noise_first_step * coarsen
        )
        for case in cases
    ]
    with ProcessPoolExecutor(processes) as pool:
        rows = [row for case_rows in pool.map(rows_of, coarse) for row in case_rows]
    document = {
        "package": "PLD_accounting",
        "package_version": importlib.metadata.version("PLD_accounting"),
        "dp_accounting_version": importlib.metadata.version("dp-accounting"),
        "numpy_version": np.__version__,
        "scipy_version": importlib.metadata.version("scipy"),
        "python_version": platform.python_version(),
        "mechanism": "one uniform bin out of `bins`, C = I, add-or-remove adjacency, sensitivity-1 noise multiplier",
        "settings": {
            "function": "gaussian_allocation_directional_pld",
            "convolution_method": "GEOM",
            "num_selected": 1,
            "num_epochs": "per row, 1 if not given",
            "tail_truncation": TAIL_TRUNCATION,
            "loss_discretization": "per row",
            "delta_upper": "BoundType.DOMINATES",
            "delta_lower": "BoundType.IS_DOMINATED",
        },
        "largest_bracket_width": max(row["bracket_width"] for row in rows),
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
