"""dp-accounting: composition of Gaussian and subsampled mechanisms by privacy loss distributions."""

from __future__ import annotations

from typing import Any

import dp_accounting
from dp_accounting import pld

PACKAGES = ("dp-accounting",)
GUARANTEE = "upper bound"


def event(sigma: float, cell: dict[str, Any]) -> Any:
    """Poisson sampling: every round is a subsampled Gaussian mechanism of its own."""
    sampled = dp_accounting.PoissonSampledDpEvent(1 / cell["bins"], dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(sampled, cell["rounds"])


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """The Gaussian mechanism."""
    accountant = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(cell["sigma"] / cell["sensitivity"]))
    return {"epsilon": accountant.get_epsilon(cell["delta"])}


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """Epsilon of DP-SGD with Poisson batches."""
    answer = pld.PLDAccountant().compose(event(cell["sigma"], cell)).get_epsilon(cell["delta"])
    return {"epsilon": answer, "guarantee": GUARANTEE}


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """Noise of DP-SGD with Poisson batches."""
    sigma = dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant,
        lambda value: event(value, cell),
        target_epsilon=cell["epsilon"],
        target_delta=cell["delta"],
        bracket_interval=dp_accounting.ExplicitBracketInterval(*cell["bracket"]),
        tol=1e-3,
    )
    return {"sigma": sigma, "guarantee": GUARANTEE}


TASKS = {"check": check, "epsilon": epsilon, "calibrate": calibrate, "error": calibrate}
