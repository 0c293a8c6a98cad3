"""Noise: milliseconds a round against jax-privacy, and buffers against normals that are drawn again.

python benchmarks/noise.py             1M and 10M parameters: galton and jax-privacy take turns in one run
python benchmarks/noise.py --memory    10M and 100M parameters: time and memory of galton's two forms
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

import galton
from benchmarks.common import RESULTS, Step, markdown, measured, write
from galton.noise import CorrelatedNoise
from galton.noise.forms import Recomputed

ROUNDS, STEPS = 2048, 12
DECAY, SCALE = [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15]
BLT, BANDS = galton.Blt(ROUNDS, DECAY, SCALE), galton.square_root(ROUNDS, 64)
FORMS = {
    "inverse of 2 bands": galton.lambda_cgd(ROUNDS, 0.9),
    "inverse of 4 bands": galton.banded_inverse_root(ROUNDS, 4),
    "inverse of 16 bands": galton.banded_inverse_root(ROUNDS, 16),
    "4 bands": galton.square_root(ROUNDS, 4),
}
"""Strategies whose two forms are compared, from a round on in which each draws as many vectors as it ever does."""
FIRST, TIMED = 64, 3


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
    from jax_privacy import noise_addition

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
    from jax_privacy.matrix_factorization import buffered_toeplitz

    return buffered_toeplitz.BufferedToeplitz(
        buf_decay=jnp.array(DECAY, jnp.float32), output_scale=jnp.array(SCALE, jnp.float32)
    ).inverse_as_streaming_matrix()


def band_matrix() -> Any:
    """The same 64 bands."""
    from jax_privacy.matrix_factorization import toeplitz

    return toeplitz.inverse_as_streaming_matrix(jnp.asarray(BANDS.coefficients, jnp.float32))


def form_measured(name: str, form: str, size: int) -> dict[str, Any]:
    """Time of a round and peak memory of this process, which does nothing else, above what it had before."""
    noise = CorrelatedNoise(FORMS[name], 1.0, form)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = noise.init(jax.ShapeDtypeStruct((size,), jnp.float32), galton.key_from_seed(1))  # type: ignore[no-untyped-call]
    state = replace(state, round=jnp.asarray(FIRST, jnp.int32))
    walls, processors = [], []
    for _ in range(1 + TIMED):
        wall, processor = time.perf_counter(), time.process_time()
        drawn, state = noise.step(state)
        jax.block_until_ready((drawn, state.buffers))  # type: ignore[no-untyped-call]
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
        del drawn
    return {
        "strategy": name,
        "form": form,
        "parameters": size,
        "seconds": float(np.median(walls[1:])),
        "cpu_seconds": float(np.median(processors[1:])),
        "draws": 1 if form == "buffers" else Recomputed(FORMS[name]).reach(),
        "kept_gb": 4e-9 * size * noise.memory,
        "peak_gb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e9,
    }


def compare_forms() -> None:
    """Measures each form in a process of its own; writes results/noise_memory.{json,md}. Rows that are there stay."""
    path = RESULTS / "noise_memory.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for size in (10_000_000, 100_000_000):
        for name in FORMS:
            for form in ("buffers", "recompute"):
                if any((row["strategy"], row["form"], row["parameters"]) == (name, form, size) for row in rows):
                    continue
                command = [sys.executable, __file__, "--one", name, form, str(size)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                print(rows[-1], flush=True)
                rows.sort(key=lambda row: (row["parameters"], [*FORMS].index(row["strategy"]), row["form"]))
                write("noise_memory", rows, first_round=FIRST, load_average=os.getloadavg()[0])
    body = [
        [
            row["strategy"],
            f"{row['parameters']:,}",
            row["form"],
            str(row["draws"]),
            f"{row['cpu_seconds']:.2f}",
            f"{row['kept_gb']:.2f}",
            f"{row['peak_gb']:.2f}",
        ]
        for row in rows
    ]
    header = ["C", "parameters", "form", "draws", "s CPU a round", "GB kept between rounds", "GB at the peak"]
    markdown("noise_memory", header, body)


def compare_packages() -> None:
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


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="compare the forms instead")
    parser.add_argument("--one", nargs=3, metavar=("STRATEGY", "FORM", "SIZE"), help="one row of that, as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        name, form, size = arguments.one
        print(json.dumps(form_measured(name, form, int(size))))
    elif arguments.memory:
        compare_forms()
    else:
        compare_packages()


if __name__ == "__main__":
    main()
