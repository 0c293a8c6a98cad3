"""What all tests share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from galton.plan import Plan, make_plan

# The same cases on every run, and none that fails because the machine is busy.
settings.register_profile(
    "galton", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("galton")

SIZES: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 4}
SMALL: dict[str, Any] = SIZES | {"epsilon": 4.0, "delta": 1e-3, "strategy": "sqrt:8"}


@pytest.fixture(scope="session")
def small_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A certified plan that takes seconds: 64 examples, 4 epochs of 8 batches, padded to 32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        return make_plan(**SMALL, batching="balls-in-bins", micro_batch_size=16)


@pytest.fixture(scope="session")
def redrawn_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The small plan with batches that are redrawn in every epoch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        return make_plan(**SMALL, batching="balls-in-bins-redrawn", micro_batch_size=16)
