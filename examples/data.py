"""Real data without a download: digits of scikit-learn, Fashion-MNIST of the Debian package dataset-fashion-mnist."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FASHION = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


@dataclass(frozen=True, eq=False)
class Images:
    """Images with one channel, pixels between 0 and 1, and the classes 0 to 9 that they belong to."""

    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load(name: str = "digits") -> Images:
    """Returns `digits` (1,437 images of 8x8 to train on, 360 to test) or `fashion` (60,000 of 28x28, and 10,000)."""
    return {"digits": digits, "fashion": fashion}[name]()


def digits() -> Images:
    """Handwritten digits, in an order that was shuffled once and for all."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    pixels = (bunch.images[order, None] / 16).astype(np.float32)
    labels = bunch.target[order].astype(np.int64)
    return Images(pixels[:1437], labels[:1437], pixels[1437:], labels[1437:])


def fashion() -> Images:
    """Pieces of clothing; `apt install dataset-fashion-mnist`, or say where the files are by FASHION_MNIST."""
    train, test = (_read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28) for part in ("train", "t10k"))
    labels, test_labels = (_read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64) for part in ("train", "t10k"))
    return Images((train / 255).astype(np.float32), labels, (test / 255).astype(np.float32), test_labels)


def _read(name: str, header: int) -> NDArray[np.uint8]:
    if not (FASHION / name).exists():
        raise SystemExit(f"{FASHION / name} is not there: apt install dataset-fashion-mnist")
    return np.frombuffer(gzip.decompress((FASHION / name).read_bytes()), np.uint8, offset=header)
