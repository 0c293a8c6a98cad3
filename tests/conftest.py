"""What all tests share."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Attempts are counted in a folder of the test's own, never in the user's."""
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


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
