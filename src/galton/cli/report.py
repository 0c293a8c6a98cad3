"""The command report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.plan import Folder


@command
def report(
    *,
    folder: Folder,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write the page to (HTML).", show_default="DIR/report.html"),
    ] = None,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Write an HTML page about a plan.

    It shows what the plan guarantees, why, and at what cost.
    """
    with execution.options() as accounting_options:
        from galton.plan import load_plan
        from galton.report import REPORT, write_report

        plan = load_plan(folder)
        path = write_report(plan, output or folder / REPORT, accounting_options)
    if as_json:
        return show.print_json({"path": str(path), "plan": plan.digest})
    return show.print_table("report", [("plan", plan.digest), ("written", str(path))])
