"""The command audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.plan import Folder

if TYPE_CHECKING:
    from galton.audit import Audit

INCONSISTENT = 3


@command
def audit(
    folder: Folder,
    seconds: Annotated[float, typer.Option(help="About how long it may take.")] = 60.0,
    trials: Annotated[
        int | None, typer.Option(help="Make this many trials with a canary, however long it takes.")
    ] = None,
    seed: options.Seed = None,
    as_json: options.AsJson = False,
) -> None:
    """Drive the real batches and noise with a worst-case canary: is epsilon what was certified? Exit code 3 if not."""
    from galton.audit import audit
    from galton.plan import load_plan

    made = load_plan(folder)
    with show.progress_bar() as progress:
        found = audit(made, seconds=seconds, trials=trials, seed=seed, progress=progress)
    if as_json:
        show.print_json(found.to_json() | {"path": str(folder)})
    else:
        show.print_table(f"audit of {folder}", _rows(found))
    if not found.consistent:
        raise typer.Exit(INCONSISTENT)


def _rows(found: Audit) -> list[tuple[str, str]]:
    claim = str(found.guarantee)
    sure = f"at delta {found.delta:g}, except with probability {found.failure:g}"
    rows = [
        ("claim", claim),
        ("epsilon at least", f"{found.epsilon_lower:.4g} {sure}"),
        ("epsilon certified", f"{found.epsilon_certified:.4g} at delta {found.delta:g}"),
        ("trials", f"{found.trials:,} in {found.runs} real runs, each resumed halfway"),
    ]
    for one in found.checks:
        verdict = "ok" if one.passed else "FAILED"
        rows.append((one.name, f"{verdict}: {one.words}; {one.statistic:.4g}, p = {one.p_value:.2g}"))
    return [
        *rows,
        ("verdict", "CONSISTENT with what was certified" if found.consistent else "NOT CONSISTENT"),
        ("time", f"{found.seconds:.1f} s"),
    ]
