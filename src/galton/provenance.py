"""Where a result comes from: the versions of what it depends on, and the time."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Returns the versions that a result depends on: galton, its libraries and Python."""
    packages = {name: version(name) for name in ("galton", "jax", "numpy", "scipy")}
    return packages | {"python": platform.python_version()}


def environment() -> str:
    """Returns in words what decides, devices aside, whether a computation can give the same bits again."""
    installed = " ".join(f"{name}-{number}" for name, number in versions().items())
    return f"{platform.system()} {platform.machine()} {installed}"


def now() -> str:
    """Returns the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
