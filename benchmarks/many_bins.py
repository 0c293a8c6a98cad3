"""Many bins: certificates without a matrix of bins times bins, their exponent, and the Gram matrix beside them.

Every certificate has a process of its own, so that its memory is its own. Processor time is measured besides wall time.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GALTON_STATE", tempfile.mkdtemp())

import numpy as np

import galton
from benchmarks.common import RESULTS, markdown, write
from galton import plots
from galton.accounting.quick import quick_multiplier
from galton.many_bins import many_bins_pair
from galton.optimization.participation import OneDraw, Participation

EPSILON, DELTA = 1.0, 1e-5
CURVE = [(128 << (2 * step), 4) for step in range(6)]
"""Bins and epochs: 128 to 131,072 bins."""
GOALS = [(10_000, 4), (100_000, 4)]
MILLION = (1_000_000, 1)
TAU, ROUGH_TAU = 1.05, 1.25
"""Room for the certificate, as a factor of delta; more of it, and fewer samples, for a million bins."""
PLANS = [(True, 1_000_000, 1_000), (True, 10_000_000, 1_000), (False, 1_000_000, 1_000)]
"""Plans as a newcomer types them (4 epochs, epsilon 2, delta 1e-7): whether C is limited, examples and batch size."""
LARGE = 32_768
"""From so many bins on exponents are fitted."""
BOTH = 512
"""Up to so many bins the Gram matrix is measured too."""


def peak_gigabytes() -> float:
    """Largest resident memory of this process so far."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1e6 if peak else 0.0


def certificate(bins: int, epochs: int, way: str, multiplier: float | None) -> dict[str, Any]:
    """Certifies (1, 1e-5)-DP for the square root at a noise multiplier, which is calibrated first if there is none."""
    strategy = galton.square_root(bins * epochs)
    pair = many_bins_pair(strategy, bins) if way == "many" else galton.dominating_pair(strategy, bins)
    claim = galton.Guarantee(EPSILON, DELTA)
    begun, busy = time.perf_counter(), time.process_time()
    if multiplier is None:
        room = TAU if bins < 1_000_000 else ROUGH_TAU
        multiplier = quick_multiplier(pair, claim.with_delta(DELTA / room), galton.Options(seed=1), 1).value
    calibrated, calibrated_busy = time.perf_counter() - begun, time.process_time() - busy
    busy = time.process_time()
    proof = galton.certify(pair.at(multiplier), claim, options=galton.Options(seed=2))
    return {
        "bins": bins,
        "epochs": epochs,
        "way": way,
        "noise_multiplier": multiplier,
        "accepted": proof.accepted,
        "samples": proof.samples,
        "seconds_calibrate": calibrated,
        "processor_seconds_calibrate": calibrated_busy,
        "seconds_certify": proof.seconds,
        "processor_seconds_certify": time.process_time() - busy,
        "peak_gigabytes": peak_gigabytes(),
    }


def apart(bins: int, epochs: int, way: str = "many", multiplier: float | None = None) -> dict[str, Any]:
    """The same in a process of its own."""
    return apart_from_here("certificate", bins, epochs, way, multiplier)


