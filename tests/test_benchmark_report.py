"""docs/benchmarks.md has the figures of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.report import PAGE, filled

PLACES = re.compile(r"<!-- (\S+): filled by python benchmarks/report\.py -->")


def test_the_page_has_the_committed_figures() -> None:
    """If this fails: python benchmarks/report.py."""
    page = PAGE.read_text()
    assert page == filled(page)
    assert {"certificates", "peers", "redrawn", "many_bins+million", "dates"} <= set(PLACES.findall(page))


def test_tables_are_filled_and_words_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("| x |\n|---|\n| 1 |\n")
    (tmp_path / "b.md").write_text("| x |\n|---|\n| 2 |\n")
    (tmp_path / "a.json").write_text(json.dumps({"date": "2026-01-02", "versions": {"galton": "9.9"}}))
    begin = "<!-- {}: filled by python benchmarks/report.py -->\n"
    ends = "<!-- end of a+b -->", "<!-- end of dates -->"
    page = f"words\n\n{begin.format('a+b')}old\n{ends[0]}\n\nmore\n\n{begin.format('dates')}{ends[1]}\n"
    expected = (
        f"words\n\n{begin.format('a+b')}\n| x |\n|---|\n| 1 |\n| 2 |\n\n<!-- end of a+b -->\n\nmore\n\n"
        f"{begin.format('dates')}\n| results | last written | galton |\n|---|---|---|\n| a | 2026-01-02 | 9.9 |\n\n"
        "<!-- end of dates -->\n"
    )
    assert filled(page, tmp_path) == expected == filled(expected, tmp_path)
