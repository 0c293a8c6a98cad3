"""The files of a result: NAME.csv, NAME.txt, NAME.png, NAME.pdf and, with where it comes from, NAME.json."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from galton import files
from galton.closure import code_digest
from galton.errors import InvalidFile
from galton.plots import pyplot, save
from galton.provenance import now
from reproduction.points import Maker
from reproduction.provenance import digests, is_current, provenance
from reproduction.result import Cell, Recipe, Result, Rows

PICTURES = (".png", ".pdf")


def regenerate(recipe: Recipe, maker: Maker, folder: Path) -> tuple[Result, list[Path]]:
    """Makes a result and writes its files; returns it and their paths."""
    pyplot()  # refuses before the work begins
    begun = time.perf_counter()
    rows = list(recipe.rows(maker))
    for further in maker.tracked(recipe.name, recipe.further):
        rows.append(further.row(maker, rows))
    result = recipe.result(rows)
    paths = [*write_result(result, folder), *write_pictures(recipe.name, recipe.draw(result.rows), folder)]
    about = provenance(recipe.name, source_of(recipe), maker, time.perf_counter() - begun, paths)
    return result, [*paths, write_json(folder / f"{recipe.name}.json", about)]


def complete(recipe: Recipe, maker: Maker, folder: Path) -> tuple[Result, list[Path]]:
    """Keeps the rows that are there, and computes those beyond the paper's that are missing.

    However it ends, by Ctrl-C too, the files hold what there is by then.
    """
    pyplot()
    begun = time.perf_counter()
    about = files.read_json(folder / f"{recipe.name}.json")
    rows = list(read_rows(folder / f"{recipe.name}.csv", recipe.columns))
    before = len(rows)
    try:
        for further in maker.tracked(recipe.name, recipe.missing(rows)):
            rows.append(further.row(maker, rows))
    finally:
        result = recipe.result(rows)
        paths = [*write_result(result, folder), *write_pictures(recipe.name, recipe.draw(result.rows), folder)]
        added = provenance(recipe.name, source_of(recipe), maker, time.perf_counter() - begun, paths)
        about["files"] = added.pop("files")
        if len(rows) > before:
            about["completed"] = [*about.get("completed", []), added | {"rows": len(rows) - before}]
        paths.append(write_json(folder / f"{recipe.name}.json", about))
    return result, paths


def redraw(recipe: Recipe, folder: Path) -> tuple[Result, list[Path]]:
    """Makes text and pictures anew from the CSV that is there; nothing is computed."""
    pyplot()
    about = files.read_json(folder / f"{recipe.name}.json")
    result = recipe.result(read_rows(folder / f"{recipe.name}.csv", recipe.columns))
    paths = [*write_result(result, folder), *write_pictures(recipe.name, recipe.draw(result.rows), folder)]
    about |= {"redrawn": {"date": now(), "source": source_of(recipe)}, "files": digests(paths)}
    return result, [*paths, write_json(folder / f"{recipe.name}.json", about)]


def is_made(recipe: Recipe, maker: Maker, folder: Path) -> bool:
    """Whether the files are there, made by this code with this seed."""
    return is_current(folder / f"{recipe.name}.json", source_of(recipe), maker.seed)


def source_of(recipe: Recipe) -> str:
    """Returns a hash of the code that a result is made and written by."""
    return code_digest(*recipe.modules, __name__)


def write_result(result: Result, folder: Path) -> list[Path]:
    """Writes NAME.csv and NAME.txt; returns their paths."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, result.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.rows)
    table, text = folder / f"{result.name}.csv", folder / f"{result.name}.txt"
    files.write_text(table, buffer.getvalue())
    files.write_text(text, f"{result.title}\n\n{result.text}\n")
    return [table, text]


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Rows:
    """Reads rows back from a CSV; columns other than expected are refused."""
    try:
        reader = csv.DictReader(io.StringIO(path.read_text()))
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: cannot be read ({error})") from None
    if columns is not None and tuple(reader.fieldnames or ()) != tuple(columns):
        raise InvalidFile(f"{path}: must have the columns {', '.join(columns)}; make it anew")
    return [{name: _cell(text) for name, text in row.items()} for row in rows]


def _cell(text: str | None) -> Cell:
    """A number where the text is one; an empty cell is None."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text or None


def write_pictures(name: str, figure: Any, folder: Path) -> list[Path]:
    """Writes a figure as NAME.png and NAME.pdf; returns their paths."""
    paths = [folder / f"{name}{ending}" for ending in PICTURES]
    for path in paths:
        save(figure, path)
    return paths


def write_json(path: Path, value: files.Json) -> Path:
    """Writes where a result comes from; returns the path."""
    files.write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
    return path
