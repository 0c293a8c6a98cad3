"""What loops are told between rounds: diagnostics that stay at home, hooks that end a run, a bar."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from galton.plan import Plan
from galton.training import release_run
from galton.training.diagnostics import FILE, Diagnostics
from galton.training.torch import Forward, RoundState, train

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)) * 3
Y = torch.arange(64) % 3


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


def loss(model: Forward, rows: Any) -> tuple[Tensor, dict[str, Tensor]]:
    out = model(rows[0])
    return cross_entropy(out, rows[1]), {"hits": (out.argmax(-1) == rows[1]).float().mean()}


def losses(model: Forward, rows: Any) -> tuple[Tensor, dict[str, Tensor]]:
    out = model(rows[0])
    return cross_entropy(out, rows[1], reduction="none"), {"hits": (out.argmax(-1) == rows[1]).float()}


def once(plan: Plan, folder: Path, model: nn.Module, **options: Any) -> dict[str, Any]:
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    each = losses if options.get("ghost") else loss
    return train(plan, folder, each, model, TensorDataset(X, Y), inner, seed=1, **options)


@pytest.mark.parametrize("ghost", [False, True])
def test_diagnostics_are_those_of_the_batch_and_stay_in_the_folder(
    small_plan: Plan, tmp_path: Path, ghost: bool
) -> None:
    seen: list[Diagnostics] = []
    model, run = network(), tmp_path / "run"
    once(small_plan, run, model, rounds=1, diagnostics=seen.append, ghost=ghost, micro_batch_size=3)
    assert not (run / FILE).exists()
    once(small_plan, run, model, rounds=2, diagnostics=True, ghost=ghost, micro_batch_size=3)
    members = small_plan.batches(1).at(0).examples
    start = network()
    gradients = []
    for index in members:
        value = cross_entropy(start(X[[index]]), Y[[index]])
        parts = torch.autograd.grad(value, list(start.parameters()))
        gradients.append((float(value.detach()), float(torch.cat([part.flatten() for part in parts]).norm())))
    means = torch.tensor(gradients).mean(0)
    hits = (start(X[members]).argmax(-1) == Y[members]).float().mean()
    (figures,) = seen
    assert (figures.round, figures.examples) == (0, len(members))
    assert figures.mean_loss == pytest.approx(float(means[0]), rel=1e-4)
    assert figures.mean_norm == pytest.approx(float(means[1]), rel=1e-4)
    assert figures.clipped_fraction == pytest.approx(sum(norm > 1 for _, norm in gradients) / len(members))
    assert figures.aux["hits"] == pytest.approx(float(hits))
    path = run / FILE
    written = json.loads(path.read_text())
    assert (written["private"], written["round"]) == (False, 1)
    assert path.stat().st_mode & 0o077 == 0
    release_run(run, tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as released:
        assert sorted(released.namelist()) == ["model.pt", "record.json"]
    assert "loss" not in (run / "record.json").read_text()


def test_nothing_is_written_unless_asked_for(small_plan: Plan, tmp_path: Path) -> None:
    once(small_plan, tmp_path / "run", network(), rounds=2)
    assert not (tmp_path / "run" / FILE).exists()
    assert Diagnostics.of_sums(3, 0, {}) == Diagnostics(3, 0, None, None, None)


def test_a_hook_ends_a_run_which_is_saved_and_goes_on(small_plan: Plan, tmp_path: Path) -> None:
    rounds: list[int] = []

    def on_round(done: int, state: RoundState) -> bool:
        rounds.append(done)
        assert state.diagnostics is None
        assert isinstance(state.model, nn.Linear)
        return done == 3

    straight, broken = network(), network()
    once(small_plan, tmp_path / "straight", straight, rounds=6)
    record = once(small_plan, tmp_path / "broken", network(), on_round=on_round, save_every=100)
    assert (rounds, record["rounds_done"], record["model"]["round"]) == ([1, 2, 3], 3, 3)
    assert once(small_plan, tmp_path / "broken", broken, rounds=6)["rounds_replayed"] == 0
    assert torch.equal(straight.weight, broken.weight)  # type: ignore[arg-type]
