"""Runs that several processes share, on loopback: against one process, and against runs without a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from galton.errors import InvalidArgument
from galton.plan import Plan, save_plan
from galton.training.torch import open_run, share_run, train
from galton.training.torch_sharded import gathered
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


def begun(plan: Plan, folder: Path) -> Path:
    """Makes a folder for a run, with its plan."""
    folder.mkdir()
    save_plan(plan, folder / "plan")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("what", ["replicated", "sharded", "sharded ghost"])
def test_two_processes_train_as_one_and_survive_the_kill_of_one(small_plan: Plan, tmp_path: Path, what: str) -> None:
    straight, broken = begun(small_plan, tmp_path / "straight"), begun(small_plan, tmp_path / "broken")
    assert started(straight, what) == [0, 0]
    first, second = ended(straight)
    assert same(first["model"], second["model"])
    assert first["record"] == second["record"]
    assert first["record"]["completed"]

    codes = started(broken, what, kill_at=15)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGKILL)  # notices that it is alone, and ends
    assert not (broken / "rank-0.pt").exists()
    assert started(broken, what) == [0, 0]
    again, _ = ended(broken)
    assert same(again["model"], first["model"])
    record = again["record"]
    assert (record["completed"], record["rounds_skipped"], record["resumptions"]) == (True, [], 1)
    assert record["rounds_replayed"] in (3, 4)  # rank 0 may have begun the next round


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", " ghost"])
def test_sharded_parameters_give_the_model_of_whole_ones(small_plan: Plan, tmp_path: Path, kind: str) -> None:
    """Two numbers have one sum, so that on two processes the models are the same bit by bit, checkpoints included."""
    for what in ("replicated", "sharded"):
        assert started(begun(small_plan, tmp_path / what), what + kind) == [0, 0]
    whole, parts = (ended(tmp_path / what)[0] for what in ("replicated", "sharded"))
    assert same(parts["model"], whole["model"])
    files = [tmp_path / what / "run" / "model.pt" for what in ("replicated", "sharded")]
    assert same(*(torch.load(file, weights_only=True) for file in files))
    with np.load(files[0].with_name("noise.npz")) as undivided, np.load(files[1].with_name("noise.npz")) as divided:
        assert np.array_equal(undivided["buffers_000000"], divided["buffers_000000"])


@pytest.mark.slow
def test_the_noise_of_shards_is_that_of_one_process(small_plan: Plan, tmp_path: Path) -> None:
    """Of three processes the last has no row of the last layer's bias, and two of five of the first's."""
    assert started(begun(small_plan, tmp_path / "three"), "sharded silent", size=3) == [0, 0, 0]
    model, _ = processes.trained(processes.network(), begun(small_plan, tmp_path / "one"), None, loss=processes.silent)
    assert same(ended(tmp_path / "three", 3)[0]["model"], model.state_dict())
    assert not same(processes.network().state_dict(), model.state_dict())


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


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)), **options)
    return model


@pytest.mark.parametrize("ghost", [False, True])
def test_a_sharded_model_of_one_process_is_trained_as_any_other(
    small_plan: Plan, tmp_path: Path, alone: None, ghost: bool
) -> None:
    ended: list[dict[str, Any]] = []
    loss = processes.ghost if ghost else processes.loss
    seen = torch.ones(3, 6)
    for shard in (False, True):
        model = processes.network()
        if shard:
            sharded(model)
        for rounds in (3, 5):  # taken up in between
            inner = torch.optim.Adam(model.parameters(), lr=0.1)
            train(
                small_plan,
                tmp_path / str(shard),
                loss,
                model,
                processes.examples(),
                inner,
                distributed=True,
                ghost=ghost,
                rounds=rounds,
                on_round=lambda done, state: bool(state.model(seen).isnan().any()),  # gathers parameters
                seed=processes.SEED,
            )
        ended.append(gathered(model.state_dict()))
    assert same(*ended)
    assert not same(ended[0], processes.network().state_dict())


def test_sharded_models_are_refused_where_they_cannot_be_saved(small_plan: Plan, tmp_path: Path, alone: None) -> None:
    model = sharded(processes.network())
    for opening in (open_run, share_run):
        with pytest.raises(InvalidArgument, match=r"must have whole parameters here.*train\(distributed=True\)"):
            opening(small_plan, tmp_path / "run", model, examples=64, clip_norm=1.0)


def trained(plan: Plan, folder: Path, model: nn.Module) -> None:
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    train(plan, folder, processes.loss, model, processes.examples(), inner, distributed=True, rounds=1)


def test_models_that_are_sharded_in_other_ways_are_refused(small_plan: Plan, tmp_path: Path, alone: None) -> None:
    model = processes.network()
    sharded(model[0])  # type: ignore[index]
    with pytest.raises(InvalidArgument, match=r"^model = '3.weight': must be cut along one axis over all processes"):
        trained(small_plan, tmp_path / "run", model)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "parts"))
    model = processes.network()
    fully_shard(model, mesh=mesh)
    with pytest.raises(InvalidArgument, match=r"^model = '0.weight': must be cut along one axis over all processes"):
        trained(small_plan, tmp_path / "run", model)
    model = processes.network()
    fully_shard([model[0], model[3]], mesh=init_device_mesh("cpu", (1,)))  # type: ignore[index]
    sharded(model)
    with pytest.raises(InvalidArgument, match=r"^model = .*fully_shard of a list is refused"):
        trained(small_plan, tmp_path / "run", model)
    model = sharded(processes.network(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(InvalidArgument, match=r"^mp_policy = '0.weight': must be left out of fully_shard"):
        trained(small_plan, tmp_path / "other", model)


def test_shards_in_another_order_than_that_of_ranks_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    """Or two ranks would take the noise of the same part."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = processes.network()
        fully_shard(model, mesh=DeviceMesh("cpu", [1, 0]))
        with pytest.raises(InvalidArgument, match=r"^model = '0.weight': must be cut .* in their order"):
            trained(small_plan, tmp_path / "run", model)
    finally:
        dist.destroy_process_group()


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
