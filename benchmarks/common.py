"""What all benchmarks share: versions, the machine, and where results go."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path


def markdown(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """Writes a table to results/NAME.md."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(lines) + "\n")
    return path
