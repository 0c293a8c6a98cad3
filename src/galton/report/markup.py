"""Tables and paragraphs of pages in HTML. Everything that is given is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from galton.report.numbers import written


def paragraphs(texts: Iterable[str]) -> str:
    """Texts, each a paragraph."""
    return "\n".join(f"<p>{escape(written(text))}</p>" for text in texts)


def columns(*parts: str) -> str:
    """Side by side where there is room."""
    body = "\n".join(f"<div>\n{part}\n</div>" for part in parts)
    return f'<div class="columns">\n{body}\n</div>'


def table_head(names: Sequence[str], text: int) -> str:
    """Names of columns; those after the first `text` are numbers."""
    cells = (
        f'<th scope="col"{" class=number" if index >= text else ""}>{escape(name)}</th>'
        for index, name in enumerate(names)
    )
    return "".join(cells)


def table(names: Sequence[str], rows: Iterable[Sequence[str]], caption: str, text: int = 1) -> str:
    """A table whose first column names the row."""
    body = []
    for first, *others in rows:
        cells = (
            f"<td{' class=number' if index >= text else ''}>{escape(cell)}</td>" for index, cell in enumerate(others, 1)
        )
        body.append(f'<tr><th scope="row">{escape(first)}</th>{"".join(cells)}</tr>')
    lines = "\n".join(body)
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{table_head(names, text)}</tr></thead>\n"
        f"<tbody>\n{lines}\n</tbody>\n</table>"
    )


def settings_table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    lines = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(written(value))}</td></tr>' for name, value in rows
    )
    return f'<table class="settings">\n<tbody>\n{lines}\n</tbody>\n</table>'
