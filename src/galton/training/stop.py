"""Ending a run for good before its last round, with the smaller guarantee of the rounds that were done."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from galton import files
from galton.accounting import Options
from galton.errors import InvalidArgument, InvalidFile
from galton.noise.journal import Journal, open_exclusively
from galton.noise.run import read_keys
from galton.plan import Plan, load_plan
from galton.plan.prefix import INDEPENDENT, Prefix, prefix_guarantee
from galton.provenance import now
from galton.training.folder import LOCK, read_body, write_body
from galton.training.record import check_record, sign_record
from galton.typechecking import typechecked


@typechecked
def stop_run(
    folder: str | Path, plan: Plan | str | Path, *, independent: bool, options: Options | None = None
) -> Prefix:
    """Ends a run for good: its record states the guarantee of the rounds that have had their noise, and no more follow.

    Formal guarantee: that of `prefix_guarantee`, for all that the run has released. Copies and forks of the folder that
    go on are runs of their own.

    Args:
      folder: of the run; no process may have it open.
      plan: the run's plan, or its folder.
      independent: confirms that the run ends here for a reason that has nothing to do with the data: a number of
        rounds fixed beforehand, a budget of time. Where it was chosen by what was released (the quality of the model,
        say), the plan's guarantee is the one that holds, and there is nothing to be done.
      options: seed, workers and progress.

    Returns:
      The guarantee of the rounds that were done.

    Example:
      >>> import tempfile
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=64, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> total = {"w": np.zeros(2, np.float32)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, folder, total, examples=64, clip_norm=1.0) as run:
      ...         noise = run.noise(total)
      ...     prefix = stop_run(folder, plan, independent=True)  # two epochs were planned, the time was enough for less
      >>> prefix.rounds, prefix.guarantee.epsilon < guarantee.epsilon
      (1, True)
    """
    if not independent:
        remedy = f"must be confirmed: a smaller guarantee holds {INDEPENDENT}; else the plan's holds, without this"
        raise InvalidArgument("independent", independent, remedy)
    source = Path(folder)
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    body = read_body(source)
    if body["plan"] != plan.digest:
        raise InvalidArgument("plan", plan.digest, f"must be that of the run, {body['plan']}")
    with closing(open_exclusively(source / LOCK)):
        if not (source / "noise.journal").exists():
            raise InvalidFile(f"{source}: has not begun; there is nothing to stop")
        key, record = read_keys(source)[0][1], check_record(source)
        noise = plan.noise(str(record["noise_form"]))
        belongs = f"{plan.digest} {files.digest(body['batches'])} {noise.digest}"
        with closing(Journal(source / "noise.journal", key, belongs)) as journal:
            prefix = prefix_guarantee(plan, journal.released, options)
            write_body(source, body | {"stopped": prefix.to_json()})  # first: from here on no round follows
            sign_record(
                source,
                np.asarray(key, "<u4").tobytes(),
                record | {"stopped": prefix.to_json(), "rounds_released": journal.released, "written": now()},
            )
    return prefix
