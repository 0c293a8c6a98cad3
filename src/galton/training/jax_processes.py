"""One run in several processes of JAX: all compute, the first decides and writes the folder, the others read it.

Noise is made without communication, so that the first process can ask its journal and move on by itself; it then tells
the others how far the run is, and they follow with their own part of the state. Sums are hashed by the devices that
have them. Models and buffers are gathered for checkpoints only, one array at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from galton.batching import Batch, Batches
from galton.errors import GaltonError
from galton.noise.checkpoint import load_state
from galton.noise.hashing import device_words
from galton.noise.layout import Tree
from galton.noise.run import read_keys
from galton.plan import Plan
from galton.training.folder import read_body
from galton.training.lost import RoundsSkipped
from galton.training.run import TrainingRun


def open_run(plan: Plan, folder: str | Path, params: Tree, **given: Any) -> TrainingRun | SharedRun:
    """Opens a run, alone or together with all other processes of `jax.distributed`.

    Args:
      plan: the plan.
      folder: of the run; all processes must see it.
      params: the model's parameters.
      given: see `TrainingRun`.

    Returns:
      The run.
    """
    if jax.process_count() == 1:
        return TrainingRun(plan, folder, params, **given)
    return SharedRun(plan, folder, params, **given)


def agreed(wish: bool) -> bool:
    """Returns whether any process wishes something, such as to end; the same in all of them.

    Args:
      wish: of this process.

    Returns:
      Whether there is one.
    """
    if jax.process_count() == 1:
        return wish
    return bool(np.any(multihost_utils.process_allgather(np.asarray(wish))))


def at_hand(tree: Tree) -> Tree:
    """Returns a tree whose arrays are all within reach of this process; all processes must call it.

    Args:
      tree: of arrays.

    Returns:
      The tree, with arrays of several processes gathered to the memory of each, one after the other.
    """
    return jax.tree.map(lambda leaf: leaf if _reachable(leaf) else _gathered(leaf), tree)


def _reachable(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


def _gathered(leaf: jax.Array) -> Any:
    return multihost_utils.process_allgather(leaf, tiled=True)


class SharedRun:
    """A training run that the processes of `jax.distributed` share; `open_run` makes it.

    All processes must call its methods, in the same order. What fails in the first fails in all.

    Args:
      plan: the run's plan.
      folder: of the run, which all processes must see; only the first writes to it.
      params: the model's parameters.
      given: see `TrainingRun`.

    Formal guarantees:
      - The noise is that of the plan: each process makes that of the parameters that it has, after the first has
        written the round to the journal.
      - What `TrainingRun` guarantees of replays and skips holds for the sum over all processes.
    """

    def __init__(self, plan: Plan, folder: str | Path, params: Tree, **given: Any) -> None:
        self.plan, self.folder = plan, Path(folder)
        self._own: TrainingRun | None = None

        def begin() -> None:
            self._own = TrainingRun(plan, folder, params, **given)

        self._on_first(begin)
        if not (self.folder / "run.json").exists():
            raise GaltonError(
                f"{folder}: must be a folder that all processes see; process {jax.process_index()} does not"
            )
        self._batches = Batches.resume(plan.scheme, read_body(self.folder)["batches"])
        keys = read_keys(self.folder)
        self._key = keys[0][1]
        if self._own is None:
            self._noise = plan.noise()
            since = jnp.asarray([since for since, _ in keys], jnp.int32)
            state = load_state(self.folder / "noise.npz", self._noise, params)
            self._state = replace(state, keys=jnp.stack([key for _, key in keys]), since=since)
        self._follow()

    def _on_first(self, work: Callable[[], Any]) -> Any:
        """Returns what a function returns in the first process, in all of them, and raises its errors in all."""
        answer: dict[str, Any] = {}
        failure: Exception | None = None
        if jax.process_index() == 0:
            try:
                answer = {"result": work()}
            except Exception as error:
                failure, answer = error, {"error": f"{type(error).__name__}: {error}"}
        content = np.frombuffer(json.dumps(answer).encode(), np.uint8)
        size = int(multihost_utils.broadcast_one_to_all(np.int32(content.size)))
        sent = content if jax.process_index() == 0 else np.zeros(size, np.uint8)
        heard = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(sent)).astype(np.uint8).tobytes())
        if failure is not None:
            raise failure
        if "error" in heard:
            raise GaltonError(f"process 0: {heard['error']}")
        return heard["result"]

    @property
    def _first(self) -> TrainingRun:
        assert self._own is not None
        return self._own

    def _follow(self) -> None:
        """Learns from the first process how far the run is, and moves this process's part of the noise there."""
        self.round, self.released = self._on_first(lambda: [self._first.round, self._first.released])
        if self._own is None:
            if not self._noise.memory:
                self._state = replace(self._state, round=jnp.asarray(self.round, jnp.int32))
            while int(self._state.round) < self.round:
                _, self._state = self._noise.step(self._state)

    @property
    def batch(self) -> Batch:
        """The batch of the next round."""
        return self._batches.at(self.round)

    @property
    def checkpoint(self) -> Path | None:
        """The file that `save` wrote last; None before the first save."""
        path = self._on_first(lambda: None if self._first.checkpoint is None else self._first.checkpoint.name)
        return None if path is None else self.folder / path

    def round_seed(self, turn: int) -> int:
        """Returns a seed for what else is random in a round, the same in all processes; see `TrainingRun.round_seed`.

        Args:
          turn: the round.

        Returns:
          A whole number below 2^63; a secret.
        """
        return int(self._on_first(lambda: self._first.round_seed(turn)))

    def noise(self, total: Tree) -> Tree:
        """Returns the noise of the next round, where the sum is, and moves on; see `TrainingRun.noise`.

        Args:
          total: the sum over all processes. Its devices hash it; sixteen bytes of each array leave them.

        Returns:
          The noise.
        """
        words = [np.asarray(device_words(leaf, self._key, n)) for n, leaf in enumerate(jax.tree.leaves(total))]
        drawn: list[Tree] = []

        def ask() -> str:
            try:
                drawn.append(self._first.noise(np.stack(words)))
            except RoundsSkipped as lost:
                return str(lost)
            return ""

        skipped = self._on_first(ask)
        if not skipped and self._own is None:
            noise, self._state = self._noise.step(self._state)
            drawn.append(noise)
        self._follow()
        if skipped:
            raise RoundsSkipped(skipped)
        return drawn[0]

    def save(self, write: Callable[[Path], object]) -> None:
        """Saves the run; see `TrainingRun.save`.

        Args:
          write: write(path) writes model and optimiser; called in the first process only.
        """
        state = self._state if self._own is None else self._own.noise_state
        buffers = [_rows_at_hand(buffer) for buffer in state.buffers]
        self._on_first(lambda: self._first.save(write, buffers))

    def publish(self, write: Callable[[Path], object], suffix: str) -> None:
        """Writes the model alone; see `TrainingRun.publish`.

        Args:
          write: write(path) writes the model; called in the first process only.
          suffix: of the file.
        """
        self._on_first(lambda: self._first.publish(write, suffix))

    def record(self) -> dict[str, Any]:
        """Writes the record, and returns it in all processes."""
        return dict(self._on_first(lambda: self._first.record()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.__exit__(kind, error, trace)


def _rows_at_hand(rows: jax.Array) -> np.ndarray[Any, Any]:
    """Gathers buffers a row at a time: no device has more than one of them."""
    if _reachable(rows):
        return np.asarray(rows)
    whole = np.empty(rows.shape, rows.dtype)
    for number in range(len(rows)):
        whole[number] = _gathered(rows[number])
    return whole
