"""The bar of training loops: what it says of epsilon is a guarantee of at least as many rounds, proved elsewhere."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton.gaussian import gaussian_epsilon
from galton.guarantee import Adjacency, Guarantee
from galton.plan import Plan, make_plan
from galton.training import TrainingRun, progress, progress_bar
from galton.training.spending import MARKS, Spending, marks, prove, proved_beside, wish_text
from tests.marks import SLOW

PARAMS = {"w": np.zeros(2, np.float32)}


def known_order(batch_size: int, epochs: int) -> Plan:
    """Independent noise: epsilon of every number of epochs is that of the Gaussian mechanism."""
    claim = Guarantee(4.0, 1e-5, Adjacency.ZERO_OUT)
    sizes: dict[str, Any] = {"examples": 64, "batch_size": batch_size, "epochs": epochs}
    return make_plan(claim, **sizes, batching="fixed-order", strategy="identity")


@pytest.fixture(scope="module")
def fixed() -> Plan:
    return known_order(8, 4)


def exact(plan: Plan, rounds: int) -> float:
    epochs = math.ceil(rounds / plan.bins)
    return gaussian_epsilon(1e-5, math.sqrt(epochs / plan.epochs) / plan.noise_multiplier)


@contextmanager
def at_once(plan: Plan, done: int, last: int) -> Iterator[Spending]:
    """What `proved_beside` has in the end, without a process."""
    spending = Spending(plan)
    for rounds, epsilon in prove(plan, marks(plan)):
        spending.add(rounds, epsilon)
    yield spending


def test_what_is_said_of_the_first_rounds_covers_them_and_is_the_least_that_is_known(fixed: Plan) -> None:
    assert marks(fixed) == [8, 16, 24]
    with at_once(fixed, 0, 32) as spending:
        assert spending.so_far(0) == 0
        for done in range(1, 33):
            assert exact(fixed, done) * (1 - 1e-9) <= spending.so_far(done) <= exact(fixed, done) * 1.01
    spending = Spending(fixed)
    spending.add(16, 1.5)
    assert [spending.so_far(done) for done in (1, 16, 17, 32)] == [1.5, 1.5, 4.0, 4.0]


def test_marks_are_ends_of_epochs_and_closer_where_epsilon_grows_fast() -> None:
    plan = known_order(32, 400)
    ends = marks(plan)
    assert len(ends) == MARKS - 1
    assert all(end % plan.bins == 0 and 0 < end < plan.rounds for end in ends)
    assert np.ptp(np.diff(np.sqrt(ends))) < 0.6  # 800 rounds: steps of sqrt(800) / 16, rounded to whole epochs
    assert marks(known_order(32, 1)) == []


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(progress, "proved_beside", at_once)


def said(shown: str) -> float:
    """What the bar said last of the rounds so far."""
    return float(re.findall(r"epsilon (\S+) so far, 4 in all, at delta 1e-05", shown)[-1])


def test_a_bar_shows_rounds_and_the_epsilon_so_far(
    fixed: Plan, tmp_path: Path, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened() -> TrainingRun:
        return TrainingRun(fixed, tmp_path / "run", PARAMS, examples=64, clip_norm=1.0)

    with opened() as run, progress_bar(run) as show:
        for _ in range(9):
            run.noise(PARAMS)
            show()
    shown = capsys.readouterr().err
    assert "9/32" in shown
    assert "epsilon 0 so far, 4 in all" in shown
    assert exact(fixed, 9) <= said(shown) <= 1.01 * exact(fixed, 9) + 0.01
    with opened() as run, progress_bar(run):  # back at round 0: nothing was saved, but nine rounds had their noise
        assert run.round == 0
    shown = capsys.readouterr().err
    assert "0/32" in shown
    assert exact(fixed, 9) <= said(shown) <= 1.01 * exact(fixed, 9) + 0.01
    with opened() as run, progress_bar(run, shown=False) as show:
        show()
    assert capsys.readouterr().err == ""


def test_a_bar_needs_a_terminal(fixed: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingRun(fixed, tmp_path, PARAMS, examples=64, clip_norm=1.0) as run, progress_bar(run) as show:
        show()
    assert capsys.readouterr().err == ""


def test_nothing_is_started_where_nothing_is_left_to_prove(fixed: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no processes here")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with proved_beside(fixed, 30, 32) as spending:
        assert spending.so_far(31) == 4.0
    with proved_beside(fixed, 0, 32) as spending:  # where none can be started the plan's epsilon is what is known
        assert spending.so_far(1) == 4.0


@pytest.mark.parametrize("wish", ["", "0" * 2**22], ids=["short", "long"])
def test_a_process_that_is_killed_leaves_what_it_said_in_whole_lines(
    fixed: Plan, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    """Also while it is told what to prove."""
    plain, started = subprocess.Popen, []

    def started_as(command: list[str], **words: Any) -> subprocess.Popen[bytes]:
        started.append(plain([command[0], "-c", "print('8 1.0'); print('16 0.1', end='')"], **words))
        return started[-1]

    errors: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", started_as)
    monkeypatch.setattr("galton.training.spending.wish_text", lambda *_: wish)
    monkeypatch.setattr(threading, "excepthook", errors.append)
    with proved_beside(fixed, 0, 32) as spending:
        started[0].wait()
    assert spending.so_far(8) == (4.0 if wish else 1.0)  # nothing is read of one that did not listen
    assert spending.so_far(16) == 4.0
    assert errors == []


CHILD = "from galton.training.spending import main; main()"


@SLOW
def test_bounds_come_in_while_a_loop_runs_and_the_process_ends_with_it(fixed: Plan) -> None:
    started: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def started_as(*args: object, **words: object) -> subprocess.Popen[bytes]:
        started.append(plain(*args, **words))  # type: ignore[call-overload]
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", started_as)
        with proved_beside(fixed, 0, 32) as spending:
            assert started[0].wait(300) == 0  # when all is proved
        with proved_beside(fixed, 0, 32) as cut:
            assert started[1].poll() is None
    for done in (8, 16, 24):
        assert spending.so_far(done) == pytest.approx(exact(fixed, done), rel=0.01)
    assert started[1].poll() is not None
    assert cut.so_far(8) == 4.0


@SLOW
def test_the_process_ends_when_the_one_that_started_it_is_killed(fixed: Plan) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(wish_text(fixed, [8] * 10_000).encode())
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"8 ")
        process.stdin.close()
        assert process.wait(60) == 0
