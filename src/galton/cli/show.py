"""What people see: progress on stderr, tables or one JSON object on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from galton.sampling.schedule import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Shows what is being computed on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            key, _, note = what.partition(" | ")  # a note changes, what is being done does not
            if key not in tasks:
                tasks[key] = bar.add_task(key, total=total)
            bar.update(tasks[key], completed=done, total=total, description=f"{key} {note}".rstrip())

        yield update


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object on stdout."""
    typer.echo(json.dumps(value, allow_nan=False))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints names and values."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), title_justify="left", title_style="bold", box=SIMPLE, show_header=False, pad_edge=False
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    _print(table)


def print_grid(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table with a header."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for row in rows:
        table.add_row(*map(Text, row))
    _print(table)


def _print(table: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(table)
