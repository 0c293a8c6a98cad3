"""Where a search without a smaller family starts: BLTs fitted to the square root."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from galton.errors import FloatArray
from galton.optimization.families import BltFamily
from galton.strategies import Blt, square_root


def fitted_blt(rounds: int, buffers: int, horizon: float) -> Blt:
    """Returns a BLT close to the square root of the prefix sums that forgets after about `horizon` rounds.

    The decays are spaced evenly in log(1 - decay), the scales fitted by non-negative least squares on relative errors.
    """
    last = max(2.0, min(horizon, rounds))
    times = np.geomspace(1.2, last, buffers) if buffers > 1 else np.array([np.sqrt(last)])
    decay = 1 - 1 / (1 + times)
    steps = np.unique(np.geomspace(1, max(1, rounds - 1), 200).astype(int))
    target = square_root(rounds).coefficients[np.minimum(steps, rounds - 1)] * np.exp(-steps / horizon)
    powers = decay[None, :] ** (steps[:, None] - 1)
    weights = 1 / np.maximum(target, 1e-3 * target[0])
    scale, _ = nnls(powers * weights[:, None], target * weights)
    return Blt(rounds, decay, np.maximum(scale, 1e-4))


def memory_horizons(rounds: int, bins: int) -> list[float]:
    """Returns how long starts remember: a run, an epoch, part of an epoch. The objective has a valley at each."""
    return sorted({float(max(1, span)) for span in (rounds, bins, bins // 8)}, reverse=True)


def blt_starts(family: BltFamily, bins: int) -> list[FloatArray]:
    """Returns parameters of fitted BLTs, one for every horizon."""
    fits = [fitted_blt(family.rounds, family.buffers, horizon) for horizon in memory_horizons(family.rounds, bins)]
    return [family.parameters(fit) for fit in fits]
