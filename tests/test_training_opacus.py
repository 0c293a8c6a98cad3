"""The Opacus adapter against itself without memory management, with ghost clipping, and without interruption."""

from __future__ import annotations

import copy
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus")

import torch
import torch.distributed as dist
from opacus.accountants import create_accountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from galton.batching import group_by_user
from galton.errors import GaltonError, InvalidArgument, InvalidFile
from galton.noise import key_from_seed
from galton.plan import Plan, PlanNotTrusted, make_plan, save_plan
from galton.training import LostRounds, PlanViolated, check_record
from galton.training.clipping import Clipping, normalized, per_group
from galton.training.opacus import PlanAccountant, PlanPrivacyEngine
from galton.training.torch import PrivateOptimizer, open_run, plan_loader, train
from tests.conftest import SIZES
from tests.forging import with_noise

SEED = 1076
"""A seed for which one of the eight bins is empty."""
EMPTY = 5
"""Which."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors need no threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def examples(number: int = 64) -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(number, 5, generator=made) * 3, torch.randint(0, 3, (number,), generator=made))


class Lines(IterableDataset[Any]):
    """The examples, which can only be read from the first to the last."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for index in range(64):
            self.read += 1
            yield examples()[index]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Script:
    """What a user of Opacus writes."""

    def __init__(self, plan: Plan, folder: Path, batch_size: int = 8, **options: Any) -> None:
        self.model = network()
        self.engine = PlanPrivacyEngine(plan, folder, seed=SEED, pinned=options.pop("pinned", None))
        self.inner = options.pop("optimizer", momentum)(self.model)
        loader = DataLoader(
            options.pop("data", examples()), batch_size=batch_size, num_workers=options.pop("workers", 0)
        )
        made = self.engine.make_private(
            module=self.model, optimizer=self.inner, data_loader=loader, **({"max_grad_norm": 1.0} | options)
        )
        self.module, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = (
            made[2] if len(made) == 4 else nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
        )

    def pass_over(self, loader: DataLoader[Any], rounds: int = 32) -> None:
        """Trains for one epoch, or until so many rounds are done."""
        for x, y in loader:
            self.step(x, y)
            if self.engine.run.round == rounds:
                break

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.criterion(self.module(x), y).backward()
        self.optimizer.step()

    def go_on(self, rounds: int = 32) -> Script:
        while self.engine.run.round < rounds:
            self.pass_over(self.loader, rounds)
        return self

    def weights(self) -> list[Tensor]:
        return [weight.detach() for weight in self.model.parameters()]


def close(first: Script, second: Script) -> None:
    for a, b in zip(first.weights(), second.weights(), strict=True):
        torch.testing.assert_close(a, b)


def test_redrawn_batches_are_taken(redrawn_plan: Plan, tmp_path: Path) -> None:
    script = Script(redrawn_plan, tmp_path, pinned=redrawn_plan.digest)
    planned, data = redrawn_plan.batches(SEED), examples()
    while script.engine.run.round < 32:
        for x, y in script.loader:
            expected = data.tensors[0][planned.at(script.engine.run.round).examples]
            assert torch.equal(x, expected)
            script.step(x, y)
    script.engine.close()
    assert check_record(tmp_path)["rounds_done"] == 32


