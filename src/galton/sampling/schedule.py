"""Chunks in order, computed by a pool of workers, with the same bits however they are scheduled."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from galton.errors import GaltonError
from galton.sampling.base import Draw, Sampler

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total)."""


class Pending(Protocol):
    """A chunk under way."""

    def result(self) -> Draw:
        """Waits for the chunk."""
        ...

    def cancel(self) -> object:
        """Says that the chunk is no longer needed."""
        ...


Submit = Callable[[int, int], Pending]
"""Called as submit(seed, index)."""


class Pool(ABC):
    """Where chunks are computed: threads here, or workers elsewhere (`galton.cluster`)."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Chunks that are computed at the same time."""

    @property
    def elsewhere(self) -> bool:
        """Whether chunks are computed by others, so that some are computed again here."""
        return True

    @abstractmethod
    def drawing(self, sampler: Sampler) -> AbstractContextManager[Submit]:
        """Gives the sampler to the workers for as long as the context is open.

        Args:
          sampler: whose chunks are wanted.

        Returns:
          A context that gives a function from (seed, index) to a chunk under way.
        """


@dataclass(frozen=True)
class Threads(Pool):
    """Threads of this process."""

    threads: int = 2

    @property
    def width(self) -> int:
        return self.threads

    @property
    def elsewhere(self) -> bool:
        return False

    @contextmanager
    def drawing(self, sampler: Sampler) -> Iterator[Submit]:
        executor = ThreadPoolExecutor(self.threads, thread_name_prefix="galton")
        try:
            yield lambda seed, index: executor.submit(sampler.draw, seed, index)
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


HERE = Threads()
SPOT_CHECKS = (1, 4, 16, 64)
"""One chunk, at random, among each of so many first ones is computed again here if workers elsewhere computed it."""


def _check_whole(sampler: Sampler, draw: Draw) -> None:
    """Refuses a chunk of another size, or with anything in it that is not a number."""
    size = sampler.layout.size
    shape = (size, sampler.strata) if sampler.strata else (size,)
    arrays = draw.arrays.values()
    if any(array.shape != shape for array in arrays):
        raise GaltonError(f"sampling: a chunk has {draw.loss.shape} samples instead of {size}; nothing was proved")
    if not all(np.isfinite(array).all() for array in arrays):
        raise GaltonError(
            "sampling: a sample is not a finite number: whoever computed it (a device, a worker, a library) cannot be "
            "relied on; nothing was proved"
        )


def _check_same(sampler: Sampler, theirs: Draw, ours: Draw) -> None:
    """Refuses a chunk from elsewhere that differs from the same chunk computed here by more than rounding can."""
    room = ours.room(2 * sampler.slack.epsilon, sampler.steepness)
    same = type(theirs) is type(ours) and all(
        (np.abs(theirs.arrays[name] - array) <= room[name]).all() for name, array in ours.arrays.items()
    )
    if not same:
        raise GaltonError(
            "sampling: a chunk that was computed elsewhere is not what this machine computes; nothing was proved. A "
            "worker is broken, or not what it says it is"
        )


def draws(
    sampler: Sampler, samples: int, seed: int, pool: Pool = HERE, progress: Progress | None = None
) -> Iterator[Draw]:
    """Yields chunks 0, 1, ... with `samples` samples in total; the last chunk is cut to fit.

    Memory holds a few chunks, whatever `samples` is. Stopping early (Ctrl-C, closing the iterator) drops what is
    under way. Chunks that are not whole, or not numbers, are refused; of those computed elsewhere a few, which nobody
    can foresee, are computed again here and must agree up to the sampler's slack. That notices a worker that is broken
    or that often lies; it does not replace trust in the cluster.

    Args:
      sampler: whose chunks are wanted.
      samples: how many, in total.
      seed: of all chunks.
      pool: where chunks are computed.
      progress: called as progress(what, done, total).
    """
    suspects = {secrets.randbelow(among) for among in SPOT_CHECKS} if pool.elsewhere else set()
    chunks = -(-samples // sampler.layout.size)
    pending: deque[Pending] = deque()
    with pool.drawing(sampler) as submit:
        try:
            done = submitted = 0
            while done < samples:
                while submitted < chunks and len(pending) <= pool.width:
                    pending.append(submit(seed, submitted))
                    submitted += 1
                index = submitted - len(pending)
                whole = pending.popleft().result()
                _check_whole(sampler, whole)
                if index in suspects:
                    _check_same(sampler, whole, sampler.draw(seed, index))
                draw = whole.first(samples - done)
                done += len(draw)
                if progress is not None:
                    progress(f"{sampler.direction.value}, {sampler.name} sampler", done, samples)
                yield draw
        finally:
            for chunk in pending:
                chunk.cancel()
