"""The command line: `python -m reproduction NAME`, and `python -m reproduction fetch-cifar` for the data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from galton.cli import options, show
from galton.cli.naming import Command
from galton.cli.running import new_app, run
from galton.errors import InvalidArgument
from galton.progress import progress_bar
from reproduction.cifar.command import FETCH, STUDIES, CifarOptions, fetch_app, print_result, run_study

if TYPE_CHECKING:
    from galton.sampling.schedule import Progress
    from reproduction.points import Point, Question
    from reproduction.result import Recipe, Result

    Make = Callable[[Recipe, Progress], tuple[Result, list[Path]] | None]

PROGRAM = "python -m reproduction"
FOLDER = Path(__file__).parent / "results"
"""Where results go unless --output says otherwise: into the checkout, wherever it is run from."""

app = new_app("reproduction", "")


def main() -> NoReturn:
    """Runs the command line."""
    run("reproduction", _main)


def _main() -> int | None:
    words = sys.argv[1:]
    if words[:1] == [FETCH]:
        return fetch_app(words[1:], prog_name=f"{PROGRAM} {FETCH}", standalone_mode=False)
    return app(words, prog_name=PROGRAM, standalone_mode=False)


@app.command(cls=Command)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The result to regenerate, or all; --list names them.", show_default=False),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List all results and about how long they take, and exit.")
    ] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to write the files to.", show_default="reproduction/results"),
    ] = FOLDER,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute everything anew, whatever the cache or the folder holds.")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Write texts and plots anew from the CSV files in the folder.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="Keep the rows in the folder; compute those of redrawn bins that are not there."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; it is kept with the result.")] = 1,
    as_json: options.AsJson = False,
    epsilon: Annotated[
        str, typer.Option(help="For cifar: epsilons, separated by commas.", show_default="0.5,1,2,4,8")
    ] = "",
    method: Annotated[
        str,
        typer.Option(
            help="For cifar: methods, separated by commas, from bandmf-poisson, bandmf-balls-in-bins, blt, toeplitz, "
            "scaled-blt, redrawn, dpsgd-poisson or unamplified; for cifar-practical from cut-balls-in-bins, "
            "shuffling or unamplified.",
            show_default="all",
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="For cifar: network to train, vgg or cnn.", show_default="cnn")] = "",
    trials: Annotated[
        int | None,
        typer.Option(help="For cifar: runs per method and epsilon at the best learning rate.", show_default="2"),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            help="For cifar: learning rates to choose from, separated by commas.",
            show_default="three that depend on epsilon",
        ),
    ] = "",
    cooldown: Annotated[
        float | None,
        typer.Option(help="For cifar: share of the rounds after which the learning rate falls.", show_default="0.25"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="For cifar: folder that holds the data.", show_default="where fetch-cifar puts it"),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="For cifar: folder for runs under way.", show_default="cifar-runs/ in galton's cache"),
    ] = None,
) -> None:
    """Regenerate a table or figure of the paper: CSV, plot, text, and where it comes from.

    `all` makes everything but CIFAR-10 and can be stopped and started again: what the same code has made already is
    left as it is, and points that were computed are not computed twice.

    `cifar` and `cifar-practical` train: every run has its plan, can be stopped and goes on, and is kept. The data is
    fetched by `python -m reproduction fetch-cifar`, which has a --help of its own.
    """
    from galton.cache import default_cache
    from reproduction.points import Maker
    from reproduction.registry import ALL, RESULTS, find_results
    from reproduction.writing import complete, is_made, regenerate
    from reproduction.writing import redraw as draw_again

    cifar_options = CifarOptions(epsilon, method, model, trials, rate, cooldown, data, runs)
    if list_:
        cifar_options.refuse("--list")
        return _list(RESULTS, as_json)
    if name is None:
        raise InvalidArgument("name", None, f"must be one of {', '.join((*RESULTS, *STUDIES, ALL))} ({PROGRAM} --list)")
    if name == FETCH:
        raise InvalidArgument("name", name, f"must come first: {PROGRAM} {FETCH} [options]")
    if output.exists() and not output.is_dir():
        raise InvalidArgument("output", str(output), "must be a folder")
    if fresh and redraw:
        raise InvalidArgument("redraw", redraw, "computes nothing, so that there is nothing to compute afresh")
    if missing and (fresh or redraw):
        raise InvalidArgument("missing", missing, "keeps rows and computes others: leave out --fresh and --redraw")
    if missing and name in STUDIES:
        raise InvalidArgument("missing", missing, f"is not for {name}, which runs what is missing anyway")
    if name in STUDIES:
        if seed != 1:
            raise InvalidArgument("seed", seed, f"is not for {name}: the seed of a run follows from its name")
        if fresh:
            raise InvalidArgument(
                "fresh", fresh, f"is not for {name}, which runs what is missing: take another --output"
            )
        return run_study(name, cifar_options, output, redraw, as_json)
    cifar_options.refuse(name)
    recipes = find_results(name, tuple(STUDIES))
    if missing and not any(recipe.further for recipe in recipes):
        able = ", ".join(recipe.name for recipe in RESULTS.values() if recipe.further)
        raise InvalidArgument(
            "missing", missing, f"is not for {name}, which has no redrawn bins: only for {able} and all"
        )
    cache = default_cache().emptied() if fresh else default_cache()
    memory: dict[Question, Point] = {}  # serves the next result, even where the cache must not

    def make(recipe: Recipe, progress: Progress) -> tuple[Result, list[Path]] | None:
        maker = Maker(cache, seed, progress, memory)
        if redraw:
            return draw_again(recipe, output)
        if missing:
            return complete(recipe, maker, output) if recipe.further else None
        if name == ALL and not fresh and is_made(recipe, maker, output):
            return None
        return regenerate(recipe, maker, output)

    if name == ALL:
        return _make_all(recipes, make, output, as_json)
    with progress_bar() as progress:
        written = make(recipes[0], progress)
    assert written is not None
    result, paths = written
    return print_result(result, paths, output, as_json)


def _list(results: dict[str, Recipe], as_json: bool) -> None:
    if as_json:
        titles = {recipe.name: recipe.title for recipe in results.values()}
        return show.print_json(
            {"results": titles | STUDIES, "minutes": {recipe.name: recipe.minutes for recipe in results.values()}}
        )
    rows = [(recipe.name, f"{recipe.title} (about {recipe.minutes:g} min)") for recipe in results.values()]
    rows += [(name, f"{words}; not in `all`") for name, words in STUDIES.items()]
    everything = "all of them; stop it with Ctrl-C, start it again and it goes on (under 6 hours on two cores)"
    data = f"no result: gets the data for cifar and cifar-practical ({PROGRAM} {FETCH} --help)"
    return show.print_table("results of the paper", [*rows, ("all", everything), (FETCH, data)])


def _make_all(recipes: list[Recipe], make: Make, output: Path, as_json: bool) -> None:
    """Makes one result after the other; one line each on stderr, so that a log shows how far it is."""
    begun, outcomes = time.perf_counter(), dict[str, Any]()
    with progress_bar() as progress:
        for index, recipe in enumerate(recipes):
            progress(f"all | {recipe.name}", index, len(recipes))
            start = time.perf_counter()
            written = make(recipe, progress)
            words = (
                "already made"
                if written is None
                else f"{len(written[0].rows)} rows, {time.perf_counter() - start:.0f} s"
            )
            typer.echo(f"reproduction: {recipe.name} ({index + 1} of {len(recipes)}): {words}", err=True)
            outcomes[recipe.name] = "kept" if written is None else "made"
        progress("all | done", len(recipes), len(recipes))
    seconds = time.perf_counter() - begun
    if as_json:
        return show.print_json({"results": outcomes, "path": str(output), "seconds": seconds})
    return show.print_table("", [*outcomes.items(), ("written to", str(output)), ("time", f"{seconds:.0f} s")])
