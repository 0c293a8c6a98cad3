"""Many bins: a certificate at 1,000, a rigorous upper bound at 10,000 by merging, and what merging costs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GALTON_STATE", tempfile.mkdtemp())

import galton
from benchmarks.common import markdown, write
from galton.accounting.merging import merge_loss
from galton.pair import groups_for


def peak_gigabytes() -> float:
    """Largest resident memory of this process so far."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1e6 if peak else 0.0


def certificate(name: str, strategy: galton.Strategy, bins: int, multiplier: float) -> dict[str, Any]:
    """Certifies (1, 1e-5)-DP at a calibrated noise multiplier, and tells time and memory."""
    epsilon, delta = 1.0, 1e-5
    start = time.perf_counter()
    pair = galton.dominating_pair(strategy, bins, 1.0, groups_for(bins))
    prepared = time.perf_counter() - start
    proof = galton.certify(pair.at(multiplier), epsilon, delta)
    return {
        "what": f"{name}, {bins} bins, {strategy.rounds // bins} epochs, epsilon {epsilon:g}, delta {delta:g}",
        "modes": pair.modes,
        "noise_multiplier": multiplier,
        "accepted": proof.accepted,
        "samples": proof.samples,
        "seconds_gram": prepared,
        "seconds_certify": proof.seconds,
        "merge_loss": merge_loss(strategy, pair.at(multiplier), epsilon, galton.Adjacency.ADD_OR_REMOVE)
        if pair.merged > 1
        else None,
        "peak_gigabytes": peak_gigabytes(),
    }


def losses() -> list[dict[str, Any]]:
    """delta with f bins merged over delta with none, at 128 bins: what merging costs for short and long memory."""
    rows = []
    for name, strategy, multiplier in (
        ("full square root", galton.square_root(2048), 3.4),
        ("64 bands", galton.square_root(2048, 64), 1.9),
        ("8 bands", galton.square_root(2048, 8), 1.05),
        ("identity", galton.identity(2048), 0.85),
    ):
        options = galton.Options(seed=1, rel_width=0.1, samples=200_000)
        deltas = [
            galton.delta(galton.dominating_pair(strategy, 128, multiplier, f), 1.0, options=options).delta
            for f in (1, 2, 4, 8)
        ]
        rows.append({"strategy": name, "deltas": deltas, "factors": [value / deltas[0] for value in deltas]})
    return rows


def main() -> None:
    """Measures and writes results/many_bins.{json,md}."""
    rows = []
    for name, make, bins, multiplier in (  # multipliers by `calibrate` with tau = 1.25
        ("100 bands", lambda rounds: galton.square_root(rounds, 100), 1000, 0.9745),
        ("full square root", galton.square_root, 1000, 2.637),
        ("full square root", galton.square_root, 10_000, 2.479),
    ):
        rows.append(certificate(name, make(4 * bins), bins, multiplier))
        print(rows[-1], flush=True)
    factors = losses()
    write("many_bins", rows, merging_at_128_bins=factors)
    body = [
        [
            row["what"],
            str(row["modes"]),
            "yes" if row["accepted"] else "no",
            f"{row['samples']:,}",
            f"{row['seconds_gram']:.1f}",
            f"{row['seconds_certify']:.1f}",
            f"{row['merge_loss']:.3f}" if row["merge_loss"] else "-",
            f"{row['peak_gigabytes']:.1f}",
        ]
        for row in rows
    ]
    header = [
        "mechanism",
        "modes",
        "accepted",
        "samples",
        "Gram, s",
        "certify, s",
        "loss, estimated",
        "GB",
    ]
    markdown("many_bins", header, body)
    body = [[row["strategy"], *(f"{value:.3f}" for value in row["factors"])] for row in factors]
    markdown("merging", ["C, 128 bins, epsilon 1", "f = 1", "f = 2", "f = 4", "f = 8"], body)


if __name__ == "__main__":
    main()
