"""SIGTERM, by which clusters announce that they take a machine away: a loop saves first, then the process ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Termination:
    """Holds SIGTERM back while a block runs, so that a training loop can end its round, save and leave the block.

    After the block the signal takes effect as it would have: the process ends, or the program's own handler is called.
    Outside the main thread, where Python gives no signals to anybody, nothing is held back.

    Attributes:
      requested: whether the signal came.

    Example:
        with Termination() as termination:
            while not run.done and not termination.requested:
                ...
            run.save(write)
    """

    def __init__(self) -> None:
        self.requested = False
        self._held = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
            self._held = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            self._held = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
            if self.requested:
                signal.raise_signal(signal.SIGTERM)
