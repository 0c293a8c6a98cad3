"""Samples and processor seconds of a certificate (tau = 1.25): plain sampling, galton, jax-privacy and PLD_accounting.

All in one run, all threads together. Plain sampling and jax-privacy would take minutes to years a cell: their seconds
are their measured time per sample times the number of samples that the same guarantee takes with values in [0, 1], and
are marked as extrapolated.

    python benchmarks/certificates.py                      # every cell
    python benchmarks/certificates.py again                # those that were not proved
    python benchmarks/certificates.py again "8 bands,1e-10"  # those of this C and delta
"""

from __future__ import annotations

import json
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
from benchmarks.common import RESULTS, duration, markdown, write
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.quick import quick_multiplier, refined_multiplier
from galton.bounds import BOUNDS
from galton.guarantee import Direction
from galton.sampling import PlainSampler, draws

BINS, EPOCHS, TAU, SEED = 128, 16, 1.25, 1
ROUNDS = BINS * EPOCHS
MOST_SAMPLES = 8_000_000
STRATEGIES: dict[str, galton.Strategy] = {
    "identity": galton.identity(ROUNDS),
    "8 bands": galton.square_root(ROUNDS, 8),
    "64 bands": galton.square_root(ROUNDS, 64),
    "BLT, 4 buffers": galton.Blt(ROUNDS, [0.999, 0.98, 0.8, 0.3], [0.02, 0.06, 0.12, 0.25]),
}


def plain_samples(delta: float) -> int:
    """Plain samples, both directions, for which a mean of delta / tau just proves the claim by Chernoff-KL."""
    return 2 * BOUNDS["kl"].samples_needed(delta / TAU, delta, FAILURE_SHARE * delta / 2)


def plain_rate() -> float:
    """Plain samples a processor second at 128 bins."""
    sampler = PlainSampler(galton.dominating_pair(STRATEGIES["64 bands"], BINS, 2.0), Direction.MIXTURE_FIRST)
    sampler.draw(0, 0)
    start = time.process_time()
    for draw in draws(sampler, 2_000_000, 1):
        sampler.values(draw, 1.0)
    return 2_000_000 / (time.process_time() - start)


def jax_privacy_rate() -> float | None:
    """Samples a processor second of jax-privacy's balls-in-bins accountant, 64-band Toeplitz C, best batch size."""
    try:
        from jax_privacy import batch_selection
        from jax_privacy.experimental.monte_carlo import sample_generation
    except ImportError:
        return None
    strategy = batch_selection.BallsInBinsSampling(iterations=ROUNDS, cycle_length=BINS)
    column = np.asarray(galton.square_root(ROUNDS, 64).coefficients)
    best = 0.0
    for batch in (64, 256):
        for repeat in range(3):
            start = time.process_time()
            sample_generation.get_privacy_loss_sample(
                strategy=strategy,
                noise_multiplier=2.0 * STRATEGIES["64 bands"].sensitivity(BINS),
                c_col=column,
                seed=repeat,
                positive_sample=True,
                num_samples=batch,
            )
            best = max(best, batch / (time.process_time() - start))
    return best


def pld_accounting_seconds(multiplier: float) -> float | None:
    """Processor seconds that PLD_accounting takes for C = I, mixture-first, at a loss grid of 0.01."""
    try:
        import PLD_accounting as peer
    except ImportError:
        return None
    start = time.process_time()
    peer.gaussian_allocation_directional_pld(
        params=peer.PrivacyParams(sigma=multiplier, num_steps=BINS),
        config=peer.AllocationSchemeConfig(
            loss_discretization=0.01, tail_truncation=1e-12, convolution_method=peer.ConvolutionMethod.GEOM
        ),
        direction=peer.Direction.REMOVE,
        bound_type=peer.BoundType.DOMINATES,
    )
    return time.process_time() - start


def placed_multiplier(pair: galton.Pair, epsilon: float, delta: float) -> float:
    """The multiplier at which delta is the claim / tau, as `calibrate` would place it, before its check."""
    target, options = galton.Guarantee(epsilon=epsilon, delta=delta / TAU), galton.Options(seed=SEED)
    return refined_multiplier(pair, target, quick_multiplier(pair, target, options, SEED), options, SEED)


