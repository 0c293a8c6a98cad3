"""Runs that several processes share, on loopback: against one process, and against runs without a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel

from galton.errors import InvalidArgument
from galton.plan import Plan, save_plan
from galton.training.torch import open_run, share_run, train
from tests import processes

ROOT = Path(__file__).parents[1]


def started(folder: Path, what: str, size: int = 2, kill_at: int | None = None) -> list[int]:
    """Starts all ranks, and returns how each ended."""
    (folder / "meeting").unlink(missing_ok=True)
    more = [] if kill_at is None else [str(kill_at)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.processes", str(rank), str(size), what, str(folder), *more], cwd=ROOT
        )
        for rank in range(size)
    ]
    return [rank.wait(timeout=300) for rank in ranks]


def ended(folder: Path, size: int = 2) -> list[dict[str, Any]]:
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_two_processes_train_as_one_and_survive_the_kill_of_one(small_plan: Plan, tmp_path: Path) -> None:
    for name in ("straight", "broken"):
        (tmp_path / name).mkdir()
        save_plan(small_plan, tmp_path / name / "plan")
    assert started(tmp_path / "straight", "replicated") == [0, 0]
    first, second = ended(tmp_path / "straight")
    assert same(first["model"], second["model"])
    assert first["record"] == second["record"]
    assert first["record"]["completed"]

    codes = started(tmp_path / "broken", "replicated", kill_at=15)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGKILL)  # notices that it is alone, and ends
    assert not (tmp_path / "broken" / "rank-0.pt").exists()
    assert started(tmp_path / "broken", "replicated") == [0, 0]
    again, _ = ended(tmp_path / "broken")
    assert same(again["model"], first["model"])
    record = again["record"]
    assert (record["completed"], record["rounds_skipped"], record["resumptions"]) == (True, [], 1)
    assert record["rounds_replayed"] in (3, 4)  # rank 0 may have begun the next round


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_run_that_is_shared_with_nobody_is_the_run_itself(small_plan: Plan, tmp_path: Path, alone: None) -> None:
    models: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for shared in (False, True):
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        model.load_state_dict(models[0][0] if models else model.state_dict())
        start = {name: part.clone() for name, part in model.state_dict().items()}
        for rounds in (3, 5):  # taken up in between
            inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            record = train(
                small_plan,
                tmp_path / str(shared),
                processes.loss,
                model,
                processes.examples(),
                inner,
                distributed=shared,
                rounds=rounds,
                seed=processes.SEED,
            )
        assert (record["rounds_done"], record["resumptions"]) == (5, 1)
        models.append((start, model.state_dict()))
    assert same(models[0][1], models[1][1])
    assert not same(models[0][0], models[0][1])


def test_sharded_parameters_are_refused(small_plan: Plan, tmp_path: Path, alone: None) -> None:
    model = processes.network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InvalidArgument, match="must have whole parameters on every process"):
        share_run(small_plan, tmp_path / "run", model, examples=64, clip_norm=1.0)


@pytest.mark.parametrize("wrapper", [DataParallel])
def test_wrappers_that_average_gradients_are_refused(small_plan: Plan, tmp_path: Path, wrapper: Any) -> None:
    model = wrapper(processes.network())
    with pytest.raises(InvalidArgument, match=r"^model = 'DataParallel': must be the module inside"):
        open_run(small_plan, tmp_path / "run", model, examples=64, clip_norm=1.0)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match="averages gradients that are not clipped"):
        train(small_plan, tmp_path / "run", processes.loss, model, processes.examples(), inner)
    assert not (tmp_path / "run").exists()


def test_a_shared_run_needs_a_process_group(small_plan: Plan, tmp_path: Path) -> None:
    model: nn.Module = processes.network()
    with pytest.raises(InvalidArgument, match="distributed = True: needs a process group"):
        share_run(small_plan, tmp_path / "run", model, examples=64, clip_norm=1.0)
