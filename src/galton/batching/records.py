"""A uniform shuffle of records that do not fit in memory: to files by random shard, then every shard by itself.

Independent uniform shards, and a uniform order within each, make a uniform order of all: given the counts, every
arrangement is equally likely. Memory is one shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from galton import files
from galton.batching.randomness import BLOCK, Words, check_seed
from galton.errors import InvalidFile, count

INDEX = "shuffled.json"
FORMAT = "galton-shuffled-records"


@dataclass(frozen=True)
class ShuffledRecords:
    """Records in random order, in shard files of one folder; `open_pass` is what `batching.stream` reads from."""

    folder: Path
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.sizes)

    def open_pass(self, start: int = 0) -> Iterator[bytes]:
        """Yields the records from position `start` on; whole shards before it are not opened."""
        for shard, size in enumerate(self.sizes):
            if start >= size:
                start -= size
                continue
            with open(_shard_path(self.folder, shard), "rb") as file:
                for _ in range(start):
                    file.seek(int.from_bytes(_read_exactly(file, 8), "little"), 1)
                yield from _read_records(file, size - start)
            start = 0


def shuffle_records(
    records: Iterable[bytes], folder: str | Path, shards: int = 64, seed: str | int | None = None
) -> ShuffledRecords:
    """Writes `records` to `folder` in uniformly random order. The order is a secret, as the batches are.

    Args:
      records: the data, read once.
      folder: where the shards go; needs as much space as the data, twice while it runs.
      shards: files; one at a time is held in memory. At most a few hundred, as all are open at once.
      seed: of the shuffle; None takes the operating system's entropy. Take another one than for the batches.
    """
    folder, words = Path(folder), Words(check_seed(seed))
    count("shards", shards, at_most=1000)
    try:
        files.make_folder(folder)
    except OSError as error:
        raise InvalidFile(f"{folder}: cannot be made ({error.strerror})") from None
    if (folder / INDEX).exists():
        raise InvalidFile(f"{folder / INDEX}: is there already; take an empty folder")
    with files.scratch(folder) as parts:
        sizes = _write_shards(records, parts, shards, words)
        for shard, size in enumerate(sizes):
            _shuffle_shard(_shard_path(parts, shard), _shard_path(folder, shard), shard, size, words)
    files.write_text(folder / INDEX, json.dumps({"format": FORMAT, "sizes": sizes}) + "\n")
    return ShuffledRecords(folder, tuple(sizes))


def open_records(folder: str | Path) -> ShuffledRecords:
    """Opens a folder that `shuffle_records` wrote."""
    path = Path(folder) / INDEX
    body = files.read_json(path)
    sizes = body.get("sizes")
    if body.get("format") != FORMAT or not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise InvalidFile(f"{path}: is not an index of shuffled records")
    return ShuffledRecords(Path(folder), tuple(sizes))


def _write_shards(records: Iterable[bytes], folder: Path, shards: int, words: Words) -> list[int]:
    sizes = [0] * shards
    with ExitStack() as stack:
        parts = [stack.enter_context(_shard_path(folder, shard).open("wb")) for shard in range(shards)]
        targets = np.zeros(0, np.uint32)
        for position, record in enumerate(records):
            if position % BLOCK == 0:
                targets = words.below(shards, "shard", position // BLOCK, BLOCK)
            shard = int(targets[position % BLOCK])
            parts[shard].write(len(record).to_bytes(8, "little") + record)
            sizes[shard] += 1
    return sizes


def _shuffle_shard(part: Path, target: Path, shard: int, size: int, words: Words) -> None:
    with part.open("rb") as file:
        records = list(_read_records(file, size))
    order = np.argsort(words.draw("order", shard, size, np.uint64), kind="stable")
    with files.replacing(target) as temporary, temporary.open("wb") as file:
        for index in order:
            file.write(len(records[index]).to_bytes(8, "little") + records[index])
    part.unlink()


def _read_records(file: IO[bytes], size: int) -> Iterator[bytes]:
    for _ in range(size):
        yield _read_exactly(file, int.from_bytes(_read_exactly(file, 8), "little"))


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise InvalidFile(f"{file.name}: ends too early; shuffle the data anew")
    return data


def _shard_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:04d}.records"