def apart_from_here(*asked_for: Any) -> dict[str, Any]:
    """One measurement by its name in `ALONE`, with its arguments, in a process of its own."""
    asked = json.dumps(asked_for)
    done = subprocess.run([sys.executable, __file__, asked], capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(row, flush=True)
    return row


def exponent(rows: list[dict[str, Any]], field: str) -> float:
    """Slope of a field against bins, both in logarithms, where fixed costs (6 s of compiling, 0.4 GB) count little."""
    large = [row for row in rows if row["bins"] >= LARGE]
    slope = np.polyfit([math.log(row["bins"]) for row in large], [math.log(row[field]) for row in large], 1)[0]
    return float(slope)


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


def table(name: str, rows: list[dict[str, Any]]) -> None:
    """Writes results/NAME.md: one row a certificate, and the ratio where both ways ran."""
    gram = {row["bins"]: row for row in rows if row["way"] == "gram"}
    body = []
    for row in rows:
        both = gram.get(row["bins"]) if row["way"] == "many" else None
        ratio = both["processor_seconds_certify"] / row["processor_seconds_certify"] if both else None
        body.append(
            [
                f"{row['bins']:,} x {row['epochs']}",
                "Gram matrix" if row["way"] == "gram" else "no matrix",
                f"{row['noise_multiplier']:.4f}",
                "yes" if row["accepted"] else "no",
                f"{row['samples']:,}",
                f"{row['processor_seconds_calibrate']:.1f}",
                f"{row['processor_seconds_certify']:.1f}",
                f"{row['seconds_certify']:.1f}",
                f"{row['peak_gigabytes']:.2f}",
                f"{ratio:.1f}" if ratio else "-",
            ]
        )
    header = ["bins x epochs", "way", "noise", "accepted", "samples", "quick noise, s CPU"]
    header += ["certify, s CPU", "certify, s", "GB", "Gram / this, CPU"]
    markdown(name, header, body)


def picture(rows: list[dict[str, Any]], exponents: dict[str, float]) -> None:
    """Writes results/many_bins.png: processor time and memory against bins, both in logarithms."""
    drawing, axes = plots.pyplot().subplots(figsize=(7, 4.2), layout="constrained")
    for way, name, marker in (("many", "without a matrix", "o"), ("gram", "Gram matrix", "s")):
        some = [row for row in rows if row["way"] == way and (row["bins"], row["epochs"]) in CURVE]
        bins = [row["bins"] for row in some]
        times = [row["processor_seconds_certify"] for row in some]
        axes.loglog(bins, times, marker=marker, label=f"certificate, {name}: s CPU")
        if way == "many":
            axes.loglog(bins, [row["peak_gigabytes"] for row in some], marker="^", label=f"{name}: GB")
    axes.set_xlabel("bins (4 epochs)")
    axes.set_title(f"exponent of time from {LARGE:,} bins on: {exponents['processor_seconds_certify']:.2f}")
    axes.legend()
    plots.save(drawing, RESULTS / "many_bins.png")


def certificates() -> None:
    """Measures and writes results/many_bins.{json,md,png}."""
    rows = []
    for bins, epochs in CURVE + GOALS:
        rows.append(apart(bins, epochs))
        if bins <= BOTH:
            rows.append(apart(bins, epochs, "gram", rows[-1]["noise_multiplier"]))
    curve = [row for row in rows if row["way"] == "many" and (row["bins"], row["epochs"]) in CURVE]
    exponents = {name: exponent(curve, name) for name in ("processor_seconds_certify", "peak_gigabytes")}
    write("many_bins", rows, exponents=exponents)
    table("many_bins", rows)
    picture(rows, exponents)


def million() -> None:
    """Measures a certificate for a million bins and writes results/million.{json,md}."""
    rows = [apart(*MILLION)]
    write("million", rows)
    table("million", rows)


def plan(limited: bool, examples: int, batch_size: int) -> dict[str, Any]:
    """Makes a plan; without `limited` the search for C does not ask how many samples a certificate takes."""
    if not limited:
        OneDraw.least_noise = Participation.least_noise  # type: ignore[method-assign]
    begun, busy = time.perf_counter(), time.process_time()
    made = galton.make_plan(2.0, 1e-7, examples=examples, batch_size=batch_size, epochs=4, options=galton.Options())
    return {
        "bins": made.bins,
        "limited": limited,
        "rmse": made.rmse,
        "noise_multiplier": made.noise_multiplier,
        "samples": made.evidence.to_json()["certificate"]["samples"],
        "processor_seconds": time.process_time() - busy,
        "seconds": time.perf_counter() - begun,
        "load": os.getloadavg()[1],
        "peak_gigabytes": peak_gigabytes(),
    }


def plans() -> None:
    """Measures plans and writes results/many_bins_plans.{json,md}, again after each."""
    rows: list[dict[str, Any]] = []
    for asked in PLANS:
        rows.append(apart_from_here("plan", *asked))
        write("many_bins_plans", rows)
        body = [
            [
                f"{row['bins']:,} x 4",
                "affordable C" if row["limited"] else "any C, as before",
                f"{row['rmse']:.3f}",
                f"{row['noise_multiplier']:.4f}",
                f"{row['samples']:,}",
                f"{row['processor_seconds']:.0f}",
                f"{row['seconds']:.0f}",
                f"{row['load']:.0f}",
                f"{row['peak_gigabytes']:.1f}",
            ]
            for row in rows
        ]
        header = ["bins x epochs", "search", "error", "noise", "samples", "s CPU", "s", "load", "GB"]
        markdown("many_bins_plans", header, body)


def merging() -> None:
    """Measures and writes results/merging.{json,md}."""
    rows = losses()
    write("merging", rows)
    body = [[row["strategy"], *(f"{value:.3f}" for value in row["factors"])] for row in rows]
    markdown("merging", ["C, 128 bins, epsilon 1", "f = 1", "f = 2", "f = 4", "f = 8"], body)


PARTS = {"certificates": certificates, "million": million, "plans": plans, "merging": merging}
ALONE: dict[str, Callable[..., dict[str, Any]]] = {"certificate": certificate, "plan": plan}
"""What runs in a process of its own."""


def main() -> None:
    """Runs the parts named, or all; a list in JSON is one measurement, for the process that it has of its own."""
    names = sys.argv[1:] or list(PARTS)
    if names[0].startswith("["):
        what, *arguments = json.loads(names[0])
        print(json.dumps(ALONE[what](*arguments)))
        return
    for name in names:
        PARTS[name]()


if __name__ == "__main__":
    main()
