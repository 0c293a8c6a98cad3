"""What tests share with the examples in docstrings of src."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Attempts are counted, and plans marked as proved, in a folder of the test's own, never in the user's."""
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "state"))
    return tmp_path / "state"
