"""Users as the unit: grouping, plans that name them, training that clips them as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from galton.audit import audit
from galton.batching import Batches, FixedOrder, group_by_user
from galton.cache import Cache
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Guarantee
from galton.plan import Plan, load_plan, make_plan, save_plan
from galton.report import disclose, privacy_curve, render
from galton.training import PlanViolated, TrainingRun
from tests.marks import SLOW
from tests.test_cli import galton
from tests.test_report import Reader

optax = pytest.importorskip("optax")
from galton.training.jax import clipped_sum, train, user_loss  # noqa: E402

CLAIM = Guarantee(4.0, 1e-3, Adjacency.ADD_OR_REMOVE)
SIZES: dict[str, Any] = {"examples": 16, "batch_size": 4, "epochs": 2, "batching": "poisson", "strategy": "identity"}
RANDOM = np.random.default_rng(3)
PARAMS = {"w": jnp.array([0.3, -0.2, 0.1], jnp.float32)}


def loss(params: dict[str, jax.Array], example: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = example
    return (x @ params["w"] - y) ** 2


def data_of(size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return RANDOM.normal(size=(size, 3)).astype(np.float32), RANDOM.normal(size=size).astype(np.float32)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(CLAIM, **SIZES)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(CLAIM, **SIZES, unit="user", per_user=2)


# Grouping


def test_rows_are_the_users_own_and_go_round() -> None:
    names = np.array(["b", "a", "c", "a", "a", "c", "a", "a"])
    users = group_by_user(names, per_user=2)
    assert (users.number, users.examples, users.counts.tolist()) == (3, 8, [5, 1, 2])
    seen = set()
    for epoch in range(5):
        indices, mask = users.rows(np.array([0, 1, 2]), epoch)
        assert mask.tolist() == [[True, True], [True, False], [True, True]]
        for user, name in enumerate("abc"):
            assert (names[indices[user]] == name).all()
        assert len(set(indices[0].tolist())) == 2
        seen |= set(indices[0].tolist())
    assert seen == set(np.flatnonzero(names == "a").tolist())


def test_another_user_does_not_change_what_a_user_contributes() -> None:
    names = np.array(["b", "a", "c", "a", "b", "b"])
    kept = np.flatnonzero(names != "a")
    with_a, without = group_by_user(names, 2), group_by_user(names[kept], 2)
    for epoch in range(3):
        rows = with_a.rows(np.array([1, 2]), epoch)
        others = without.rows(np.array([0, 1]), epoch)
        np.testing.assert_array_equal(rows[0], kept[others[0]])
        np.testing.assert_array_equal(rows[1], others[1])


def test_take_pads_and_masks() -> None:
    users = group_by_user([0, 0, 0, 1, 2, 2], per_user=2)
    batch = next(Batches(FixedOrder(3, 1, 1), padded_batch_size=4, seed=1))
    rows, mask = users.take(batch, 1, np.arange(1.0, 7.0))
    assert rows.tolist() == [[1, 2], [4, 0], [5, 6], [0, 0]]
    assert mask.tolist() == [[True, True], [True, False], [True, True], [False, False]]


@pytest.mark.parametrize("users", [[["a", "b"], ["a"]], [["a", "b"], ["a", "c"]], [], np.zeros((2, 2))])
def test_examples_of_several_users_are_refused(users: Any) -> None:
    with pytest.raises(InvalidArgument, match="one user per example"):
        group_by_user(users, per_user=1)


def test_an_example_of_several_users_is_shown() -> None:
    with pytest.raises(InvalidArgument, match=r"users = \"\('ann', 'bob'\) for one example\""):
        group_by_user(["cid", ("ann", "bob")], per_user=1)


# Plans


def test_a_plan_names_users_and_keeps_them(plan: Plan, tmp_path: Path) -> None:
    assert (plan.unit, plan.per_user) == ("user", 2)
    assert "differ in all examples of one user, of which at most 2 take part in a round" in plan.statement
    assert "The number of users, 16, is public" in plan.statement
    loaded = load_plan(save_plan(plan, tmp_path / "plan"))
    assert loaded.digest == plan.digest
    assert loaded.per_user == 2
    body = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert body["unit"] == {"kind": "user", "per_user": 2}
    assert "gradients of a user's examples" in body["clipping"]["convention"]


def test_a_plan_of_users_has_the_noise_of_as_many_examples(plan: Plan, examples: Plan) -> None:
    assert plan.noise_multiplier == examples.noise_multiplier
    assert plan.scheme == examples.scheme
    assert "unit" not in examples.to_json()
    assert examples.unit == "example"


def test_report_and_disclosure_speak_of_users(plan: Plan, tmp_path: Path) -> None:
    curve = privacy_curve(plan, cache=Cache(tmp_path), points=2, deltas=())
    page = Reader(render(plan, curve)).text
    assert "“was this user used?”" in page
    assert "The guarantee protects one user with all examples." in page
    rows = dict(disclose(plan, curve).rows)
    assert rows["unit of privacy"].startswith("one user with all examples, of which at most 2")
    assert "a single user more" in rows["adjacency"]


def test_the_command_plans_for_users(tmp_path: Path) -> None:
    words = ["--batch-size", "4", "--epochs", "2", "--epsilon", "4", "--delta", "1e-3", "--batching", "fixed-order"]
    words += ["--adjacency", "zero-out", "--strategy", "identity", "--output", str(tmp_path / "plan")]
    for bad, named in (
        (["--unit", "user"], "--per-user"),
        (["--per-user", "3"], "--per-user"),
        (["--unit", "user", "--per-user", "0"], "--per-user"),
        (["--unit", "person", "--per-user", "3"], "--unit"),
    ):
        result = galton("plan", "--units", "16", *words, *bad)
        assert result.code == 2
        assert named in result.err
    refused = galton("plan", "--units", "-3", *words)
    assert "--units = -3" in refused.err
    assert galton("plan", "--units", "16", "--unit", "user", "--per-user", "3", *words).code == 0
    assert load_plan(tmp_path / "plan").per_user == 3


# Training


def test_a_users_gradients_are_clipped_as_a_whole() -> None:
    x, y = data_of(8)
    mask = np.array([[True, True, True], [True, False, False]])
    rows = (np.stack([x[:3], x[3:6]]), np.stack([y[:3], y[3:6]]))
    total = clipped_sum(user_loss(loss), 0.5)(PARAMS, (rows, mask), np.array([True, True]))
    wanted = np.zeros(3)
    for user, present in enumerate(mask):
        gradients = [jax.grad(loss)(PARAMS, (rows[0][user][k], rows[1][user][k]))["w"] for k in np.flatnonzero(present)]
        whole = np.sum([np.asarray(part, np.float64) for part in gradients], axis=0)
        wanted += whole * min(1.0, 0.5 / np.linalg.norm(whole))
    np.testing.assert_allclose(np.asarray(total["w"]), wanted, rtol=2e-4)
    assert np.linalg.norm(wanted) > 0.5


def test_one_example_a_user_is_training_on_examples(examples: Plan, tmp_path: Path) -> None:
    data = data_of(16)
    users = group_by_user(np.arange(16), per_user=1)
    single = make_plan(CLAIM, **SIZES, unit="user", per_user=1)
    assert single.noise_multiplier == examples.noise_multiplier
    totals = []
    for group in (None, users):
        batch = next(examples.batches(5))
        step = clipped_sum(loss if group is None else user_loss(loss), 1.0)
        rows = tuple(batch.take(part) if group is None else group.take(batch, 4, part)[0] for part in data)
        both: Any = rows if group is None else (rows, group.take(batch, 4, data[1])[1])
        totals.append(np.asarray(step(PARAMS, both, batch.mask)["w"]))
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-5)  # the sums are taken in another order
    trained = train(single, tmp_path / "run", loss, PARAMS, data, optax.sgd(0.1), users=users, seed=1)
    assert trained.record["completed"]
    assert np.isfinite(np.asarray(trained.params["w"])).all()


def test_a_plan_of_users_trains_on_users_only(plan: Plan, examples: Plan, tmp_path: Path) -> None:
    data = data_of(16)
    users = group_by_user(np.arange(16) // 1, per_user=2)
    with pytest.raises(PlanViolated, match="unit of the plan is a user, at most 2 examples"):
        train(plan, tmp_path / "run", loss, PARAMS, data, optax.sgd(0.1))
    with pytest.raises(PlanViolated, match="unit of the plan is an example"):
        train(examples, tmp_path / "run", loss, PARAMS, data, optax.sgd(0.1), users=users)
    with pytest.raises(PlanViolated, match="per_user"):
        TrainingRun(plan, tmp_path / "run", PARAMS, examples=16, clip_norm=1.0)
    with pytest.raises(InvalidArgument, match="users"):
        train(plan, tmp_path / "run", loss, PARAMS, data_of(17), optax.sgd(0.1), users=users)
    fewer = group_by_user(np.arange(16) // 2, per_user=2)
    with pytest.raises(PlanViolated, match="users = 8"):
        train(plan, tmp_path / "run", loss, PARAMS, data, optax.sgd(0.1), users=fewer)


def test_torch_sums_what_jax_sums(plan: Plan, tmp_path: Path) -> None:
    """The same users, rows and model in both: users with one, two and five examples, and padding."""
    torch = pytest.importorskip("torch")
    from galton.training import torch as adapter

    names = np.concatenate([np.arange(16), np.arange(8), np.zeros(3, int)])
    data, users = data_of(names.size), group_by_user(names, per_user=2)
    model = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(np.asarray(PARAMS["w"]).copy()))
    items = torch.utils.data.TensorDataset(*map(torch.from_numpy, data))

    def torch_loss(model: Any, rows: Any) -> Any:
        return ((model(rows[0])[:, 0] - rows[1]) ** 2).sum()

    with adapter.open_run(plan, tmp_path / "run", model, examples=16, clip_norm=1.0, per_user=2, seed=7) as run:
        with pytest.raises(PlanViolated, match="examples = 27"):
            adapter.plan_loader(run, items)
        for batch, planned in zip(adapter.plan_loader(run, items, users=users), run.epoch(), strict=True):
            each = adapter.user_loss(torch_loss)
            total = adapter.clipped_sum(model, each, batch.inputs, batch.mask, 0.5)["weight"][0]
            rows = tuple(users.take(planned, plan.bins, part)[0] for part in data)
            mask = users.take(planned, plan.bins, data[1])[1]
            wanted = clipped_sum(user_loss(loss), 0.5)(PARAMS, (rows, mask), planned.mask)["w"]
            np.testing.assert_allclose(total.numpy(), np.asarray(wanted), rtol=2e-4, atol=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = adapter.train(plan, tmp_path / "trained", torch_loss, model, items, optimizer, users=users, seed=7)
    assert record["completed"]


def test_adapters_refuse_a_plan_of_users_without_users(plan: Plan, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from galton.training.torch import open_run

    model = torch.nn.Linear(3, 1)
    with pytest.raises(PlanViolated, match="group_by_user"):
        open_run(plan, tmp_path / "run", model, examples=16, clip_norm=1.0)
    with pytest.raises(PlanViolated, match="group_by_user"):  # who forgets users passes the number of all examples
        open_run(plan, tmp_path / "run", model, examples=24, clip_norm=1.0)
    with pytest.raises(PlanViolated, match="users = 15: the plan was made for 16"):
        open_run(plan, tmp_path / "run", model, examples=15, clip_norm=1.0, per_user=plan.per_user)


# Opacus

OWNERS = np.concatenate([np.arange(16), np.arange(8), np.zeros(3, int)])
"""Users with one, two and five examples, of whom at most two take part."""


class OpacusScript:
    """What a user of Opacus writes; `parts` is the size of physical batches."""

    def __init__(self, plan: Plan, folder: Path, data: Any, parts: int | None = None, **options: Any) -> None:
        torch = pytest.importorskip("torch")
        pytest.importorskip("opacus")
        from galton.training.opacus import PlanPrivacyEngine

        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.engine = PlanPrivacyEngine(plan, folder, seed=7)
        self.items = torch.utils.data.TensorDataset(*map(torch.from_numpy, data))
        self.module, self.optimizer, self.loader = self.engine.make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(self.items, batch_size=4),
            **({"users": group_by_user(OWNERS, per_user=2)} | options),
        )
        self.parts = parts

    def loss(self, model: Any, rows: Any) -> Any:
        return (3 * (model(rows[0])[:, 0] - rows[1]) ** 2).mean()

    def go_on(self, rounds: int) -> OpacusScript:
        from opacus.utils.batch_memory_manager import wrap_data_loader

        size = len(self.items) if self.parts is None else self.parts
        while self.engine.run.round < rounds:
            loader = wrap_data_loader(data_loader=self.loader, max_batch_size=size, optimizer=self.optimizer)
            for rows in self.loader if self.parts is None else loader:
                self.optimizer.zero_grad()
                self.loss(self.module, rows).backward()
                self.optimizer.step()
                if self.engine.run.round == rounds:
                    break
        return self

    def weights(self) -> list[Any]:
        return [weight.detach().numpy().copy() for weight in self.model.parameters()]


@pytest.fixture(scope="module")
def opacus_data() -> Any:
    return data_of(OWNERS.size)


@pytest.mark.parametrize("parts", [None, 1, 3])
def test_opacus_makes_the_steps_of_the_torch_adapter(
    plan: Plan, opacus_data: Any, tmp_path: Path, parts: int | None
) -> None:
    """Also where a physical batch ends amid the examples of a user, whose sum is clipped when it is complete."""
    script = OpacusScript(plan, tmp_path / "opacus", opacus_data, parts)
    import torch

    from galton.training import torch as adapter

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model.load_state_dict(script.model.state_dict())
    script.go_on(8)
    assert script.engine.close()["completed"]
    optimizer, users = torch.optim.SGD(model.parameters(), lr=0.1), group_by_user(OWNERS, per_user=2)
    adapter.train(plan, tmp_path / "torch", script.loss, model, script.items, optimizer, users=users, seed=7)
    for got, weight in zip(script.weights(), model.parameters(), strict=True):
        np.testing.assert_allclose(got, weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_opacus_clips_a_user_to_the_clip_norm(plan: Plan, opacus_data: Any, tmp_path: Path) -> None:
    """All examples of a user are the same and far out: their sum has the clip norm, not twice as much."""
    x, y = opacus_data
    script = OpacusScript(plan, tmp_path, (x * 0 + x[:1], y * 0 + 1e4))
    import torch

    for batch, rows in zip(script.engine.run.epoch(), script.loader, strict=True):
        members = len(batch.examples)
        counts = np.minimum(np.bincount(OWNERS)[batch.examples], 2)
        assert len(rows[0]) == counts.sum()
        script.optimizer.zero_grad()
        script.loss(script.module, rows).backward()
        script.optimizer.step()
        grads: list[Any] = [getattr(weight, "summed_grad") for weight in script.model.parameters()]  # noqa: B009
        norm = float(torch.cat([part.flatten() for part in grads]).double().norm())
        assert 0.9999 * members < norm <= members
    script.engine.close()


def test_opacus_goes_on_with_users_bit_by_bit(plan: Plan, opacus_data: Any, tmp_path: Path) -> None:
    whole = OpacusScript(plan, tmp_path / "whole", opacus_data, parts=3).go_on(8)
    whole.engine.close()
    script = OpacusScript(plan, tmp_path / "run", opacus_data, parts=3).go_on(3)
    path = tmp_path / "checkpoint.pt"
    script.engine.save_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    script.go_on(5).engine.load_checkpoint(path=path, module=script.module, optimizer=script.optimizer)
    script.go_on(8)
    assert script.engine.close()["rounds_replayed"] == 2
    for first, second in zip(whole.weights(), script.weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_opacus_refuses_what_is_not_clipped_by_user(
    plan: Plan, examples: Plan, opacus_data: Any, tmp_path: Path
) -> None:
    with pytest.raises(PlanViolated, match=r"grad_sample_mode = ghost: .* norms of single examples"):
        OpacusScript(plan, tmp_path, opacus_data, grad_sample_mode="ghost")
    with pytest.raises(PlanViolated, match=r"make_private\(users=...\)"):
        OpacusScript(plan, tmp_path, data_of(16), users=None)
    with pytest.raises(PlanViolated, match="unit of the plan is an example"):
        OpacusScript(examples, tmp_path, opacus_data)
    with pytest.raises(InvalidArgument, match="users = 27: must say to whom each example belongs, and there are 26"):
        OpacusScript(plan, tmp_path, data_of(26))
    with pytest.raises(PlanViolated, match="users = 8"):
        OpacusScript(plan, tmp_path, data_of(16), users=group_by_user(np.arange(16) // 2, per_user=2))
    script = OpacusScript(plan, tmp_path, opacus_data)
    rows = next(iter(script.loader))
    for wrong in (slice(None, -1), [*range(len(rows[0])), 0]):
        script.optimizer.zero_grad()
        script.loss(script.module, [part[wrong] for part in rows]).backward()
        with pytest.raises(PlanViolated, match="number of gradients in this step"):
            script.optimizer.step()
    strange = [part[:3] for part in script.items.tensors]
    script.optimizer.load_state_dict(script.optimizer.state_dict())  # forgets what was delivered
    script.loss(script.module, strange).backward()
    with pytest.raises(PlanViolated, match="no loader of the plan has delivered"):
        script.optimizer.step()
    assert script.engine.run.round == 0
    script.go_on(1).engine.close()


# Audit


@SLOW
def test_an_audit_of_users_plants_a_canary_user(plan: Plan) -> None:
    """Users are what batches and noise know: the auditor's canary is one of them, with a contribution of norm 1."""
    outcome = audit(plan, trials=400, seed=1)
    assert outcome.consistent
    assert outcome.epsilon_lower <= plan.guarantee.epsilon
