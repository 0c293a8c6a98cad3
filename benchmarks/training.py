"""Time and memory of a training step, galton against Opacus, jax-privacy and opake; and noise on several devices.

    python benchmarks/training.py                          # all; makes build/opake for opake, which has its own torch
    python benchmarks/training.py --opake /path/to/python  # that has opake 0.16.1
    python benchmarks/training.py --only devices

Every package runs in a process of its own and they take turns, so that all see the same load. The model, the batch size
and the clip norm are the same, noise is independent and the optimiser is SGD. A step of galton is a whole round of
`train`: it also draws the batch, hashes the sum and writes the journal, and its batches have the batch size on average
only; others are handed the same batch in every step. All are pinned to one core, so that processor time is not spent
on waiting for each other; ratios are to the fastest of the others in the same run. Memory is the peak of the process
less what it had before the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import RESULTS, markdown, write

ROOT = Path(__file__).parents[1]
MODELS = ("mlp", "cnn", "transformer")
PACKAGES = ("galton JAX", "galton torch", "galton torch ghost", "jax-privacy", "Opacus hooks", "Opacus ghost", "opake")
PARAMETERS = 4_000_000
COLLECTIVE = r"= \S+ (all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter)"


class Worker:
    """A process that does a step whenever it is asked."""

    def __init__(self, package: str, model: str, batch: int, python: str) -> None:
        place = os.pathsep.join((str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            [python, str(ROOT / "benchmarks" / "steps" / "worker.py"), package, model, str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": place},
        )
        self.ready = self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def step(self) -> dict[str, float] | None:
        """Asks for a step; None if the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            return dict(json.loads(self._read()))
        except (BrokenPipeError, ValueError):
            return None

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def opake_python(given: str | None) -> str:
    """The interpreter of a virtual environment that has opake, made if it is not there."""
    if given is not None:
        return given
    folder = ROOT / "build" / "opake"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        subprocess.run([python, "-m", "pip", "install", "-q", "opake==0.16.1", "torch==2.13.0", *index], check=True)
    return str(python)


def steps(model: str, batch: int, count: int, packages: list[str], opake: str) -> list[dict[str, Any]]:
    """Measures all packages on one model, taking turns."""
    workers = {name: Worker(name, model, batch, opake if name == "opake" else sys.executable) for name in packages}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in packages}
    for turn in range(count + 2):
        for name, worker in workers.items():
            answer = worker.step() if worker.ready else None
            if answer is not None and turn >= 2:  # the first ones compile
                seen[name].append(answer)
    rows: list[dict[str, Any]] = []
    for name, answers in seen.items():
        workers[name].end()
        row: dict[str, Any] = {"what": "step", "model": model, "batch": batch, "package": name, "steps": len(answers)}
        if answers:
            row |= {
                "ms_least": min(answer["ms"] for answer in answers),
                "ms_median": statistics.median(answer["ms"] for answer in answers),
                "processor_ms_least": min(answer["processor_ms"] for answer in answers),
                "processor_ms_median": statistics.median(answer["processor_ms"] for answer in answers),
                "memory_mb": answers[-1]["peak_mb"] - answers[-1]["loaded_mb"],
            }
        rows.append(row)
    others = [row for row in rows if row["steps"] and not row["package"].startswith("galton")]
    for row in rows:
        for kind in ("least", "median") if row["steps"] and others else ():
            fastest = min(other[f"processor_ms_{kind}"] for other in others)
            row[f"ratio_{kind}"] = row[f"processor_ms_{kind}"] / fastest
        print(row, flush=True)
    return rows


