"""Kinds of clipping and ghost clipping: against `clipped_sum`, plain loops, and the limits that plans rest on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from galton.batching import group_by_user
from galton.errors import InvalidArgument
from galton.plan import Plan, load_plan, make_plan, save_plan
from galton.training import PlanViolated
from galton.training.clipping import Clipping, normalized, per_group, per_layer
from galton.training.torch import clipped_sum, ghost_clipped_sum, open_run, train, user_loss
from galton.training.torch_clipping import trainable
from tests.conftest import SIZES
from tests.marks import slow_after

ROWS = 9


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors need no threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Text(nn.Module):
    """One layer of every kind that works on sequences, the linear one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.norm, self.scale = nn.LayerNorm(6), nn.RMSNorm(6)
        self.mix = nn.Linear(6, 6)
        self.slide = nn.Conv1d(6, 8, 3, padding="same", groups=2, dilation=2)
        self.groups, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        x = self.scale(self.mix(torch.relu(self.mix(x))) + x)
        out: Tensor = self.head(self.groups(self.slide(x.transpose(1, 2))).mean(2))
        return out


def text() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Text(), torch.randint(0, 11, (ROWS, 7))


def image() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
    second = nn.Conv2d(8, 8, (2, 3), dilation=(1, 2))
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.Flatten(), nn.Linear(80, 3)), torch.randn(
        ROWS, 3, 12, 12
    )


def volume() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(2, 4, 2), nn.Flatten(), nn.Linear(96, 3)), torch.randn(ROWS, 2, 3, 4, 5)


def vectors() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 3)), torch.randn(ROWS, 32) * 5


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "text": text,
    "image": image,
    "volume": volume,
    "vectors": vectors,
}
LABELS = torch.arange(ROWS) % 3


def single(model: Callable[..., Tensor], rows: Any) -> Tensor:
    return 30 * cross_entropy(model(rows[0]), rows[1])


def several(model: Callable[..., Tensor], rows: Any) -> Tensor:
    return 30 * cross_entropy(model(rows[0]), rows[1], reduction="none")


def kinds(model: nn.Module, clip_norm: float) -> list[Clipping]:
    return [Clipping(), normalized(0.1), per_layer(list(trainable(model)), clip_norm)]


@pytest.mark.parametrize(("clip_norm", "name"), slow_after(2, list(itertools.product([0.5, 100.0], MODELS))))
def test_ghost_clipping_gives_the_sums_of_clipping_one_by_one(name: str, clip_norm: float) -> None:
    model, x = MODELS[name]()
    mask = torch.arange(ROWS) != 4
    for clipping in kinds(model, clip_norm):
        expected = clipped_sum(model, single, (x, LABELS), mask, clip_norm, clipping=clipping)
        for size in (None, 4):
            total = ghost_clipped_sum(model, several, (x, LABELS), mask, clip_norm, size, clipping=clipping)
            for weight, sums in expected.items():
                torch.testing.assert_close(total[weight], sums, rtol=2e-4, atol=2e-5 * clip_norm)


def flat(total: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.double().flatten() for part in total.values()])


CASES = list(itertools.product(["vectors", "text", "image"], [True, False], ["float32", "bfloat16 autocast"]))


@pytest.mark.parametrize(("name", "ghost", "precision"), slow_after(5, CASES))
def test_no_example_moves_the_sum_by_more_than_the_clip_norm(name: str, ghost: bool, precision: str) -> None:
    """The code that trains, for each kind: what is left if an example goes, and what each amounts to alone."""
    model, x = MODELS[name]()
    everyone = torch.ones(ROWS, dtype=torch.bool)
    summing: Any = ghost_clipped_sum if ghost else clipped_sum
    loss = several if ghost else single
    for clipping in kinds(model, 1.0):

        def sums(members: list[int], clipping: Clipping = clipping) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision != "float32"):
                total = summing(model, loss, (x[members], LABELS[members]), everyone[members], 1.0, clipping=clipping)
            return flat(total)

        everybody = list(range(ROWS))
        whole = sums(everybody)
        moves = [whole - sums([other for other in everybody if other != index]) for index in everybody]
        alone = [sums([index]) for index in everybody]
        most = float(torch.stack(moves + alone).norm(dim=1).max())
        assert most <= 1.0
        assert most > (0.9999 if clipping.kind == "flat" else 0.5)
    groups = per_layer(list(trainable(model)), 1.0).groups(1.0, trainable(model))
    total = summing(
        model, loss, (x[:1], LABELS[:1]), everyone[:1], 1.0, clipping=per_layer(list(trainable(model)), 1.0)
    )
    for group in groups:
        assert flat({part: total[part] for part in group.names}).norm() <= 1 / math.sqrt(len(groups))


