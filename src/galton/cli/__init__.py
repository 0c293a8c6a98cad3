"""The command line: `galton COMMAND`. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from galton.cli.groups import grouped
from galton.cli.naming import Command
from galton.cli.running import new_app, run

app = new_app(
    "galton", "Plan, certify and run differentially private training with correlated noise and balls-in-bins batches."
)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a command, with options in groups and errors that name them as they are typed."""
    return app.command(cls=Command)(grouped(function))


def main() -> NoReturn:
    """Runs the command line."""
    run("galton", _main)


def _main() -> int | None:
    from galton.cli import accounting, audit, comparison, optimization, plan, report  # noqa: F401

    return app(sys.argv[1:] or ["--help"], standalone_mode=False)
