"""What a full disk does to plans and runs, on a real file system that is too small."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton.errors import InvalidFile
from galton.plan import Plan, load_plan, save_plan
from galton.training import check_record

FULL = r"cannot be written \(No space left on device\)"
SEED = 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes of memory as a file system; needs the rights to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Takes all space that is left."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plan_is_written_whole_or_not_at_all(small_plan: Plan, small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(InvalidFile, match=f"plan/plan.json: {FULL}"):
        save_plan(small_plan, small_disk / "plan")
    assert names(small_disk) == ["ballast"]
    (small_disk / "ballast").unlink()
    save_plan(small_plan, small_disk / "plan")
    assert load_plan(small_disk / "plan").digest == small_plan.digest


def trained_by_torch(plan: Plan, folder: Path, watch: Callable[..., None] | None) -> list[Any]:
    torch = pytest.importorskip("torch")
    from galton.training.torch import train

    torch.manual_seed(1)
    model = torch.nn.Linear(6, 2)
    made = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 6, generator=made))
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    train(plan, folder, lambda f, x: f(x[0]).square().sum(), model, data, inner, save_every=5, watch=watch, seed=SEED)
    return [weight.detach().numpy() for weight in model.parameters()]


def trained_by_jax(plan: Plan, folder: Path, watch: Callable[..., None] | None) -> list[Any]:
    optax = pytest.importorskip("optax")
    from galton.training.jax import train

    data = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    start = {"w": np.ones((6, 2), np.float32)}
    trained = train(
        *(plan, folder, lambda w, x: ((x @ w["w"]) ** 2).sum(), start, data, optax.adam(0.1)),
        save_every=5,
        watch=watch,
        seed=SEED,
    )
    return [np.asarray(trained.params["w"])]


def trained_by_opacus(plan: Plan, folder: Path, watch: Callable[..., None] | None) -> list[Any]:
    pytest.importorskip("opacus")
    from tests.test_training_opacus import Script

    script, path = Script(plan, folder), folder.with_name("checkpoint.pt")
    try:
        if path.exists():
            script.engine.load_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
        while script.engine.run.round < plan.rounds:
            script.go_on(script.engine.run.round + 1)
            if watch is not None:
                watch(script.engine.run.round)
            if script.engine.run.round % 5 == 0:
                script.engine.save_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    finally:
        script.engine.close()
    return [weight.numpy() for weight in script.weights()]


@pytest.mark.slow
@pytest.mark.parametrize("trained", [trained_by_torch, trained_by_jax, trained_by_opacus])
@pytest.mark.parametrize("turn", [7, 12])
def test_a_run_goes_on_once_there_is_room(
    small_plan: Plan, tmp_path: Path, small_disk: Path, trained: Callable[..., list[Any]], turn: int
) -> None:
    straight = trained(small_plan, tmp_path / "straight", None)

    def watch(done: int, *_: Any) -> None:
        if done == turn:
            fill(small_disk)

    with pytest.raises(InvalidFile, match=FULL):
        trained(small_plan, small_disk / "run", watch)
    with pytest.raises(InvalidFile, match=FULL):  # still full
        trained(small_plan, small_disk / "run", None)
    assert not [name for name in names(small_disk) if name.startswith(".")]
    (small_disk / "ballast").unlink()
    again = trained(small_plan, small_disk / "run", None)
    assert all(np.array_equal(a, b) for a, b in zip(again, straight, strict=True))
    record = check_record(small_disk / "run")
    assert (record["completed"], record["rounds_skipped"]) == (True, [])