def test_norms_are_not_too_small_where_positions_cancel() -> None:
    """Inputs of opposite sign at 64 positions: the gradient is what rounding leaves, and still clipped."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    half = torch.randn(4, 32, 8) * 1e4
    x = torch.cat([half, -half * (1 + 1e-6)], dim=1)
    mask = torch.ones(4, dtype=torch.bool)
    for index in range(4):
        total = ghost_clipped_sum(
            model, lambda model, rows: model(rows).sum(dim=(1, 2)), x[[index]], mask[[index]], 1.0
        )
        assert flat(total).norm() <= 1.0


def test_gradients_that_are_not_finite_contribute_nothing() -> None:
    model, x = vectors()
    x[3], x[5] = torch.nan, torch.inf
    mask = torch.ones(ROWS, dtype=torch.bool)
    others = [0, 1, 2, 4, 6, 7, 8]
    total = ghost_clipped_sum(model, several, (x, LABELS), mask, 1.0)
    expected = clipped_sum(model, single, (x[others], LABELS[others]), mask[others], 1.0)
    for name, sums in expected.items():
        torch.testing.assert_close(total[name], sums, rtol=1e-4, atol=1e-5)


def test_users_are_clipped_as_a_whole() -> None:
    model, x = text()
    rows, labels = x.reshape(3, 3, 7), LABELS.reshape(3, 3)
    present = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    mask = torch.ones(3, dtype=torch.bool)
    total = ghost_clipped_sum(model, several, ((rows, labels), present), mask, 1.0, span=3)
    expected = clipped_sum(model, user_loss(single), ((rows, labels), present), mask, 1.0)
    for name, sums in expected.items():
        torch.testing.assert_close(total[name], sums, rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    """Uses the table of its embedding behind the layer's back."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens).mean(1) @ self.embed.weight[:3].T


class Centred(nn.Module):
    """Looks at other examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out - 0.5 * out.mean(0)


class Recurrent(nn.Module):
    """Has layers that neither ghost clipping nor vmap knows."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


def test_what_ghost_clipping_cannot_do_is_refused() -> None:
    mask = torch.ones(ROWS, dtype=torch.bool)
    tokens, x = text()[1], vectors()[1]
    with pytest.raises(InvalidArgument, match=r"cell \(LSTM\) has parameters of its own"):
        ghost_clipped_sum(Recurrent(), several, (torch.zeros(ROWS, 2, 5), LABELS), mask, 1.0)
    mixing = nn.Sequential(nn.Linear(32, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(InvalidArgument, match=r"1 \(BatchNorm1d\) mixes the examples"):
        ghost_clipped_sum(mixing, several, (x, LABELS), mask, 1.0)
    shared = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 3))
    shared[1].weight = shared[0].weight
    with pytest.raises(InvalidArgument, match="0 and 1 share a parameter"):
        ghost_clipped_sum(shared, several, (x, LABELS), mask, 1.0)
    with pytest.raises(PlanViolated, match=r"uses embed\.weight in another way than its layer"):
        ghost_clipped_sum(Tied(), several, (tokens, LABELS), mask, 1.0)
    with pytest.raises(PlanViolated, match="layer mixes the examples of a batch"):
        ghost_clipped_sum(Centred(), several, (x, LABELS), mask, 1.0)
    with pytest.raises(InvalidArgument, match="must return the losses of all 9 rows"):
        ghost_clipped_sum(vectors()[0], single, (x, LABELS), mask, 1.0)


def test_groups_have_every_parameter_once_and_norms_that_fit() -> None:
    names = ["a.weight", "a.bias", "ab.weight"]
    with pytest.raises(InvalidArgument, match="must be in exactly one group, and is in none"):
        per_group({"a.": 1.0}).groups(1.0, names)
    with pytest.raises(InvalidArgument, match=r"must be in exactly one group, and is in \['a', 'ab'\]"):
        per_group({"a": 0.6, "ab": 0.8}).groups(1.0, names)
    with pytest.raises(InvalidArgument, match="squares of groups' norms must add up"):
        per_group({"a.": 1.0, "ab.": 1.0}).groups(1.0, names)
    with pytest.raises(InvalidArgument, match="must name at least one group"):
        per_group({})
    groups = per_group({"a.": 0.6, "ab.": 0.8}).groups(1.0, names)
    assert math.hypot(*(group.limit for group in groups)) < 1.0
    with pytest.raises(InvalidArgument, match="inside each other"):
        per_layer(["a.weight", "a.b.weight"], 1.0)


