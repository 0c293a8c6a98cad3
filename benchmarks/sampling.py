"""Samples a second at 128 bins: galton's plain and sharp samplers against jax-privacy's, in one run on the same C."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import galton
from benchmarks.certificates import BINS, STRATEGIES, jax_privacy_rate
from benchmarks.common import markdown, write
from galton.guarantee import Direction
from galton.sampling import HalfSpaceSampler, PlainSampler, Sampler, TiltedSampler, draws


def rate(sampler: Sampler, samples: int) -> float:
    """Samples a second, the better of two runs."""
    sampler.draw(0, 0)
    best = 0.0
    for seed in (1, 2):
        start = time.perf_counter()
        for draw in draws(sampler, samples, seed):
            sampler.values(draw, 1.0)
        best = max(best, samples / (time.perf_counter() - start))
    return best


def main() -> None:
    """Measures and writes results/sampling.{json,md}."""
    pair = galton.dominating_pair(STRATEGIES["64 bands"], BINS, 2.0)
    samplers: dict[str, tuple[Sampler, int]] = {
        "plain, mixture-first": (PlainSampler(pair, Direction.MIXTURE_FIRST), 4_000_000),
        "plain, noise-first": (PlainSampler(pair, Direction.NOISE_FIRST), 4_000_000),
        "plain, replace": (PlainSampler(pair, Direction.REPLACE), 4_000_000),
        "plain, mixture-first, float64": (PlainSampler(pair, Direction.MIXTURE_FIRST, "float64"), 1_000_000),
        "tilted, mixture-first": (TiltedSampler(pair, Direction.MIXTURE_FIRST, 1.0), 500_000),
        "half-space, noise-first": (HalfSpaceSampler(pair, 1.0), 500_000),
    }
    peer = jax_privacy_rate()
    rows = []
    for name, (sampler, samples) in samplers.items():
        speed = rate(sampler, samples)
        rows.append(
            {"sampler": name, "samples_per_second": speed, "against_jax_privacy": speed / peer if peer else None}
        )
        print(rows[-1], flush=True)
    write("sampling", rows, bins=BINS, strategy="64 bands", jax_privacy_samples_per_second=peer)
    body = [
        [str(row["sampler"]), f"{row['samples_per_second']:,.0f}", f"{row['against_jax_privacy'] or 0:,.0f}x"]
        for row in rows
    ]
    markdown("sampling", ["sampler", "samples a second", "against jax-privacy"], body)


if __name__ == "__main__":
    main()
