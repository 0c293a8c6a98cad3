"""Data sets as people have them: columns of texts, streams, workers that know no script."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

from galton.batching import group_by_user
from galton.errors import InvalidArgument
from galton.plan import Plan, make_plan, save_plan
from galton.training import PlanViolated
from galton.training.torch import Forward, open_run, plan_loader, train
from galton.training.torch_batches import collate_examples
from galton.training.torch_workers import ByValue, worker_context
from tests.conftest import SIZES

X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))


class Columns(Dataset[Any]):
    """As Hugging Face's data sets give their items: plain Python, and texts among them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": f"the text of {index}", "values": X[index].tolist(), "label": index % 3, "weight": 0.5}


class Tokens(Columns):
    """Texts alone."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": "x" * (index % 4 + 1)}


class Lines(IterableDataset[Any]):
    """Can only be read; in another order for every epoch, if it is told which."""

    def __init__(self, reshuffled: bool = False) -> None:
        self.read, self._reshuffled, self._order = 0, reshuffled, list(range(64))

    def set_epoch(self, epoch: int) -> None:
        if self._reshuffled:
            self._order = torch.randperm(64, generator=torch.Generator().manual_seed(epoch)).tolist()

    def __iter__(self) -> Iterator[Any]:
        for index in self._order:
            self.read += 1
            yield X[index], index % 3


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(5, 3)


def loss(model: Forward, rows: Any) -> Tensor:
    return cross_entropy(model(rows[0]), rows[1])


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_columns_of_numbers_are_taken_and_texts_left_out(small_plan: Plan, tmp_path: Path) -> None:
    with open_run(small_plan, tmp_path / "run", network(), examples=64, clip_norm=1.0, seed=1) as run:
        batch = next(iter(plan_loader(run, Columns())))
    members = small_plan.batches(1).at(0).examples
    assert sorted(batch.inputs) == ["label", "values", "weight"]
    torch.testing.assert_close(batch.inputs["values"][: len(members)], X[members].double())
    assert batch.inputs["label"][: len(members)].tolist() == [index % 3 for index in members]
    with pytest.raises(PlanViolated, match=r"has no numbers in its columns \(text\); give a collate_fn"):
        collate_examples([{"text": "a"}])
    with pytest.raises(PlanViolated, match="the examples of ids differ in shape"):
        collate_examples([{"ids": [1, 2]}, {"ids": [1]}])


def test_texts_become_numbers_by_a_function_of_the_users(small_plan: Plan, tmp_path: Path) -> None:
    def lengths(items: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        sizes = torch.tensor([len(item["text"]) for item in items])
        return nn.functional.one_hot(sizes, 5).float(), sizes % 3

    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    record = train(small_plan, tmp_path / "run", loss, model, Tokens(), inner, collate_fn=lengths, rounds=2)
    assert record["rounds_done"] == 2
    assert not same(model, network())


@pytest.mark.parametrize("reshuffled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_streams_are_read_once_an_epoch_and_taken_up_in_the_middle(tmp_path: Path, reshuffled: bool) -> None:
    kind = "balls-in-bins-redrawn-streaming" if reshuffled else "balls-in-bins-streaming"
    plan = make_plan(epsilon=4.0, delta=1e-3, **SIZES | {"epochs": 2}, strategy="identity", batching=kind)
    confirmed = {"reshuffled": True} if reshuffled else {"shuffled": True}

    def once(folder: str, data: IterableDataset[Any], rounds: int) -> nn.Module:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        train(plan, tmp_path / folder, loss, model, data, inner, rounds=rounds, seed=4, **confirmed)  # type: ignore[arg-type]
        return model

    lines = Lines(reshuffled)
    straight = once("straight", lines, 16)
    truncated = sum(plan.batches(4).at(turn).truncated for turn in range(16))
    assert 128 - 2 * truncated - 2 <= lines.read <= 128
    once("broken", Lines(reshuffled), 11)
    assert same(straight, once("broken", Lines(reshuffled), 16))
    with pytest.raises(PlanViolated, match=r"say (re)?shuffled=True"):
        train(plan, tmp_path / "other", loss, network(), lines, torch.optim.SGD(network().parameters()))


def test_a_stream_needs_a_streaming_plan(small_plan: Plan, tmp_path: Path) -> None:
    with (
        open_run(small_plan, tmp_path / "run", network(), examples=64, clip_norm=1.0) as run,
        pytest.raises(InvalidArgument, match="data = 'Lines': can only be read in order"),
    ):
        plan_loader(run, Lines())
    with (
        open_run(small_plan, tmp_path / "run", network(), examples=64, clip_norm=1.0) as run,
        pytest.raises(InvalidArgument, match="data = 'Lines': must have random access where the unit is a user"),
    ):
        plan_loader(run, Lines(), users=group_by_user(np.arange(64), per_user=1))


def test_only_what_the_script_defines_is_sent_by_value() -> None:
    plain = ByValue(Columns())
    assert plain.__reduce__()[0] is ByValue
    assert type(pickle.loads(pickle.dumps(plain)).content) is Columns
    by_value = pickle.loads(pickle.dumps(ByValue(lambda items: len(items))))
    assert by_value.content([1, 2]) == 2
    assert worker_context(2, "spawn") == "spawn"
    assert worker_context(0) is None


SCRIPT = """
import sys, torch
from torch.utils.data import Dataset
from galton.training.torch import train

print("the script runs", flush=True)

class Mine(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(5) * index, index % 3

def loss(model, rows):
    return torch.nn.functional.cross_entropy(model(rows[0]), rows[1])

model = torch.nn.Linear(5, 3)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
record = train(sys.argv[1], sys.argv[2], loss, model, Mine(), inner, workers=2, rounds=2)
print(record["rounds_done"], "rounds")
"""


@pytest.mark.slow
def test_workers_do_not_run_a_script_without_a_guard(small_plan: Plan, tmp_path: Path) -> None:
    save_plan(small_plan, tmp_path / "plan")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "plan"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the script runs\n2 rounds\n"
