"""Files that are written whole or not at all, whatever happens meanwhile; and JSON.

Everything galton writes goes through `replacing`, `write_new` or, for whole folders, `new_folder`: a temporary in the
same folder, fsync, rename (or link), fsync of the folder. Only the journal of the noise (`noise/journal.py`) appends
instead.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from galton.errors import FloatArray, InvalidFile
from galton.fields import EXACT_LIMIT

Json = dict[str, Any]

_PREFIX = ".galton-"
_LOCK = ".galton-lock"
"""Held by the writer of a temporary folder for as long as it lives."""


def canonical(value: Any) -> str:
    """Returns the canonical JSON text of `value`: sorted keys, no white space, shortest exact floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pretty(value: Any) -> str:
    """Returns indented JSON text for people to read, with the keys in their own order."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Returns a copy of nested dictionaries and sequences that JSON keeps as it is.

    Enum members are replaced by their values, and whole numbers from 2^53, which many readers of JSON round, by text.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int) and value >= EXACT_LIMIT:
        return str(value)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def digest(value: Any) -> str:
    """Returns the SHA-256 of the canonical JSON text."""
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()


def write_text(path: Path, text: str, secret: bool = False) -> None:
    """Writes text as `replacing` does."""
    write_bytes(path, text.encode(), secret)


def write_bytes(path: Path, content: bytes, secret: bool = False) -> None:
    """Writes bytes as `replacing` does."""
    with replacing(path, secret) as temporary:
        temporary.write_bytes(content)


def write_new(path: Path, content: bytes, secret: bool = False) -> None:
    """Writes a file that must not be there yet, whole or not at all; of several writers at once, one succeeds.

    Args:
      path: the file; raises `InvalidFile` if anything of that name is there, a link included.
      content: its content.
      secret: whether only its owner may read it.
    """
    try:
        make_folder(path.parent)
    except OSError as error:
        raise _write_error(path, error) from None
    with scratch(path.parent, path) as folder:
        temporary = folder / "new"
        temporary.write_bytes(content)
        if secret:
            temporary.chmod(0o600)
        _sync_tree(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            check_new(path)
            raise
        sync_folder(path.parent)


def check_new(path: Path) -> None:
    """Raises `InvalidFile` if anything of that name is there, a link included."""
    if os.path.lexists(path):
        raise InvalidFile(f"{path}: is there already, and is not overwritten")


def check_target(path: Path) -> None:
    """Raises `InvalidFile`, before the work begins whose result is to be written to `path`, if it cannot be written.

    It is tried: an empty file of the same name is written to a temporary folder where `path` is to be, which also
    tells for root, and on file systems that only look as if they could be written to.

    Args:
      path: a file, or the folder of a plan.
    """
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        raise InvalidFile(f"{path}: is a link to another folder; name the file itself")
    parents = path.absolute().parents
    try:
        nearest = next(parent for parent in parents if parent.exists())
    except OSError as error:
        raise _write_error(path, error) from None
    if not nearest.is_dir():
        raise InvalidFile(f"{path}: cannot be written ({nearest} is not a folder)")
    with scratch(nearest, path) as folder:
        (folder / path.name).write_bytes(b"")


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name; raises `InvalidFile` if no file can have it."""
    try:
        return path.is_dir()
    except OSError as error:
        raise _write_error(path, error) from None


@contextmanager
def replacing(path: Path, secret: bool = False) -> Iterator[Path]:
    """Yields a path of the same name; the file that the block writes there takes the place of `path`.

    Formal guarantees, if the block ends without an error:
      - `path` has the new content, and keeps it through a crash of the machine.
    and at every moment, also if the block fails or the process is killed:
      - `path` has the old content or the new, whole; or does not exist, if it did not exist before.
      - Only the owner can read the new content before it is in place: it is in a folder of mode 0700. Once it is in
        place it has the mode of any new file, or 0600.
    An error in the last step, the fsync of the folder, is raised like any other, but the new content is then in place.

    Args:
      path: a file, or a link to a file, which then stays a link. Its folder is created if it does not exist.
      secret: whether only its owner may read it.
    """
    with _replacing_path(path) as temporary:
        if is_folder(path) or (path.exists() and not path.is_file()):
            raise InvalidFile(f"{path}: cannot be written (it is there and is not a file)")
        yield temporary
        if not temporary.is_file():
            raise InvalidFile(f"{path}: cannot be written (nothing was written to the path that was given for it)")
        if secret:
            temporary.chmod(0o600)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder that, with all that the block puts into it, takes the place of `path`.

    What `replacing` guarantees for a file holds for the folder and all its files together. `path` must not exist, or
    must be an empty folder.
    """
    with _replacing_path(path) as temporary:
        temporary.mkdir()
        yield temporary


@contextmanager
def scratch(parent: Path, purpose: Path | None = None) -> Iterator[Path]:
    """Yields a new folder in `parent`, of mode 0700, which is removed at the end with everything left in it.

    What killed processes left in `parent` is removed first. A temporary folder is named after the running kernel (its
    boot id) and has a lock file (flock) that its writer holds. If the folder is of this kernel and its lock is free,
    its writer is dead: the lock is released with the last process that holds it, in whatever container. A process id
    would say nothing across containers, or the wrong thing once it is used again. All other folders are left alone:
    those of another kernel, whose writer may be alive on a shared file system that does not share locks; those on file
    systems without locks; and those of earlier versions of galton.

    Args:
      parent: an existing folder.
      purpose: the path that errors name; default `parent`.
    """
    subject = purpose or parent
    try:
        remove_abandoned(parent)
        folder, lock = _make_locked_folder(parent)
    except OSError as error:
        raise _write_error(subject, error) from None
    try:
        yield folder
    except OSError as error:
        if not _concerns(error, folder):
            raise
        raise _write_error(subject, error) from error
    finally:
        _remove(folder)
        if lock is not None:
            os.close(lock)


def wait_for_lock(path: Path) -> TextIO:
    """Returns a lock file, created when needed, that no other process holds until this one closes it or ends."""
    make_folder(path.parent)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except BaseException:
        lock.close()
        raise
    return lock


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Creates a folder and its missing parents so that they survive a crash of the machine."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Writes the names of the files in a folder to disk (fsync)."""
    with _closing(os.open(folder, os.O_RDONLY)) as handle:
        _fsync_folder(handle)