def noise_here(count: int) -> dict[str, Any]:
    """The noise of a BLT for a model cut over all devices of this process."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    import galton

    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("model",))
    cut = NamedSharding(mesh, PartitionSpec("model"))  # type: ignore[no-untyped-call]
    params = [jax.jit(lambda: jnp.zeros((1000, PARAMETERS // 4000)), out_shardings=cut)() for _ in range(4)]
    noise = galton.CorrelatedNoise(galton.Blt(2048, [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15]), 1.0)
    state = noise.init(params)
    compiled = jax.jit(noise.next).lower(state).compile()
    on_a_device = max(shard.data.nbytes for buffer in state.buffers for shard in buffer.addressable_shards)
    times, processor = [], []
    for _ in range(count + 2):
        start, used = time.perf_counter(), time.process_time()
        drawn, state = noise.step(state)
        jax.block_until_ready((drawn, state))  # type: ignore[no-untyped-call]
        times.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - used))
    return {
        "what": "noise",
        "parameters": PARAMETERS,
        "devices": devices,
        "collectives": len(re.findall(COLLECTIVE, compiled.as_text() or "")),
        "buffers_mb_of_a_device": on_a_device / 2**20,
        "ms_least": min(times[2:]),
        "ms_median": statistics.median(times[2:]),
        "processor_ms_least": min(processor[2:]),
        "processor_ms_median": statistics.median(processor[2:]),
    }


def devices(count: int) -> list[dict[str, Any]]:
    """Noise on 1, 2 and 4 devices, which JAX makes of the processor: they share one core."""
    rows = []
    for number in (1, 2, 4):
        flags = f"--xla_force_host_platform_device_count={number}"
        command = [sys.executable, __file__, "--noise-here", "--steps", str(count)]
        said = subprocess.run(
            command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=True
        )
        rows.append(json.loads(said.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    return rows


def tables(rows: list[dict[str, Any]]) -> None:
    """Writes results/training.md: steps, then noise."""
    body = []
    for row in rows:
        if row["what"] == "noise":
            what = f"noise, {row['parameters']:,} parameters, {row['collectives']} collectives"
            cells = [what, f"devices: {row['devices']}"]
            memory = f"{row['buffers_mb_of_a_device']:.0f} of buffers a device"
        else:
            cells = [f"{row['model']}, batch {row['batch']}", row["package"]]
            memory = f"{row['memory_mb']:.0f}" if row["steps"] else ""
        if "ms_least" in row:
            processor = f"{row['processor_ms_least']:.1f} ({row['processor_ms_median']:.1f})"
            ratio = f"{row['ratio_least']:.2f} ({row['ratio_median']:.2f})" if "ratio_least" in row else ""
            cells += [f"{row['ms_least']:.0f} ({row['ms_median']:.0f})", processor, ratio, memory]
        else:
            cells += ["does not run", "", "", ""]
        body.append(cells)
    columns = ["what", "by", "ms least (median)", "processor ms", "of the fastest other", "MB"]
    markdown("training", columns, body)


def main() -> None:
    """Measures, and writes results/training.{json,md}."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="others keep the results that they have")
    parser.add_argument("--packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--opake", help="interpreter that has opake 0.16.1")
    parser.add_argument("--only", choices=["steps", "devices"])
    parser.add_argument("--core", type=int, help="the core that all are pinned to; by default the first")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    parser.add_argument("--noise-here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.noise_here:
        print(json.dumps(noise_here(chosen.steps)))
        return
    os.sched_setaffinity(0, {chosen.core if chosen.core is not None else min(os.sched_getaffinity(0))})
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = RESULTS / "training.json"
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    rows: list[dict[str, Any]] = []
    if chosen.only != "devices":
        opake = opake_python(chosen.opake) if "opake" in chosen.packages else ""
        for model in chosen.models:
            rows += steps(model, chosen.batch, chosen.steps, chosen.packages, opake)
    if chosen.only != "steps":
        rows += devices(chosen.steps)
    if not chosen.dry:
        write_merged(rows, old)


def write_merged(rows: list[dict[str, Any]], old: list[dict[str, Any]]) -> None:
    """Writes what was measured, with what is known of other models from earlier runs."""

    def about(row: dict[str, Any]) -> tuple[str, str]:
        return row["what"], row.get("model", "")

    measured = {about(row) for row in rows}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    merged = [row | {"date": date} for row in rows] + [row for row in old if about(row) not in measured]
    order = [*(("step", model) for model in MODELS), ("noise", "")]
    merged.sort(key=lambda row: order.index(about(row)))
    write("training", merged, load_average=os.getloadavg()[0])
    tables(merged)


if __name__ == "__main__":
    main()
