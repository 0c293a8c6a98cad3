"""Marks: which plans this user's galton has itself made or verified, so that no run has to verify them again.

A mark is a small file in the folder `marks` of `state_folder()`, under a secret key beside it that only the user can
read (HMAC-SHA256). It names the plan by its hash, and so is worth nothing for any other. Whoever can read the key, or
change galton, can make marks; nobody else can.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import secrets
import stat
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from galton import files
from galton.accounting.ledger import state_folder
from galton.errors import InvalidFile
from galton.provenance import now

FORMAT = "galton-mark"
VERSION = 1
_KEY_SIZE = 32


class MarkWarning(UserWarning):
    """A mark that cannot be relied on, or cannot be left: the next run verifies its plan, and is safe."""


class Mark(enum.Enum):
    """What was done with a plan."""

    MADE = "made"
    """`make_plan` made it, and proved or certified its guarantee."""
    VERIFIED = "verified"
    """`verify_plan` proved its guarantee again."""


_in_this_process: dict[str, Mark] = {}
"""Plans, by their hash, that this very process made or verified, also where it could not leave a mark."""


def leave_mark(plan: str, mark: Mark) -> None:
    """Remembers that a plan was proved here; a warning says so if no mark can be left for other processes.

    Args:
      plan: content hash of the plan.
      mark: what was done.
    """
    _in_this_process.setdefault(plan, mark)
    body = {
        "format": FORMAT,
        "version": VERSION,
        "plan": plan,
        "mark": mark.value,
        "galton": version("galton"),
        "created": now(),
    }
    try:
        files.write_text(_path(plan), files.pretty(body | {"mac": _mac(_key(), body)}))
    except InvalidFile as error:
        _warn(f"{error}; runs in other processes will verify this plan again", 3)


def withdraw_mark(plan: str) -> None:
    """Forgets a plan, whose guarantee could not be proved again: the next run verifies it.

    Args:
      plan: content hash of the plan.
    """
    _in_this_process.pop(plan, None)
    try:
        _path(plan).unlink(missing_ok=True)
    except OSError as error:
        _warn(f"{_path(plan)}: cannot be removed ({error.strerror}), though the plan was rejected", 3)


@contextmanager
def one_at_a_time(plan: str) -> Iterator[None]:
    """Keeps all but one of this user's processes waiting, so that the others find the mark that it leaves.

    Attempts under way count as rejected until they are accepted: many at the same time would be more than delta covers.

    Args:
      plan: content hash of the plan.
    """
    with ExitStack() as held:
        with suppress(OSError):  # where nothing can be written, or locked, no mark can be waited for
            held.enter_context(files.wait_for_lock(_path(plan).with_suffix(".lock")))
        yield


def find_mark(plan: str, any_version: bool = False) -> Mark | None:
    """Returns what this user's galton did with a plan; None if it never saw it, or cannot be sure that it did.

    Args:
      plan: content hash of the plan.
      any_version: whether marks of other versions of galton count. Those of this version were left by this code.

    Returns:
      The mark.
    """
    if plan in _in_this_process:
        return _in_this_process[plan]
    path = _path(plan)
    files.remove_abandoned(path.parent)  # of a process that was killed once its mark was there
    if not path.exists():
        return None
    try:
        body = files.read_json(path)
        mac = body.pop("mac", None)
        if not isinstance(mac, str) or not hmac.compare_digest(
            mac.encode(errors="replace"), _mac(_key(), body).encode()
        ):
            raise InvalidFile(f"{path}: was not left by this user's galton, or was changed")
    except InvalidFile as error:
        _warn(f"{error}; the mark is ignored", 4)
        return None
    if (body.get("format"), body.get("version"), body.get("plan")) != (FORMAT, VERSION, plan):
        _warn(f"{path}: is the mark of something else; it is ignored", 4)
        return None
    if body["galton"] != version("galton") and not any_version:
        return None
    return Mark(body["mark"])


def _path(plan: str) -> Path:
    return state_folder() / "marks" / f"{plan.removeprefix('sha256:')}.json"


def _mac(key: bytes, body: dict[str, Any]) -> str:
    content = b"galton mark\n" + files.canonical(body).encode()
    return "hmac-sha256:" + hmac.new(key, content, hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Returns the user's key, made on first use."""
    path = state_folder() / "marks.key"
    if not os.path.lexists(path):
        try:
            files.write_new(path, secrets.token_bytes(_KEY_SIZE), secret=True)
        except InvalidFile:
            if not os.path.lexists(path):  # and not because another process was first
                raise
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    """Reads the key; raises `InvalidFile` unless it is a file of this user that nobody else can have read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            about, key = os.fstat(handle), file.read(_KEY_SIZE + 1)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror}); remove it to get a new one") from None
    private = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    if not private or len(key) != _KEY_SIZE:
        raise InvalidFile(f"{path}: is not a key that only this user can read; remove it to get a new one")
    return key


def _warn(message: str, level: int) -> None:
    warnings.warn(message, MarkWarning, stacklevel=level)
