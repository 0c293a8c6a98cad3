"""Fills the tables of docs/benchmarks.md from the committed results; the words around them are written by hand.

    python benchmarks/report.py

A table stands between `<!-- NAME: filled by ... -->` and `<!-- end of NAME -->`, NAME being a file results/NAME.md, or
several joined by +, of which all but the first lose their heads; `dates` is about all results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import RESULTS
from galton import files

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PLACE = re.compile(r"<!-- (\S+): filled by python benchmarks/report\.py -->\n.*?<!-- end of \1 -->\n", re.DOTALL)
HEAD = 2
"""Lines of a table above its rows."""


def filled(page: str, results: Path = RESULTS) -> str:
    """Returns the page with its tables as the results have them."""
    return PLACE.sub(lambda place: _placed(place[1], results), page)


def _placed(name: str, results: Path) -> str:
    body = _dates(results) if name == "dates" else _tables(name.split("+"), results)
    return f"<!-- {name}: filled by python benchmarks/report.py -->\n\n{body}\n<!-- end of {name} -->\n"


def _tables(names: list[str], results: Path) -> str:
    first, *others = ((results / f"{name}.md").read_text() for name in names)
    return first + "".join("\n".join(other.splitlines()[HEAD:]) + "\n" for other in others)


def _dates(results: Path) -> str:
    lines = ["| results | last written | galton |", "|---|---|---|"]
    for path in sorted(results.glob("*.json")):
        about = json.loads(path.read_text())
        lines.append(f"| {path.stem} | {about['date']} | {about['versions']['galton']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes docs/benchmarks.md."""
    files.write_text(PAGE, filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
