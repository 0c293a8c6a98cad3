"""The PyTorch adapter against plain loops, and against runs that were never interrupted."""

from __future__ import annotations

import io
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset, default_collate

from galton.errors import GaltonError, InvalidArgument
from galton.noise import key_from_seed
from galton.noise.run import read_keys
from galton.plan import Plan, PlanNotTrusted, save_plan
from galton.training import LostRounds, PlanViolated, TrainingRun, check_record
from galton.training.torch import PaddedBatch, PrivateOptimizer, clipped_sum, open_run, plan_loader, train
from tests.forging import with_noise
from tests.marks import SLOW

SEED = 1076
"""A seed for which one of the eight bins is empty."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors need no threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def examples(number: int = 64) -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(number, 1, 4, 4, generator=made) * 3, torch.randint(0, 3, (number,), generator=made)
    )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))


def loss(model: Callable[..., Tensor], rows: Any) -> Tensor:
    return cross_entropy(model(rows[0]), rows[1])


def opened(plan: Plan, folder: Path, model: nn.Module, **options: Any) -> TrainingRun:
    return open_run(plan, folder, model, examples=64, clip_norm=1.0, seed=SEED, **options)


def begin(plan: Plan, folder: Path) -> tuple[nn.Module, PrivateOptimizer]:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, PrivateOptimizer(inner, model, opened(plan, folder, model))


def go_on(optimizer: PrivateOptimizer, rounds: int, micro_batch_size: int | None = None) -> None:
    """Trains until so many rounds are done."""
    run = optimizer.run
    while run.round < rounds:
        for batch in plan_loader(run, examples(), micro_batch_size):
            optimizer.accumulate(loss, batch)
            if batch.last:
                optimizer.step()
            if run.round == rounds:
                break


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def plain_loop(model: nn.Module, data: Dataset[Any], members: list[int], clip_norm: float) -> dict[str, Tensor]:
    """The definition: one example after the other."""
    total = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for index in members:
        x, y = data[index]
        gradient = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        norm = torch.sqrt(torch.stack([part.square().sum() for part in gradient]).sum())
        for sums, part in zip(total.values(), gradient, strict=True):
            sums += part * min(1.0, clip_norm / float(norm))
    return total


@pytest.mark.parametrize("micro_batch_size", [None, 1, 3, 64])
@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_clipped_sum_is_that_of_a_plain_loop(micro_batch_size: int | None, clip_norm: float) -> None:
    model, data = network(), examples()
    members = [3, 1, 4, 15, 9, 2, 6]
    inputs, mask = [part[members] for part in data.tensors], torch.ones(7, dtype=torch.bool)
    total = clipped_sum(model, loss, inputs, mask, clip_norm, micro_batch_size)
    for name, expected in plain_loop(model, data, members, clip_norm).items():
        torch.testing.assert_close(total[name], expected, rtol=1e-4, atol=1e-6)


def test_padding_and_gradients_that_are_not_finite_contribute_nothing() -> None:
    model, data = network(), examples()
    x, y = (part[:6].clone() for part in data.tensors)
    mask = torch.tensor([True, True, False, True, True, False])
    x[2], x[4] = torch.nan, torch.inf  # one is padding, the other an example
    total = clipped_sum(model, loss, [x, y], mask, 1.0)
    for name, expected in plain_loop(model, data, [0, 1, 3], 1.0).items():
        torch.testing.assert_close(total[name], expected, rtol=1e-4, atol=1e-6)
    model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
    assert not clipped_sum(model, loss, [x, y], mask, 1.0)["unused"].any()
    nothing = clipped_sum(model, loss, [x, y], torch.zeros(6, dtype=torch.bool), 1.0)
    assert all(not part.any() for part in nothing.values())


def test_one_example_never_exceeds_the_clip_norm() -> None:
    model, mask = network(), torch.ones(1, dtype=torch.bool)
    for index in range(64):
        total = clipped_sum(model, loss, [part[[index]] for part in examples().tensors], mask, 0.25)
        assert torch.cat([part.double().flatten() for part in total.values()]).norm() <= 0.25


@pytest.mark.parametrize("micro_batch_size", [None, 8])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", ["small_plan", "redrawn_plan"])
def test_loader_gives_the_batches_of_the_plan(
    request: pytest.FixtureRequest, which: str, tmp_path: Path, micro_batch_size: int | None, workers: int
) -> None:
    plan: Plan = request.getfixturevalue(which)
    with opened(plan, tmp_path, network(), pinned=plan.digest) as run:
        planned, data = plan.batches(SEED), examples()
        loader = plan_loader(run, data, micro_batch_size, num_workers=workers)
        for epoch in range(plan.epochs):
            loaded = list(loader)
            assert len(loaded) == len(loader)
            for turn in range(8):
                parts = [part for part in loaded if part.round == 8 * epoch + turn]
                assert [part.part for part in parts] == list(range(parts[0].parts))
                assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
                batch = planned.at(8 * epoch + turn)
                assert torch.equal(torch.cat([part.mask for part in parts]), torch.from_numpy(batch.mask))
                for column, rows in enumerate(data.tensors):
                    assert torch.equal(
                        torch.cat([part.inputs[column] for part in parts]), torch.from_numpy(batch.take(rows.numpy()))
                    )
            assert run.round == 8 * epoch  # loading alone moves nothing
            for _ in range(8):
                run.noise()
        with pytest.raises(PlanViolated, match="all are done"):
            next(iter(loader))


def test_a_forged_plan_does_not_train(small_plan: Plan, tmp_path: Path) -> None:
    """A tenth of the noise, hashes and certificate made to fit."""
    forged = save_plan(with_noise(small_plan, 0.1 * small_plan.noise_multiplier), tmp_path / "plan")
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        train(forged, tmp_path / "run", loss, model, examples(), inner)
    with pytest.raises(PlanNotTrusted, match="not the pinned one"):
        open_run(forged, tmp_path / "run", model, examples=64, clip_norm=1.0, pinned=small_plan.digest)
    assert not (tmp_path / "run").exists()


def test_batches_that_are_too_large_are_cut_as_planned(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(small_plan, padded_batch_size=9)
    monkeypatch.setattr(Plan, "check", lambda self: None)  # so small a size is in no plan
    with opened(plan, tmp_path, network()) as run:
        batches = list(plan_loader(run, examples()))
    assert {part.mask.shape for part in batches} == {(9,)}
    assert all(int(part.mask.sum()) == plan.batches(SEED).at(part.round).mask.sum() for part in batches)
    assert any(plan.batches(SEED).at(turn).truncated for turn in range(8))


def test_step_adds_the_noise_of_the_plan_bit_by_bit_and_divides_by_the_nominal_size(
    small_plan: Plan, tmp_path: Path
) -> None:
    model = network()
    with opened(small_plan, tmp_path, model) as run:
        optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, run)
        noise = small_plan.noise()
        weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
        state = noise.init(weights, key_from_seed(SEED, small_plan.digest))
        for batch in plan_loader(run, examples()):
            before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            total = clipped_sum(model, loss, batch.inputs, batch.mask, 1.0)
            drawn, state = noise.step(state)
            optimizer.accumulate(loss, batch)
            optimizer.step()
            for name, weight in model.named_parameters():
                expected = before[name] - (total[name] + torch.tensor(drawn[name].tolist())) / 8
                assert torch.equal(weight, expected)
                assert weight.grad is None


def test_half_precision_gets_noise_in_single_precision(small_plan: Plan, tmp_path: Path) -> None:
    model = network().to(torch.bfloat16)
    data = TensorDataset(examples().tensors[0].to(torch.bfloat16), examples().tensors[1])
    with opened(small_plan, tmp_path, model) as run:
        optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, run)
        batch = next(iter(plan_loader(run, data)))
        assert clipped_sum(model, loss, batch.inputs, batch.mask, 1.0)["0.weight"].dtype == torch.float32
        before = [weight.detach().clone() for weight in model.parameters()]
        optimizer.accumulate(loss, batch)
        optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_resumed_from_a_state_dict_it_ends_bit_by_bit_the_same(small_plan: Plan, tmp_path: Path) -> None:
    straight, optimizer = begin(small_plan, tmp_path / "straight")
    go_on(optimizer, 32)
    optimizer.run.close()
    model, optimizer = begin(small_plan, tmp_path / "broken")
    for rounds in (3, 11, 24):
        go_on(optimizer, rounds)
        saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        go_on(optimizer, rounds + (rounds == 11))  # a round that is lost and computed again
        optimizer.run.close()
        model, optimizer = begin(small_plan, tmp_path / "broken")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    go_on(optimizer, 32)
    optimizer.run.close()
    assert same(straight, model)
    record = check_record(tmp_path / "broken")
    assert (record["rounds_done"], record["resumptions"], record["rounds_replayed"]) == (32, 3, 1)


def test_micro_batches_make_the_same_steps(small_plan: Plan, tmp_path: Path) -> None:
    whole, optimizer = begin(small_plan, tmp_path / "whole")
    go_on(optimizer, 6)
    optimizer.run.close()
    cut, optimizer = begin(small_plan, tmp_path / "cut")
    go_on(optimizer, 6, micro_batch_size=8)
    optimizer.run.close()
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_schedulers_see_the_real_groups(small_plan: Plan, tmp_path: Path) -> None:
    _, optimizer = begin(small_plan, tmp_path)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    go_on(optimizer, 1)
    scheduler.step()
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    scheduler.step()
    assert optimizer._inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.025
    optimizer.run.close()


def test_rounds_after_an_old_state_are_skipped_once_a_newer_one_counts_as_saved(
    small_plan: Plan, tmp_path: Path
) -> None:
    _, optimizer = begin(small_plan, tmp_path)
    go_on(optimizer, 2)
    old = optimizer.state_dict()
    go_on(optimizer, 4)
    new = optimizer.state_dict()
    go_on(optimizer, 5)
    optimizer.load_state_dict(new)
    assert optimizer.run.round == 4
    with pytest.warns(LostRounds, match="rounds 2 to 4 have had their noise and are not in the state"):
        optimizer.load_state_dict(old)
    assert optimizer.run.round == 5
    go_on(optimizer, 6)
    optimizer.run.close()
    assert check_record(tmp_path)["rounds_skipped"] == [[2, 4]]


def test_a_crash_while_a_state_is_written_leaves_the_one_before(small_plan: Plan, tmp_path: Path) -> None:
    model, optimizer = begin(small_plan, tmp_path)
    go_on(optimizer, 2)
    saved = {"model": through_a_file(model.state_dict()), "optimizer": through_a_file(optimizer.state_dict())}

    def crash() -> None:
        with optimizer.run:
            go_on(optimizer, 4)
            optimizer.state_dict()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        crash()
    model, optimizer = begin(small_plan, tmp_path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    go_on(optimizer, 5)
    optimizer.run.close()
    straight, other = begin(small_plan, tmp_path / "straight")
    go_on(other, 5)
    other.run.close()
    assert same(straight, model)


def test_strange_states_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    _, optimizer = begin(small_plan, tmp_path / "one")
    go_on(optimizer, 1)
    state = optimizer.state_dict()
    run = state["galton"]
    strange: list[tuple[dict[str, Any], type[GaltonError], str]] = [
        (torch.optim.SGD(network().parameters(), lr=0.1).state_dict(), PlanViolated, "no run in it"),
        (state | {"galton": {"plan": run["plan"]}}, PlanViolated, "no run in it"),
        (state | {"galton": run | {"plan": "sha256:0"}}, PlanViolated, "plan = sha256:0"),
        (state | {"galton": run | {"run": "0" * 32}}, PlanViolated, "belongs to another run"),
        (state | {"galton": run | {"round": 2}}, PlanViolated, "is from round 2, which the run .* has not reached"),
    ]
    for wrong, error, words in strange:
        with pytest.raises(error, match=words):
            optimizer.load_state_dict(wrong)
    optimizer.run.close()
    model = network()
    fresh = open_run(small_plan, tmp_path / "two", model, examples=64, clip_norm=1.0)
    other = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, fresh)
    with pytest.raises(PlanViolated, match="belongs to another run"):
        other.load_state_dict(state)
    fresh.close()


def test_what_the_plan_does_not_have_is_refused(small_plan: Plan, tmp_path: Path) -> None:
    model, optimizer = begin(small_plan, tmp_path / "run")
    run, data = optimizer.run, examples()
    batch = next(iter(plan_loader(run, data)))
    half = next(iter(plan_loader(run, data, 16)))

    def go_on_with(part: PaddedBatch) -> None:
        optimizer.accumulate(loss, part)
        optimizer.step()

    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: open_run(small_plan, tmp_path / "a", model, examples=63, clip_norm=1.0), "examples = 63"),
        (lambda: open_run(small_plan, tmp_path / "b", model, examples=64, clip_norm=2.0), "clip_norm = 2.0"),
        (lambda: plan_loader(run, examples(63)), "examples = 63"),
        (lambda: plan_loader(run, data, 5), "micro_batch_size = 5"),
        (lambda: PrivateOptimizer(torch.optim.SGD(model[0].parameters(), lr=1.0), model, run), "must hold"),  # type: ignore[index]
        (lambda: optimizer.step(), "not been accumulated"),
        (lambda: optimizer.step(lambda: 0.0), "closure"),
        (lambda: optimizer.accumulate(loss, batch._replace(round=1)), "round of the batch = 1"),
        (lambda: optimizer.accumulate(loss, half._replace(part=1)), "micro-batch = 1"),
        (lambda: go_on_with(half), "not all of it"),
        (lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}), "add_param_group"),
    ]
    for attempt, words in refused:
        with pytest.raises((PlanViolated, InvalidArgument), match=words):
            attempt()
    assert run.round == 0
    optimizer.zero_grad()
    go_on(optimizer, 32)
    with pytest.raises(PlanViolated, match="round of the batch = 0"):
        optimizer.accumulate(loss, batch)
    with pytest.raises(PlanViolated, match="all are done"):
        optimizer.accumulate(loss, batch._replace(round=32))
    run.save()
    run.close()
    _, late = begin(small_plan, tmp_path / "run")
    with pytest.raises(PlanViolated, match="load_state_dict has to come first"):
        late.accumulate(loss, batch)
    late.run.close()


def test_batches_of_another_origin_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    _, optimizer = begin(small_plan, tmp_path / "run")
    run, data = optimizer.run, examples()
    x, y = data.tensors
    with open_run(small_plan, tmp_path / "other", network(), examples=64, clip_norm=1.0) as other:
        stranger = next(iter(plan_loader(other, data)))
    batch = next(iter(plan_loader(run, data)))
    everyone = PaddedBatch([x, y], torch.ones(64, dtype=torch.bool), 0)
    for wrong in (stranger, everyone, everyone._replace(token=batch.token), batch._replace(mask=~batch.mask)):
        with pytest.raises(PlanViolated, match="is not the run's batch of round 0"):
            optimizer.accumulate(loss, wrong)
    for parts in (0, 5):
        with pytest.raises(PlanViolated, match=f"number of micro-batches = {parts}"):
            optimizer.accumulate(loss, batch._replace(parts=parts))
    halves, quarters = (list(plan_loader(run, data, size)) for size in (16, 8))
    optimizer.accumulate(loss, halves[0])
    for wrong in (quarters[1], quarters[2], batch):
        with pytest.raises(PlanViolated, match="number of micro-batches"):
            optimizer.accumulate(loss, wrong)
    with pytest.raises(PlanViolated, match="micro-batch = 0"):
        optimizer.accumulate(loss, halves[0])  # twice
    optimizer.zero_grad()
    assert run.round == 0
    go_on(optimizer, 1, micro_batch_size=16)
    run.close()


def test_two_optimisers_cannot_step_one_batch(small_plan: Plan, tmp_path: Path) -> None:
    model, optimizer = begin(small_plan, tmp_path)
    second = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, optimizer.run)
    first, next_one, *_ = plan_loader(optimizer.run, examples())
    for each in (optimizer, second):
        each.accumulate(loss, first)
    optimizer.step()
    attempts: list[Callable[[], None]] = [second.step, lambda: second.accumulate(loss, next_one)]
    for attempt in attempts:
        with pytest.raises(PlanViolated, match="round = 0: was accumulated, but the coming one is 1"):
            attempt()
    second.zero_grad()
    go_on(second, 2)
    optimizer.run.close()


def one_row(items: list[Any]) -> Any:
    return default_collate(items[:1])


def batch_second(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return x.movedim(0, 1), y


def with_names(items: list[Any]) -> Any:
    return [*default_collate(items), "name"]


def as_a_dictionary(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return {"x": x, "y": y}


def test_what_is_collated_has_a_row_for_each_example(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path, network()) as run:
        for collate in (one_row, batch_second, with_names):
            with pytest.raises(PlanViolated, match="collate_fn: gave"):
                list(plan_loader(run, examples(), collate_fn=collate))
        inputs = next(iter(plan_loader(run, examples(), collate_fn=as_a_dictionary))).inputs
        x, y = next(iter(plan_loader(run, examples()))).inputs
        assert torch.equal(inputs["x"], x)
        assert torch.equal(inputs["y"], y)


def test_parameters_cannot_be_frozen_or_unfrozen_later(small_plan: Plan, tmp_path: Path) -> None:
    model = network()
    bias: nn.Parameter = model[3].bias  # type: ignore[index]
    bias.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with opened(small_plan, tmp_path, model) as run:
        optimizer = PrivateOptimizer(inner, model, run)
        batch = next(iter(plan_loader(run, examples())))
        before = bias.detach().clone()
        optimizer.accumulate(loss, batch)
        bias.requires_grad_(True)
        bias.grad = torch.ones_like(bias)
        attempts: list[Callable[[], None]] = [optimizer.step, lambda: optimizer.accumulate(loss, batch)]
        for attempt in attempts:
            with pytest.raises(PlanViolated, match=r"other parameters are trainable .* \(3.bias\)"):
                attempt()
        bias.requires_grad_(False)
        with pytest.raises(PlanViolated, match="holds a parameter that the plan has no noise for"):
            optimizer.step()  # it has a gradient still
        bias.grad = None
        model[0].weight.requires_grad_(False)  # type: ignore[index]
        for attempt in attempts:
            with pytest.raises(PlanViolated, match=r"other parameters are trainable .* \(0.weight\)"):
                attempt()
        model[0].weight.requires_grad_(True)  # type: ignore[index]
        stranger = nn.Parameter(torch.zeros(2))
        stranger.grad = torch.ones(2)
        inner.add_param_group({"params": [stranger]})
        with pytest.raises(PlanViolated, match="holds a parameter that the plan has no noise for"):
            optimizer.step()
        stranger.grad = None
        assert run.round == 0  # no noise was spent
        optimizer.step()
        assert run.round == 1
        assert torch.equal(bias, before)


def test_a_state_without_its_model_gets_no_noise_again(small_plan: Plan, tmp_path: Path) -> None:
    model, optimizer = begin(small_plan, tmp_path)
    go_on(optimizer, 2)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    go_on(optimizer, 5)
    done = [weight.detach().clone() for weight in model.parameters()]
    optimizer.load_state_dict(saved["optimizer"])
    read_ahead = list(plan_loader(optimizer.run, examples()))
    assert [batch.round for batch in read_ahead] == [2, 3, 4, 5, 6, 7]

    def step_all(batches: list[PaddedBatch]) -> None:
        for batch in batches:
            optimizer.accumulate(loss, batch)
            optimizer.step()

    with pytest.warns(LostRounds, match="round 2 has had its noise for another gradient") as warned:
        step_all(read_ahead[:3])
    assert len(warned) == 1  # the other two are passed over
    assert optimizer.run.round == 5
    assert all(torch.equal(a, b) for a, b in zip(done, model.parameters(), strict=True))
    step_all(read_ahead[3:])
    assert optimizer.run.round == 8
    assert not any(torch.equal(a, b) for a, b in zip(done, model.parameters(), strict=True))
    optimizer.run.close()
    assert check_record(tmp_path)["rounds_skipped"] == [[2, 4]]


@SLOW
def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    """PyTorch reports it as an unexpected position in a file."""
    code = """
