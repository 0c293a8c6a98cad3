"""galton beside the packages of others: accounting, calibration, error at equal guarantee, noise.

Each package runs in a process of its own, in an environment that this script makes (build/peers/NAME; galton in the
one that runs the script), by its file in benchmarks/workers: a new package is one file there, one line in PEERS, and
what it lacks in workers/offers.py. Training steps are measured by training.py.
Time is processor time, all threads together, so that a busy machine does not matter much; a process that has used the
budget is ended, and its cell says "more than". Cells that are in the results already are kept:

    python benchmarks/peers.py                                     everything that is missing, then the tables
    python benchmarks/peers.py --tasks noise --peers opake         some of it
    python benchmarks/peers.py --again --tasks noise               measured anew
    python benchmarks/peers.py --tables                            the tables only
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import galton
from benchmarks.common import RESULTS, write
from benchmarks.peer_tables import tables
from benchmarks.workers.offers import refusal

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
"""In the same command as what needs it: another version may bring gigabytes for GPUs."""
TASKS = ("check", "calibrate", "epsilon", "error", "noise")
BINS, EPOCHS, SEPARATION = 64, 8, 8
EPSILON, DELTAS = 1.0, (1e-5, 1e-10)
ERROR_BINS, ERROR_EPOCHS = 32, 16
BANDS = (1, 2, 4, 8)
"""Tried for packages that do not choose the number of bands themselves; those whose noise is least useful fall out."""
CHECKED = 1.5
"""Noise multiplier of the check, for sensitivity 1."""
PARAMETERS = (1_000_000, 10_000_000)
DECAY, SCALE = [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15]
ROUNDS_TIMED = 10
COLUMNS = {name: galton.square_root(BINS * EPOCHS, bands).coefficients.tolist() for name, bands in
           (("8 bands", 8), ("64 bands", 64))} | {"identity": [1.0]}  # fmt: skip
CASES = (
    ("bins", "identity"),
    ("bins", "8 bands"),
    ("bins", "64 bands"),
    ("redrawn bins", "identity"),
    ("redrawn bins", "8 bands"),
    ("min-separation", "8 bands"),
    ("Poisson", "identity"),
)
MECHANISMS = (
    "DP-SGD, Poisson",
    "DP-SGD, redrawn bins",
    "BandMF, cyclic Poisson",
    "BLT, bins",
    "BLT, redrawn bins",
)
Cell = dict[str, Any]


PEERS: dict[str, tuple[str, ...]] = {
    "galton": (),
    "opake": ("opake[dpftrl]==0.16.1", TORCH),
    "jax_privacy": ("jax-privacy==2.0.0",),
    "dp_accounting": ("dp-accounting==0.6.0",),
    "pld_accounting": ("PLD_accounting[performance]==2.0",),
    "opacus": ("opacus==1.6.0", TORCH),
}
"""What pip installs for each package."""


def python_of(peer: str) -> str:
    """Returns the interpreter of a package's environment, which is made if it is not there."""
    if peer == "galton":
        return sys.executable
    folder = ROOT / "build" / "peers" / peer
    ready, python = folder / "ready", folder / "bin" / "python"
    wanted = " ".join(PEERS[peer])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
        ready.write_text(wanted)
    return str(python)


def setting(bins: int, epochs: int) -> Cell:
    """What accounting cells have in common."""
    return {"bins": bins, "epochs": epochs, "rounds": bins * epochs}


def accounting(rows: list[Cell]) -> Iterator[tuple[str, Cell]]:
    """Epsilon and calibration. The noise of galton's calibration is where the others look, and what they account."""
    base = setting(BINS, EPOCHS) | {"separation": SEPARATION}
    for batches, name in CASES:
        cell = base | {"batches": batches, "strategy": name, "coefficients": COLUMNS[name]}
        claim = {"task": "calibrate", "epsilon": EPSILON, "delta": DELTAS[0]}
        if (calibrated := answer_of(rows, "galton", f"calibrate, {batches}, {name}")) is None:
            yield f"calibrate, {batches}, {name}", cell | claim | {"only": "galton"}
            continue
        sigma = float(f"{calibrated['sigma']:.4g}")
        yield f"calibrate, {batches}, {name}", cell | claim | {"bracket": [sigma / 1.5, 1.5 * sigma]}
        for delta in DELTAS:
            yield (
                f"epsilon, {batches}, {name}, {delta:g}",
                cell | {"task": "epsilon", "delta": delta, "sigma": sigma},
            )


def checks() -> Iterator[tuple[str, Cell]]:
    """Everyone in the one batch of all rounds: the Gaussian mechanism, in closed form, so that conventions show."""
    rounds, column, delta = 64, COLUMNS["8 bands"], 0.05
    sensitivity = galton.Toeplitz(rounds, column).sensitivity(1)
    cell = setting(1, rounds) | {"coefficients": column, "sensitivity": sensitivity, "delta": delta}
    expected = galton.gaussian_epsilon(delta, 1 / CHECKED)
    yield "check, 8 bands", cell | {"task": "check", "sigma": CHECKED * sensitivity, "expected": expected}


