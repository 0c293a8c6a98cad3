"""Files that cases read: good ones, truncated ones, ones of a wrong kind, and forged plans."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from functools import cache
from pathlib import Path

import numpy as np

import galton

_KEPT = "kept"
"""Copies of all files as they were made."""


@cache
def place_of() -> Path:
    """Returns the folder of all files, that `prepare` was given."""
    return Path(os.environ["GALTON_FUZZ"])


def make_files(place: Path, certified: galton.Plan | None) -> None:
    """Makes the files and plans that cases read."""
    np.save(place / "workload.npy", np.tril(np.ones((12, 12))))
    arrays = {
        "toeplitz": np.linspace(1, 0.5, 12),
        "negative": np.array([1.0, -0.5]),
        "tiny": 1e-160 * np.eye(12),
        "huge": 1e200 * np.eye(12),
        "nan": np.full((12, 12), np.nan),
        "subnormal": np.array([1e-310, 1.0]),
        "numbers": np.array(["a", "b"]),
        "empty": np.zeros((0, 0)),
    }
    for name, values in arrays.items():
        np.save(place / f"{name}.npy", values)
    np.save(place / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    galton.save_strategy(galton.square_root(12, 4), place / "good.json")
    coefficients = np.ones((2, 12))
    coefficients[0, 3:], coefficients[1, 11] = 1e-310, 0.0
    galton.save_strategy(galton.ColumnBanded(coefficients), place / "banded.json")
    good = (place / "good.json").read_text()
    (place / "forged.json").write_text(good.replace("0.5", "0.6", 1))
    (place / "kind.json").write_text(good.replace("toeplitz", "tree", 1))
    (place / "short.json").write_text(good[: len(good) // 2])
    (place / "short.npy").write_bytes((place / "workload.npy").read_bytes()[:200])
    (place / "empty.json").write_text("")
    (place / "file").write_text("x")
    for suffix in ("txt", "npy", "json"):
        (place / f"text.{suffix}").write_text("notes")
    galton.shuffle_records([b"a", b"b", b"c"], place / "records", 2, 1)
    galton.new_key_pair(place / "key.pem")
    target = galton.Guarantee(4.0, 1e-3, galton.Adjacency.REPLACE)
    plan = galton.make_plan(target, examples=64, batch_size=8, epochs=2, batching="fixed-order", strategy="sqrt:4")
    galton.save_plan(plan, place / "exact")
    sampled = certified or galton.make_plan(4.0, 1e-3, examples=64, batch_size=16, epochs=2, strategy="sqrt:2")
    galton.save_plan(sampled, place / "certified")
    noise = galton.CorrelatedNoise(galton.identity(8), 1.0)
    galton.save_state(place / "state", noise, noise.init({"w": np.zeros(3, np.float32)}, galton.key_from_seed(1)))
    galton.TrainingRun(plan, place / "run", {"w": np.zeros(3, np.float32)}, examples=64, clip_norm=1.0).close()
    shutil.copytree(place / "exact", place / "changed")
    with (place / "changed" / "plan.json").open("a") as file:
        file.write(" ")
    shutil.copytree(place, place / _KEPT, ignore=shutil.ignore_patterns("cache", "ledgers"))


def restore(place: Path) -> None:
    """Puts back files that a case has overwritten or removed, as it may if they are named as its output."""
    for kept in (place / _KEPT).rglob("*"):
        file, state = place / kept.relative_to(place / _KEPT), kept.stat()
        if kept.is_file() and not (
            file.is_file() and (file.stat().st_size, file.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, file)


def forge(place: Path, random_numbers: random.Random) -> None:
    """Rewrites a field of a plan to something else, with checksums that fit: a forger can do that too."""
    folder = place / "rewritten"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / random_numbers.choice(("exact", "certified")), folder)
    body = json.loads((folder / "plan.json").read_text())
    part, key = body, random_numbers.choice(sorted(body))
    while isinstance(part[key], dict) and part[key] and random_numbers.random() < 0.9:
        part = part[key]
        key = random_numbers.choice(sorted(part))
    part[key] = random_numbers.choice(("x", None, [], {}, -1, 0, 1, 1.5, 1e308, 1e-320, True, 10**400, [[]], {"a": 1}))
    (folder / "plan.json").write_text(json.dumps(body, indent=2) + "\n")
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("plan.json", "strategy.json")
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


class Paths(dict[str, str]):
    """Where a file is that a command line names in braces."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __missing__(self, name: str) -> str:
        if name == "long":
            return str(self._place / ("x" * 300))
        if name in ("good", "forged", "kind", "banded"):
            return str(self._place / f"{name}.json")
        if name in ("toeplitz", "workload", "negative", "tiny", "subnormal", "huge", "nan", "numbers", "pickle"):
            return str(self._place / f"{name}.npy")
        if name == "key":
            return str(self._place / "key.pem")
        return str(self._place if name == "folder" else self._place / name)
