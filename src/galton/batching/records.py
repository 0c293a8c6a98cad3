"""A uniform shuffle of records that do not fit in memory: each goes to a random shard, then each shard is shuffled.

Independent uniform shards and a uniform order within each shard make a uniform order of all records: given the counts,
every arrangement is equally likely. One shard at a time is held in memory.
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
from galton.errors import InvalidArgument, InvalidFile, count
from galton.typechecking import typechecked

INDEX = "shuffled.json"
FORMAT = "galton-shuffled-records"


@dataclass(frozen=True)
class ShuffledRecords:
    """Records in random order, in the shard files of a folder; `batching.stream` reads from `open_pass`.

    Attributes:
      folder: holds the shards and their index.
      sizes: number of records in each shard.
    """

    folder: Path
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.sizes)

    def open_pass(self, start: int = 0) -> Iterator[bytes]:
        """Yields the records from a position on; shards that lie before it are not opened.

        Args:
          start: position of the first record.

        Yields:
          The records in their shuffled order.
        """
        for shard, size in enumerate(self.sizes):
            if start >= size:
                start -= size
                continue
            with open(_shard_path(self.folder, shard), "rb") as file:
                for _ in range(start):
                    file.seek(int.from_bytes(_read_exactly(file, 8), "little"), 1)
                yield from _read_records(file, size - start)
            start = 0


@typechecked
def shuffle_records(
    records: Iterable[bytes], folder: str | Path, shards: int = 64, seed: str | int | None = None
) -> ShuffledRecords:
    """Writes records to a folder in uniformly random order, for `StreamingBallsInBins`. Keep the order secret.

    Args:
      records: the data, read once.
      folder: where the shards are written; new or empty. It needs as much space as the data, twice that while it runs.
      shards: number of files. One at a time is held in memory, but all are open at once: take at most a few hundred.
      seed: of the shuffle; by default from the operating system. It must not be the seed of the batches.

    Returns:
      The shuffled records; `open_records` opens them again later.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     shuffled = shuffle_records([b"a", b"b", b"c"], folder, shards=2)
      ...     len(shuffled), sorted(shuffled.open_pass())
      (3, [b'a', b'b', b'c'])
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
    files.write_text(folder / INDEX, json.dumps({"format": FORMAT, "sizes": sizes}) + "\n", secret=True)
    return ShuffledRecords(folder, tuple(sizes))


@typechecked
def open_records(folder: str | Path) -> ShuffledRecords:
    """Opens a folder that `shuffle_records` wrote.

    Args:
      folder: the folder.

    Returns:
      The shuffled records; `len` is their number, `open_pass` reads them.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = shuffle_records([b"a", b"b", b"c"], folder, shards=2)
      ...     sorted(open_records(folder).open_pass())
      [b'a', b'b', b'c']
    """
    path = Path(folder) / INDEX
    body = files.read_json(path)
    sizes = body.get("sizes")
    if body.get("format") != FORMAT or not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise InvalidFile(f"{path}: is not an index of shuffled records")
    return ShuffledRecords(Path(folder), tuple(sizes))


def _write_shards(records: Iterable[bytes], folder: Path, shards: int, words: Words) -> list[int]:
    """Writes each record to a random shard; returns the number of records in each."""
    sizes = [0] * shards
    with ExitStack() as stack:
        parts = [stack.enter_context(_shard_path(folder, shard).open("wb")) for shard in range(shards)]
        targets = np.zeros(0, np.uint32)
        for position, record in enumerate(records):
            if position % BLOCK == 0:
                targets = words.below(shards, "shard", position // BLOCK, BLOCK)
            shard = int(targets[position % BLOCK])
            if not isinstance(record, bytes | bytearray | memoryview):
                raise InvalidArgument("records", type(record).__name__, "must all be bytes")
            parts[shard].write(len(record).to_bytes(8, "little") + record)
            sizes[shard] += 1
    return sizes


def _shuffle_shard(part: Path, target: Path, shard: int, size: int, words: Words) -> None:
    with part.open("rb") as file:
        records = list(_read_records(file, size))
    order = np.argsort(words.draw("order", shard, size, np.uint64), kind="stable")
    with files.replacing(target, secret=True) as temporary, temporary.open("wb") as file:
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
