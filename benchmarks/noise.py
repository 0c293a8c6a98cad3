"""Milliseconds a step of noise for 1M and 10M parameters: galton against jax-privacy, taking turns in one run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

import galton
from benchmarks.common import Step, markdown, measured, write
from galton.noise import CorrelatedNoise

ROUNDS, STEPS = 2048, 12
DECAY, SCALE = [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15]
BLT, BANDS = galton.Blt(ROUNDS, DECAY, SCALE), galton.square_root(ROUNDS, 64)


def ours(strategy: galton.Strategy, size: int) -> Step:
    """One step: noise added to a gradient, buffers updated in place."""
    noise = CorrelatedNoise(strategy, 1.0)
    gradient = jnp.zeros(size)
    add = jax.jit(lambda state, g: _added(noise, state, g), donate_argnums=(0,))
    state = noise.init(gradient)

    def step() -> None:
        nonlocal state
        noisy, state = add(state, gradient)
        jax.block_until_ready((noisy, state))  # type: ignore[no-untyped-call]

    return step


def _added(noise: CorrelatedNoise, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
    drawn, after = noise.next(state)
    return gradient + drawn, after


def theirs(matrix: Any, size: int, donate: bool) -> Step:
    """The same step by jax-privacy's privatizer, compiled, with its state donated or not."""
    privatizer = noise_addition.matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=0)
    gradient = jnp.zeros(size)
    update = jax.jit(privatizer.update, donate_argnums=(1,) if donate else ())
    state = jax.tree.map(jnp.array, privatizer.init(gradient))

    def step() -> None:
        nonlocal state
        noisy, state = update(gradient, state)
        jax.block_until_ready((noisy, state))  # type: ignore[no-untyped-call]

    return step


def blt_matrix() -> Any:
    """The same BLT in float32, jax-privacy's faster choice."""
    return buffered_toeplitz.BufferedToeplitz(
        buf_decay=jnp.array(DECAY, jnp.float32), output_scale=jnp.array(SCALE, jnp.float32)
    ).inverse_as_streaming_matrix()


def band_matrix() -> Any:
    """The same 64 bands."""
    return toeplitz.inverse_as_streaming_matrix(jnp.asarray(BANDS.coefficients, jnp.float32))


def main() -> None:
    """Measures and writes results/noise.{json,md}."""
    rows: list[dict[str, Any]] = []
    for size in (1_000_000, 10_000_000):
        for name, strategy, matrix in (("BLT, 4 buffers", BLT, blt_matrix), ("64 bands", BANDS, band_matrix)):
            times = measured(
                {
                    "galton": ours(strategy, size),
                    "donated": theirs(matrix(), size, donate=True),
                    "kept": theirs(matrix(), size, donate=False),
                },
                STEPS,
            )
            least, median = (min(times["donated"][k], times["kept"][k]) for k in (0, 1))
            rows.append(
                {
                    "strategy": name,
                    "parameters": size,
                    "milliseconds": {
                        implementation: {"least": a, "median": b} for implementation, (a, b) in times.items()
                    },
                    "galton_ms": times["galton"][0],
                    "galton_median_ms": times["galton"][1],
                    "jax_privacy_ms": least,
                    "jax_privacy_median_ms": median,
                    "ratio_of_least": times["galton"][0] / least,
                    "ratio_of_medians": times["galton"][1] / median,
                }
            )
            print(rows[-1], flush=True)
    write("noise", rows, steps=STEPS, load_average=os.getloadavg()[0])
    body = [
        [
            str(row["strategy"]),
            f"{row['parameters']:,}",
            f"{row['galton_ms']:.1f} ({row['galton_median_ms']:.1f})",
            f"{row['jax_privacy_ms']:.1f} ({row['jax_privacy_median_ms']:.1f})",
            f"{row['ratio_of_least']:.2f} ({row['ratio_of_medians']:.2f})",
        ]
        for row in rows
    ]
    header = ["strategy", "parameters", "galton, ms least (median)", "jax-privacy, ms least (median)", "ratio"]
    markdown("noise", header, body)


if __name__ == "__main__":
    main()
