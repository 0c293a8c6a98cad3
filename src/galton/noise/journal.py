"""A record of the rounds that have had their noise, so that no noise is ever added to two different gradients.

Noise is a function of (key, round): a round that is computed twice gets the same noise twice. If the two gradients
differ and both results are seen, their difference shows the data without any noise. After a crash the rounds since the
last checkpoint are either computed again, which a journal allows where they come out the same, or skipped.

Formal guarantees, for noise that is taken only after `release` has returned:
  - Rounds are released in order. A round before the last checkpoint (`saved`) is never released again, so an old
    checkpoint cannot be continued in another way.
  - A round after the last checkpoint is released again only for the same batch, under the same key and plan. If the
    caller passes a hash of the gradient, it must be the same gradient, bit by bit. Replays are counted.
  - Rounds that were skipped are written down, and so is every key with the first round that it is for.
  - Two processes cannot hold one journal.
Not covered: for callers that pass no hash of the gradient, results that were
published before a crash from rounds after the last checkpoint, if the replay differs from them (another learning rate,
non-deterministic hardware). `strict` allows no replay at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.errors import GaltonError, InvalidFile, count
from galton.noise.keys import fingerprint
from galton.typechecking import typechecked

FORMAT = "galton-noise-journal"
VERSION = 1


class NoiseReused(GaltonError):
    """Raised when noise is requested that has already been used for another gradient, or out of order.

    Go on from the last checkpoint with the same data, model and settings, or with the next round that has had no noise
    (`NoiseRun.skip`).

    Example:
      >>> import tempfile
      >>> from contextlib import closing
      >>> from galton import fresh_key
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with closing(Journal(f"{folder}/noise.journal", fresh_key(), plan="sha256:...")) as journal:
      ...         journal.release(0, np.array([3, 7]))
      ...         try:
      ...             journal.release(0, np.array([3, 8]))
      ...         except NoiseReused as error:
      ...             print(str(error).partition(": ")[2])
      round 0 has had its noise for another batch
    """


def open_exclusively(path: Path) -> IO[str]:
    """Opens a file under an exclusive lock, creating it if necessary, readable by its owner only."""
    try:
        files.make_folder(path.parent)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be opened ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidFile(f"{path}: cannot be opened (it is there and is not a file)")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidFile(f"{path}: is held by another process of the same run") from None
    return file


@typechecked
class Journal:
    """An append-only file of the rounds that have had their noise, so that none gets it for two gradients.

    `NoiseRun` and `TrainingRun` keep one; use it directly only with noise of your own. Each line is a JSON object. Only
    one process at a time can hold the file.

    Args:
      path: the file; created if it does not exist.
      key: the first noise key; only its fingerprint is written.
      plan: content hash of what was analysed; a journal of another plan is refused.
      strict: allow no replay of released rounds.

    Attributes:
      path: the file.
      saved: the round of the last checkpoint; earlier rounds are never released again.
      replays: number of rounds released again after a crash.
      skips: rounds that were skipped, as pairs of the first of them and the round that came next instead.
      open_skip: the last of these, if no checkpoint came after it.
      keys: the first round that each key is for, and the key's fingerprint.

    Formal guarantee: noise that is taken only after `release` has returned is never used for two different batches of
    the same round, nor, where `content` is passed, for two different gradients. See `noise/journal.py` for what is not
    covered.

    Example:
      >>> import tempfile
      >>> from galton import fresh_key
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     journal = Journal(f"{folder}/noise.journal", fresh_key(), plan="sha256:...")
      ...     journal.release(0, np.array([3, 7]))
      ...     journal.checkpoint(1)
      ...     journal.close()
      >>> journal.released, journal.saved
      (1, 1)
    """

    def __init__(self, path: str | Path, key: jax.Array, plan: str, strict: bool = False) -> None:
        self.path, self._key, self._strict = Path(path), np.asarray(key, "<u4").tobytes(), strict
        header = {"format": FORMAT, "version": VERSION, "key": fingerprint(key), "plan": plan}
        self.replays, self.saved = 0, 0
        self.skips: list[tuple[int, int]] = []
        self.open_skip: tuple[int, int] | None = None
        self.keys = [(0, fingerprint(key))]
        self._batches: list[str] = []
        self._totals: list[str] = []
        self._file = open_exclusively(self.path)
        try:
            self._read_or_begin(header)
            files.sync_folder(self.path.parent)  # a journal that a crash takes away would let noise out again
        except BaseException:
            self.close()
            raise

    @property
    def released(self) -> int:
        """Number of rounds that have had their noise; also the next round, unless some are replayed."""
        return len(self._batches)

    def release(self, turn: int, batch: NDArray[Any], content: bytes = b"") -> None:
        """Records that a round is about to get its noise for these examples, or raises `NoiseReused`.

        Args:
          turn: the round, counted from 0.
          batch: indices of the examples that take part; only a keyed hash of them is written.
          content: hash of what the noise will be added to. If given, a replay must have the same one.
        """
        turn = count("round", turn, at_least=0)
        if turn > self.released:
            raise NoiseReused(f"{self.path}: round {turn} comes after {self.released}, which has not been released yet")
        if turn < self.released:
            objection = self.objection(turn, batch, content)
            if objection:
                raise NoiseReused(f"{self.path}: round {turn} has had its noise {objection}")
            self._append({"replayed": turn})
            self.replays += 1
        else:
            digest, total = self._digests(batch, content)
            self._append({"round": turn, "batch": digest} | ({"sum": total} if total else {}))
            self._batches.append(digest)
            self._totals.append(total)

    def objection(self, turn: int, batch: NDArray[Any], content: bytes = b"") -> str:
        """Returns why a round that has had its noise cannot get it again, in words; nothing if it can.

        Args:
          turn: a round that was released.
          batch: as for `release`.
          content: as for `release`.

        Returns:
          The end of a sentence that begins with "round ... has had its noise".
        """
        digest, total = self._digests(batch, content)
        if turn < self.saved or self._strict:
            return "and cannot get it again"
        if digest != self._batches[turn]:
            return "for another batch"
        return "for another gradient" if total != self._totals[turn] else ""

    def _digests(self, batch: NDArray[Any], content: bytes) -> tuple[str, str]:
        members = self._digest(np.sort(np.asarray(batch, "<i8")).tobytes())
        return members, self._digest(b"sum" + content) if content else ""

    def skip(self, turn: int) -> None:
        """Records that rounds from this one on, which have had their noise, are left out.

        Args:
          turn: the first of them; the next round is the first that has had no noise.
        """
        count("round", turn, at_least=0, at_most=self.released)
        self._append({"skipped": [turn, self.released]})
        self.open_skip = (turn, self.released)
        self.skips.append(self.open_skip)

    def renew(self, key: jax.Array) -> None:
        """Records the key of all rounds that have had no noise yet; an earlier key for the same rounds is forgotten.

        Args:
          key: the key; only its fingerprint is written.
        """
        self._append({"key": fingerprint(key), "since": self.released})
        self._add_key(self.released, fingerprint(key))

    def _add_key(self, since: int, name: str) -> None:
        if len(self.keys) > 1 and self.keys[-1][0] == since:
            self.keys.pop()
        self.keys.append((since, name))

    def checkpoint(self, turn: int) -> None:
        """Records that the run was saved before a round: earlier rounds will not be released again.

        Args:
          turn: the round that a resumed run begins with.
        """
        if not self.saved <= count("round", turn, at_least=0) <= self.released:
            raise NoiseReused(f"{self.path}: a checkpoint before round {turn} is not between those saved and released")
        self._append({"saved": turn})
        self.saved, self.open_skip = turn, None

    def _digest(self, content: bytes) -> str:
        return hmac.new(self._key, content, hashlib.sha256).hexdigest()

    def close(self) -> None:
        """Closes the file, so that another process can hold it."""
        self._file.close()

    def _read_or_begin(self, header: dict[str, Any]) -> None:
        """Reads the rounds of an existing journal, which must have this header, or writes the header of a new one."""
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]  # a torn last line was never followed by noise
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if not all(isinstance(line, dict) for line in lines):
                raise ValueError
            for line in lines[1:]:
                self._read_line(line)
        except (ValueError, KeyError, TypeError):
            raise InvalidFile(f"{self.path}: is not a journal, or was damaged") from None
        self._end = len(whole.encode())
        if not lines:
            self._append(header)
        elif lines[0] != header:
            differs = [name for name in header if lines[0].get(name) != header[name]]
            raise InvalidFile(f"{self.path}: is the journal of another run ({', '.join(differs)} differ)")

    def _read_line(self, line: dict[str, Any]) -> None:
        if "batch" in line:
            if line["round"] != self.released:
                raise ValueError
            self._batches.append(line["batch"])
            self._totals.append(line.get("sum", ""))
        elif "saved" in line:
            self.saved, self.open_skip = int(line["saved"]), None
        elif "skipped" in line:
            first, after = line["skipped"]
            self.open_skip = (int(first), int(after))
            self.skips.append(self.open_skip)
        elif "since" in line:
            self._add_key(int(line["since"]), str(line["key"]))
        else:
            self.replays += int(line["replayed"]) >= 0

    def _append(self, line: dict[str, Any]) -> None:
        content, handle = (files.canonical(line) + "\n").encode(), self._file.fileno()
        try:
            os.ftruncate(handle, self._end)  # a line that could not be written as a whole was never followed by noise
            written = 0
            while written < len(content):
                written += os.pwrite(handle, content[written:], self._end + written)
            os.fsync(handle)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidFile(f"{self.path}: cannot be written ({reason}); no noise was given for it") from error
        self._end += len(content)