@contextmanager
def _replacing_path(path: Path) -> Iterator[Path]:
    try:
        target = Path(os.path.realpath(path))
        make_folder(target.parent)
        parent = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise _write_error(path, error) from None
    except ValueError as error:  # not a possible file name
        raise InvalidFile(f"{path}: cannot be written ({error})") from None
    with _closing(parent), scratch(target.parent, path) as folder:
        temporary = folder / target.name
        try:
            yield temporary
        except InvalidFile as error:  # about a file inside the temporary folder
            if str(temporary) not in str(error):
                raise
            raise InvalidFile(str(error).replace(str(temporary), str(path))) from error
        _sync_tree(temporary)
        os.replace(temporary, target)
        _fsync_folder(parent)


def _write_error(path: Path, error: OSError) -> InvalidFile:
    return InvalidFile(f"{path}: cannot be written ({error.strerror or error})")


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether an error may come from writing to `folder`: it names no other file and is no network error."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return not isinstance(error, ConnectionError | TimeoutError) and (
        not names or any(name.startswith(str(folder)) for name in names)
    )


def _sync_tree(path: Path) -> None:
    """Writes a file, or a folder with everything in it, to disk (fsync)."""
    if path.is_symlink():
        return
    if path.is_dir():
        for entry in path.iterdir():
            _sync_tree(entry)
        sync_folder(path)
    else:
        with _closing(os.open(path, os.O_RDONLY)) as handle:
            os.fsync(handle)


def _fsync_folder(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # from a file system that cannot, and need not, do this
            raise


@contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


@cache
def _boot_id() -> str | None:
    """Returns the id of this boot of the machine, which is the same in all containers; None if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return None


def _make_locked_folder(parent: Path) -> tuple[Path, int | None]:
    """Creates a temporary folder and takes its lock; without locks its name keeps others from removing it."""
    own = f"{os.getpid()}-{secrets.token_hex(8)}"
    while _boot_id() is not None:
        folder = parent / f"{_PREFIX}{_boot_id()}-{own}"
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # it was still empty, and so another process removed it
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            os.close(lock)
            _remove(folder)
            break
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)  # another process removed it before it was locked
    folder = parent / f"{_PREFIX}unlocked-{own}"
    folder.mkdir(mode=0o700)
    return folder, None


def remove_abandoned(parent: Path) -> None:
    """Removes temporary folders whose writers are dead, and no other.

    Whoever writes to a folder does so first. Call it where a folder may only be read from now on.
    """
    if _boot_id() is None:
        return
    for folder in parent.glob(f"{_PREFIX}{_boot_id()}-*"):
        with suppress(OSError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # fails unless it is empty; a writer that got no farther creates another
        return
    with _closing(lock):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Removes a temporary folder, its lock last, so that others can remove what an interruption leaves."""
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != _LOCK:
                entry.unlink()
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()


def read_json(path: Path) -> Json:
    """Reads a JSON object; NaN and infinities are refused."""

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:20]} is not allowed")
        return number

    try:
        value = json.loads(path.read_text(), parse_constant=finite, parse_float=finite)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InvalidFile(f"{path}: is not valid JSON ({reason})") from None
    if not isinstance(value, dict):
        raise InvalidFile(f"{path}: must hold a JSON object, not a {type(value).__name__}")
    return value


def read_npy(path: str) -> FloatArray:
    """Reads a .npy file with a real 1-D or 2-D array; never unpickles."""
    try:
        with open(path, "rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # the header of a .npy file is Python source, which can fail in any way
        raise InvalidFile(f"{path}: is not a .npy file of numbers, as numpy.save writes it") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
        raise InvalidFile(f"{path}: must hold a real array with one or two axes")
    return np.asarray(values, dtype=np.float64)
