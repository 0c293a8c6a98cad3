"""The command audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.plan import Folder
from galton.progress import progress_bar

if TYPE_CHECKING:
    from galton.audit import Audit

INCONSISTENT = 3


@command
def audit(
    folder: Folder,
    seconds: Annotated[float, typer.Option(help="Time that the audit may take, roughly, in seconds.")] = 60.0,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Make at least this many trials with a canary, however long it takes.",
            show_default="as many as fit into --seconds",
        ),
    ] = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack a plan's real batches and noise with canaries.

    Exit code 3 if what ran is not consistent with what was certified.
    """
    with progress_bar() as progress:
        from galton.audit import audit
        from galton.plan import load_plan

        plan = load_plan(folder)
        result = audit(plan, seconds=seconds, trials=trials, seed=seed, progress=progress)
    if as_json:
        show.print_json(result.to_json() | {"path": str(folder)})
    else:
        show.print_table(f"audit of {folder}", _rows(result))
    if not result.consistent:
        raise typer.Exit(INCONSISTENT)


def _rows(result: Audit) -> list[tuple[str, str]]:
    claim = str(result.guarantee)
    sure = f"at delta {result.delta:g}, except with probability {result.failure:g}"
    rows = [
        ("claim", claim),
        ("epsilon at least", f"{result.epsilon_lower:.4g} {sure}"),
        ("epsilon certified", f"{result.epsilon_certified:.4g} at delta {result.delta:g}"),
        ("trials", f"{result.trials:,} in {result.runs} real runs, each resumed halfway"),
    ]
    for check in result.checks:
        verdict = "ok" if check.passed else "FAILED"
        rows.append((check.name, f"{verdict}: {check.words}; {check.statistic:.4g}, p = {check.p_value:.2g}"))
    return [
        *rows,
        ("verdict", "CONSISTENT with what was certified" if result.consistent else "NOT CONSISTENT"),
        ("time", f"{result.seconds:.1f} s"),
    ]
