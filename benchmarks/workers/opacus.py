"""Opacus: DP-SGD with Poisson batches; its accountant of privacy random variables, its noise and its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers.optimizer import _generate_noise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workers import torch_models

PACKAGES = ("opacus",)
GUARANTEE = "upper bound"


def _epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = create_accountant(mechanism="prv")
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """One step with everyone in it."""
    return {"epsilon": _epsilon(cell["sigma"] / cell["sensitivity"], 1.0, 1, cell["delta"])}


def epsilon(cell: dict[str, Any]) -> dict[str, Any] | str:
    """Poisson batches."""
    if cell["batches"] != "Poisson":
        return "no bins, no correlated noise"
    answer = _epsilon(cell["sigma"], 1 / cell["bins"], cell["rounds"], cell["delta"])
    return {"epsilon": answer, "guarantee": GUARANTEE}


def calibrate(cell: dict[str, Any]) -> dict[str, Any] | str:
    """Poisson batches, to 0.01 in epsilon, which is the default."""
    if cell["batches"] != "Poisson":
        return "no bins, no correlated noise"
    sigma = get_noise_multiplier(
        target_epsilon=cell["epsilon"],
        target_delta=cell["delta"],
        sample_rate=1 / cell["bins"],
        steps=cell["rounds"],
        accountant="prv",
    )
    return {"sigma": sigma, "guarantee": GUARANTEE}


def error(cell: dict[str, Any]) -> dict[str, Any] | str:
    """DP-SGD."""
    return calibrate(cell) if cell["mechanism"] == "DP-SGD, Poisson" else "not offered"


def noise(cell: dict[str, Any]) -> Callable[[], None] | str:
    """A round of noise added to a gradient."""
    if cell["strategy"] != "identity":
        return "independent noise only"
    gradient = torch.zeros(cell["parameters"])

    def turn() -> None:
        _ = gradient + _generate_noise(1.0, gradient)

    return turn


def step(cell: dict[str, Any]) -> Callable[[], None]:
    """A step of the private optimiser, clipping by hooks or by ghost norms."""
    images, labels = torch_models.data(cell["model"], cell["batch"])
    model = torch_models.network(cell["model"])
    ghost = cell["way"] == "ghost"
    private = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=cell["batch"]),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    module, optimizer = private[0], private[1]
    criterion = private[2] if ghost else nn.CrossEntropyLoss()

    def turn() -> None:
        optimizer.zero_grad()
        criterion(module(images), labels).backward()
        optimizer.step()

    return turn


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": error,
    "noise": noise,
    "step": step,
}