def measure(name: str, epsilon: float, delta: float, rate: float, peer: float | None) -> dict[str, Any]:
    """One row: the certificate, and what others would take."""
    pair = galton.dominating_pair(STRATEGIES[name], BINS)
    plain = plain_samples(delta)
    multiplier = placed_multiplier(pair, epsilon, delta)
    start = time.process_time()
    certificate = galton.certify(pair.at(multiplier), epsilon, delta, options=galton.Options(samples=MOST_SAMPLES))
    row = {
        "strategy": name,
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": multiplier,
        "accepted": certificate.accepted,
        "samples": certificate.samples,
        "seconds": certificate.seconds,
        "cpu_seconds": time.process_time() - start,
        "range_over_delta": certificate.by_direction[0].range / delta if certificate.samples else None,
        "samplers": [f"{part.sampler} {part.order}" for part in certificate.by_direction],
        "plain_samples": plain,
        "plain_seconds_extrapolated": plain / rate,
        "jax_privacy_seconds_extrapolated": plain / peer if peer and name != "BLT, 4 buffers" else None,
        "pld_accounting_seconds": pld_accounting_seconds(multiplier) if name == "identity" else None,
    }
    print({key: row[key] for key in ("strategy", "epsilon", "delta", "accepted", "samples", "cpu_seconds")}, flush=True)
    return row


def main() -> None:
    """Runs every cell and writes results/certificates.{json,md}."""
    rate, peer = plain_rate(), jax_privacy_rate()
    rows = [
        measure(name, epsilon, delta, rate, peer)
        for name in STRATEGIES
        for delta in (1e-5, 1e-10)
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    _write(rows, rate, peer)


def again(cells: list[str]) -> None:
    """Runs cells anew, by default those not proved; keeps all others, and the rates of plain sampling and the peer."""
    before = json.loads((RESULTS / "certificates.json").read_text())
    rate, peer = before["plain_samples_per_second"], before["jax_privacy_samples_per_second"]
    rows = []
    for row in before["rows"]:
        if f"{row['strategy']},{row['delta']:g}" in cells if cells else not row["accepted"]:
            seconds = row["pld_accounting_seconds"]
            row = measure(row["strategy"], row["epsilon"], row["delta"], rate, peer)
            row["pld_accounting_seconds"] = row["pld_accounting_seconds"] or seconds
        rows.append(row)
    _write(rows, rate, peer)


def _write(rows: list[dict[str, Any]], rate: float, peer: float | None) -> None:
    write("certificates", rows, tau=TAU, plain_samples_per_second=rate, jax_privacy_samples_per_second=peer)
    markdown("certificates", *table(rows))
    plot(rows)


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The rows as text."""
    header = [
        "C",
        "delta",
        "epsilon",
        "R/delta",
        "samples",
        "seconds",
        "plain samples",
        "fewer by",
        "plain",
        "jax-privacy",
        "PLD_accounting",
    ]
    body = []
    for row in rows:
        accepted = row["accepted"]
        fewer = row["plain_samples"] / max(row["samples"], 1)
        body.append(
            [
                row["strategy"],
                f"{row['delta']:g}",
                f"{row['epsilon']:g}",
                f"{row['range_over_delta']:.3g}" if row["samples"] else "-",
                f"{row['samples']:,}" if accepted else f"not proved with {row['samples']:,}",
                f"{row['cpu_seconds']:.1f}",
                f"{row['plain_samples']:.1e}",
                f"{fewer:,.0f}x" if accepted and row["samples"] else ("no sample needed" if accepted else "-"),
                duration(row["plain_seconds_extrapolated"]),
                duration(row["jax_privacy_seconds_extrapolated"]),
                f"{row['pld_accounting_seconds']:.1f} s" if row["pld_accounting_seconds"] else "-",
            ]
        )
    return header, body


def plot(rows: list[dict[str, Any]]) -> Path:
    """Processor seconds of a certificate against epsilon, galton measured and the others extrapolated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, delta in zip(axes, (1e-5, 1e-10), strict=True):
        here = [row for row in rows if row["delta"] == delta]
        for name, marker in zip(STRATEGIES, "osD^", strict=True):
            cells = [row for row in here if row["strategy"] == name]
            proved = [row for row in cells if row["accepted"]]
            xs, ys = ([r[key] for r in proved] for key in ("epsilon", "cpu_seconds"))
            axis.plot(xs, ys, marker=marker, label=f"galton, {name}")
        cells = [row for row in here if row["strategy"] == "64 bands"]
        xs = [row["epsilon"] for row in cells]
        axis.plot(xs, [r["plain_seconds_extrapolated"] for r in cells], "k--", label="plain sampling (extrapolated)")
        peers = [r["jax_privacy_seconds_extrapolated"] for r in cells]
        if all(peers):
            axis.plot(xs, peers, "k:", label="jax-privacy (extrapolated)")
        axis.set(xscale="log", yscale="log", title=f"delta = {delta:g}", xlabel="epsilon")
        axis.set_xticks(xs, [f"{x:g}" for x in xs])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("processor seconds for a certificate, tau = 1.25")
    axes[1].legend(fontsize=8, loc="center right")
    path = Path(__file__).parent / "results" / "certificates.png"
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    again(sys.argv[2:]) if sys.argv[1:2] == ["again"] else main()
