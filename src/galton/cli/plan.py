"""The commands plan and verify."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from galton.batching import PLANNED
from galton.cli import options, show
from galton.cli.app import command
from galton.cli.budget import composed_rows
from galton.guarantee import Adjacency, Guarantee
from galton.strategies.grammar import PLAN

if TYPE_CHECKING:
    from galton.budget import Composed
    from galton.plan import Plan

REJECTED = 3
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that galton plan wrote.")]


@command
def plan(
    *,
    examples: Annotated[
        int, typer.Option("--examples", "--units", "-n", help="Number of examples in the data set, or of users.")
    ],
    batch_size: Annotated[
        float,
        typer.Option(
            "--batch-size",
            help="Expected batch size, at most the number of examples; an epoch has round(examples / batch size) "
            "batches.",
        ),
    ],
    epochs: options.Epochs,
    epsilon: options.Epsilon,
    delta: options.Delta,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder to write the plan to.")],
    rounds: options.Rounds = None,
    strategy: Annotated[
        str,
        typer.Option(
            help=f"The correlation matrix C: {PLAN.help}",
            show_default="blt:4+scale for balls-in-bins, or what suits the batching",
        ),
    ] = "",
    batching: Annotated[
        str,
        typer.Option(
            help=f"How examples are assigned to batches: {options.listed(PLANNED)}.",
            show_default="balls-in-bins or balls-in-bins-redrawn, whichever has the lesser error",
            autocompletion=options.starting(PLANNED),
        ),
    ] = "",
    accountant: Annotated[
        str,
        typer.Option(
            help="Analysis that proves the guarantee; it has to cover the batching. unamplified does not rely on "
            "secret batches; `--accountant list` names all.",
            show_default="the one made for the batching",
        ),
    ] = "",
    clip_norm: Annotated[float, typer.Option(help="l2 norm that the gradient of every example is clipped to.")] = 1.0,
    padded_batch_size: Annotated[
        int | None,
        typer.Option(
            help="Size that every batch is padded to; larger batches are truncated.",
            show_default="so large that truncation costs at most a thousandth of delta",
        ),
    ] = None,
    micro_batch_size: Annotated[int, typer.Option(help="Make the default padded batch size a multiple of this.")] = 1,
    workload: options.WorkloadName = "prefix",
    unit: Annotated[
        str,
        typer.Option(
            help="Unit of privacy: example, or user. Users are then what batches are made of, and --units says how "
            "many there are."
        ),
    ] = "example",
    per_user: Annotated[
        int | None,
        typer.Option(
            help="The most examples of a user in a round, which are clipped together; for --unit user.",
            show_default="examples are the unit",
        ),
    ] = None,
    clipping: Annotated[
        str,
        typer.Option(
            help="How gradients are brought to the clip norm: flat (as a whole), per-group (groups of parameters each "
            "to a norm of their own) or normalized (all to the clip norm)."
        ),
    ] = "flat",
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="RELEASE",
            help="Another release about the same data, as in galton compose: epsilon and delta are then those of all "
            "together, and the plan takes what the others leave. Give the option again for each.",
            show_default="none",
        ),
    ] = None,
    tuning_runs: Annotated[
        str,
        typer.Option(
            metavar="DISTRIBUTION",
            help="Make the guarantee cover a search: the best of a random number of runs by this plan. poisson:mean=M, "
            "geometric:mean=M or negative-binomial:mean=M,shape=S.",
            show_default="a single run",
        ),
    ] = "",
    adjacency: options.AdjacencyName = options.ADJACENCY,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Plan a training run: strategy, noise and certificate.

    All of it is written to a new folder, from which training, verify, audit and report take it.
    """
    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    notes: list[str] = []
    with execution.options() as accounting_options:
        from galton.budget import make_plan_within, parse_tuning
        from galton.cli.outputs import keep
        from galton.plan import make_plan, save_plan
        from galton.plan.folder import check_free

        check_free(output)
        tuning = parse_tuning(tuning_runs) if tuning_runs else None
        settings: dict[str, Any] = {
            "examples": examples,
            "batch_size": batch_size,
            "epochs": epochs,
            "rounds": rounds,
            "strategy": strategy,
            "batching": batching,
            "accountant": accountant,
            "clip_norm": clip_norm,
            "padded_batch_size": padded_batch_size,
            "micro_batch_size": micro_batch_size,
            "workload": workload,
            "unit": unit,
            "per_user": per_user,
            "clipping": clipping,
            "options": accounting_options,
            "notes": notes.append,
        }
        composed: Composed | None = None
        if others or tuning is not None:
            plan, composed = make_plan_within(guarantee, others=others or (), tuning=tuning, **settings)
        else:
            plan = make_plan(guarantee, **settings)
    written = keep(lambda folder: save_plan(plan, folder), output)
    for warning in plan.warnings:
        options.warn(warning)
    if as_json:
        more = {} if composed is None else {"composition": composed.to_json()}
        show.print_json(_summary(plan, output) | {"notes": notes} | more)
    else:
        show.print_table("plan", _rows(plan, output, batch_size, notes))
        if composed is not None:
            show.print_table("all that is released", composed_rows(composed))
    raise typer.Exit(0 if written else 2)


