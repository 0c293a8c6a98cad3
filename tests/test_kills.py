"""kill -9 at random moments: what benchmarks/kills.py would notice, and a small part of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import kills
from galton.strategies import save_strategy, square_root
from tests.marks import slow_after

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", slow_after(0, kills.jobs()))
def test_nothing_is_lost_or_left_over(name: str) -> None:
    """In a process of its own: it forks, which no process that has computed anything with JAX can."""
    script = [sys.executable, str(ROOT / "benchmarks" / "kills.py"), "--kills", "4", "--dry", "--jobs", name]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout


def test_files_that_are_not_whole_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    save_strategy(square_root(4), path)
    assert kills.damaged(tmp_path) == kills.readable(kills.check_strategy, path) == []
    path.write_text(path.read_text()[:-20])
    assert kills.damaged(tmp_path) != []
    (tmp_path / ".galton-x").mkdir()
    (tmp_path / ".galton-x" / "half.json").write_text("{")
    assert len(kills.damaged(tmp_path)) == 1
    assert kills.names(tmp_path) == {"strategy.json", ".galton-x/half.json"}
    assert kills.readable(kills.check_plot, path) != []


def test_promises_that_are_not_kept_are_noticed(tmp_path: Path) -> None:
    ledger, journal = tmp_path / "attempts.json", tmp_path / "noise.journal"
    assert kills.ledger_violations(ledger, {}) == []
    assert kills.ledger_violations(ledger, {"attempts": 1}) != []
    ledger.write_text(json.dumps({"target": [2, 1e-3]}))
    assert kills.ledger_violations(ledger, {"attempts": 2}) == []
    assert kills.ledger_violations(ledger, {"attempts": 3}) != []
    assert kills.journal_rounds(journal) == (0, 0)
    journal.write_text('{"format": "x"}\n{"batch": "a", "round": 0}\n{"saved": 1}\n{"batch": "b", "ro')
    assert kills.journal_rounds(journal) == (1, 1)
    training = kills.jobs()["training with JAX"]
    (tmp_path / "run").mkdir()
    journal.rename(tmp_path / "run" / "noise.journal")
    assert training.check(tmp_path, {"released": 1}) == []
    assert len(training.check(tmp_path, {"released": 2})) == 1
    assert len(training.check(tmp_path, {"released": 1, "saved": 1})) == 1  # its model is gone
