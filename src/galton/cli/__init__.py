"""The command line: `galton COMMAND`.

Commands import what they need when they run, so that --help is quick; before that, only what their help is made of.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from galton.cli.groups import grouped
from galton.cli.naming import Command
from galton.errors import GaltonError

# Usage errors of the parser under typer, which newer versions of typer bring along themselves.
_USAGE = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_INTERRUPTED = 130

app = typer.Typer(
    name="galton",
    help="Plan, certify and run differentially private training with correlated noise and balls-in-bins batches.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a command, with options in groups and errors that name them as they are typed."""
    return app.command(cls=Command)(grouped(function))


def main() -> None:
    """Runs the command line; bad input ends in one line on stderr and exit code 2, never in a traceback."""
    try:
        from galton.cli import accounting, audit, cifar, comparison, optimization, paper, plan, report  # noqa: F401

        warnings.simplefilter("ignore")
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except GaltonError as error:
        _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", _INTERRUPTED)
    except (MemoryError, OverflowError, RecursionError) as error:
        _fail(f"the input is too large for this machine ({type(error).__name__})", 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if isinstance(error, _USAGE):
            _fail(str(error.format_message()), 2)  # type: ignore[attr-defined]
        if os.environ.get("GALTON_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (a bug; GALTON_DEBUG=1 shows where)", 1)


def _fail(message: str, code: int) -> None:
    print("galton: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
    sys.exit(code)
