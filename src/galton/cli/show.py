"""What people see on stdout: tables, or one JSON object. (Progress is in `galton.progress`.)

Tables for a terminal are laid out to its width; into a pipe or a file they go line by line, with a tab between columns
and neither padding nor line breaks, for grep, cut and a spreadsheet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer


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
    _print(table, title, [(name.strip(), value) for name, value in rows])


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
    _print(table, title, [header, *rows])


def _print(table: Any, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Prints the table, or its rows alone if nobody is looking."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    for row in ([(title,)] if title else []) + list(rows):
        typer.echo("\t".join(" ".join(cell.split()) for cell in row))
