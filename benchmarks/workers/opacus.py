"""Opacus: DP-SGD with Poisson batches; its accountant of privacy random variables, its noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers.optimizer import _generate_noise

PACKAGES = ("opacus",)
GUARANTEE = "upper bound"


def _epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = create_accountant(mechanism="prv")
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """One step with everyone in it."""
    return {"epsilon": _epsilon(cell["sigma"] / cell["sensitivity"], 1.0, 1, cell["delta"])}


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """Poisson batches."""
    answer = _epsilon(cell["sigma"], 1 / cell["bins"], cell["rounds"], cell["delta"])
    return {"epsilon": answer, "guarantee": GUARANTEE}


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """Poisson batches, to 0.01 in epsilon, which is the default."""
    sigma = get_noise_multiplier(
        target_epsilon=cell["epsilon"],
        target_delta=cell["delta"],
        sample_rate=1 / cell["bins"],
        steps=cell["rounds"],
        accountant="prv",
    )
    return {"sigma": sigma, "guarantee": GUARANTEE}


def noise(cell: dict[str, Any]) -> Callable[[], None]:
    """A round of noise added to a gradient."""
    gradient = torch.zeros(cell["parameters"])

    def turn() -> None:
        _ = gradient + _generate_noise(1.0, gradient)

    return turn


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": calibrate,
    "noise": noise,
}
