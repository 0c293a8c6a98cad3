"""Runs one cell, read from stdin, with the package that is named, and prints what came out as JSON.

    python -P benchmarks/workers/run.py opake < cell.json    # -P: the files beside this one are named like packages

Imports are not timed. The process is ended by the system once it has used the cell's budget of processor seconds.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import resource
import statistics
import sys
import time
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # Opacus brings a package of the name `benchmarks` itself


_dataclass: Any = dataclasses.dataclass


def without_second_slot(cls: Any = None, /, **options: Any) -> Any:
    """As `dataclass`, but asks for no weak-reference slot where a base class has one.

    Pythons before 3.13 refuse that, and so cannot import opake 0.16.1.
    """
    if cls is None:
        return partial(without_second_slot, **options)
    if any("__weakref__" in vars(base) for base in cls.__mro__[1:]):
        options.pop("weakref_slot", None)
    return _dataclass(cls, **options)


def used() -> float:
    """Processor seconds of this process, all threads."""
    return time.process_time()


def limit(budget: float) -> None:
    """Lets the process use so many processor seconds more."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used() + budget) + 1, hard))


def turns(step: Any, most: int, budget: float) -> dict[str, Any]:
    """Milliseconds of a round, wall and processor, after one that is not counted."""
    step()
    walls: list[float] = []
    processors: list[float] = []
    begun = used()
    while len(walls) < most and (len(walls) < 3 or used() - begun < budget / 2):
        wall, processor = time.perf_counter(), used()
        step()
        walls.append(1e3 * (time.perf_counter() - wall))
        processors.append(1e3 * (used() - processor))
    return {
        "rounds": len(walls),
        "ms_least": round(min(walls), 3),
        "ms_median": round(statistics.median(walls), 3),
        "ms_processor": round(statistics.median(processors), 3),
    }


def main() -> None:
    """Runs the cell."""
    cell = json.load(sys.stdin)
    if sys.version_info < (3, 13):
        dataclasses.dataclass = without_second_slot
    worker = importlib.import_module(f"benchmarks.workers.{sys.argv[1]}")
    limit(cell["budget"])
    wall, processor = time.perf_counter(), used()
    answer = worker.TASKS[cell["task"]](cell)
    if callable(answer):
        answer = turns(answer, cell["rounds_timed"], cell["budget"])
    else:
        answer["seconds"] = round(time.perf_counter() - wall, 2)
        answer["cpu_seconds"] = round(used() - processor, 2)
    answer["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    wanted = {"jax", "torch", "numpy", *worker.PACKAGES}
    versions = {part.name: part.version for part in distributions() if part.name.lower().replace("_", "-") in wanted}
    print(json.dumps({"answer": answer, "versions": {"python": sys.version.split()[0], **versions}}))


if __name__ == "__main__":
    main()