import resource, signal, sys
from pathlib import Path
import torch
from galton import files
from galton.errors import InvalidFile
from galton.training.torch_optimizer import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with files.replacing(Path(sys.argv[1])) as temporary:
        write_tensors({"w": torch.zeros(10**6)}, temporary)
except InvalidFile as error:
    print(error)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "model.pt: cannot be written (File too large)" in told
    assert list(tmp_path.iterdir()) == []


def test_padding_is_computed_only_for_constant_time() -> None:
    seen: list[int] = []
    model = network()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(1))
    x, y = (part[:6] for part in examples().tensors)
    mask = torch.tensor([True, True, True, False, False, False])

    def rows_of(constant_time: bool) -> int:
        seen.clear()
        clipped_sum(model, loss, [x, y], mask, 1.0, 1, constant_time)
        return len(seen)

    assert (rows_of(False), rows_of(True)) == (3, 6)


def test_a_schedule_goes_on_after_a_kill_and_over_skipped_rounds(small_plan: Plan, tmp_path: Path) -> None:
    def once(folder: str, **options: Any) -> tuple[nn.Module, float]:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda turn: 1 / (1 + turn))
        options |= {"scheduler": scheduler, "seed": SEED}
        train(small_plan, tmp_path / folder, loss, model, examples(), inner, **options)
        return model, inner.param_groups[0]["lr"]

    def kill(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    straight, rate = once("straight", rounds=9)
    assert rate == pytest.approx(1 / 10)
    with pytest.raises(KeyboardInterrupt):
        once("broken", save_every=4, watch=kill)
    model, rate = once("broken", rounds=9)
    assert same(straight, model)
    assert rate == pytest.approx(1 / 10)
    with pytest.raises(KeyboardInterrupt):
        once("skipped", save_every=4, watch=kill)
    with open_run(small_plan, tmp_path / "skipped", network(), examples=64, clip_norm=1.0) as run:
        run._noise.skip()
    _, rate = once("skipped", rounds=9)
    assert rate == pytest.approx(1 / 10)


class Augmented(Dataset[Any]):
    """Draws random numbers of all three kinds for every item."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        x, y = examples()[index]
        return x + torch.rand(()) + random.random() + float(np.random.rand()), y  # noqa: NPY002


def test_dropout_and_augmentation_come_out_the_same_after_a_kill(small_plan: Plan, tmp_path: Path) -> None:
    def once(folder: str, **options: Any) -> nn.Module:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(18, 3))
        torch.manual_seed(len(folder))  # what the script draws elsewhere does not matter
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        train(small_plan, tmp_path / folder, loss, model, Augmented(), inner, seed=SEED, **options)
        return model

    def kill(done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    straight = once("straight", rounds=7)
    with pytest.raises(KeyboardInterrupt):
        once("broken", save_every=3, watch=kill)
    assert same(straight, once("broken", rounds=7))
    record = check_record(tmp_path / "broken")
    assert (record["rounds_replayed"], record["rounds_skipped"]) == (2, [])


def test_a_run_whose_rounds_come_out_differently_is_not_lost(small_plan: Plan, tmp_path: Path) -> None:
    """As on hardware that adds in another order each time: no two losses are the same."""
    times = itertools.count(1)

    def restless(model: Callable[..., Tensor], rows: Any) -> Tensor:
        return loss(model, rows) * (1 + 1 / next(times))

    def once(**options: Any) -> tuple[nn.Module, dict[str, Any]]:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, train(small_plan, tmp_path / "run", restless, model, examples(), inner, **options)

    def kill(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once(save_every=4, watch=kill)
    done: list[int] = []
    with pytest.warns(LostRounds, match="round 4 has had its noise for another gradient"):
        model, record = once(watch=done.append)
    assert (record["completed"], record["rounds_skipped"], record["rounds_replayed"]) == (True, [[4, 5]], 0)
    assert done == list(range(7, 33))
    published = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert all(torch.equal(published[name], value) for name, value in model.state_dict().items())


def test_checkpoints_and_states_have_no_secrets(small_plan: Plan, tmp_path: Path) -> None:
    """The attack of old: from a state and the weights before and after, the clipped sum of the first round."""
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    train(small_plan, tmp_path / "run", loss, model, examples(), inner, rounds=1)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    key = np.asarray(read_keys(tmp_path / "run")[0][1], "<u4").tobytes()
    model, optimizer = begin(small_plan, tmp_path / "other")
    go_on(optimizer, 1)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    optimizer.run.close()
    other = np.asarray(read_keys(tmp_path / "other")[0][1], "<u4").tobytes()
    assert other not in file.getvalue()
    assert optimizer.run._batches.seed.encode() not in file.getvalue()
    for name in ("checkpoint-1", "model.pt"):
        content = (tmp_path / "run" / name).read_bytes()
        assert key not in content
        assert run["batches"]["seed"].encode() not in content
    assert set(torch.load(tmp_path / "run" / "model.pt", weights_only=True)) == set(model.state_dict())


def test_train_goes_on_where_it_was_broken_off(small_plan: Plan, tmp_path: Path) -> None:
    def once(folder: str, model: nn.Module, **options: Any) -> dict[str, Any]:
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        return train(small_plan, tmp_path / folder, loss, model, examples(), inner, seed=SEED, **options)

    straight, broken = network(), network()
    assert once("straight", straight, save_every=32)["completed"]
    assert once("broken", network(), rounds=5)["rounds_done"] == 5

    def kill(done: int) -> None:
        if done == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once("broken", network(), save_every=10, watch=kill)
    record = once("broken", broken)
    assert same(straight, broken)
    assert (record["completed"], record["resumptions"], record["rounds_replayed"]) == (True, 2, 3)
    assert once("broken", network())["rounds_done"] == 32  # nothing left to do
