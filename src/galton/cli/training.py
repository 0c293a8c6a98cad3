"""The commands release, fork and stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")]


@command
def release(
    *,
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Zip file to write.")],
    as_json: options.AsJson = False,
) -> None:
    """Pack the model of a run and its signed record for others.

    Nothing else of the run's folder is in the file: the folder has the seed of the batches and the keys of the noise,
    and must not be published.
    """
    from galton.training.record import release_run

    record = release_run(run, output)
    if as_json:
        return show.print_json({"path": str(output), "record": record})
    guarantee, model = record["guarantee"], record["model"]
    rows = [
        ("model", f"{model['file']}, after {model['round']} of {record['rounds_planned']} rounds"),
        ("guarantee", f"({guarantee['epsilon']:g}, {guarantee['delta']:g})-DP, {guarantee['adjacency']} adjacency"),
        *([] if record["together"] is None else [("together", record["together"])]),
        ("written", f"{output}: {model['file']} and record.json"),
    ]
    return show.print_table(f"run {run}", rows)


@command
def fork(
    *,
    run: Run,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="New folder for the copy.")],
    as_json: options.AsJson = False,
) -> None:
    """Copy a run to a new folder in which it goes on by itself.

    The copy has noise of its own in all rounds that have had none so far. Each of the two runs alone has the plan's
    guarantee; what both release together is less private, and the record of the copy says by how much.
    """
    from galton.training.folder import fork_run

    path = fork_run(run, new)
    if as_json:
        return show.print_json({"path": str(path)})
    words = "rounds without noise so far get noise of its own; if both runs go on, together they are less private"
    return show.print_table(f"run {run}", [("fork", str(path)), ("noise", words)])


@command
def stop(
    *,
    run: Run,
    plan: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run's plan.")],
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help="Confirm that the run ends here for a reason that has nothing to do with the data or with what was "
            "computed from it.",
        ),
    ] = False,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """End a run for good, with the smaller epsilon of its rounds.

    The record then states what the rounds that were done guarantee, proved anew; no round follows.
    """
    with execution.options() as accounting_options:
        from galton.training.stop import stop_run

        prefix = stop_run(run, plan, independent=independent, options=accounting_options)
    if as_json:
        return show.print_json({"path": str(run)} | prefix.to_json())
    rows = [("rounds done", f"{prefix.rounds} of {prefix.planned}"), ("guarantee", prefix.statement)]
    return show.print_table(f"run {run}", [*rows, ("written", f"{run}/record.json")])
