"""The app that commands are added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from galton.cli.groups import grouped
from galton.cli.naming import Command, Sections
from galton.cli.running import new_app

PROGRAM = "galton"
SECTIONS = {
    "From a plan to a trained model": (
        *("plan", "verify", "report", "disclose", "audit", "sign", "keygen", "release", "fork", "stop"),
    ),
    "Several releases about the same data": ("compose", "budget"),
    "Choosing a mechanism": ("explore", "compare", "optimize"),
    "Accounting, step by step": ("calibrate", "certify", "epsilon", "delta", "profile"),
}
"""The commands in the order of their help."""


class _Group(Sections):
    sections = SECTIONS


app = new_app(
    PROGRAM,
    "Plan, certify and run differentially private training with correlated noise and balls-in-bins batches.",
    cls=_Group,
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version('galton')}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Takes the options that stand before a command; --version ends before this is called."""


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a command, with options in groups and errors that name them as they are typed."""
    return app.command(cls=Command)(grouped(function))
