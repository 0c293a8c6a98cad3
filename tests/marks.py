"""Which cases of a test are quick, and which wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = pytest.mark.slow


def slow_after(quick: int, values: Iterable[Any]) -> list[Any]:
    """Returns cases of which all but the first few are slow."""
    return [
        value if index < quick else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=SLOW)
        for index, value in enumerate(values)
    ]
