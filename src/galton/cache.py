"""Results kept by content: what was computed once, from the same inputs by the same code, is not computed again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from galton import files
from galton.errors import GaltonError

Json = dict[str, Any]
_COMPUTING = (
    *("accounting", "baselines", "bounds", "errors.py", "files.py", "gaussian.py", "optimization", "pair.py"),
    *("sampling", "strategies", "threads.py", "workloads.py"),
    *("paper/points.py", "paper/sample_counts.py"),
)
"""Where figures are computed."""


def default_cache() -> Cache:
    """Returns the cache of this user: $GALTON_CACHE, or galton/ below $XDG_CACHE_HOME or ~/.cache."""
    folder = os.environ.get("GALTON_CACHE")
    if not folder:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = str(Path(base) / "galton")
    return Cache(Path(folder))


@dataclass(frozen=True)
class Cache:
    """A folder with one JSON file a result, named by the digest of everything that determines it.

    An entry that cannot be read, or whose content is not what was written, counts as absent. An entry that cannot be
    written is dropped: a cache is never a reason to fail.
    """

    folder: Path
    blind: bool = False

    def emptied(self) -> Cache:
        """Returns the same cache as if nothing were in it: what is computed replaces what is there."""
        return Cache(self.folder, blind=True)

    def get(self, inputs: Json) -> Json | None:
        """Returns what was stored for these inputs by this very code of galton, or None."""
        if self.blind:
            return None
        key = _key(inputs)
        try:
            entry = files.read_json(self._path(key))
            value = entry["value"]
            intact = entry["key"] == key and entry["digest"] == files.digest(value) and isinstance(value, dict)
        except (GaltonError, KeyError, TypeError, ValueError):
            return None
        return value if intact else None

    def put(self, inputs: Json, value: Json) -> None:
        """Stores a result for these inputs."""
        key = _key(inputs)
        try:
            files.write_text(
                self._path(key), files.canonical({"key": key, "value": value, "digest": files.digest(value)}) + "\n"
            )
        except GaltonError:
            return

    def _path(self, key: Json) -> Path:
        return self.folder / (files.digest(key).removeprefix("sha256:") + ".json")


def _key(inputs: Json) -> Json:
    return {"galton": version("galton"), "source": source_digest(), "inputs": inputs}


@cache
def source_digest(*more: str) -> str:
    """Returns a hash of the code that figures come from: no result outlives the accountant that made it.

    Rooms in which no figure is computed are left out, so that work on them does not cost the figures.

    Args:
      more: further files or folders of the package.
    """
    root = Path(__file__).parent
    total = hashlib.sha256()
    for name in sorted({*_COMPUTING, *more}):
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
