"""Programs that JAX compiled for one command are kept for the next: a third of a short command is compiling."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

_MOST_BYTES = 256 * 2**20
"""How large the folder may grow before the older half of it is removed."""
_QUICK = "--xla_cpu_use_fusion_emitters=false"
"""Compiles a third to a half quicker into programs that are as quick; measured."""
_KNOWS_QUICK = "0.10."
"""Versions of jaxlib that were seen to have it: XLA ends a process that gives it an option it does not know."""


def compile_quickly() -> None:
    """Lets XLA, if it is loaded later in this process or in one that this starts, spend less time on compiling.

    What the user chose by XLA's own variable stands.
    """
    if "XLA_FLAGS" not in os.environ and version("jaxlib").startswith(_KNOWS_QUICK):
        os.environ["XLA_FLAGS"] = _QUICK


def keep_programs(folder: Path) -> None:
    """Lets JAX, if it is imported later in this process or in one that this starts, keep what it compiles.

    Whoever can write to the folder can run code as whoever reads it: a folder that is not this user's own, or that
    others may write to, is not used. Nor is one that cannot be made: compiling again is slow, not wrong. A program that
    was only partly written is noticed by JAX and compiled again. What the user chose by JAX's own variables stands.

    Args:
      folder: where the programs are; every kind of processor and version of JAX gets a folder in it.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    programs = folder / _machine()
    try:
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _own(programs):
            return
        _prune(programs)
    except OSError:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs.absolute())
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _own(folder: Path) -> bool:
    """Whether the folder is this user's, and nobody else may write to it."""
    status = folder.stat()
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _machine() -> str:
    """Names what a compiled program depends on beside its source: the processor and the compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        processor = platform.processor()
    text = "\n".join([platform.machine(), processor, version("jax"), version("jaxlib")])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prune(folder: Path) -> None:
    """Removes the programs that were written first, once there are too many."""
    entries = [(entry.stat(), Path(entry.path)) for entry in os.scandir(folder) if entry.is_file()]
    size = sum(status.st_size for status, _ in entries)
    if size <= _MOST_BYTES:
        return
    for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
        if size <= _MOST_BYTES // 2:
            return
        path.unlink(missing_ok=True)
        size -= status.st_size
