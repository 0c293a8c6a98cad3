"""The correlation of the noise between rounds: C^-1 C^-T for chosen rounds, never as an n x n matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from galton.errors import FloatArray
from galton.strategies import Strategy
from galton.threads import one_blas_thread

WINDOW = 40
"""Consecutive rounds of the heat map."""
_LAGS = 40
_PLACES = 30
_FEW = 200
"""Runs up to this length are shown in every round."""
_MOST_ROUNDS = 12_000
_FIRST_ROUNDS = 4096
"""Number of rounds that are shown of a run longer than _MOST_ROUNDS."""
_MOST_RECTANGULAR = 2000
_ENTRIES = 1 << 22
"""Entries of C held at a time."""


@dataclass(frozen=True, eq=False)
class Correlation:
    """Correlation of the noise C^-1 z between rounds, up to the last round looked at.

    Attributes:
      rounds: rounds looked at: all of the run, or its first ones.
      window: correlations between the last rounds, up to WINDOW of them.
      lags: how many rounds before the last one.
      with_last: correlation of the last round with those.
      places: rounds spread over those looked at, the first and the last among them.
      deviations: standard deviation of the noise of these rounds, for unit z.
    """

    rounds: int
    window: FloatArray
    lags: NDArray[np.int64]
    with_last: FloatArray
    places: NDArray[np.int64]
    deviations: FloatArray

    @property
    def independent(self) -> bool:
        """Whether the noise of every round shown is independent of that of all others."""
        others = self.window - np.diag(self.window.diagonal())
        return not others.any() and not self.with_last[1:].any()


def noise_correlation(strategy: Strategy) -> Correlation | None:
    """Returns the correlations, or None where that would take too much memory: large trees.

    Noise of a round depends on earlier columns of C only, so the first rounds of a square C can be looked at alone.
    """
    square = strategy.rows == strategy.rounds
    if not square and strategy.rounds > _MOST_RECTANGULAR:
        return None
    size = strategy.rounds if strategy.rounds <= _MOST_ROUNDS else _FIRST_ROUNDS
    neighbours, lags = np.arange(max(0, size - WINDOW), size), _lags_to_show(size)
    places = np.unique(np.linspace(0, size - 1, size if size <= _FEW else _PLACES).astype(np.int64))
    chosen = np.unique(np.concatenate((neighbours, size - 1 - lags, places)))
    rows = inverse_rows(strategy, chosen, size) if square else strategy.inverse()[chosen]
    norms = np.linalg.norm(rows, axis=1)
    rows = rows / norms[:, None]
    window = rows[np.searchsorted(chosen, neighbours)]
    earlier = rows[np.searchsorted(chosen, size - 1 - lags)]
    deviations = norms[np.searchsorted(chosen, places)]
    return Correlation(size, window @ window.T, lags, earlier @ window[-1], places, deviations)


def inverse_rows(strategy: Strategy, chosen: NDArray[np.int64], size: int) -> FloatArray:
    """Returns rows of C^-1 of a square strategy, columns up to `size`: back substitution, a block of C at a time.

    Args:
      strategy: C.
      chosen: rounds, below `size`.
      size: rounds looked at; the rest of C has no part in these rows.
    """
    from scipy.linalg import solve_triangular

    block = max(1, min(256, _ENTRIES // strategy.rounds))
    result = np.zeros((size, chosen.size))
    result[chosen, np.arange(chosen.size)] = 1.0
    with one_blas_thread():
        for start in reversed(range(0, size, block)):
            stop = min(start + block, size)
            columns = np.ascontiguousarray(strategy.columns(start, stop)[:size])
            known = result[start:stop] - columns[stop:].T @ result[stop:]
            result[start:stop] = solve_triangular(columns[start:stop].T, known, lower=False)
    return result.T


def _lags_to_show(size: int) -> NDArray[np.int64]:
    """0 and up to _LAGS distances, dense near 0 and sparse far away."""
    if size == 1:
        return np.zeros(1, np.int64)
    return np.unique(np.concatenate(([0], np.geomspace(1, size - 1, _LAGS).astype(np.int64))))
