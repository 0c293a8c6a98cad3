"""How a command line ends: in an exit code, and in a line on stderr if something is wrong; with --json also as JSON."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

import typer
from typer.core import TyperGroup

from galton.cli.show import print_json
from galton.errors import GaltonError, InvalidArgument

# Usage errors of the parser under typer, which newer versions of typer bring along themselves.
_USAGE = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_INTERRUPTED = 130


_AS_WIDE_AS_THE_TERMINAL = 1 << 16


def new_app(name: str, words: str, *, cls: type[TyperGroup] = TyperGroup, add_completion: bool = False) -> typer.Typer:
    """Returns an app without commands, for `run`; -h is short for --help, which is as wide as the terminal.

    Args:
      name: of the program.
      words: its help.
      cls: how commands are listed.
      add_completion: whether it can install and show the completion of a shell.
    """
    return typer.Typer(
        name=name,
        help=words,
        cls=cls,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _AS_WIDE_AS_THE_TERMINAL},
    )


def run(program: str, command: Callable[[], int | None]) -> NoReturn:
    """Runs a command line to its end; bad input ends in one line on stderr and exit code 2, never in a traceback.

    With --json among the words, an error is a JSON object on stdout too: {"error": {"type", "message", "exit_code"}},
    with "argument" and "remedy" where a single argument is to blame.

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
        _fail(program, error, str(error), 2)
    except (KeyboardInterrupt, typer.Abort) as stop:
        _fail(program, stop, str(stop) or "interrupted", _INTERRUPTED)
    except (MemoryError, OverflowError, RecursionError) as error:
        _fail(program, error, f"the input is too large for this machine ({type(error).__name__})", 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if isinstance(error, _USAGE):
            _fail(program, error, str(error.format_message()), 2)  # type: ignore[attr-defined]
        if os.environ.get("GALTON_DEBUG"):
            raise
        _fail(program, error, f"unexpected {type(error).__name__}: {error} (a bug; GALTON_DEBUG=1 shows where)", 1)


def _fail(program: str, error: BaseException, message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201
    if "--json" in sys.argv[1:]:
        values: dict[str, str | int] = {"type": type(error).__name__, "message": line, "exit_code": code}
        if isinstance(error, InvalidArgument):
            values |= {"argument": error.argument, "remedy": " ".join(error.remedy.split())}
        print_json({"error": values})
    sys.exit(code)
