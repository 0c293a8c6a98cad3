"""Independent noise (C = I) without samples: every cell certified, beside the range of the tilted sampler.

For each cell the noise is found at which delta is the claim divided by tau = 1.05, the claim is certified, and delta is
put between two bounds. R/delta is what a certificate by samples would cost; it was the method before.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GALTON_STATE", tempfile.mkdtemp())

import galton
from benchmarks.common import markdown, write
from galton.accounting.deterministic import direction_bracket
from galton.accounting.quick import quick_multiplier
from galton.guarantee import Direction, Guarantee
from galton.sampling.choice import choose_sampler

TAU = 1.05


def cell(bins: int, epsilon: float, delta: float) -> dict[str, Any]:
    """Noise, certificate, bounds and what samples would have cost."""
    pair = galton.dominating_pair(galton.identity(bins), bins)
    claim = Guarantee(epsilon, delta)
    start = time.process_time()
    multiplier = quick_multiplier(pair, claim.with_delta(delta / TAU), galton.Options(), seed=1).value
    calibrated = time.process_time()
    pair = pair.at(multiplier)
    certificate = galton.certify(pair, claim, options=galton.Options(samples=1000))
    certified = time.process_time()
    lower, upper = direction_bracket(pair, Direction.MIXTURE_FIRST, epsilon)
    bracketed = time.process_time()
    sharp = choose_sampler(pair, Direction.MIXTURE_FIRST, epsilon, "tilted").sampler
    return {
        "bins": bins,
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": multiplier,
        "accepted": certificate.accepted,
        "samples": certificate.samples,
        "lower": lower,
        "upper": upper,
        "calibrate_seconds": calibrated - start,
        "certify_seconds": certified - calibrated,
        "bracket_seconds": bracketed - certified,
        "tilted_range_over_delta": sharp.value_range(epsilon) * TAU / delta,
    }


def main() -> None:
    """Runs all cells and writes results/independent.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bins", type=int, nargs="+", default=[32, 128, 1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    parser.add_argument("--delta", type=float, nargs="+", default=[1e-5, 1e-8, 1e-10, 1e-12])
    arguments = parser.parse_args()
    rows = []
    for bins in arguments.bins:
        for epsilon in arguments.epsilon:
            for delta in arguments.delta:
                rows.append(cell(bins, epsilon, delta))
                print(rows[-1], flush=True)
    write("independent", rows, tau=TAU, time="seconds of processor time")
    header = [
        "bins",
        "epsilon",
        "delta",
        "noise",
        "certified",
        "certify, s",
        "calibrate, s",
        "width",
        "R/delta, tilted",
    ]
    table = [
        [
            str(row["bins"]),
            f"{row['epsilon']:g}",
            f"{row['delta']:g}",
            f"{row['noise_multiplier']:.4f}",
            f"{'yes' if row['accepted'] else 'no'}, {row['samples']} samples",
            f"{row['certify_seconds']:.1f}",
            f"{row['calibrate_seconds']:.1f}",
            f"{row['upper'] / max(row['lower'], 1e-300) - 1:.2%}",
            f"{row['tilted_range_over_delta']:.3g}",
        ]
        for row in rows
    ]
    markdown("independent", header, table)


if __name__ == "__main__":
    main()
