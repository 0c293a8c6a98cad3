"""Do estimate, certified interval and an independent long run agree? Over C, epsilon and delta, wherever affordable.

The quick estimator places the noise multiplier; `delta` gives estimate and interval; the independent run is another
estimator with other randomness: plain sampling where delta is at least 1e-4, else a long run of the quick estimator.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import galton
from benchmarks.certificates import BINS, ROUNDS, SEED
from benchmarks.common import markdown, write
from galton.accounting.quick import quick_multiplier
from galton.guarantee import Direction
from galton.sampling import PlainSampler, draws
from galton.sampling.toolkits import frozen_estimator

STRATEGIES: dict[str, galton.Strategy] = {
    "identity": galton.identity(ROUNDS),
    "sqrt:2": galton.square_root(ROUNDS, 2),
    "sqrt:8": galton.square_root(ROUNDS, 8),
    "sqrt:64": galton.square_root(ROUNDS, 64),
    "sqrt": galton.square_root(ROUNDS),
    "BLT, 4 buffers": galton.Blt(ROUNDS, [0.999, 0.98, 0.8, 0.3], [0.02, 0.06, 0.12, 0.25]),
}


def independent(pair: galton.Pair, epsilon: float, delta: float) -> tuple[str, float, float]:
    """Mixture-first delta by another estimator with other randomness: name, value, standard error."""
    if delta >= 1e-4:
        sampler = PlainSampler(pair, Direction.MIXTURE_FIRST)
        values = np.concatenate([sampler.values(draw, epsilon) for draw in draws(sampler, 1_000_000, 99)])
        return "plain", float(values.mean()), float(values.std() / math.sqrt(values.size))
    estimate = frozen_estimator(pair, Direction.MIXTURE_FIRST, epsilon, 8, 99)(pair.noise_multiplier, epsilon)
    return "mixture proposals", estimate.delta, estimate.relative_error * estimate.delta


def main() -> None:
    """Runs all cells and writes results/agreement.{json,md}."""
    rows: list[dict[str, Any]] = []
    for name, strategy in STRATEGIES.items():
        pair = galton.dominating_pair(strategy, BINS)
        for epsilon in (0.25, 1.0, 4.0, 16.0):
            for delta in (1e-4, 1e-8, 1e-12):
                target = galton.Guarantee(epsilon=epsilon, delta=delta)
                at = pair.at(quick_multiplier(pair, target, galton.Options(seed=SEED), SEED).value)
                estimate = galton.delta(
                    at, epsilon, galton.Adjacency.REMOVE, options=galton.Options(rel_width=0.05, samples=200_000)
                )
                bounds = estimate.by_direction[0]
                method, value, error = independent(at, epsilon, delta)
                usable = error < 0.1 * value
                agrees = bounds.lower - 5 * error <= value <= bounds.upper + 5 * error
                rows.append(
                    {
                        "strategy": name,
                        "epsilon": epsilon,
                        "delta": delta,
                        "noise_multiplier": at.noise_multiplier,
                        "estimate": bounds.delta,
                        "lower": bounds.lower,
                        "upper": bounds.upper,
                        "range_over_estimate": bounds.range / max(value, 1e-300),
                        "independent": value,
                        "independent_error": error,
                        "independent_by": method,
                        "affordable": usable,
                        "agrees": agrees if usable else None,
                    }
                )
                print(
                    name,
                    epsilon,
                    delta,
                    bounds.delta,
                    bounds.lower,
                    bounds.upper,
                    method,
                    value,
                    error,
                    agrees,
                    flush=True,
                )
    write("agreement", rows, bins=BINS, rounds=ROUNDS, direction="mixture-first")
    header = ["C", "epsilon", "aim", "estimate", "certified interval", "R/delta", "independent run", "agrees"]
    body = [
        [
            row["strategy"],
            f"{row['epsilon']:g}",
            f"{row['delta']:g}",
            f"{row['estimate']:.3g}",
            f"[{row['lower']:.3g}, {row['upper']:.3g}]",
            f"{row['range_over_estimate']:.2g}",
            f"{row['independent']:.3g} +- {row['independent_error']:.1g}, {row['independent_by']}",
            {True: "yes", False: "NO", None: "not affordable"}[row["agrees"]],
        ]
        for row in rows
    ]
    markdown("agreement", header, body)


if __name__ == "__main__":
    main()
