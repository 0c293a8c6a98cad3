"""Chunks in order, computed by several threads: the same bits however they are scheduled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from galton.sampling.base import Draw, Sampler

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total)."""


def draws(
    sampler: Sampler, samples: int, seed: int, workers: int = 2, progress: Progress | None = None
) -> Iterator[Draw]:
    """Yields chunks 0, 1, ... until `samples` samples are out, the last one cut to fit.

    Memory holds a few chunks, whatever `samples` is. Stopping early (Ctrl-C, closing the iterator) drops what is
    under way.
    """
    chunks = -(-samples // sampler.layout.size)
    executor = ThreadPoolExecutor(workers, thread_name_prefix="galton")
    pending: deque[Future[Draw]] = deque()
    try:
        done = submitted = 0
        while done < samples:
            while submitted < chunks and len(pending) <= workers:
                pending.append(executor.submit(sampler.draw, seed, submitted))
                submitted += 1
            draw = pending.popleft().result().first(samples - done)
            done += len(draw)
            if progress is not None:
                progress(f"{sampler.direction.value}, {sampler.name} sampler", done, samples)
            yield draw
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
