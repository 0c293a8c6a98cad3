"""The command explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.options import listed
from galton.errors import GaltonError, InvalidArgument, probability
from galton.guarantee import check_epsilon
from galton.progress import progress_bar

_EPSILONS, _DELTAS = "0.5,1,2,4,8", "1e-5"
_OWN = "; required for a grid of your own"
_SHIPPED = "the grid that comes with galton"
_EXAMPLE = "galton explore --examples 50000 --batch-size 500,1000 --epochs 5,20"


@command
def explore(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write the page to (HTML).")] = Path(
        "explorer.html"
    ),
    examples: Annotated[
        int | None, typer.Option(help=f"Number of examples in your data{_OWN}.", show_default=_SHIPPED)
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            "--batch-sizes",
            help=f"Expected batch sizes, separated by commas{_OWN}.",
            show_default=_SHIPPED,
        ),
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option("--epochs", "-e", help=f"Passes over the data, separated by commas{_OWN}.", show_default=_SHIPPED),
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option(
            "--epsilons",
            "--epsilon",
            help="Epsilons of a grid of your own, separated by commas.",
            show_default=_EPSILONS,
        ),
    ] = None,
    deltas: Annotated[
        str | None,
        typer.Option(
            "--deltas", "--delta", help="Deltas of a grid of your own, separated by commas.", show_default=_DELTAS
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write an HTML page with sliders: what each mechanism costs.

    Without a grid of your own it shows figures that come with galton, at once. With one, they are computed: minutes for
    every combination of delta, batch size and epochs. Ctrl-C keeps what is done, and the same command goes on.
    """
    given = {"--examples": examples, "--batch-size": batch_sizes, "--epochs": epochs}
    missing = [name for name, value in given.items() if value is None]
    shipped = len(missing) == len(given) and epsilons is None and deltas is None
    with progress_bar() as progress:
        from galton.explorer import Axes, compute_results, shipped_results, write_explorer
        from galton.report.write import check_output

        check_output(output)
        all_epsilons = options.numbers("epsilons", epsilons or _EPSILONS)
        for index, epsilon in enumerate(all_epsilons):
            check_epsilon(f"epsilons[{index}]", epsilon)
        all_deltas = options.numbers("deltas", deltas or _DELTAS)
        for index, delta in enumerate(all_deltas):
            probability(f"deltas[{index}]", delta)
        if shipped:
            results = shipped_results()
        elif examples is None or batch_sizes is None or epochs is None:
            raise GaltonError(f"{listed(missing, 'and')} must be given, for a grid of your own; for example {_EXAMPLE}")
        else:
            axes = Axes.of_run(
                examples,
                options.numbers("batch_sizes", batch_sizes),
                [_whole("epochs", number) for number in options.numbers("epochs", epochs)],
                all_epsilons,
                all_deltas,
            )
            try:
                results = compute_results(axes, examples, progress=progress)
            except KeyboardInterrupt:
                options.warn("figures that are done are kept: the same command goes on from there")
                raise
        write_explorer(results, output)
    if as_json:
        return show.print_json({"path": str(output), "points": results.axes.points})
    return show.print_table("explorer", [("points", f"{results.axes.points:,}"), ("written", str(output))])


def _whole(name: str, number: float) -> int:
    if not number.is_integer():
        raise InvalidArgument(name, number, "must be whole numbers separated by commas")
    return int(number)
