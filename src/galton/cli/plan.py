"""The commands plan and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.guarantee import Adjacency, Guarantee
from galton.strategies.grammar import PLAN

if TYPE_CHECKING:
    from galton.plan import Plan

REJECTED = 3
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a plan.")]


@command
def plan(
    *,
    examples: Annotated[int, typer.Option("--examples", "-n", help="Number of examples in the data set.")],
    batch_size: Annotated[float, typer.Option("--batch-size", help="Expected size of a batch.")],
    epochs: options.Epochs,
    epsilon: options.Epsilon,
    delta: options.Delta,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the plan.")],
    strategy: Annotated[
        str,
        typer.Option(help=f"C: {PLAN.help} [blt:4+scale, or what suits the batching]"),
    ] = "",
    batching: Annotated[
        str,
        typer.Option(
            help="balls-in-bins, balls-in-bins-streaming, poisson, cyclic-poisson, shuffle-once or fixed-order."
        ),
    ] = "balls-in-bins",
    accountant: Annotated[
        str, typer.Option(help="Analysis, if not the one made for the batching: unamplified, mmcc, allocation.")
    ] = "",
    clip_norm: Annotated[float, typer.Option(help="l2 norm that every example's gradient is clipped to.")] = 1.0,
    padded_batch_size: Annotated[
        int | None,
        typer.Option(help="Batches are padded to this; larger ones are truncated [truncation below 1e-12]."),
    ] = None,
    micro_batch_size: Annotated[int, typer.Option(help="Make the padded batch size a multiple of this.")] = 1,
    workload: options.WorkloadName = "prefix",
    adjacency: options.AdjacencyName = options.ADJACENCY,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Choose a strategy, calibrate the noise, certify the guarantee; write it all to one folder."""
    from galton.plan import make_plan, save_plan
    from galton.plan.folder import check_free

    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    check_free(output)
    with execution.options() as accounting_options:
        made = make_plan(
            guarantee,
            examples=examples,
            batch_size=batch_size,
            epochs=epochs,
            strategy=strategy,
            batching=batching,
            accountant=accountant,
            clip_norm=clip_norm,
            padded_batch_size=padded_batch_size,
            micro_batch_size=micro_batch_size,
            workload=workload,
            options=accounting_options,
        )
    save_plan(made, output)
    if as_json:
        return show.print_json(_summary(made, output))
    return show.print_table("plan", _rows(made, output))


@command
def verify(
    *,
    folder: Folder,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Check a plan: that no byte was changed, and that fresh samples prove its guarantee again. Exit code 3 if not."""
    from galton.plan import load_plan, verify_plan

    made = load_plan(folder)
    with execution.options() as accounting_options:
        found = verify_plan(made, accounting_options)
    if as_json:
        show.print_json(found.to_json() | {"path": str(folder)})
    else:
        rows = [
            ("integrity", f"every byte is as written, {made.digest[:15]}"),
            ("guarantee", made.statement),
            ("second look", found.words),
            ("verdict", "ACCEPTED" if found.accepted else "REJECTED"),
            ("time", f"{found.seconds:.1f} s"),
        ]
        show.print_table(f"plan {folder}", rows)
    if not found.accepted:
        raise typer.Exit(REJECTED)


def _summary(made: Plan, folder: Path) -> dict[str, object]:
    body = made.to_json()
    return {
        "path": str(folder),
        "plan": made.digest,
        "guarantee": body["guarantee"],
        "strategy": body["strategy"],
        "batching": body["batching"],
        "noise_multiplier": made.noise_multiplier,
        "stddev": made.stddev,
        "rmse": made.rmse,
        "alternatives": body["error"]["alternatives"],
        "certificate": body["evidence"],
    }


def _rows(made: Plan, folder: Path) -> list[tuple[str, str]]:
    size = f"{made.expected_batch_size:g} examples each, padded to {made.padded_batch_size}"
    rows = [
        ("guarantee", made.statement),
        ("if batches leak", made.leak_statement),
        ("batches", f"{made.scheme.kind}: {made.epochs} epochs of {made.bins}, {size}"),
        ("truncation", f"probability {made.truncation.probability:.2g} in the whole run"),
        ("strategy", f"{made.spec}, {made.strategy.digest[:15]}"),
        ("noise", f"multiplier {made.noise_multiplier:.5g} (sensitivity 1), clip norm {made.clip_norm:g}"),
        ("error", f"{made.rmse:.5g} root mean square ({made.workload} workload, clip norm 1)"),
    ]
    rows += [(f"  {one.name}", f"{one.rmse:.5g} ({one.standing})") for one in made.alternatives]
    return [*rows, ("written", f"{folder}, {made.digest[:15]}")]