@pytest.fixture(scope="module")
def group_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        sizes = SIZES | {"epochs": 2, "strategy": "identity", "batching": "poisson"}
        return make_plan(epsilon=4.0, delta=1e-3, **sizes, clipping="per-group")


def test_a_plan_says_how_gradients_are_clipped(group_plan: Plan, tmp_path: Path) -> None:
    text = group_plan.to_json()["clipping"]
    assert text["kind"] == "per-group"
    assert "each of which is clipped to a norm of its own" in text["convention"]
    save_plan(group_plan, tmp_path / "plan")
    assert load_plan(tmp_path / "plan").clipping == "per-group"
    with pytest.raises(InvalidArgument, match="clipping = 'adaptive'"):
        make_plan(epsilon=4.0, delta=1e-3, **SIZES, clipping="adaptive")
    model, _ = vectors()
    for wrong in (None, normalized()):
        with pytest.raises(PlanViolated, match=r"^clipping = .*: the plan was made for per-group"):
            open_run(
                group_plan,
                tmp_path / "run",
                model,
                examples=64,
                clip_norm=1.0,
                clipping=wrong,
                pinned=group_plan.digest,
            )


def data() -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(64, 32, generator=made), torch.arange(64) % 3)


def test_training_by_ghost_clipping_in_groups_is_training_one_by_one(group_plan: Plan, tmp_path: Path) -> None:
    models = []
    for ghost in (False, True):
        model, _ = vectors()
        clipping = per_group({"0.": 0.6, "2.": 0.8})
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        record = train(
            group_plan,
            tmp_path / str(ghost),
            several if ghost else single,
            model,
            data(),
            inner,
            ghost=ghost,
            clipping=clipping,
            micro_batch_size=5,
            seed=1,
            rounds=4,
            pinned=group_plan.digest,
        )
        assert record["clipping"] == {"kind": "per-group", "norms": {"0.": 0.6, "2.": 0.8}}
        models.append(model)
    for one_by_one, by_ghost in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(by_ghost, one_by_one, rtol=1e-3, atol=1e-5)


def own_clipping(model: nn.Module, inputs: Any, mask: Tensor) -> dict[str, Tensor]:
    """A plain loop, which recurrent layers do not mind."""
    total = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for index in mask.nonzero()[:, 0].tolist():
        gradient = torch.autograd.grad(
            single(model, (inputs[0][[index]], inputs[1][[index]])), list(model.parameters())
        )
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in gradient))
        for sums, part in zip(total.values(), gradient, strict=True):
            sums += part * min(1.0, 0.9999 / norm)
    return total


def test_recurrent_layers_train_by_clipping_of_their_own(small_plan: Plan, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, rows = Recurrent(), TensorDataset(torch.randn(64, 6, 5), torch.arange(64) % 3)
    before = [weight.detach().clone() for weight in model.parameters()]
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tmp_path / "run"
    record = train(small_plan, run, None, model, rows, inner, clipped=own_clipping, rounds=2)
    assert record["rounds_done"] == 2
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    for wrong in ({"diagnostics": True}, {"ghost": True}):
        with pytest.raises(InvalidArgument, match="clipped = 'given': must come without"):
            train(small_plan, run, None, model, rows, inner, clipped=own_clipping, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="loss = None: must be given"):
        train(small_plan, run, None, model, rows, inner)
    with pytest.raises(InvalidArgument, match="must return sums for the parameters"):
        train(small_plan, run, None, model, rows, inner, clipped=lambda model, inputs, mask: {})


@pytest.mark.slow
def test_users_train_by_ghost_clipping(tmp_path: Path) -> None:
    sizes = {"examples": 16, "batch_size": 4, "epochs": 2, "batching": "poisson", "strategy": "identity"}
    plan = make_plan(epsilon=4.0, delta=1e-3, **sizes, unit="user", per_user=3)  # type: ignore[arg-type]
    users = group_by_user([index % 16 for index in range(64)], per_user=3)
    models = []
    for ghost in (False, True):
        model, _ = vectors()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = several if ghost else single
        train(plan, tmp_path / str(ghost), loss, model, data(), inner, users=users, ghost=ghost, seed=1, rounds=3)
        models.append(model)
    for one_by_one, by_ghost in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(by_ghost, one_by_one, rtol=1e-3, atol=1e-5)
