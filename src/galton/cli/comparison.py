"""The command compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command

if TYPE_CHECKING:
    from galton.comparison import Comparison, Row


@command
def compare(
    bins: options.Bins = 0,
    epochs: options.Epochs = 0,
    epsilons: Annotated[
        str, typer.Option("--epsilons", "--epsilon", help="One epsilon, or several separated by commas.")
    ] = "",
    delta: options.Delta = 0.0,
    list_: Annotated[bool, typer.Option("--list", help="Name all mechanisms and their standing.")] = False,
    mechanisms: Annotated[
        str | None, typer.Option(help="Names separated by commas, or all [all but the slow ones]; --list shows them.")
    ] = None,
    baseline: Annotated[str, typer.Option(help="Mechanism that errors are relative to.")] = "bandmf-cyclic-poisson",
    workload: options.WorkloadName = "prefix",
    plot: Annotated[Path | None, typer.Option(help="Draw errors against epsilon (.png, .pdf, .svg).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute anew what the cache holds.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """All mechanisms side by side: error, noise, cost, and what each figure is worth. A repeat is instant."""
    from galton.cache import default_cache
    from galton.comparison import DEFAULT, MECHANISMS, plot_comparison
    from galton.comparison import compare as run
    from galton.plots import check_plot_path
    from galton.workloads import parse_workload

    if list_:
        if as_json:
            return show.print_json({"mechanisms": {one.name: one.description for one in MECHANISMS.values()}})
        slow = {True: "; slow, on request", False: ""}
        lines = [
            (one.name, f"{one.description}: {one.statement.standing.value}{slow[one.slow]}")
            for one in MECHANISMS.values()
        ]
        return show.print_table("mechanisms", lines)
    if plot is not None:
        check_plot_path(plot)
    names = None if mechanisms is None else list(MECHANISMS) if mechanisms == "all" else mechanisms.split(",")
    rounds = options.total_rounds(bins, epochs, None)
    matrix = None if workload == "prefix" else parse_workload(workload, rounds)
    levels = options.numbers("epsilons", epsilons)
    with show.progress_bar() as progress:
        found = run(
            bins,
            epochs,
            levels,
            delta,
            names,
            matrix,
            baseline,
            default_cache().emptied() if fresh else None,
            lambda what, done, total: progress(f"comparing | {what}", done, total),
        )
    if plot is not None:
        plot_comparison(found, plot)
    if as_json:
        return show.print_json(found.to_json() | {"plot": str(plot) if plot else None})
    header = ("mechanism", *(f"eps {one:g}" for one in found.epsilons), "bands", "buffers", "mults", "figure")
    rows = []
    for name in found.mechanisms:
        own = [found.row(name, one) for one in found.epsilons]
        first = next(row for row in own if row is not None)
        bands = {str(row.bands) for row in own if row is not None and row.bands is not None}
        rows.append(
            (
                name,
                *(_cell(found, row) for row in own),
                "-".join(sorted(bands, key=int))
                if len(bands) <= 1
                else f"{min(bands, key=int)}..{max(bands, key=int)}",
                str(max(row.memory for row in own if row is not None)),
                str(max(row.operations for row in own if row is not None)),
                first.statement.standing.value + ("" if first.statement.is_guarantee else ": NOT a guarantee"),
            )
        )
    words = f"{found.workload} root-mean-square error, {epochs} epochs of {bins} batches, delta {delta:g}"
    show.print_grid(words, header, rows)
    notes = [(one, f"left out: {reason}") for one, reason in found.skipped.items()] + [
        ("slow ones", "not computed: " + ", ".join(name for name in MECHANISMS if name not in DEFAULT))
        for _ in range(mechanisms is None)
    ]
    notes.append(("errors", f"in brackets relative to {found.baseline}"))
    notes.append(("columns", "buffers: model copies the noise keeps; mults: multiplications a parameter and round"))
    notes.append(("time", f"{found.seconds:.1f} s"))
    return show.print_table("", notes)


def _cell(found: Comparison, row: Row | None) -> str:
    """The error, and in brackets relative to the baseline."""
    if row is None:
        return "-"
    relative = found.relative(row)
    return f"{row.rmse:.4g}" + ("" if relative is None else f" ({relative:.2f})")
