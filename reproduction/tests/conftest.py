"""What these tests share with the others."""

from __future__ import annotations

from tests.conftest import own_state

__all__ = ["own_state"]
