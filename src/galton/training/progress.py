"""The bar of a training loop: rounds, time left, and what the rounds so far have spent of epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING, Context
from typing import Protocol

from galton.guarantee import Guarantee
from galton.plan import Plan
from galton.training.spending import proved_beside


class Progressing(Protocol):
    """A run, as far as a bar has to know it: its plan, the next round, and the rounds that have had their noise."""

    plan: Plan

    @property
    def round(self) -> int:
        """The next round."""

    @property
    def released(self) -> int:
        """Rounds that have had their noise, those that are computed again included."""


@contextmanager
def progress_bar(run: Progressing, last: int | None = None, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Shows rounds, time left and the epsilon spent so far on stderr, if that is a terminal.

    The epsilon is a bound that was proved for the rounds so far, or for somewhat more of them; until the process that
    proves it is done, the plan's (`spending.py`). It is what may be stated of the run if it ends here for a reason that
    has nothing to do with the data, and is stated by `galton stop`. Of a run that ends by what it released, or goes on
    to its end, it says nothing: there the plan's holds.

    Args:
      run: the run.
      last: rounds to be done in all; by default all that are planned.
      shown: whether to show anything, and to prove anything for it.

    Yields:
      A function to call after every round.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import TrainingRun, make_plan
      >>> plan = make_plan(
      ...     Guarantee(epsilon=4, delta=1e-3, adjacency="replace"),
      ...     examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity",
      ... )
      >>> total = np.zeros(2, np.float32)
      >>> with (
      ...     tempfile.TemporaryDirectory() as folder,
      ...     TrainingRun(plan, folder, total, examples=64, clip_norm=1.0) as run,
      ...     progress_bar(run) as show,
      ... ):
      ...     while not run.done:
      ...         noise = run.noise(total)
      ...         show()
      >>> run.round
      4
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda: None
        return
    last = run.plan.rounds if last is None else last
    epsilon = TextColumn("{task.fields[epsilon]}")
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), epsilon)
    with (
        proved_beside(run.plan, run.released, last) as spending,
        Progress(*columns, console=console, transient=True) as bar,
    ):

        def words() -> str:
            return spent_words(spending.so_far(run.released), run.plan.guarantee)

        task = bar.add_task("", total=last, completed=run.round, epsilon=words())
        yield lambda: bar.update(task, completed=run.round, epsilon=words())


def spent_words(epsilon: float, guarantee: Guarantee) -> str:
    """Returns what a bar says of epsilon, rounded up.

    Args:
      epsilon: a bound for the rounds so far.
      guarantee: of the plan.

    Returns:
      Some words.

    Example:
      >>> spent_words(0.40312, Guarantee(2.0, 1e-5))
      'epsilon 0.404 so far, 2 in all, at delta 1e-05'
    """
    upwards = Context(prec=3, rounding=ROUND_CEILING)
    said, whole = (f"{upwards.create_decimal(repr(value)).normalize():f}" for value in (epsilon, guarantee.epsilon))
    return f"epsilon {said} so far, {whole} in all, at delta {guarantee.delta:g}"
