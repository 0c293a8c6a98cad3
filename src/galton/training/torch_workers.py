"""Processes that load data, started without running the user's script once more.

Python starts a process that is not forked by importing the main script, which trains again unless all of it is under
`if __name__ == "__main__"`. (A process that uses JAX should not be forked.) Workers here import no script; what they
need of it, a data set or a function that is defined there, is sent to them by value.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FunctionType
from typing import Any

import cloudpickle
from torch import Tensor

MAIN = "__main__"


@contextmanager
def _without_script() -> Iterator[None]:
    """Hides from `multiprocessing` which script is running, so that a process that starts does not run it."""
    main = sys.modules[MAIN]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802
        with _without_script():
            return ForkServerProcess._Popen(process)


class WorkerContext(ForkServerContext):
    """How loaders start their workers: from a server that knows no script."""

    Process = _Process


def prepare_server(*modules: str) -> None:
    """Makes the server that workers are started from import modules once, instead of each worker in every epoch.

    Importing PyTorch and galton takes seconds. It has no effect once the server runs.

    Args:
      modules: what workers need; importing them must start no threads that a fork would lose.
    """
    multiprocessing.set_forkserver_preload(["torch", *modules])


def worker_context(workers: int, requested: Any = None) -> Any:
    """Returns how a loader starts its workers: as requested, else without forking a process that uses JAX.

    Args:
      workers: number of the loader's workers.
      requested: the start method that the caller asked for, if any.

    Returns:
      A start method for the loader, or None for its own.
    """
    if requested is not None or not workers:
        return requested
    prepare_server("galton.training.torch_batches")
    return WorkerContext()


class ByValue:
    """Something that workers get by value if it needs the script, and as PyTorch sends it (sharing tensors) if not.

    Args:
      content: a data set or a function.
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        if _needs_script(self.content):
            return _unpacked, (cloudpickle.dumps(self.content),)
        return ByValue, (self.content,)


def _unpacked(content: bytes) -> ByValue:
    return ByValue(pickle.loads(content))  # written by this process's parent


class _Nowhere(io.RawIOBase):
    def write(self, content: Any) -> int:
        return len(content)


class _Search(pickle.Pickler):
    """Looks for what is defined in the script among all that something refers to."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=5, buffer_callback=lambda buffer: None)  # copies no arrays
        self.hit = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return int, ()  # is not copied
        if isinstance(value, type | FunctionType) and value.__module__ == MAIN:
            self.hit = True
            return int, ()
        return NotImplemented


def _needs_script(content: Any) -> bool:
    search = _Search()
    try:
        search.dump(content)
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, say, which cloudpickle knows
        return True
    return search.hit
