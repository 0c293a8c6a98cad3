"""A cache of results: what was computed from the same inputs by the same code is not computed again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from galton import files
from galton.closure import code_digest
from galton.errors import GaltonError

Json = dict[str, Any]


def default_cache() -> Cache:
    """Returns the cache of this user: $GALTON_CACHE, or galton/ below $XDG_CACHE_HOME or ~/.cache."""
    folder = os.environ.get("GALTON_CACHE")
    if not folder:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = str(Path(base) / "galton")
    return Cache(Path(folder))


@dataclass(frozen=True)
class Cache:
    """A folder with a JSON file per result, named by the digest of everything that determines the result.

    That is the inputs of the result and the code behind it: the module that computes it, and all that it imports.

    An entry that cannot be read, or that was changed since it was written, counts as absent. An entry that cannot be
    written is dropped: a cache is never a reason to fail.

    Attributes:
      folder: where the entries are; created when needed.
      blind: whether to ignore what is there.
    """

    folder: Path
    blind: bool = False

    def emptied(self) -> Cache:
        """Returns a cache on the same folder that ignores its entries and replaces them."""
        return Cache(self.folder, blind=True)

    def get(self, inputs: Json, module: str) -> Json | None:
        """Returns what the present code of a module (its `__name__`) stored for these inputs, or None."""
        if self.blind:
            return None
        key = _key(inputs, module)
        try:
            entry = files.read_json(self._path(key))
            value = entry["value"]
            intact = entry["key"] == key and entry["digest"] == files.digest(value) and isinstance(value, dict)
        except (GaltonError, KeyError, TypeError, ValueError):
            return None
        return value if intact else None

    def put(self, inputs: Json, value: Json, module: str) -> None:
        """Stores what a module (its `__name__`) computed from these inputs."""
        key = _key(inputs, module)
        try:
            files.write_text(
                self._path(key), files.canonical({"key": key, "value": value, "digest": files.digest(value)}) + "\n"
            )
        except GaltonError:
            return

    def _path(self, key: Json) -> Path:
        return self.folder / (files.digest(key).removeprefix("sha256:") + ".json")


def _key(inputs: Json, module: str) -> Json:
    return {"galton": version("galton"), "code": code_digest(module), "inputs": inputs}
