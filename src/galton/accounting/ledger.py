"""Which claims have been put to the test before: a rejected claim tried again costs failure probability."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from galton import files
from galton.errors import InvalidFile


def default_ledger() -> Ledger:
    """Returns the ledger of this user: $GALTON_STATE, or galton/ below $XDG_STATE_HOME or ~/.local/state."""
    folder = os.environ.get("GALTON_STATE")
    if not folder:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = str(Path(base) / "galton")
    return Ledger(Path(folder) / "attempts.json")


@dataclass(frozen=True)
class Ledger:
    """Counts, by claim, the verifications that did not end in acceptance.

    An attempt is written down before its first sample is drawn: one that is interrupted counts as rejected, since
    breaking off a run that looks bad is a rejection too.
    """

    path: Path

    def begin(self, claim: str) -> int:
        """Writes down a new attempt at this claim and returns its number, counting from 1."""
        with self._locked() as counts:
            counts[claim] = counts.get(claim, 0) + 1
            return counts[claim]

    def accept(self, claim: str) -> None:
        """Takes the attempt under way off the count, because it was accepted."""
        with self._locked() as counts:
            counts[claim] = max(0, counts.get(claim, 0) - 1)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, int]]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115
        except OSError as error:
            raise InvalidFile(
                f"{self.path}: attempts cannot be written down ({error.strerror}); set GALTON_STATE"
            ) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            counts = self._read()
            yield counts
            files.write_text(self.path, json.dumps(counts, indent=1, sort_keys=True) + "\n")

    def _read(self) -> dict[str, int]:
        if not self.path.exists():
            return {}
        counts = files.read_json(self.path)
        if not all(isinstance(value, int) and value >= 0 for value in counts.values()):
            raise InvalidFile(f"{self.path}: is not a ledger of attempts; move it away to start a new one")
        return counts
