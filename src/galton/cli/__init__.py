"""The command line: `galton COMMAND`. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import sys
from typing import NoReturn

from galton.cli.app import PROGRAM, app
from galton.cli.running import run


def main() -> NoReturn:
    """Runs the command line."""
    run(PROGRAM, _main)


def load_commands() -> None:
    """Imports the modules of all commands, which add them to the app."""
    from galton.cli import (  # noqa: F401
        accounting,
        audit,
        budget,
        comparison,
        explorer,
        optimization,
        plan,
        report,
        signing,
        training,
    )


def _main() -> int | None:
    from galton.cache import default_cache
    from galton.programs import compile_quickly, keep_programs

    load_commands()
    compile_quickly()
    keep_programs(default_cache().folder / "programs")
    return app(sys.argv[1:] or ["--help"], prog_name=PROGRAM, standalone_mode=False)
