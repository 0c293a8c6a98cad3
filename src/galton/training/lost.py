"""How training code is told that rounds of a run were lost in a crash and are skipped."""

from __future__ import annotations

from galton.noise import NoiseReused


class RoundsSkipped(NoiseReused):
    """Raised where a round that is computed again after a crash does not come out the same.

    Its noise is not given a second time. The run has moved on to the next round that has had no noise, and goes on from
    the model at hand: take the next batch.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=64, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> first, other = {"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with TrainingRun(plan, folder, first, examples=64, clip_norm=1.0) as run:
      ...         noise = run.noise(first)  # and then a crash, before anything was saved
      ...     with TrainingRun(plan, folder, first, examples=64, clip_norm=1.0) as run:
      ...         try:
      ...             noise = run.noise(other)
      ...         except RoundsSkipped:
      ...             print(f"goes on with round {run.round}")
      goes on with round 1
    """


class LostRounds(UserWarning):
    """Rounds that had their noise before a crash were skipped; the guarantee holds, and the record names them.

    Example:
      >>> import tempfile
      >>> import warnings
      >>> import numpy as np
      >>> from galton import Guarantee, TrainingRun, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> params = {"w": np.zeros(2, np.float32)}
      >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
      ...     warnings.simplefilter("error", LostRounds)  # for somebody to look at it before training goes on
      ...     with TrainingRun(plan, folder, params, examples=64, clip_norm=1.0) as run:
      ...         run.round
      0
    """
