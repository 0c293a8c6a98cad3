"""Where a result comes from: code, versions, seed, machine, date and time, kept beside it as JSON."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from galton import files
from galton.accountants.peers import version_of
from galton.cache import Json
from galton.errors import GaltonError
from galton.provenance import now
from reproduction.points import DELTA, FAILURE, TAU, Maker

PACKAGES = ("galton", "jax", "jaxlib", "numpy", "scipy", "dp-accounting", "matplotlib")


def provenance(name: str, source: str, maker: Maker, seconds: float, paths: Sequence[Path]) -> Json:
    """Returns what there is to say about a result and its files.

    `seconds` is what it took this time; `seconds_of_points` what its points took when they were computed.
    """
    return origin(name, source, paths) | {
        "seed": maker.seed,
        "conventions": {"delta": DELTA, "tau": TAU, "failure_probability": FAILURE},
        "seconds": round(seconds, 1),
        "points": len(maker.points),
        "seconds_of_points": round(sum(point.seconds for point in maker.points.values()), 1),
        "computed": maker.tally["computed"],
        "cached": maker.tally["cached"],
    }


def origin(name: str, source: str, paths: Sequence[Path]) -> Json:
    """Returns code (`source`, the digest of it), versions, machine and date, and hashes of the files."""
    return {
        "name": name,
        "date": now(),
        "source": source,
        "machine": machine(),
        "versions": {"python": platform.python_version()} | {package: version_of(package) for package in PACKAGES},
        "files": digests(paths),
    }


def machine() -> Json:
    """Returns processor, cores, memory and system of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gigabytes": round(memory / 2**30, 1),
        "system": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def digests(paths: Sequence[Path]) -> dict[str, str]:
    """Returns a hash of each file's content, by the file's name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def is_current(path: Path, source: str, seed: int) -> bool:
    """Whether a result was made by this very code with this seed, and its files are still what was written."""
    try:
        known = files.read_json(path)
        names = list(known["files"])
        same = known["source"] == source and known["seed"] == seed
        return same and digests([path.parent / name for name in names]) == known["files"]
    except (GaltonError, OSError, KeyError, TypeError):
        return False
