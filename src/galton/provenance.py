"""Where a result comes from: the versions of what it depends on, and the time."""

from __future__ import annotations

import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions() -> dict[str, str]:
    """Returns the versions that a result depends on: galton, its libraries and Python."""
    packages = {name: version(name) for name in ("galton", "jax", "numpy", "scipy")}
    return packages | {"python": platform.python_version()}


def environment() -> str:
    """Returns in words what decides, devices aside, whether a computation can give the same bits again."""
    installed = [f"{name}-{number}" for name, number in versions().items()]
    for name in ("jaxlib", "torch", "opacus", "optax"):
        with suppress(PackageNotFoundError):
            installed.append(f"{name}-{version(name)}")
    return " ".join([platform.system(), platform.machine(), _processor(), *installed])


def _processor() -> str:
    """Returns the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def now() -> str:
    """Returns the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