@pytest.fixture(scope="module")
def straight(small_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Script:
    """A run that nothing happened to."""
    script = Script(small_plan, tmp_path_factory.mktemp("straight")).go_on()
    script.engine.close()
    return script


def test_it_makes_the_steps_of_the_plain_torch_adapter(small_plan: Plan, tmp_path: Path, straight: Script) -> None:
    model = network()
    with open_run(small_plan, tmp_path, model, examples=64, clip_norm=1.0, seed=SEED) as run:
        optimizer = PrivateOptimizer(momentum(model), model, run)
        while not run.done:
            for batch in plan_loader(run, examples()):
                optimizer.accumulate(lambda model, rows: nn.functional.cross_entropy(model(rows[0]), rows[1]), batch)
                optimizer.step()
    for a, b in zip(straight.weights(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # Opacus clips to norm / (norm + 1e-6)


def of_torch(plan: Plan, folder: Path, rounds: int, **options: Any) -> nn.Module:
    """The model that the adapter for PyTorch trains, on data at hand."""
    model = network()
    options |= {"rounds": rounds, "seed": SEED, "pinned": plan.digest}
    loss = lambda model, rows: nn.functional.cross_entropy(model(rows[0]), rows[1])  # noqa: E731
    train(plan, folder, loss, model, examples(), momentum(model), **options)
    return model


@pytest.mark.parametrize("clipping", [per_group({"0.": 0.6, "2.": 0.8}), normalized(0.1)], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("padded_batch_size", [None, 3])
def test_kinds_of_clipping_are_those_of_the_plain_torch_adapter(
    small_plan: Plan, tmp_path: Path, clipping: Clipping, padded_batch_size: int | None
) -> None:
    plan = replace(small_plan, clipping=clipping.kind)
    script = Script(plan, tmp_path / "opacus", clipping=clipping, pinned=plan.digest)
    if padded_batch_size is None:
        script.go_on(8)
    else:
        with BatchMemoryManager(
            data_loader=script.loader, max_physical_batch_size=padded_batch_size, optimizer=script.optimizer
        ) as loader:
            script.pass_over(loader)
    assert script.engine.close()["clipping"] == clipping.to_json()
    expected = of_torch(plan, tmp_path / "torch", 8, clipping=clipping)
    for mine, theirs in zip(script.weights(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    flat = of_torch(small_plan, tmp_path / "flat", 8)
    assert any(not torch.allclose(a, b, rtol=1e-2) for a, b in zip(script.weights(), flat.parameters(), strict=True))
    with pytest.raises(PlanViolated, match="ghost clipping takes one norm over all parameters"):
        Script(plan, tmp_path / "ghost", clipping=clipping, grad_sample_mode="ghost", pinned=plan.digest)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_streams_are_read_once_an_epoch_and_taken_up_in_the_middle(tmp_path: Path, workers: int) -> None:
    sizes: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-3} | SIZES | {"epochs": 2, "strategy": "identity"}
    plan = make_plan(**sizes, batching="balls-in-bins-streaming")

    def begun(folder: str, data: Any = None) -> Script:
        return Script(plan, tmp_path / folder, data=data or Lines(), workers=workers, shuffled=True)

    lines = Lines()
    script = begun("straight", lines).go_on(16)
    script.engine.close()
    assert (
        workers or 128 - 32 <= lines.read <= 128 + 1
    )  # less what is truncated, and the one that shapes are taken from
    expected = of_torch(plan, tmp_path / "torch", 16, shuffled=True)
    for mine, theirs in zip(script.weights(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    broken = begun("broken").go_on(11)
    saved = tmp_path / "saved"
    broken.engine.save_checkpoint(path=saved, module=broken.module, optimizer=broken.optimizer)
    broken.engine.close()
    again = begun("broken")
    again.engine.load_checkpoint(path=saved, module=again.module, optimizer=again.optimizer)
    again.go_on(16).engine.close()
    assert all(torch.equal(a, b) for a, b in zip(again.weights(), script.weights(), strict=True))
    at_hand = begun("at-hand", examples()).go_on(16)  # as it was shuffled
    at_hand.engine.close()
    assert all(torch.equal(a, b) for a, b in zip(at_hand.weights(), script.weights(), strict=True))
    with pytest.raises(PlanViolated, match=r"say shuffled=True"):
        Script(plan, tmp_path / "other", data=Lines())


def test_a_bar_follows_the_steps(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    script = Script(small_plan, tmp_path)
    with script.engine.progress():
        script.go_on(3)
    shown = capsys.readouterr().err
    assert "3/32" in shown
    assert "4 in all, at delta 0.001" in shown
    script.go_on(4)
    script.engine.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("padded_batch_size", [None, 3])
def test_ghost_clipping_and_virtual_steps_change_nothing(
    small_plan: Plan, tmp_path: Path, straight: Script, mode: str, padded_batch_size: int | None
) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode=mode)
    if padded_batch_size is None:
        script.go_on()
    else:
        with BatchMemoryManager(
            data_loader=script.loader, max_physical_batch_size=padded_batch_size, optimizer=script.optimizer
        ) as loader:
            for _ in range(small_plan.epochs):
                script.pass_over(loader)
    close(script, straight)
    assert script.engine.close()["rounds_done"] == 32


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_noise_is_that_of_the_plan_bit_by_bit(small_plan: Plan, tmp_path: Path, mode: str) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode=mode)
    noise = small_plan.noise()
    weights = {name: weight.detach().numpy() for name, weight in script.model.named_parameters()}
    state = noise.init(weights, key_from_seed(SEED, small_plan.digest))
    for turn, (x, y) in enumerate(script.loader):
        drawn, state = noise.step(state)
        assert len(x) == small_plan.batches(SEED).at(turn).mask.sum()
        script.optimizer.zero_grad()
        script.criterion(script.module(x), y).backward()
        script.optimizer.step()
        for name, weight in script.model.named_parameters():
            added = torch.tensor(drawn[name].tolist())
            untyped: Any = weight
            assert torch.equal(untyped.grad, (untyped.summed_grad + added) / 8)
            if turn == EMPTY:
                assert torch.equal(untyped.grad, added / 8)
    script.engine.close()


def test_a_sum_is_not_divided(small_plan: Plan, tmp_path: Path, straight: Script) -> None:
    script = Script(
        small_plan,
        tmp_path,
        loss_reduction="sum",
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1 / 8, momentum=0.9),
    )
    close(script.go_on(), straight)
    script.engine.close()


def test_a_forged_plan_does_not_train(small_plan: Plan, tmp_path: Path) -> None:
    """A tenth of the noise, hashes and certificate made to fit."""
    forged = save_plan(with_noise(small_plan, 0.1 * small_plan.noise_multiplier), tmp_path / "plan")
    model = network()
    words: dict[str, Any] = {"module": model, "optimizer": momentum(model)}
    words |= {"data_loader": DataLoader(examples(), batch_size=8), "max_grad_norm": 1.0}
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        PlanPrivacyEngine(forged, tmp_path / "run").make_private(**words)
    with pytest.raises(PlanNotTrusted, match="not the pinned one"):
        PlanPrivacyEngine(forged, tmp_path / "run", pinned=small_plan.digest).make_private(**words)
    assert not (tmp_path / "run").exists()


def test_batches_that_are_too_large_are_cut_as_planned(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(small_plan, padded_batch_size=9)
    monkeypatch.setattr(Plan, "check", lambda self: None)  # so small a size is in no plan
    script = Script(plan, tmp_path)
    sizes = [len(x) for x, _ in script.loader]
    assert sizes == [plan.batches(SEED).at(turn).mask.sum() for turn in range(8)]
    assert max(sizes) == 9
    assert max(len(small_plan.batches(SEED).at(turn).examples) for turn in range(8)) > 9
    script.engine.close()


def test_resumed_from_a_checkpoint_it_ends_bit_by_bit_the_same(
    small_plan: Plan, tmp_path: Path, straight: Script
) -> None:
    script = Script(small_plan, tmp_path / "run")
    for rounds in (3, 13):
        script.go_on(rounds)
        path = tmp_path / f"{rounds}.pt"
        script.engine.save_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
        assert path.stat().st_mode & 0o777 == 0o600
        script.go_on(rounds + 1)  # lost, and computed again
        script.engine.close()
        script = Script(small_plan, tmp_path / "run")
        with pytest.raises(PlanViolated, match="load_state_dict has to come first"):
            script.go_on(rounds + 2)
        script.engine.load_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    script.engine.load_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    state = torch.load(path, weights_only=True)["optimizer_state_dict"]["galton"]
    assert state == {"plan": small_plan.digest, "run": check_record(tmp_path / "run")["run"], "round": 13}
    script.go_on()
    assert all(torch.equal(a, b) for a, b in zip(script.weights(), straight.weights(), strict=True))
    record = script.engine.close()
    assert (record["completed"], record["resumptions"], record["rounds_replayed"]) == (True, 2, 2)
    assert record == check_record(tmp_path / "run")


def test_batches_of_other_loaders_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    script = Script(small_plan, tmp_path)
    size = len(script.engine.run.batch.examples)
    around = DataLoader(examples(), batch_sampler=script.loader.batch_sampler)
    for strange in (DataLoader(examples(), batch_size=size, shuffle=True), around):
        with pytest.raises(PlanViolated, match="no loader of the plan has delivered the batch of round 0"):
            script.pass_over(strange)
    for x, y in script.loader:
        script.step(x, y)
        with pytest.raises(PlanViolated, match="no loader of the plan has delivered the batch of round 1"):
            script.step(x, y)  # again
        break
    assert script.engine.run.round == 1
    script.go_on(9).engine.close()


def test_a_batch_that_is_left_out_is_noticed(small_plan: Plan, tmp_path: Path, straight: Script) -> None:
    script = Script(small_plan, tmp_path)
    for turn, (x, y) in enumerate(script.loader):
        if turn == 2:
            continue
        if turn == 3:
            with pytest.raises(PlanViolated, match="round 3 was delivered, but the coming round is 2"):
                script.step(x, y)
            break
        script.step(x, y)
    for x, y in script.loader:
        script.step(x, y)
        assert list(script.loader)  # to look at batches between steps is no harm
    close(script.go_on(), straight)
    script.engine.close()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_part_that_is_left_out_is_noticed(
    small_plan: Plan, tmp_path: Path, straight: Script, mode: str, workers: int
) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode=mode, workers=workers)
    with BatchMemoryManager(data_loader=script.loader, max_physical_batch_size=3, optimizer=script.optimizer) as loader:
        for turn, (x, y) in enumerate(loader):
            if turn == 1:
                continue
            if turn == 2:
                with pytest.raises(PlanViolated, match="has delivered a batch that was not stepped"):
                    script.step(x, y)
                break
            script.step(x, y)
        assert script.engine.run.round == 0
        script.pass_over(loader, 5)  # broken off, with parts under way
        while not script.engine.run.done:
            script.pass_over(loader)
    close(script, straight)
    script.engine.close()


class Terminated(Exception):
    """What the handler of SIGTERM of a script raises."""


@pytest.mark.parametrize("last", [3, 8], ids=["within an epoch", "at its end"])
def test_a_terminated_script_saves_and_its_schedule_goes_on(small_plan: Plan, tmp_path: Path, last: int) -> None:
    """The learning rate changes after every round and after every epoch; the weights are those of a run in one go."""

    def end(number: int, frame: Any) -> None:
        raise Terminated

    def trained(folder: Path, signalled: int | None, resumed: bool = False) -> Script:
        script = Script(small_plan, folder)
        schedule = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, 0.95)
        saved: dict[str, Any] = {"path": tmp_path / "saved", "module": script.module, "optimizer": script.optimizer}
        if resumed:
            script.engine.load_checkpoint(**saved, lr_scheduler=schedule)
        script.engine.save_on_termination(**saved, lr_scheduler=schedule)
        while script.engine.run.round < 16:
            for x, y in script.loader:
                script.step(x, y)
                if script.engine.run.round == signalled:
                    signal.raise_signal(signal.SIGTERM)  # in the middle of what is done in a round
                schedule.step()
                if script.engine.run.round == 16:
                    break
            schedule.step()
        script.engine.close()
        return script

    before = signal.signal(signal.SIGTERM, end)
    try:
        straight = trained(tmp_path / "straight", None)
        with pytest.raises(Terminated):
            trained(tmp_path / "run", last)
        again = trained(tmp_path / "run", None, resumed=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert check_record(tmp_path / "run")["rounds_replayed"] == 0
    assert all(torch.equal(a, b) for a, b in zip(straight.weights(), again.weights(), strict=True))


def test_a_schedule_that_was_not_saved_is_missed(small_plan: Plan, tmp_path: Path) -> None:
    script = Script(small_plan, tmp_path / "run")
    saved: dict[str, Any] = {"path": tmp_path / "saved", "module": script.module, "optimizer": script.optimizer}
    script.engine.save_checkpoint(**saved)
    schedule = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, 0.95)
    with pytest.raises(InvalidFile, match="has no learning rate scheduler"):
        script.engine.load_checkpoint(**saved, lr_scheduler=schedule)
    script.engine.close()


@pytest.mark.slow
def test_workers_that_read_ahead_change_nothing(small_plan: Plan, tmp_path: Path, straight: Script) -> None:
    script = Script(small_plan, tmp_path, workers=2)
    for turn, (x, y) in enumerate(script.loader):
        if turn == 2:
            continue
        if turn == 3:
            with pytest.raises(PlanViolated, match="round 3 was delivered, but the coming round is 2"):
                script.step(x, y)
            break
        script.step(x, y)
    close(script.go_on(), straight)
    script.engine.close()


def test_the_module_must_clip_as_planned(small_plan: Plan, tmp_path: Path) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode="ghost")
    planned, script.module.max_grad_norm = script.module.max_grad_norm, 1000.0
    with pytest.raises(PlanViolated, match="max_grad_norm of the module = 1000"):
        script.go_on(1)
    script.module.max_grad_norm = planned
    assert script.engine.run.released == 0
    script.go_on(1).engine.close()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_parameters_cannot_be_frozen_later(small_plan: Plan, tmp_path: Path, mode: str) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode=mode).go_on(1)
    x, y = next(iter(script.loader))
    script.optimizer.zero_grad()
    script.criterion(script.module(x), y).backward()
    script.model[0].bias.requires_grad_(False)  # type: ignore[index]
    with pytest.raises(PlanViolated, match=r"other parameters are trainable .* \(0.bias\)"):
        script.optimizer.step()
    script.model[0].bias.requires_grad_(True)  # type: ignore[index]
    assert script.engine.run.released == 1
    script.go_on(2).engine.close()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_state_without_its_model_gets_no_noise_again(
    small_plan: Plan, tmp_path: Path, mode: str, workers: int
) -> None:
    script = Script(small_plan, tmp_path, grad_sample_mode=mode, workers=workers).go_on(2)
    state = copy.deepcopy(script.optimizer.state_dict())
    done = [weight.clone() for weight in script.go_on(5).weights()]
    script.optimizer.load_state_dict(state)
    with pytest.warns(LostRounds, match="round 2 has had its noise for another gradient") as warned:
        script.pass_over(script.loader, 5)
    assert len([warning for warning in warned if warning.category is LostRounds]) == 1
    assert all(torch.equal(a, b) for a, b in zip(done, script.weights(), strict=True))
    script.go_on()
    record = script.engine.close()
    assert (record["rounds_skipped"], record["completed"]) == ([[2, 4]], True)
    published = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(published[name], value) for name, value in script.model.state_dict().items())


def test_rounds_after_an_old_checkpoint_are_skipped(small_plan: Plan, tmp_path: Path) -> None:
    script = Script(small_plan, tmp_path).go_on(2)
    old = copy.deepcopy(script.optimizer.state_dict())
    script.go_on(4).optimizer.state_dict()
    script.go_on(5)
    with pytest.warns(LostRounds, match="rounds 2 to 4"):
        script.optimizer.load_state_dict(old)
    assert script.engine.close()["rounds_skipped"] == [[2, 4]]


def test_rounds_that_were_lost_in_a_crash_are_accounted_for(small_plan: Plan, tmp_path: Path) -> None:
    script = Script(small_plan, tmp_path).go_on(1)
    script.engine.run._noise.close()  # as when killed: nothing was saved
    script.engine.run._lock.close()
    again = Script(small_plan, tmp_path)
    assert (again.engine.run.round, len(again.engine.accountant)) == (0, 1)
    assert again.engine.get_epsilon(1e-3) == 4.0
    again.engine.close()


def test_accountant(small_plan: Plan, tmp_path: Path) -> None:
    unbound = create_accountant("galton")
    assert isinstance(unbound, PlanAccountant)
    assert (len(unbound), unbound.history) == (0, [])
    with pytest.raises(PlanViolated, match="has no plan yet"):
        unbound.get_epsilon(1e-3)
    script = Script(small_plan, tmp_path)
    engine, accountant = script.engine, script.engine.accountant
    assert engine.get_epsilon(1e-3) == 0.0
    script.go_on(1)
    for delta in (1e-3, 1e-2):
        assert engine.get_epsilon(delta) == 4.0
    with pytest.raises(PlanViolated, match="was certified for"):
        engine.get_epsilon(1e-4)
    spent = {"noise_multiplier": small_plan.noise_multiplier, "sample_rate": 1 / 8}
    assert accountant.history == [(*spent.values(), 1)]
    for wrong in ({"noise_multiplier": 1.0}, {"sample_rate": 0.5}, {}):  # the last: a step without noise of the plan
        with pytest.raises(PlanViolated):
            accountant.step(**(spent | wrong))
    accountant.load_state_dict(accountant.state_dict())
    for name, other in {"mechanism": "rdp", "plan": "sha256:0"}.items():
        with pytest.raises(PlanViolated, match=name):
            accountant.load_state_dict(accountant.state_dict() | {name: other})
    script.go_on(32)
    assert (len(accountant), engine.get_epsilon(1e-3)) == (32, 4.0)
    with pytest.raises(PlanViolated, match="all are done"):
        script.pass_over(script.loader)
    engine.close()


def test_what_the_plan_does_not_have_is_refused(small_plan: Plan, tmp_path: Path) -> None:
    def anew(**options: Any) -> Callable[[], Script]:
        return lambda: Script(small_plan, tmp_path / "run", **options)

    refused: list[tuple[Callable[[], Any], str]] = [
        (anew(batch_size=16), "batches per epoch = 4"),
        (anew(data=examples(60)), "examples = 60"),
        (anew(max_grad_norm=1.5), "max_grad_norm = 1.5"),
        (anew(noise_multiplier=0.5), "noise_multiplier = 0.5"),
        (anew(clipping="per_layer"), "clipping = 'per_layer': must be flat, or per_group"),
        (anew(clipping=normalized()), "clipping = normalized: the plan was made for flat"),
        (anew(data=Lines(), users=group_by_user(range(64), per_user=1)), "must have random access"),
        (anew(data=Lines()), "can only be read in order; plan balls-in-bins-streaming"),
        (anew(poisson_sampling=False), "poisson_sampling = False"),
        (anew(optimizer=lambda model: momentum(model[0])), "must hold"),
    ]
    for attempt, words in refused:
        with pytest.raises(GaltonError, match=words):
            attempt()
    engine = PlanPrivacyEngine(small_plan, tmp_path / "other")
    half = network().to(torch.bfloat16)
    with pytest.raises(PlanViolated, match="half precision"):
        engine.make_private(
            module=half, optimizer=momentum(half), data_loader=DataLoader(examples(), batch_size=8), max_grad_norm=1.0
        )
    target = {"target_epsilon": 4.0, "target_delta": 1e-3, "epochs": 4}
    for name, wrong in {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 5}.items():
        with pytest.raises(PlanViolated, match=name):
            engine.make_private_with_epsilon(**(target | {name: wrong}))  # type: ignore[arg-type]
    script = Script(small_plan, tmp_path / "run")
    with pytest.raises(PlanViolated, match="called already"):
        script.engine.make_private(module=network(), optimizer=script.inner, data_loader=script.loader)
    for x, y in script.loader:
        with pytest.raises(PlanViolated, match="number of gradients in this step"):
            script.step(torch.cat([x, x]), torch.cat([y, y]))
        break
    for name in ("noise_multiplier", "max_grad_norm"):
        planned = getattr(script.optimizer, name)
        setattr(script.optimizer, name, planned / 2)
        with pytest.raises(PlanViolated, match=name):
            script.pass_over(script.loader)
        setattr(script.optimizer, name, planned)
    assert script.engine.run.round == 0
    script.go_on(1).engine.close()


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel])
def test_distributed_models_are_refused(small_plan: Plan, tmp_path: Path, wrapper: type[nn.Module]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = wrapper(network())
        loader = DataLoader(examples(), batch_size=8)
        with pytest.raises(InvalidArgument, match=r"^module = '.*DataParallel': must not be distributed: each rank"):
            PlanPrivacyEngine(small_plan, tmp_path / "run").make_private(
                module=model, optimizer=momentum(model), data_loader=loader
            )
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / "run").exists()


def test_a_target_that_is_the_plans_is_accepted(small_plan: Plan, tmp_path: Path) -> None:
    model = network()
    engine = PlanPrivacyEngine(small_plan, tmp_path)
    module, _, loader = engine.make_private_with_epsilon(
        target_epsilon=4.0,
        target_delta=1e-3,
        epochs=4,
        module=model,
        optimizer=momentum(model),
        data_loader=DataLoader(examples(), batch_size=8),
        max_grad_norm=1.0,
    )
    assert len(loader) == 8
    assert module is not model
    engine.close()


def test_dropout_comes_out_the_same_after_a_kill(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropping() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 3))

    monkeypatch.setattr(sys.modules[__name__], "network", dropping)
    script, path = Script(small_plan, tmp_path / "run").go_on(2), tmp_path / "checkpoint.pt"
    script.engine.save_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    lost = [weight.clone() for weight in script.go_on(4).weights()]
    torch.manual_seed(99)  # what the script draws elsewhere does not matter
    script.engine.load_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    script.go_on(4)
    assert all(torch.equal(a, b) for a, b in zip(script.weights(), lost, strict=True))
    record = script.engine.close()
    assert (record["rounds_replayed"], record["rounds_skipped"]) == (2, [])
