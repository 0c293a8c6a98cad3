"""The noise of one run, bound to a folder: it resumes where it was saved and never serves two different gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.errors import InvalidArgument, InvalidFile
from galton.noise.checkpoint import load_state, save_state
from galton.noise.hashing import content_hash
from galton.noise.journal import Journal, open_exclusively
from galton.noise.keys import fingerprint, fresh_key, key_from_bytes
from galton.noise.layout import Tree, shapes_of
from galton.noise.stream import CorrelatedNoise, NoiseState
from galton.typechecking import typechecked

KEYS_FORMAT = "galton-noise-keys"
VERSION = 1


@typechecked
class NoiseRun:
    """Noise with a checkpoint and a journal in a folder, for training loops that draw their own batches.

    Save the model first, then call `save()`; after a crash, go on from the model that belongs to `origin`.
    `TrainingRun` has the batches and the model's checkpoints too.

    Args:
      folder: holds `noise.npz` (the state with its secret keys), `noise.keys` (all keys, if there are several) and
        `noise.journal`; created if it does not exist.
      noise: the noise to draw.
      params: the model's parameters, for their shapes.
      plan: content hash of what was analysed; a folder of another plan is refused.
      key: the noise key of a new folder, by default from the operating system. Leave it out for an existing folder.
      strict: allow no replay of rounds after a crash.
      renew: draw a new key for all rounds that have had no noise yet whenever an existing folder is opened, so that
        copies of the folder, and backups that are put back, never share noise. False is for repeatable studies only.

    Attributes:
      noise: as given.
      resumed: whether the folder had a run already.
      origin: the round that the saved state, and so the saved model, belongs to.
      journal: the rounds that have had their noise.

    Formal guarantees:
      - No noise is returned for two different batches of the same round, nor, where `total` is passed to `next`, for
        two different sums. See `noise/journal.py` for what is not covered.
      - With `renew`, two copies of a folder that are opened again have independent normals in all rounds that had no
        noise when the copy was made. In earlier rounds they share them, for the same sums only.

    Example:
      >>> import tempfile
      >>> from galton import identity
      >>> noise, params = CorrelatedNoise(identity(4), stddev=1.0), {"w": np.zeros(3, np.float32)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with NoiseRun(folder, noise, params, plan="sha256:...") as run:
      ...         added = run.next(batch=np.array([3, 7]))
      ...         run.save()
      ...     with NoiseRun(folder, noise, params, plan="sha256:...") as run:
      ...         run.resumed, run.round, added["w"].shape
      (True, 1, (3,))
    """

    def __init__(
        self,
        folder: str | Path,
        noise: CorrelatedNoise,
        params: Tree,
        plan: str,
        key: jax.Array | None = None,
        strict: bool = False,
        renew: bool = True,
    ) -> None:
        self.noise, self._path = noise, Path(folder) / "noise.npz"
        self._read: tuple[NoiseState, int] | None = None
        self._lock = open_exclusively(Path(folder) / "noise.lock")
        try:
            self._open_or_begin(params, plan, key, strict, renew)
        except BaseException:
            self._lock.close()
            raise

    def _open_or_begin(self, params: Tree, plan: str, key: jax.Array | None, strict: bool, renew: bool) -> None:
        self.resumed = self._path.exists()
        if self.resumed and key is not None:
            raise InvalidArgument("key", "given", f"must be left out: {self._path} has the key of this run")
        if self.resumed:
            self._state = load_state(self._path, self.noise, params)
        else:
            self._state = self.noise.init(params, key)
            save_state(self._path, self.noise, self._state)  # before any noise is given out: a lost key is a lost run
        self.origin = self.round
        keys = read_keys(self._path.parent) if self.resumed else [(0, self._state.keys[0])]
        log = self._path.with_name("noise.journal")
        self.journal = Journal(log, keys[0][1], f"{plan} {self.noise.digest}", strict)
        try:
            known = self._take(keys)
            if self.resumed and (renew or not known) and self.journal.released < self.noise.strategy.rounds:
                self._renew(fresh_key())
            self._shapes = shapes_of(params)
            self._follow_skips()
        except BaseException:
            self.journal.close()
            raise

    def _take(self, keys: list[tuple[int, jax.Array]]) -> bool:
        """Takes over the keys of rounds that have had noise, and any other if the journal knows it.

        Returns:
          Whether the journal knows them all: a start that failed may have left a key, or lost an unused one.
        """
        named, listed = [(since, fingerprint(key)) for since, key in keys], self.journal.keys
        used = [True, *(since < self.journal.released for since, _ in named[1:])]
        wanted = [listed[0], *(entry for entry in listed[1:] if entry[0] < self.journal.released)]
        if [entry for entry, kept in zip(named, used, strict=True) if kept] != wanted:
            raise InvalidFile(f"{self._path.with_name('noise.keys')}: has not the keys that the journal names")
        if self.round > self.journal.released:
            raise InvalidFile(f"{self._path}: is newer than {self.journal.path.name}; copy a run folder as a whole")
        known = named == listed
        self._set_keys(keys if known else [entry for entry, kept in zip(keys, used, strict=True) if kept])
        return known

    def _set_keys(self, keys: list[tuple[int, jax.Array]]) -> None:
        self._keys = keys
        since = jnp.asarray([since for since, _ in keys], jnp.int32)
        self._state = replace(self._state, keys=jnp.stack([key for _, key in keys]), since=since)

    def _renew(self, key: jax.Array) -> None:
        released = self.journal.released
        unused = len(self._keys) > 1 and self._keys[-1][0] == released
        keys = [*(self._keys[:-1] if unused else self._keys), (released, key)]
        write_keys(self._path.parent, keys)  # before any noise is given out under it
        self.journal.renew(key)
        self._set_keys(keys)

    def _follow_skips(self) -> None:
        """Skips again what was skipped after the saved state: the rounds after it were computed without them."""
        if self.journal.open_skip is None:
            return
        first, after = self.journal.open_skip
        if first == self.origin:
            self._advance(after)
        elif first > self.origin:  # rounds in between were computed again; what came later rests on them
            self.skip()

    @property
    def round(self) -> int:
        """The round whose noise comes next, counted from 0."""
        if self._read is None or self._read[0] is not self._state:  # to fetch it from JAX takes longer than to look
            self._read = self._state, int(self._state.round)
        return self._read[1]

    @property
    def state(self) -> NoiseState:
        """The noise state before the next round; it has the secret keys."""
        return self._state

    @property
    def secret(self) -> bytes:
        """The first key, which a folder keeps for good; what it signs shows that it was there."""
        return np.asarray(self._keys[0][1], "<u4").tobytes()

    def next(self, batch: NDArray[Any], total: Tree | None = None) -> Tree:
        """Returns the noise of the next round and moves on; raises `NoiseReused` for what the journal refuses.

        Args:
          batch: indices of the examples whose gradients the noise is for.
          total: the sum that the noise will be added to. If given, it is hashed, and a replay after a crash gets the
            noise only for the same sum, bit by bit.

        Returns:
          The noise, a tree of arrays like the parameters.
        """
        self.journal.release(self.round, batch, b"" if total is None else self._hash(total))
        noise, self._state = self.noise.step(self._state)
        return noise

    def objection(self, batch: NDArray[Any], total: Tree | None) -> str:
        """Returns why the next round, which has had its noise, cannot get it for this; see `Journal.objection`.

        Args:
          batch: as for `next`.
          total: as for `next`; without it nothing shows that the sum is the same.

        Returns:
          The end of a sentence, or nothing.
        """
        if total is None:
            return "and no sum was passed that could be compared"
        return self.journal.objection(self.round, batch, self._hash(total))

    def _hash(self, total: Tree) -> bytes:
        return content_hash(total, self._keys[0][1])

    def skip(self, first: int | None = None) -> None:
        """Moves on to the next round that has had no noise; the rounds in between are left out, and written down.

        Formal guarantee: what the run releases, left-out rounds included, has the guarantee of a run without
        interruptions, whatever model it goes on from, if that was computed from released rounds (docs/math.md, 12).

        Args:
          first: the first round that is left out; by default the next.
        """
        first = self.round if first is None else first
        if first < self.journal.released:
            self.journal.skip(first)
            self._advance(self.journal.released)

    def back_to(self, turn: int) -> bool:
        """Goes to a round that was saved, or comes after it, so that rounds from there on can be computed again.

        Args:
          turn: the round.

        Returns:
          Whether that was possible: False if the folder has no state from before the round, or forbids its replay.
        """
        saved = load_state(self._path, self.noise, self._shapes)
        if not max(self.journal.saved, int(saved.round)) <= turn <= self.journal.released:
            return False
        self._state = saved
        self._set_keys(self._keys)
        self._advance(turn)
        self.save()
        return True

    def _advance(self, turn: int) -> None:
        """Moves the state on, without giving out any noise."""
        if not self.noise.memory:
            self._state = replace(self._state, round=jnp.asarray(max(turn, self.round), jnp.int32))
        while self.round < turn:
            _, self._state = self.noise.step(self._state)

    def save(self, buffers: list[Any] | None = None) -> None:
        """Saves the state: a resumed run begins with the next round, and earlier rounds cannot be computed again.

        Args:
          buffers: those of the state in the memory of this process, for a state that is spread over several.
        """
        state = self._state if buffers is None else replace(self._state, buffers=buffers)
        save_state(self._path, self.noise, state)
        self.journal.checkpoint(self.round)
        self.origin = self.round

    def close(self) -> None:
        """Closes the journal and unlocks the folder."""
        self.journal.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_keys(folder: Path) -> list[tuple[int, jax.Array]]:
    """Returns the keys of the run in a folder, each with the first round that it is for; the first never changes."""
    path = folder / "noise.keys"
    try:
        if not path.exists():
            with np.load(folder / "noise.npz") as saved:
                return [(0, jnp.asarray(saved["key"].reshape(-1, 4)[0]))]
        body = files.read_json(path)
        if body.get("format") != KEYS_FORMAT or body.get("version") != VERSION:
            raise InvalidFile(f"{path}: must be {KEYS_FORMAT} of version {VERSION}")
        return [(int(part["since"]), key_from_bytes(bytes.fromhex(part["key"]))) for part in body["keys"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidFile):
            raise
        raise InvalidFile(f"{folder}: has no noise keys that can be read") from None


def write_keys(folder: Path, keys: list[tuple[int, jax.Array]]) -> None:
    """Writes the keys of a run, readable by their owner only."""
    listed = [{"since": since, "key": np.asarray(key, "<u4").tobytes().hex()} for since, key in keys]
    body = {"format": KEYS_FORMAT, "version": VERSION, "keys": listed}
    files.write_text(folder / "noise.keys", files.pretty(body), secret=True)
