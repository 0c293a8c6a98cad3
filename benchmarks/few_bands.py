"""Tiny delta, few bands: what `auto` takes, how sharp it is, and what a certificate costs (docs/math.md, section 18).

    python benchmarks/few_bands.py                     # every cell: ranges, variance, predicted samples and time
    python benchmarks/few_bands.py --cells 8,1 16,1    # bands, epsilon; --deltas 1e-8 and --bins 32 for other cells
    python benchmarks/few_bands.py --certify           # and a certificate at tau 1.05 in each, run to its end

A cell that was measured before is replaced, all others are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GALTON_STATE", tempfile.mkdtemp())

import numpy as np

import galton
from benchmarks.common import RESULTS, markdown, write
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.quick import quick_multiplier, refined_multiplier
from galton.guarantee import Direction
from galton.sampling import choose_sampler
from galton.sampling.base import Sampler

EPOCHS, TAU, SEED = 16, 1.05, 1
CHUNKS = 4
BANDS, EPSILONS = (2, 3, 4, 8, 16), (0.5, 1.0, 2.0, 4.0)
Row = dict[str, Any]


def pair_of(row: Row) -> galton.Pair:
    """The mechanism of a row, at its noise multiplier if it has one."""
    strategy = galton.square_root(row["bins"] * EPOCHS, row["bands"])
    return galton.dominating_pair(strategy, row["bins"], row.get("noise_multiplier", 1.0))


def sampled(sampler: Sampler, epsilon: float, delta: float) -> Row:
    """Mean, variance and cost of some samples, and what a certificate at tau 1.05 takes by these."""
    sampler.draw(0, 0)
    start = time.process_time()
    values = np.concatenate([sampler.values(sampler.draw(SEED, index), epsilon) for index in range(CHUNKS)])
    seconds = (time.process_time() - start) / values.size
    mean, error = float(values.mean()), float(values.std() / math.sqrt(values.size))
    # about what Kelly's bets take (docs/math.md, section 3.4)
    relative = (error / mean) ** 2 * values.size if mean else math.inf
    room = 1 / (TAU - 1)
    log_failure = -math.log(FAILURE_SHARE * delta)
    samples = log_failure * (room * sampler.value_range(epsilon) / delta + 2.25 * room**2 * relative)
    return {
        "mean_over_delta": mean / delta,
        "error_over_delta": error / delta,
        "relative_variance": relative,
        "predicted_samples": samples,
        "predicted_cpu_seconds": samples * seconds,
    }


def measure(row: Row, certify: bool) -> Row:
    """Fills in a row."""
    epsilon, delta = row["epsilon"], row["delta"]
    goal = galton.Guarantee(epsilon=epsilon, delta=delta / TAU)
    options = galton.Options(seed=SEED)
    start = time.process_time()
    quick = quick_multiplier(pair_of(row), goal, options, SEED)
    row["noise_multiplier"] = refined_multiplier(pair_of(row), goal, quick, options, SEED)
    row["placed_in"] = time.process_time() - start
    pair = pair_of(row)
    for direction in (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST):
        start = time.process_time()
        sampler = choose_sampler(pair, direction, epsilon).sampler
        value_range = sampler.value_range(epsilon) / delta
        outcome = {"sampler": sampler.name, "range_over_delta": value_range, "chosen_in": time.process_time() - start}
        if value_range > 1:
            outcome |= sampled(sampler, epsilon, delta)
        row[direction.value] = outcome
    if certify:
        start, wall = time.process_time(), time.perf_counter()
        certificate = galton.certify(pair, epsilon, delta, tau=TAU, options=galton.Options(seed=SEED + 1))
        row["certificate"] = {
            "accepted": certificate.accepted,
            "samples": certificate.samples,
            "estimate_over_delta": certificate.by_direction[0].estimate / delta,
            "cpu_seconds": time.process_time() - start,
            "seconds": time.perf_counter() - wall,
            "load": os.getloadavg()[0],
        }
    return row


def key(row: Row) -> tuple[int, float, int, float]:
    """What tells one row from another."""
    return row["bins"], -row["delta"], row["bands"], row["epsilon"]


def save(row: Row) -> None:
    """Puts a row among those measured before."""
    path = RESULTS / "few_bands.json"
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    before = next((other for other in rows if key(other) == key(row)), {})
    if "certificate" in before and abs(before["noise_multiplier"] / row["noise_multiplier"] - 1) < 1e-9:
        row.setdefault("certificate", before["certificate"])
    rows = sorted([other for other in rows if key(other) != key(row)] + [row], key=key)
    write("few_bands", rows, tau=TAU, epochs=EPOCHS)
    markdown("few_bands", *table(rows))


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The rows as text."""
    header = ["bins", "delta", "bands", "epsilon", "sampler", "R/delta", "relative variance", "mean/delta"]
    header += ["predicted samples", "predicted CPU s", "noise-first", "R/delta ", "certificate"]
    body = []
    for row in rows:
        mixture, noise = row[Direction.MIXTURE_FIRST.value], row[Direction.NOISE_FIRST.value]
        cells = [f"{row['bins']:,}", f"{row['delta']:g}", str(row["bands"]), f"{row['epsilon']:g}"]
        cells += [mixture["sampler"], f"{mixture['range_over_delta']:.3g}", f"{mixture['relative_variance']:.3g}"]
        cells += [f"{mixture['mean_over_delta']:.3f} +- {mixture['error_over_delta']:.3f}"]
        cells += [f"{mixture['predicted_samples']:.2g}", f"{mixture['predicted_cpu_seconds']:.0f}"]
        cells += [noise["sampler"], f"{noise['range_over_delta']:.3g}"]
        proof = row.get("certificate")
        words = "-" if proof is None else f"{'proved' if proof['accepted'] else 'not proved'}, "
        if proof is not None:
            words += f"{proof['samples']:,} samples, {proof['cpu_seconds']:.0f} s CPU"
        body.append([*cells, words])
    return header, body


def main() -> None:
    """Runs the cells asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=[f"{bands},{eps}" for bands in BANDS for eps in EPSILONS])
    parser.add_argument("--deltas", nargs="*", type=float, default=[1e-10])
    parser.add_argument("--bins", type=int, default=128)
    parser.add_argument("--certify", action="store_true")
    arguments = parser.parse_args()
    for delta in arguments.deltas:
        for cell in arguments.cells:
            bands, epsilon = cell.split(",")
            row = {"bins": arguments.bins, "delta": delta, "bands": int(bands), "epsilon": float(epsilon)}
            save(measure(row, arguments.certify))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
