"""Reading and writing JSON so that nothing already on disk is ever lost."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from galton.errors import InvalidFile

Json = dict[str, Any]


def canonical(value: Any) -> str:
    """Returns the one JSON text of `value`: sorted keys, no white space, shortest exact floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pretty(value: Any) -> str:
    """Returns JSON text for people, with the keys in their own order."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Returns a value made of dictionaries, lists and dataclass fields with every enum member as its value."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def digest(value: Any) -> str:
    """Returns the SHA-256 of the canonical JSON text."""
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()


def write_text(path: Path, text: str, secret: bool = False) -> None:
    """Writes text as `write_bytes` does."""
    write_bytes(path, text.encode(), secret)


def write_bytes(path: Path, content: bytes, secret: bool = False) -> None:
    """Writes to a temporary file beside `path`, then renames: a failure leaves the old file as it was.

    Args:
      secret: readable by its owner only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".galton-")
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o600 if secret else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InvalidFile(f"{path}: cannot be written ({error.strerror})") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
