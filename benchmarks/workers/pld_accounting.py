"""PLD_accounting: deterministic bounds for random allocation, that is bins with independent noise."""

from __future__ import annotations

import math
from typing import Any

import PLD_accounting as peer
from dp_accounting.pld import privacy_loss_distribution

PACKAGES = ("pld-accounting", "dp-accounting", "numba")
GUARANTEE = "upper and lower bound"


def _allocation(cell: dict[str, Any], sigma: float) -> dict[str, Any]:
    """Bins drawn once are one allocation with noise sigma / sqrt(E); redrawn bins are E of them."""
    if cell["batches"] == "bins":
        return {"sigma": sigma / math.sqrt(cell["epochs"]), "num_steps": cell["bins"]}
    return {"sigma": sigma, "num_steps": cell["bins"], "num_epochs": cell["epochs"]}


def _sampled(cell: dict[str, Any], sigma: float) -> float:
    """Epsilon of Poisson batches."""
    step = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-3)
    sampled = peer.subsample_pld(pld=step, sampling_probability=1 / cell["bins"])
    return float(sampled.self_compose(cell["rounds"]).get_epsilon_for_delta(cell["delta"]))


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """One bin."""
    upper, lower = peer.gaussian_allocation_epsilon_range(
        delta=cell["delta"], sigma=cell["sigma"] / cell["sensitivity"], num_steps=1, epsilon_accuracy=0.01
    )
    return {"epsilon": upper, "lower": lower}


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """Both bounds, at most 0.02 apart; Poisson batches have the upper one only."""
    if cell["batches"] == "Poisson":
        return {"epsilon": _sampled(cell, cell["sigma"]), "guarantee": "upper bound"}
    allocation = _allocation(cell, cell["sigma"])
    upper, lower = peer.gaussian_allocation_epsilon_range(delta=cell["delta"], epsilon_accuracy=0.02, **allocation)
    return {"epsilon": upper, "lower": lower, "guarantee": GUARANTEE}


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """Bisection by us: the package has no calibration."""
    config = peer.AllocationSchemeConfig(loss_discretization=0.01, tail_truncation=0.01 * cell["delta"])

    def enough(sigma: float) -> bool:
        if cell["batches"] == "Poisson":
            return _sampled(cell, sigma) <= cell["epsilon"]
        params = peer.PrivacyParams(delta=cell["delta"], **_allocation(cell, sigma))
        return float(peer.gaussian_allocation_epsilon_configurable(params=params, config=config)) <= cell["epsilon"]

    low, high = cell["bracket"]
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return {"sigma": high, "guarantee": "upper bound", "note": "bisection by us"}


TASKS = {"check": check, "epsilon": epsilon, "calibrate": calibrate, "error": calibrate}
