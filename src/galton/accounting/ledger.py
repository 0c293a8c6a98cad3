"""Which claims have been tested before: testing a rejected claim again costs failure probability."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from galton import files
from galton.errors import InvalidFile
from galton.typechecking import typechecked


def state_folder() -> Path:
    """Returns the folder of what galton remembers of this user: attempts, and marks of plans.

    Returns:
      $GALTON_STATE, or else galton/ below $XDG_STATE_HOME or ~/.local/state.
    """
    folder = os.environ.get("GALTON_STATE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "galton"


@typechecked
def default_ledger() -> Ledger:
    """Returns the ledger of this user.

    Returns:
      The ledger attempts.json in `state_folder()`.

    Example:
      >>> default_ledger().path.name
      'attempts.json'
    """
    return Ledger(state_folder() / "attempts.json")


class Spent(NamedTuple):
    """Attempts at a target that count, and the failure probability that they have spent.

    Attributes:
      attempts: number of attempts.
      failure: sum of their failure probabilities.
    """

    attempts: int
    failure: float


_NOTHING = Spent(0, 0.0)


def _most(spent: Iterable[Spent]) -> Spent:
    """The largest failure probability and the most attempts of all."""
    listed = list(spent)
    return Spent(max(each.attempts for each in listed), max(each.failure for each in listed))


class AttemptInterrupted(KeyboardInterrupt):
    """Ctrl-C during a verification: breaking off a run that looks bad is a rejection, and counts as one."""

    def __init__(self, spent: Spent) -> None:
        super().__init__(
            f"interrupted; this verification counts as rejected: the next one will be attempt {spent.attempts + 1} "
            "at this target"
        )


@typechecked
@dataclass(frozen=True)
class Ledger:
    """A file that counts the verifications of every target and adds up their failure probabilities.

    An attempt is written down before its first sample is drawn and taken off when it is accepted. An interrupted
    attempt counts as rejected, since breaking off a run that looks bad is a rejection too.

    Attributes:
      path: the JSON file; it and its folder are created when needed.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as folder:
      ...     ledger = Ledger(Path(folder) / "attempts.json")
      ...     ledger.begin(["sha256:..."], failure=1e-8)
      ...     ledger.begin(["sha256:..."], failure=1e-8)
      Spent(attempts=1, failure=1e-08)
      Spent(attempts=2, failure=2e-08)
    """

    path: Path

    def begin(self, targets: Sequence[str], failure: float) -> Spent:
        """Writes down a new attempt.

        Args:
          targets: hashes of what is attempted: the claim, and whatever else the attempt counts for.
          failure: failure probability of the attempt.

        Returns:
          The most that has been spent on any of the targets, including the new attempt.
        """
        with self._locked() as entries:
            for target in dict.fromkeys(targets):
                before = entries.get(target, _NOTHING)
                entries[target] = Spent(before.attempts + 1, before.failure + failure)
            return _most(entries[target] for target in targets)

    def accept(self, targets: Sequence[str], failure: float) -> Spent:
        """Takes an accepted attempt off the count.

        Args:
          targets: as they were given to `begin`.
          failure: failure probability of the attempt.

        Returns:
          The most that had been spent on any of the targets, including the accepted attempt.
        """
        with self._locked() as entries:
            before = {target: entries.get(target, Spent(1, failure)) for target in targets}
            for target, spent in before.items():
                # Rounded up: a small failure that was added to a large one must not be lost when that goes.
                rest = max(spent.failure - failure, 2.0**-52 * spent.failure)
                entries[target] = Spent(spent.attempts - 1, rest) if spent.attempts > 1 else _NOTHING
            return _most(before.values())

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Spent]]:
        try:
            lock = files.wait_for_lock(self.path.with_suffix(".lock"))
        except OSError as error:
            raise InvalidFile(
                f"{self.path}: attempts cannot be written down ({error.strerror}); set GALTON_STATE"
            ) from None
        with lock:
            entries = self._read()
            yield entries
            files.write_text(self.path, json.dumps(entries, indent=1, sort_keys=True) + "\n")

    def _read(self) -> dict[str, Spent]:
        if not self.path.exists():
            return {}
        try:
            entries = {key: Spent(*value) for key, value in files.read_json(self.path).items()}
            for spent in entries.values():
                if not (isinstance(spent.attempts, int) and spent.attempts >= 0 <= spent.failure):
                    raise ValueError
        except (TypeError, ValueError):
            raise InvalidFile(f"{self.path}: is not a ledger of attempts; move it away to start a new one") from None
        return entries
