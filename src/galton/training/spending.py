"""How much of a plan's epsilon the first rounds have spent, proved beside training by a process of its own.

A bound takes seconds of a processor (`prefix_guarantee`), too long to wait for in every round. What is proved of the
first rounds up to one of `marks` holds of fewer rounds too, for they are a part of them (docs/math.md, section 15.4).
So a loop can be told a bound at any round, which gets sharper while the process is at work. The process has the lowest
priority, computes on processors only, and ends with the one that started it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from galton import files
from galton.errors import GaltonError
from galton.plan import Plan, prefix_guarantee
from galton.plan.plan import plan_from_json
from galton.strategies.codec import strategy_from_json

MARKS = 16
"""At most so many bounds are proved: near the end of a run one is about 1/16 of epsilon above the next."""


class Spending:
    """Bounds of epsilon for the first rounds of a plan, which may come in while training goes on.

    Formal guarantee: if what was added are guarantees of the plan's first rounds, the rounds that `so_far` is asked for
    have the epsilon that it returns, at the plan's delta and under the condition of `prefix_guarantee`: their number
    does not depend on the data, nor on what was computed from it. Where it may, the plan's epsilon is the one to state.

    Args:
      plan: the plan; its own epsilon is the first bound.

    Example:
      >>> from galton import make_plan
      >>> from galton.guarantee import Guarantee
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> spending = Spending(plan)
      >>> spending.add(4, prefix_guarantee(plan, 4).guarantee.epsilon)
      >>> f"{spending.so_far(0):.2f} {spending.so_far(3):.2f} {spending.so_far(5):.2f}"
      '0.00 2.62 4.00'
    """

    def __init__(self, plan: Plan) -> None:
        self._bounds = [(plan.rounds, plan.guarantee.epsilon)]

    def add(self, rounds: int, epsilon: float) -> None:
        """Notes a bound that was proved.

        Args:
          rounds: so many of the first.
          epsilon: of these rounds, at the plan's delta.
        """
        self._bounds.append((rounds, epsilon))

    def so_far(self, done: int) -> float:
        """Returns the least epsilon that is known to cover the first rounds.

        Args:
          done: how many they are.

        Returns:
          The epsilon; 0 before the first round.
        """
        return min(epsilon for rounds, epsilon in tuple(self._bounds) if rounds >= done) if done else 0.0


def marks(plan: Plan) -> list[int]:
    """Returns rounds at which bounds are proved: ends of epochs, such that epsilon grows by about as much between them.

    Args:
      plan: the plan.

    Returns:
      Numbers of rounds in order, all smaller than that of the plan, whose epsilon is known.
    """
    shares = ((number / MARKS) ** 2 for number in range(1, MARKS))  # epsilon grows like a square root, roughly
    ends = {math.ceil(share * plan.rounds / plan.bins) * plan.bins for share in shares}
    return sorted(end for end in ends if end < plan.rounds)


@contextmanager
def proved_beside(plan: Plan, done: int, last: int) -> Iterator[Spending]:
    """Proves bounds while the block runs.

    Args:
      plan: the plan.
      done: rounds that were done before.
      last: rounds to be done in all.

    Yields:
      The bounds so far. Where the process cannot be started, or fails, none but the plan's epsilon come in.
    """
    spending = Spending(plan)
    wanted = _coarsest_first([mark for mark in marks(plan) if done <= mark], last)
    # -P: nothing of the folder in which a script runs takes the place of a module
    command = [sys.executable, "-P", "-c", "from galton.training.spending import main; main()"]
    quiet = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "OMP_NUM_THREADS": "1"}
    if not wanted or not sys.executable:
        yield spending
        return
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | quiet,
            start_new_session=True,  # Ctrl-C is for training
        )
    except OSError:
        yield spending
        return
    reader = Thread(target=_exchange, args=(process, wish_text(plan, wanted), spending), daemon=True)
    reader.start()
    try:
        yield spending
    finally:
        process.kill()
        process.wait()
        reader.join()


def _coarsest_first(ahead: list[int], last: int) -> list[int]:
    """What is to be proved if a loop ends after `last` rounds: every fourth mark first, so that all rounds have one."""
    wanted = ahead[: sum(mark < last for mark in ahead) + 1]
    return wanted[3::4] + [mark for number, mark in enumerate(wanted) if number % 4 != 3]


def _exchange(process: subprocess.Popen[bytes], wish: str, spending: Spending) -> None:
    """Tells the process what to prove, and notes what it answers until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError), process.stdout as answers, process.stdin as wishes:  # it may have ended
        wishes.write(wish.encode())
        wishes.flush()
        for line in answers:
            if line.endswith(b"\n"):  # else it was killed while it wrote
                rounds, epsilon = line.split()
                spending.add(int(rounds), float(epsilon))


def wish_text(plan: Plan, wanted: list[int]) -> str:
    """Returns the line that tells the process what to prove.

    Args:
      plan: the plan.
      wanted: numbers of rounds.

    Returns:
      A line of JSON.
    """
    wish = {"plan": plan.to_json(), "strategy": plan.strategy.to_json(), "rounds": wanted}
    return files.canonical(wish) + "\n"


def prove(plan: Plan, wanted: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Yields bounds one after the other.

    Args:
      plan: the plan.
      wanted: numbers of rounds.

    Yields:
      Number of rounds and epsilon; nothing for those for which nothing could be proved.
    """
    for rounds in wanted:
        try:
            yield rounds, prefix_guarantee(plan, rounds).guarantee.epsilon
        except GaltonError:  # the plan's epsilon stays the one to show
            continue


def _end_with_parent() -> None:
    """Ends this process as soon as nobody holds the other end of its standard input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def main() -> None:
    """Reads what is wanted, and prints bounds."""
    os.nice(19)
    wish = json.loads(sys.stdin.buffer.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    plan = plan_from_json(wish["plan"], strategy_from_json(wish["strategy"]))
    for rounds, epsilon in prove(plan, wish["rounds"]):
        sys.stdout.write(f"{rounds} {epsilon!r}\n")
        sys.stdout.flush()
