"""What training loops call between rounds: a hook that may end the run after saving, and a bar that shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from galton.plan import Plan

OnRound = Callable[[int, Any], bool | None]
"""on_round(round, state): called after every round with the rounds done so far; True ends the run after saving.

What the hook sees of the model has the plan's guarantee; what it sees of training data has not. A run that it ends by
what it saw has the plan's epsilon, not a smaller one (docs/math.md, section 15.2).
"""


@contextmanager
def round_bar(plan: Plan, start: int, last: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Shows rounds, time left and the plan's epsilon on stderr, if that is a terminal.

    The epsilon is that of the whole plan. That of the rounds done so far is smaller only if the run ends for a reason
    that has nothing to do with the data, and takes a certificate of its own (`galton stop`): a bar cannot promise it.

    Args:
      plan: the plan.
      start: rounds done before.
      last: rounds to be done in all.
      shown: whether to show anything.

    Yields:
      A function to call with the number of rounds done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done: None
        return
    guarantee = f"{plan.guarantee.epsilon:g}-DP at delta {plan.guarantee.delta:g} (the whole plan)"
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn(guarantee))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=last, completed=start)
        yield lambda done: bar.update(task, completed=done)