def errors() -> Iterator[tuple[str, Cell]]:
    """Prefix RMSE at the same guarantee."""
    bins, epochs = ERROR_BINS, ERROR_EPOCHS
    unamplified = 1 / galton.gaussian_mu(EPSILON, DELTAS[0])
    claim = {"task": "error", "epsilon": EPSILON, "delta": DELTAS[0]}
    for mechanism in MECHANISMS:
        batches = "redrawn bins" if "redrawn" in mechanism else mechanism.rpartition(", ")[2]
        cell = setting(bins, epochs) | claim | {"mechanism": mechanism, "batches": batches, "coefficients": [1.0]}
        most = unamplified * math.sqrt(epochs) * (3 if "BLT" in mechanism else 1)
        cell["bracket"] = [most / 16, most]
        if mechanism != "BandMF, cyclic Poisson":
            yield f"error, {mechanism}", cell
            continue
        yield f"error, {mechanism}", cell | {"not_for": "opake"}
        for bands in BANDS:
            yield f"error, {mechanism}, {bands} bands", cell | {"only": "opake", "bands": bands}


def noises() -> Iterator[tuple[str, Cell]]:
    """A round of noise."""
    base = setting(BINS, EPOCHS) | {"task": "noise", "decay": DECAY, "scale": SCALE}
    for parameters in PARAMETERS:
        for name in ("identity", "BLT, 4 buffers", "64 bands", "inverse of 4 bands"):
            cell = base | {"strategy": name, "parameters": parameters, "coefficients": COLUMNS.get(name, [1.0])}
            yield f"noise, {name}, {parameters:,}", cell


def cells(rows: list[Cell]) -> Iterator[tuple[str, Cell]]:
    """All cells, by name."""
    yield from checks()
    yield from accounting(rows)
    yield from errors()
    yield from noises()


def answer_of(rows: list[Cell], peer: str, name: str) -> Cell | None:
    """Returns what came out of a cell, if it was run."""
    return next((row["answer"] for row in rows if (row["peer"], row["cell"]) == (peer, name)), None)


def run(peer: str, cell: Cell, budget: float) -> Cell:
    """Runs one cell in a process of its own, if the package offers it."""
    if peer != "galton" and (lacking := refusal(peer, cell)) is not None:
        return {"answer": {"not_offered": lacking}}
    command = [python_of(peer), "-P", str(ROOT / "benchmarks" / "workers" / "run.py"), peer]
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {"GALTON_STATE": state}
        if peer == "galton":
            environment["PYTHONPATH"] = str(ROOT / "src")
        else:
            environment.pop("PYTHONPATH", None)
        given = json.dumps(cell | {"budget": budget, "rounds_timed": ROUNDS_TIMED})
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, env=environment, timeout=30 * budget, cwd=state
            )
        except subprocess.TimeoutExpired:
            return {"answer": {"more_than": budget}}
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"answer": {"more_than": budget}}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"answer": {"failed": lines[-1][:300]}}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def with_error(cell: Cell, answer: Cell) -> Cell:
    """Adds the prefix RMSE of the C and the sigma that a package has found, by one formula for all."""
    if cell["task"] != "error" or "sigma" not in answer:
        return answer
    strategy = galton.Toeplitz(cell["rounds"], answer.pop("coefficients", [1.0])[: cell["rounds"]])
    return answer | {"rmse": answer["sigma"] * strategy.rmse()}


def written() -> list[Cell]:
    """Returns the rows in the file, to which another run of this script may have added."""
    path = RESULTS / "peers.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def main() -> None:
    """Runs what is missing, and writes results/peers.{json,md}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--cells", default="", help="only those with this in their name, such as Poisson")
    parser.add_argument("--budget", type=float, default=300.0, help="processor seconds of a cell")
    parser.add_argument("--again", action="store_true", help="measure cells that are there anew")
    parser.add_argument("--tables", action="store_true", help="write the tables only")
    arguments = parser.parse_args()
    rows = written()
    chosen = [name for name in PEERS if name in arguments.peers.split(",")]
    fresh: set[tuple[str, str]] = set()
    while not arguments.tables:
        waiting = [
            (peer, name, cell)
            for name, cell in cells(rows)
            for peer in chosen
            if cell["task"] in arguments.tasks.split(",")
            and arguments.cells in name
            and cell.get("only", peer) == peer
            and cell.get("not_for") != peer
            and (peer, name) not in fresh
            and (arguments.again or "failed" in (answer_of(rows, peer, name) or {"failed": "not run"}))
        ]
        if not waiting:
            break
        peer, name, cell = waiting[0]
        load = os.getloadavg()[0]
        row = {"peer": peer, "cell": name, "budget": arguments.budget, "load": round(load, 1)}
        row |= run(peer, cell, arguments.budget)
        row["answer"] = with_error(cell, row["answer"])
        rows = [old for old in written() if (old["peer"], old["cell"]) != (peer, name)] + [row]
        fresh.add((peer, name))
        write("peers", rows, setting=setting(BINS, EPOCHS), error_setting=setting(ERROR_BINS, ERROR_EPOCHS))
        print(peer, "|", name, "|", row["answer"], flush=True)
    print(tables(rows, [name for name, _ in cells(rows)]))


if __name__ == "__main__":
    main()
