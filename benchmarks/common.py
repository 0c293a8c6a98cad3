"""What all benchmarks share: versions, the machine, and where results go."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from galton import files

RESULTS = Path(__file__).parent / "results"
Step = Callable[[], None]


def write(name: str, rows: list[dict[str, Any]], **more: Any) -> Path:
    """Writes rows with versions, machine and date to results/NAME.json."""
    versions = {"python": platform.python_version()}
    for package in ("galton", "jax", "numpy", "jax-privacy", "PLD_accounting"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    body = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
        **more,
        "rows": rows,
    }
    path = RESULTS / f"{name}.json"
    files.write_text(path, json.dumps(body, indent=1) + "\n")
    return path


def markdown(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """Writes a table to results/NAME.md."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    path = RESULTS / f"{name}.md"
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def measured(steps: dict[str, Step], count: int) -> dict[str, tuple[float, float]]:
    """Least and median milliseconds of each, taking turns so that both see the same load."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: (min(milliseconds), float(np.median(milliseconds))) for name, milliseconds in times.items()}


def duration(seconds: float | None) -> str:
    """Extrapolated seconds in the largest unit that fits."""
    if seconds is None:
        return "-"
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds > 2 * size:
            return f"{seconds / size:,.0f} {unit}*"
    return f"{seconds:.0f} s*"
