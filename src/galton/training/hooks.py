"""What training loops call between rounds: a hook that may end the run after saving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnRound = Callable[[int, Any], bool | None]
"""on_round(round, state): called after every round with the rounds done so far; True ends the run after saving.

What the hook sees of the model has the plan's guarantee; what it sees of training data has not. A run that it ends by
what it saw has the plan's epsilon, not a smaller one (docs/math.md, section 15.2).
"""
