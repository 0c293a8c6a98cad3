"""How a command line ends: in an exit code, and in one line on stderr if something is wrong."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

import typer

from galton.errors import GaltonError

# Usage errors of the parser under typer, which newer versions of typer bring along themselves.
_USAGE = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_INTERRUPTED = 130


def new_app(name: str, words: str) -> typer.Typer:
    """Returns an app without commands, for `run`; `words` are its help."""
    return typer.Typer(
        name=name, help=words, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )


def run(program: str, command: Callable[[], int | None]) -> NoReturn:
    """Runs a command line to its end; bad input ends in one line on stderr and exit code 2, never in a traceback.

    Args:
      program: what the line on stderr begins with.
      command: calls an app with `standalone_mode=False`, and returns what that does.
    """
    try:
        warnings.simplefilter("ignore")
        code = command() or 0
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except GaltonError as error:
        _fail(program, str(error), 2)
    except (KeyboardInterrupt, typer.Abort) as stop:
        _fail(program, str(stop) or "interrupted", _INTERRUPTED)
    except (MemoryError, OverflowError, RecursionError) as error:
        _fail(program, f"the input is too large for this machine ({type(error).__name__})", 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if isinstance(error, _USAGE):
            _fail(program, str(error.format_message()), 2)  # type: ignore[attr-defined]
        if os.environ.get("GALTON_DEBUG"):
            raise
        _fail(program, f"unexpected {type(error).__name__}: {error} (a bug; GALTON_DEBUG=1 shows where)", 1)


def _fail(program: str, message: str, code: int) -> NoReturn:
    print(f"{program}: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
    sys.exit(code)
