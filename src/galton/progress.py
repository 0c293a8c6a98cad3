"""Progress of long work, for people: bars on stderr, each with what it counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from galton.sampling.schedule import Progress

_BEFORE = "getting ready: loading JAX and compiling"


class _Count(NamedTuple):
    unit: str
    open_ended: bool = False
    """Whether nobody knows how many there will be: the total is a guess that is not shown."""


_COUNTS = {
    "sampler": _Count("samples"),
    "calibrating": _Count("steps", open_ended=True),
    "optimising": _Count("iterations", open_ended=True),
    "points": _Count("points"),
    "trials": _Count("trials"),
    "alternatives": _Count("mechanisms"),
    "comparing strategies": _Count("mechanisms"),
    "comparing": _Count("figures"),
    "exploring": _Count("figures"),
}
"""What is counted, by a word of what is under way."""


def counted(what: str, done: int, total: int) -> str:
    """Returns how far a piece of work is, in words.

    >>> counted("add, tilted sampler", 8192, 462848)
    '8,192 of 462,848 samples'
    >>> counted("optimising blt:4 | 28.6", 3, 13)
    '3 iterations'
    """
    count = next((count for word, count in _COUNTS.items() if word in what.partition(" | ")[0]), _Count(""))
    far = f"{done:,}" if count.open_ended else f"{done:,} of {total:,}"
    return f"{far} {count.unit}".rstrip()


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Shows what is being computed on stderr, if that is a terminal; what comes before the first bar has a line too."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, Any] = {"": bar.add_task(_BEFORE, total=None, count="")}

        def update(what: str, done: int, total: int) -> None:
            key, _, note = what.partition(" | ")  # a note changes, what is being done does not
            if "" in tasks:
                bar.remove_task(tasks.pop(""))
            if key not in tasks:
                tasks[key] = bar.add_task(key, total=total, count="")
            description, count = f"{key} {note}".rstrip(), counted(what, done, total)
            bar.update(tasks[key], completed=done, total=total, description=description, count=count)

        yield update
