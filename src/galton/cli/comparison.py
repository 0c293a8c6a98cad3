"""The command compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.options import listed
from galton.errors import GaltonError
from galton.plots import FORMATS, check_plot_path
from galton.progress import progress_bar

if TYPE_CHECKING:
    from galton.comparison import Comparison, Row

_REQUIRED = "; required, unless --list is given."
_EXAMPLE = "galton compare --bins 100 --epochs 10 --epsilons 1,4 --delta 1e-5"


@command
def compare(
    bins: Annotated[
        int | None, typer.Option("--bins", "-b", help=f"Number of batches per epoch{_REQUIRED}", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", "-e", help=f"Number of passes over the data{_REQUIRED}", show_default=False),
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option(
            "--epsilons",
            "--epsilon",
            help=f"Epsilons to compare at, separated by commas{_REQUIRED}",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help=f"Delta of the privacy guarantee{_REQUIRED}", show_default=False)
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List all mechanisms and what their figures are worth, and exit.")
    ] = False,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="Names of mechanisms, separated by commas, or all; --list shows them.",
            show_default="all but the slow ones",
        ),
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Mechanism that errors are shown relative to; --list shows the names.")
    ] = "bandmf-cyclic-poisson",
    workload: options.WorkloadName = "prefix",
    plot: Annotated[
        Path | None,
        typer.Option(help=f"File to plot errors against epsilon to ({listed(FORMATS)}).", show_default="no plot"),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute everything anew, whatever the cache holds.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare the error, noise and cost of mechanisms.

    Every figure says what it is worth. A repeat is instant.
    """
    if list_:
        from galton.comparison import MECHANISMS

        if as_json:
            return show.print_json(
                {"mechanisms": {mechanism.name: mechanism.description for mechanism in MECHANISMS.values()}}
            )
        slow = {True: "; slow, on request", False: ""}
        lines = [
            (mechanism.name, f"{mechanism.description}: {mechanism.statement.standing.value}{slow[mechanism.slow]}")
            for mechanism in MECHANISMS.values()
        ]
        return show.print_table("mechanisms", lines)
    if bins is None or epochs is None or epsilons is None or delta is None:
        given = {"bins": bins, "epochs": epochs, "epsilons": epsilons, "delta": delta}
        missing = [f"--{name}" for name, value in given.items() if value is None]
        raise GaltonError(f"{_listed(missing)} required, unless --list is given; for example {_EXAMPLE}")
    if plot is not None:
        check_plot_path(plot)
    rounds = options.total_rounds(bins, epochs, None)
    levels = options.numbers("epsilons", epsilons)
    with progress_bar() as progress:
        from galton.cache import default_cache
        from galton.cli.outputs import keep
        from galton.comparison import DEFAULT, MECHANISMS, plot_comparison
        from galton.comparison import compare as run
        from galton.workloads import parse_workload

        matrix = None if workload == "prefix" else parse_workload(workload, rounds)
        names = None if mechanisms is None else list(MECHANISMS) if mechanisms == "all" else mechanisms.split(",")
        comparison = run(
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
    written = plot is None or keep(lambda path: plot_comparison(comparison, path), plot)
    if as_json:
        show.print_json(comparison.to_json() | {"plot": str(plot) if plot else None})
        raise typer.Exit(0 if written else 2)
    header = (
        "mechanism",
        *(f"eps {epsilon:g}" for epsilon in comparison.epsilons),
        "bands",
        "buffers",
        "mults",
        "figure",
    )
    rows = []
    for name in comparison.mechanisms:
        mechanism_rows = [comparison.row(name, epsilon) for epsilon in comparison.epsilons]
        first = next(row for row in mechanism_rows if row is not None)
        bands = {str(row.bands) for row in mechanism_rows if row is not None and row.bands is not None}
        rows.append(
            (
                name,
                *(_cell(comparison, row) for row in mechanism_rows),
                "-".join(sorted(bands, key=int))
                if len(bands) <= 1
                else f"{min(bands, key=int)}..{max(bands, key=int)}",
                str(max(row.memory for row in mechanism_rows if row is not None)),
                str(max(row.operations for row in mechanism_rows if row is not None)),
                first.statement.standing.value + ("" if first.statement.is_guarantee else ": NOT a guarantee"),
            )
        )
    passes = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}"
    words = f"{comparison.workload} root-mean-square error, {passes} of {bins} batches, delta {delta:g}"
    show.print_grid(words, header, rows)
    notes = [(name, f"left out: {reason}") for name, reason in comparison.skipped.items()] + [
        ("slow ones", "not computed: " + ", ".join(name for name in MECHANISMS if name not in DEFAULT))
        for _ in range(mechanisms is None)
    ]
    notes.append(("errors", f"in brackets relative to {comparison.baseline}"))
    notes.append(("columns", "buffers: model copies the noise keeps; mults: multiplications a parameter and round"))
    notes.append(("time", f"{comparison.seconds:.1f} s"))
    show.print_table("", notes)
    raise typer.Exit(0 if written else 2)


def _listed(options: list[str]) -> str:
    """Options as the subject of a sentence."""
    *others, last = options
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _cell(comparison: Comparison, row: Row | None) -> str:
    """The error, and in brackets relative to the baseline."""
    if row is None:
        return "-"
    relative = comparison.relative(row)
    return f"{row.rmse:.4g}" + ("" if relative is None else f" ({relative:.2f})")
