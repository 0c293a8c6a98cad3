"""The command line, run in this process."""

from __future__ import annotations

from reproduction.command import main
from tests.test_cli import Result, run


def command(*words: str) -> Result:
    """Runs `python -m reproduction` with these arguments."""
    return run(main, "reproduction", *words)
