"""The commands compose and budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Guarantee, no_less

if TYPE_CHECKING:
    from galton.budget import Composed

EVENTS = (
    "Releases: the folder of a plan; gaussian:sigma=S, the noise in units of what one example adds at most (l2 norm); "
    "laplace:scale=S; dp:epsilon=E,delta=D for a mechanism of which only its guarantee is known; each with count=N for "
    "several, gaussian with probability=P for Poisson samples; or FILE.json, an event of dp-accounting or a budget "
    "file."
)
Events = Annotated[list[str], typer.Argument(metavar="RELEASE...", help=EVENTS)]
Failure = Annotated[
    float | None,
    typer.Option(
        help="Probability that the samples of the analysis may mislead with, all releases together; delta includes it.",
        show_default="0.0015 * delta",
    ),
]


@dataclass(frozen=True)
class CurveOptions:
    """How the curve of a run is sampled."""

    sampler: options.SamplerName = "auto"
    samples: Annotated[
        int | None, typer.Option(help="Most samples for six neighbouring epsilons of a curve.", show_default="131072")
    ] = None
    rel_width: options.RelWidth = 0.02


@command
def compose(
    *,
    events: Events,
    delta: Annotated[
        float | None, typer.Option(help="Find epsilon at this delta.", show_default="none: give --epsilon")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Find delta at this epsilon.", show_default="none: give --delta")
    ] = None,
    adjacency: Annotated[
        str,
        typer.Option(
            help=f"Which data sets count as neighbours: {options.listed(Adjacency.names())}.",
            show_default="that of the plans, or add-or-remove",
            autocompletion=options.starting(Adjacency.names()),
        ),
    ] = "",
    failure: Failure = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write one printable page to (HTML), for reviewers.", show_default="no file"
        ),
    ] = None,
    settings: CurveOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Find the guarantee of several releases about the same data.

    JSON and the page have what reviewers ask for: advantage, true-positive rates, epsilon at other deltas, mu, rho.
    """
    if delta is not None and epsilon is not None:
        raise InvalidArgument("epsilon", epsilon, "give --delta or --epsilon, not both")
    if delta is None and epsilon is None:
        raise InvalidArgument("delta", delta, "must be given, to find epsilon; or --epsilon, to find delta")
    known = Adjacency(adjacency) if adjacency else None
    with execution.options(
        sampler=settings.sampler, samples=settings.samples, rel_width=settings.rel_width
    ) as accounting_options:
        from galton import budget
        from galton.report import disclose_composition, write_sheet
        from galton.report.write import check_output

        if output is not None:
            check_output(output)
        composed = budget.compose(
            events, epsilon=epsilon, delta=delta, adjacency=known, failure=failure, options=accounting_options
        )
        disclosure = disclose_composition(composed) if as_json or output is not None else None
        if disclosure is not None and output is not None:
            write_sheet(disclosure, output)
    if disclosure is not None and as_json:
        told = disclosure.to_json()
        return show.print_json(composed.to_json() | {name: told[name] for name in ("disclosure", "risk")})
    return show.print_table("composition", composed_rows(composed))


@command
def budget(
    *,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The budget file of a data set, FILE.json.")],
    events: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RELEASE...",
            help=f"What is to be spent, before it is released. {EVENTS}",
            show_default="none: show the budget",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Begin a new file: epsilon of all releases together.", show_default="none")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Begin a new file: delta of all releases together.", show_default="none")
    ] = None,
    adjacency: Annotated[
        str,
        typer.Option(
            help=f"Of a new file: {options.listed(Adjacency.names())}.",
            show_default="add-or-remove",
            autocompletion=options.starting(Adjacency.names()),
        ),
    ] = "",
    label: Annotated[str, typer.Option(help="What the releases are, in words.", show_default="their names")] = "",
    settings: CurveOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Write down what is released about a data set, within a guarantee for all of it.

    With --epsilon and --delta a new file is begun. Releases are added if the guarantee has room for them; else nothing
    is spent, and the exit code is 2.
    """
    with execution.options(
        sampler=settings.sampler, samples=settings.samples, rel_width=settings.rel_width
    ) as accounting_options:
        from galton.budget import Budget

        file = Budget(path)
        if epsilon is not None or delta is not None:
            if epsilon is None:
                raise InvalidArgument("epsilon", epsilon, "must be given with --delta, to begin a new file")
            if delta is None:
                raise InvalidArgument("delta", delta, "must be given with --epsilon, to begin a new file")
            file.create(Guarantee(epsilon, delta, Adjacency(adjacency or Adjacency.ADD_OR_REMOVE)))
        elif adjacency:
            raise InvalidArgument("adjacency", adjacency, "is for a new file: it needs --epsilon and --delta")
        composed = file.spend(events, label, accounting_options) if events else file.composed()
        account = file.read()
    spent = [{"label": entry.label, "created": entry.created} for entry in account.spent]
    values = {"path": str(path), "guarantee": account.guarantee.to_json(), "spent": spent}
    if as_json:
        return show.print_json(values | composed.to_json())
    rows = [("budget", str(account.guarantee)), *((entry["created"], entry["label"]) for entry in spent)]
    return show.print_table("budget", [*rows, *composed_rows(composed)])


def composed_rows(composed: Composed) -> list[tuple[str, str]]:
    """Returns a composition as rows of a table."""
    return [
        *((f"release {index}", words) for index, words in enumerate(composed.events, 1)),
        ("epsilon", no_less(composed.epsilon, 5)),
        ("delta", f"{no_less(composed.delta, 4)}, {composed.adjacency} adjacency"),
        ("failure probability", f"{composed.analysis_failure:.2g}, which delta includes"),
        ("truncation", f"{composed.truncation_delta:.2g}, which delta includes"),
        ("statement", composed.statement),
        ("time", f"{composed.seconds:.1f} s, {composed.samples:,} samples, seed {composed.seed}"),
    ]
