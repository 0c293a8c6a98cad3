"""The noise of one run, bound to a folder: resumes where it was saved, and never gives noise out for two gradients."""

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


def content_hash(tree: Tree) -> bytes:
    """Returns a hash of all arrays of a tree, bit by bit."""
    digest = hashlib.sha256()  # processors have instructions for it
    for leaf in jax.tree.leaves(tree):
        values = np.asarray(leaf)
        digest.update(f"{values.dtype} {values.shape} ".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.digest()


class NoiseRun:
    """Noise with a journal and a checkpoint in one folder. See `noise/journal.py` for what it guarantees.

    Args:
      folder: holds `noise.npz` (the state and the secret key) and `noise.journal`; made if it is not there.
      noise: what to draw.
      params: the model's parameters, for their shapes.
      plan: content hash of what was analysed; a folder of another plan is refused.
      key: for a new folder: the key, by default from the operating system. For an old one it must not be given.
      strict: allow no replay of rounds after a crash.

    Training saves its own state together with the noise: first the model, then `save()`; after a crash it continues
    from the model that belongs to `round`.
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
        """The coming round."""
        return int(self._state.round)

    @property
    def state(self) -> NoiseState:
        """The state before the coming round."""
        return self._state

    def next(self, batch: NDArray[Any], total: Tree | None = None) -> Tree:
        """Returns the noise of the coming round, for the gradient of these examples.

        Args:
          batch: indices of the examples.
          total: what the noise will be added to, if a replay is to be held to the very same; it is hashed.
        """
        self.journal.release(self.round, batch, b"" if total is None else content_hash(total))
        noise, self._state = self.noise.step(self._state)
        return noise

    def save(self) -> None:
        """Saves the state: a resumed run starts from here, and no round before can be computed again."""
        save_state(self._path, self.noise, self._state)
        self.journal.checkpoint(self.round)

    def close(self) -> None:
        """Lets go of the folder."""
        self.journal.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
