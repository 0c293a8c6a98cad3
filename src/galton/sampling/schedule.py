"""Chunks in order, computed by a pool of workers, with the same bits however they are scheduled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

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

    @abstractmethod
    def drawing(self, sampler: Sampler) -> AbstractContextManager[Submit]:
        """Gives the sampler to the workers for as long as the context is open."""


@dataclass(frozen=True)
class Threads(Pool):
    """Threads of this process."""

    threads: int = 2

    @property
    def width(self) -> int:
        return self.threads

    @contextmanager
    def drawing(self, sampler: Sampler) -> Iterator[Submit]:
        executor = ThreadPoolExecutor(self.threads, thread_name_prefix="galton")
        try:
            yield lambda seed, index: executor.submit(sampler.draw, seed, index)
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


HERE = Threads()


def draws(
    sampler: Sampler, samples: int, seed: int, pool: Pool = HERE, progress: Progress | None = None
) -> Iterator[Draw]:
    """Yields chunks 0, 1, ... with `samples` samples in total; the last chunk is cut to fit.

    Memory holds a few chunks, whatever `samples` is. Stopping early (Ctrl-C, closing the iterator) drops what is
    under way.
    """
    chunks = -(-samples // sampler.layout.size)
    pending: deque[Pending] = deque()
    with pool.drawing(sampler) as submit:
        try:
            done = submitted = 0
            while done < samples:
                while submitted < chunks and len(pending) <= pool.width:
                    pending.append(submit(seed, submitted))
                    submitted += 1
                draw = pending.popleft().result().first(samples - done)
                done += len(draw)
                if progress is not None:
                    progress(f"{sampler.direction.value}, {sampler.name} sampler", done, samples)
                yield draw
        finally:
            for chunk in pending:
                chunk.cancel()
