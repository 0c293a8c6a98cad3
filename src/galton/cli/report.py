"""The commands report and disclose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.plan import Folder
from galton.errors import InvalidArgument


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
        from galton.report import REPORT, disclose, privacy_curve, write_report

        plan = load_plan(folder)
        path = write_report(plan, output or folder / REPORT, accounting_options)
        if as_json:
            disclosure = disclose(plan, privacy_curve(plan, accounting_options))
    if as_json:
        return show.print_json({"path": str(path)} | disclosure.to_json())
    return show.print_table("report", [("plan", plan.digest), ("written", str(path))])


@command
def disclose(
    *,
    folder: Folder,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write one printable page to (HTML).", show_default="no file"),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Tell what reviewers of a plan ask for, in one table.

    Unit, adjacency, accountant, sampling, what is not covered; and the risk in numbers, with and without amplification.
    """
    if markdown and as_json:
        raise InvalidArgument("markdown", markdown, "is another output than JSON: leave out --markdown or --json")
    with execution.options() as accounting_options:
        from galton.plan import load_plan
        from galton.report import disclose, privacy_curve, write_sheet
        from galton.report.numbers import written
        from galton.report.write import check_output

        if output is not None:
            check_output(output)
        plan = load_plan(folder)
        disclosure = disclose(plan, privacy_curve(plan, accounting_options))
        if output is not None:
            write_sheet(disclosure, output)
    if as_json:
        return show.print_json({"path": str(output or folder)} | disclosure.to_json())
    if markdown:
        return typer.echo(disclosure.markdown(), nl=False)
    names, figures = disclosure.figures()
    show.print_table("disclosure", [(name, written(text)) for name, text in disclosure.rows])
    show.print_grid("upper limits", names, figures)
    return show.print_table("", [("note", written(note)) for note in disclosure.notes])
