"""The noise of one run, bound to a folder: it resumes where it was saved and never serves two different gradients."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from galton.errors import InvalidArgument
from galton.noise.checkpoint import load_state, save_state
from galton.noise.journal import Journal, open_exclusively
from galton.noise.layout import Tree
from galton.noise.stream import CorrelatedNoise, NoiseState
from galton.typechecking import typechecked


def content_hash(tree: Tree) -> bytes:
    """Returns a hash of all arrays of a tree, bit by bit."""
    digest = hashlib.sha256()  # processors have instructions for it
    for leaf in jax.tree.leaves(tree):
        values = np.asarray(leaf)
        digest.update(f"{values.dtype} {values.shape} ".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.digest()


@typechecked
class NoiseRun:
    """Noise with a checkpoint and a journal in a folder, for training loops that draw their own batches.

    Save the model first, then call `save()`; after a crash, go on from the model that belongs to `round`.
    `TrainingRun` has the batches and the model's checkpoints too.

    Args:
      folder: holds `noise.npz` (the state with the secret key) and `noise.journal`; created if it does not exist.
      noise: the noise to draw.
      params: the model's parameters, for their shapes.
      plan: content hash of what was analysed; a folder of another plan is refused.
      key: the noise key of a new folder, by default from the operating system. Leave it out for an existing folder.
      strict: allow no replay of rounds after a crash.

    Attributes:
      noise: as given.
      resumed: whether the folder had a run already.
      journal: the rounds that have had their noise.

    Formal guarantee: no noise is returned for two different batches of the same round, nor, where `total` is passed to
    `next`, for two different sums. See `noise/journal.py` for what is not covered.

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
    ) -> None:
        self.noise, self._path = noise, Path(folder) / "noise.npz"
        self._lock = open_exclusively(Path(folder) / "noise.lock")
        try:
            self._open_or_begin(params, plan, key, strict)
        except BaseException:
            self._lock.close()
            raise

    def _open_or_begin(self, params: Tree, plan: str, key: jax.Array | None, strict: bool) -> None:
        self.resumed = self._path.exists()
        if self.resumed and key is not None:
            raise InvalidArgument("key", "given", f"must be left out: {self._path} has the key of this run")
        if self.resumed:
            self._state = load_state(self._path, self.noise, params)
        else:
            self._state = self.noise.init(params, key)
            save_state(self._path, self.noise, self._state)  # before any noise is given out: a lost key is a lost run
        log = self._path.with_name("noise.journal")
        self.journal = Journal(log, self._state.key, f"{plan} {self.noise.digest}", strict)

    @property
    def round(self) -> int:
        """The round whose noise comes next, counted from 0."""
        return int(self._state.round)

    @property
    def state(self) -> NoiseState:
        """The noise state before the next round; it has the secret key."""
        return self._state

    def next(self, batch: NDArray[Any], total: Tree | None = None) -> Tree:
        """Returns the noise of the next round and moves on; raises `NoiseReused` for what the journal refuses.

        Args:
          batch: indices of the examples whose gradients the noise is for.
          total: the sum that the noise will be added to. If given, it is hashed, and a replay after a crash gets the
            noise only for the same sum, bit by bit.

        Returns:
          The noise, a tree of arrays like the parameters.
        """
        self.journal.release(self.round, batch, b"" if total is None else content_hash(total))
        noise, self._state = self.noise.step(self._state)
        return noise

    def save(self) -> None:
        """Saves the state: a resumed run begins with the next round, and earlier rounds cannot be computed again."""
        save_state(self._path, self.noise, self._state)
        self.journal.checkpoint(self.round)

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
