"""The app that commands are added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from galton.cli.groups import grouped
from galton.cli.naming import Command
from galton.cli.running import new_app

app = new_app(
    "galton", "Plan, certify and run differentially private training with correlated noise and balls-in-bins batches."
)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a command, with options in groups and errors that name them as they are typed."""
    return app.command(cls=Command)(grouped(function))
