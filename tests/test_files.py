"""Files that are there whole or not at all, and what killed writers leave behind."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import galton
from galton import files
from galton.errors import InvalidFile

FULL = OSError(errno.ENOSPC, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_write_then_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.json"
    files.write_text(path, files.canonical({"a": 0.1}))
    assert files.read_json(path) == {"a": 0.1}
    files.write_text(path, files.canonical({"a": 0.2}))
    assert files.read_json(path) == {"a": 0.2}
    assert names(path.parent) == ["a.json"]


def test_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    files.write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with files.new_folder(tmp_path / "folder"):
        pass
    (tmp_path / "other").mkdir()
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_nobody_else_can_read_a_secret_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old, for everybody")
    with files.replacing(path, secret=True) as temporary:
        assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_content_reaches_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        steps.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        steps.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.write_text(tmp_path / "a", "x")
    assert steps == [("fsync", "a"), ("rename", "a"), ("fsync", tmp_path.name)]
    steps.clear()
    with files.new_folder(tmp_path / "plan") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "b").write_text("x")
    assert steps == [
        *(("fsync", "b"), ("fsync", "inner"), ("fsync", "plan")),
        *(("rename", "plan"), ("fsync", tmp_path.name)),
    ]
    steps.clear()
    files.make_folder(tmp_path / "new" / "newer")
    assert steps == [("fsync", "new"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("step", ["mkdir", "fsync", "replace"])
@pytest.mark.parametrize(("failure", "raised"), [(FULL, InvalidFile), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_failed_write_leaves_the_old_file_and_nothing_else(
    step: str, failure: BaseException, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(raised) as caught:
        files.write_text(path, "new")
    if raised is InvalidFile:
        assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("writer", [files.replacing, files.new_folder])
@pytest.mark.parametrize(("failure", "raised"), [(FULL, InvalidFile), (KeyError("x"), KeyError)])
def test_a_block_that_fails_leaves_nothing(
    writer: Any, failure: BaseException, raised: type[BaseException], tmp_path: Path
) -> None:
    def write() -> None:
        with writer(tmp_path / "a") as temporary:
            (temporary if writer is files.replacing else temporary / "b").write_text("half")
            raise failure

    with pytest.raises(raised):
        write()
    assert names(tmp_path) == []


def test_errors_about_other_things_stay_what_they_are(tmp_path: Path) -> None:
    for error in (ConnectionResetError(104, "reset"), FileNotFoundError(2, "No such file or directory", "/data/x")):
        with pytest.raises(type(error)), files.replacing(tmp_path / "a"):
            raise error
        with pytest.raises(type(error)), files.scratch(tmp_path):
            raise error
    assert names(tmp_path) == []


def test_errors_inside_of_a_temporary_folder_name_the_place_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InvalidFile) as caught, files.new_folder(tmp_path / "plan") as folder:
        files.write_text(folder / "plan.json", "x")
    assert str(caught.value) == f"{tmp_path / 'plan' / 'plan.json'}: cannot be written (No space left on device)"
    assert names(tmp_path) == []


def test_a_block_that_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    """NumPy appends .npz to a name without it: nothing must take the place of the old file then."""
    path = tmp_path / "model"
    path.write_text("old")
    with pytest.raises(InvalidFile, match="nothing was written"), files.replacing(path) as temporary:
        temporary.with_suffix(".npz").write_text("new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["model"]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_places_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "file" / "a.json", tmp_path / "folder", tmp_path / "pipe", tmp_path / "nul\0"):
        with pytest.raises(InvalidFile, match="cannot be written") as caught:
            files.write_text(path, "x")
        assert str(path) in str(caught.value)
    with pytest.raises(InvalidFile, match="cannot be written"), files.new_folder(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["file", "folder", "pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A ledger that is a link to the one of another place must go on counting there."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "shared" / "real")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "shared" / "real").read_text() == "new"
    assert names(tmp_path / "shared") == ["real"]


# What killed writers leave.

WRITER = """
import sys
from pathlib import Path
from galton import files
place, what = Path(sys.argv[1]), sys.argv[2]
with files.new_folder(place) if what == "folder" else files.replacing(place, secret=True) as temporary:
    (temporary / "inner" if what == "folder" else temporary).write_text("half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


@contextmanager
def writing(path: Path, what: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has written and not renamed yet; it goes on when its input ends."""
    command = [sys.executable, "-c", WRITER, str(path), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next_write(what: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if what == "file":
        target.write_text("old")
    with writing(target, what) as (process, temporary):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert temporary.exists()
    assert temporary.parent.parent == tmp_path
    if what == "file":
        assert target.read_text() == "old"
    else:
        assert not target.exists()
    files.write_text(tmp_path / "other", "x")
    assert names(tmp_path) == sorted(["other", *(["target"] if what == "file" else [])])


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_live_writer_is_not_disturbed(what: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with writing(target, what) as (process, temporary):
        for _ in range(3):
            files.write_text(tmp_path / "other", "x")
        assert temporary.exists()
        process.communicate("")
        assert process.returncode == 0
    assert (target / "inner" if what == "folder" else target).read_text() == "half"
    assert names(tmp_path) == ["other", "target"]


def test_a_writer_in_this_very_process_is_not_disturbed(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "a") as temporary:
        temporary.write_text("x")
        files.write_text(tmp_path / "b", "x")
    assert names(tmp_path) == ["a", "b"]


def test_what_cannot_be_judged_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an earlier version, of another kernel, without a lock file, or in a place where nothing can be locked."""
    with files.scratch(tmp_path) as folder:
        kernel = folder.name.split("-")[1]
    assert len(kernel) == 32
    (tmp_path / ".galton-ab12cd34").write_text("old style")
    (tmp_path / ".galton-old4567").mkdir()
    (tmp_path / f".galton-{kernel}-3-file").write_text("a file")
    for name in (f".galton-{'0' * 32}-1-aa", f".galton-{kernel}-2-bb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text("x")
    (tmp_path / f".galton-{'0' * 32}-1-aa" / ".galton-lock").touch()
    before = names(tmp_path)
    files.write_text(tmp_path / "a", "x")
    assert names(tmp_path) == [*before, "a"]

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with files.replacing(tmp_path / "b") as temporary:
        assert temporary.parent.name.startswith(".galton-unlocked-")
        temporary.write_text("x")
    assert names(tmp_path) == [*before, "a", "b"]


def test_half_removed_leftovers_go_too(tmp_path: Path) -> None:
    """A writer or remover that was killed when only the lock, or the empty folder, was left."""
    with files.scratch(tmp_path) as folder:
        kernel = folder.name.split("-")[1]
    (tmp_path / f".galton-{kernel}-1-aa").mkdir()
    (tmp_path / f".galton-{kernel}-1-bb").mkdir()
    (tmp_path / f".galton-{kernel}-1-bb" / ".galton-lock").touch()
    files.write_text(tmp_path / "a", "x")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[Path] = []
    real_open, real_lock = os.open, fcntl.flock

    def sweep() -> None:
        for folder in tmp_path.glob(".galton-*"):
            swept.append(folder)
            shutil.rmtree(folder)

    def opening(path: Any, *rest: Any, **more: Any) -> int:
        if not swept and moment == "open" and Path(path).name == ".galton-lock":
            sweep()
        return real_open(path, *rest, **more)

    def locking(handle: int, operation: int) -> None:
        if not swept and moment == "flock":
            sweep()
        real_lock(handle, operation)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(fcntl, "flock", locking)
    files.write_text(tmp_path / "a", "x")
    assert len(swept) == 1
    assert (tmp_path / "a").read_text() == "x"
    assert names(tmp_path) == ["a"]


# Nothing is written in any other way.

ELSEWHERE = {"files.py", "noise/journal.py", "batching/records.py", "audit/system.py"}
"""Modules with writing of their own: this one, a journal, scratch files in `files.scratch`, scratch runs."""


def test_everything_is_written_by_this_module() -> None:
    root = Path(galton.__file__).parent
    offenders = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name in ELSEWHERE or name.startswith(("paper/", "cli/paper", "cli/cifar")):
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        offenders += [f"{name}:{call.lineno}" for call in calls if _writes(call)]
    assert offenders == []


def _writes(call: ast.Call) -> bool:
    words = ast.unparse(call.func).split(".")
    receiver, function = words[0], words[-1]
    if function in ("replace", "rename", "mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile"):
        return receiver in ("os", "tempfile")
    if receiver in ("files", "temporary"):
        return False
    if function == "open":
        modes = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
        return any(mode in ("w", "wb", "a", "ab", "x", "xb", "r+", "r+b") for mode in modes)
    return function in ("write_text", "write_bytes", "touch", "tofile")