@command
def verify(
    *,
    folder: Folder,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key (PEM) that must have signed the plan; see galton sign.", show_default="no signature needed"
        ),
    ] = None,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Check that a plan is unchanged and prove its guarantee anew.

    Exit code 3 if it cannot be proved, or is not signed by the key. Runs by the same user then start from the plan
    without verifying it again.
    """
    signature: str | None = None
    with execution.options() as accounting_options:
        from galton.plan import PlanNotTrusted, check_signature, load_plan, verify_plan

        plan = load_plan(folder)
        refusal = ""
        if key is not None:
            try:
                signature = check_signature(plan, key)
            except PlanNotTrusted as error:
                refusal = str(error)
        verification = None if refusal else verify_plan(plan, accounting_options)
    if verification is None:
        _refuse(plan, folder, refusal, as_json)
    if as_json:
        show.print_json(verification.to_json() | {"path": str(folder), "signed": signature})
    else:
        rows = [
            ("integrity", f"every byte is as written, {plan.digest}"),
            *([] if signature is None else [("signature", signature)]),
            ("guarantee", plan.statement),
            ("second look", verification.words),
            ("verdict", "ACCEPTED" if verification.accepted else "REJECTED"),
            ("time", f"{verification.seconds:.1f} s"),
        ]
        show.print_table(f"plan {folder}", rows)
    if not verification.accepted:
        raise typer.Exit(REJECTED)


def _refuse(plan: Plan, folder: Path, words: str, as_json: bool) -> NoReturn:
    """Ends `verify` of a plan that is not signed as it should be; nothing is sampled."""
    if as_json:
        show.print_json({"accepted": False, "plan": plan.digest, "words": words, "path": str(folder)})
    else:
        rows = [("integrity", f"every byte is as written, {plan.digest}"), ("signature", words)]
        show.print_table(f"plan {folder}", [*rows, ("verdict", "REJECTED")])
    raise typer.Exit(REJECTED)


def _summary(plan: Plan, folder: Path) -> dict[str, object]:
    body = plan.to_json()
    return {
        "path": str(folder),
        "plan": plan.digest,
        "guarantee": body["guarantee"],
        "strategy": plan.spec,
        "strategy_kind": plan.strategy.kind,
        "strategy_hash": plan.strategy.digest,
        "batching": body["batching"],
        "noise_multiplier": plan.noise_multiplier,
        "stddev": plan.stddev,
        "rmse": plan.rmse,
        "alternatives": body["alternatives"],
        "warnings": list(plan.warnings),
        "evidence": body["evidence"],
    }


def _rows(plan: Plan, folder: Path, batch_size: float, notes: list[str]) -> list[tuple[str, str]]:
    epochs = "epoch" if plan.epochs == 1 else "epochs"
    partial = "" if plan.rounds % plan.bins == 0 else f" ({plan.rounds} rounds in all: the last epoch is partial)"
    size = plan.worded(f"{plan.expected_batch_size:g} examples each, padded to {plan.padded_batch_size}")
    rows = [
        ("guarantee", plan.statement),
        ("if batches leak", plan.leak_statement),
        ("batches", f"{plan.scheme.name}: {plan.epochs} {epochs} of {plan.bins}{partial}, {size}"),
        *(("chosen", note) for note in notes),
        *_other_batch_size(plan, batch_size),
        ("truncation", f"probability {plan.truncation.probability:.2g} in the whole run"),
        ("strategy", f"{plan.spec}, {plan.strategy.digest[:15]}"),
        ("noise", f"multiplier {plan.noise_multiplier:.5g} (sensitivity 1), clip norm {plan.clip_norm:g}"),
        ("error", f"{plan.rmse:.5g} root mean square ({plan.workload} workload, clip norm 1)"),
    ]
    rows += [
        (f"  {alternative.name}", f"{alternative.rmse:.5g} ({alternative.standing})")
        for alternative in plan.alternatives
    ]
    return [*rows, ("written", f"{folder}, {plan.digest[:15]}")]


def _other_batch_size(plan: Plan, batch_size: float) -> list[tuple[str, str]]:
    """Says which batch size is used, where another was asked for or it is no whole number."""
    as_asked = math.isclose(plan.expected_batch_size, batch_size)
    if as_asked and plan.examples % plan.bins == 0:
        return []
    other = "" if as_asked else f", not {batch_size:g}"
    words = (
        f"{plan.expected_batch_size:g} on average{other}: {plan.examples} examples make {plan.bins} batches per epoch"
    )
    return [("batch size", words)]
