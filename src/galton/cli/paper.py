"""The command paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import app, options, show
from galton.errors import InvalidArgument


@app.command()
def paper(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which result; --list names them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name all results and about how long they take.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute anew what the cache holds.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Regenerate a table or figure of the paper, with the paper's values beside ours."""
    from galton.cache import default_cache
    from galton.paper import RESULTS, find_result, write_result

    if list_:
        if as_json:
            return show.print_json({"results": {one.name: one.title for one in RESULTS.values()}})
        rows = [(one.name, f"{one.title} (about {one.minutes:g} min)") for one in RESULTS.values()]
        return show.print_table("results of the paper", rows)
    if name is None:
        raise InvalidArgument("name", None, "must be one of " + ", ".join(RESULTS))
    recipe = find_result(name)
    if output.exists() and not output.is_dir():
        raise InvalidArgument("output", str(output), "must be a folder")
    cache = default_cache().emptied() if fresh else default_cache()
    with show.progress_bar() as progress:
        result = recipe.make(cache, progress)
    paths = write_result(result, output)
    if as_json:
        return show.print_json(result.to_json() | {"path": str(output), "files": [str(path) for path in paths]})
    grid = [tuple(_words(row[column]) for column in result.columns) for row in result.rows]
    show.print_grid(result.title, result.columns, grid)
    return show.print_table("", [("", result.text), ("written", ", ".join(map(str, paths)))])


def _words(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
