"""Pairs with orthogonal modes of equal length: C = I, in any number of whole epochs (docs/mechanisms.md).

Their Gram matrix is d I. A pair built from a strategy has off-diagonal entries at rounding level, since `pair` only
rounds upwards; here they are part of the slack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from galton.epochs import epochs_error, epochs_lower, epochs_upper
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.likelihoods import likelihood_lower, likelihood_upper
from galton.many_bins import ManyBinsPair
from galton.pair import ROUNDOFF, Pair
from galton.redrawn import RedrawnPair
from galton.sampling.base import Slack
from galton.sampling.halfspace import DEPTH_ERROR
from galton.sampling.slack import loss_slack

_TOLERANCE = 1e-9
"""Off-diagonal entries, and differences on the diagonal, up to this share of the diagonal count as rounding."""

_RESOLVED = 100.0
"""Bounds on delta of redrawn epochs are close to each other where they are so many times their rounding error."""

_COMMON = 10.0
"""A standard normal is beyond this with probability below 2e-23."""
COMMON_LOST = 2e-23

_INVERSION_LOST = 1e-8
"""For each normal: that its uniform is below 2^-28, where a lattice of 2^-53 is too coarse, or so close to 1 that
rounding moves a normal beyond 6."""


@dataclass(frozen=True)
class Orthogonal:
    """Orthogonal modes: energy * I is not below the pair's Gram matrix up to `common`, and least * I not above.

    With c the largest off-diagonal entry, G' = energy I + c 1 1^T is nowhere below the pair's matrix, so that delta
    does not fall (Kahane). Under G' every A_k is that of energy * I plus sqrt(c) w + c/2 or - c/2, w one standard
    normal: the loss moves by at most `common`, except with probability COMMON_LOST.
    """

    modes: int
    energy: float
    least: float
    common: float

    @property
    def spread(self) -> float:
        """Standard deviation of every A_k."""
        return math.sqrt(self.energy)

    def slack(self, moved: float) -> Slack:
        """Returns the slack of a sampler whose normals reach `moved`, drawn in float64 by inversion.

        Args:
          moved: how far from 0 a normal may be drawn.
        """
        rounding = loss_slack(self.modes, self.energy, 1.5 * self.energy, 0.0, "float64", moved)
        return Slack(
            rounding.epsilon + DEPTH_ERROR * self.spread + self.common, rounding.lost + self.modes * _INVERSION_LOST
        )

    def delta_upper(self, direction: Direction, epsilon: float) -> float:
        """Returns an upper bound on delta without samples, usually within 1% of it.

        Args:
          direction: mixture-first or noise-first.
          epsilon: where.

        Returns:
          The bound.
        """
        bound = likelihood_upper(self.modes, self.energy, direction, epsilon - self.common)
        return bound + COMMON_LOST if self.common else bound

    def delta_bracket(self, direction: Direction, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on delta without samples.

        Args:
          direction: mixture-first or noise-first.
          epsilon: where.

        Returns:
          The bounds.
        """
        return likelihood_lower(self.modes, self.least, direction, epsilon), self.delta_upper(direction, epsilon)


@dataclass(frozen=True)
class OrthogonalEpochs:
    """Independent epochs of orthogonal modes: bins redrawn in every epoch, C = I.

    Attributes:
      modes: of an epoch.
      epochs: how many.
      energy: squared length of a mode, not below any.
      least: not above any.
    """

    modes: int
    epochs: int
    energy: float
    least: float

    def resolved(self, epsilon: float) -> bool:
        """Returns whether the larger delta is so large that its bounds are close to it.

        Args:
          epsilon: where.

        Returns:
          True if rounding is a small share of delta.
        """
        return self._resolved(self.delta_upper(Direction.MIXTURE_FIRST, epsilon), Direction.MIXTURE_FIRST)

    def _resolved(self, upper: float, direction: Direction) -> bool:
        return upper >= _RESOLVED * epochs_error(self.modes, self.energy, self.epochs, direction)

    def delta_upper(self, direction: Direction, epsilon: float) -> float:
        """Returns an upper bound on delta without samples.

        Args:
          direction: mixture-first or noise-first.
          epsilon: where.

        Returns:
          The bound, usually within 1% of delta where that is `resolved`.
        """
        return epochs_upper(self.modes, self.energy, self.epochs, direction, epsilon)

    def delta_bracket(self, direction: Direction, epsilon: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on delta without samples.

        Args:
          direction: mixture-first or noise-first.
          epsilon: where.

        Returns:
          The bounds; the lower one is 0 where it would say little.
        """
        upper = self.delta_upper(direction, epsilon)
        if not self._resolved(upper, direction):
            return 0.0, upper
        return min(upper, epochs_lower(self.modes, self.least, self.epochs, direction, epsilon)), upper


def find_orthogonal(pair: Pair) -> Orthogonal | None:
    """Returns the modes if they are orthogonal and of one length, else None."""
    gram = pair.gram
    diagonal = gram.diagonal()
    return _orthogonal(diagonal, float((gram - np.diag(diagonal)).max()))


def orthogonal_modes(pair: ManyBinsPair) -> Orthogonal | None:
    """Returns the modes if they are orthogonal and of one length, else None; without the Gram matrix."""
    square, energies = pair.noise_multiplier**2, pair.modes.energies
    raised = 1 + 8 * (pair.rounds + pair.bins + 64) * ROUNDOFF
    return _orthogonal(energies / square, pair.modes.row_bounds.largest_beside / square, raised)


def orthogonal_epochs(pair: RedrawnPair) -> OrthogonalEpochs | None:
    """Returns the epochs of redrawn bins if their modes are orthogonal and of one length, else None."""
    if not pair.reach.independent or pair.bins == 1:
        return None
    energies, square = pair.reach.energies, pair.noise_multiplier**2
    largest, least = (float(edge) / square for edge in (energies.max(), energies.min()))
    return OrthogonalEpochs(pair.bins, pair.epochs, largest * (1 + 4 * ROUNDOFF), least * (1 - 4 * ROUNDOFF))


def _orthogonal(diagonal: FloatArray, beside: float, raised: float = 1.0) -> Orthogonal | None:
    """`beside` bounds all entries beside the diagonal, which is right up to a factor of `raised`."""
    largest, least = float(diagonal.max()) * raised, float(diagonal.min()) / raised
    if beside > _TOLERANCE * largest or least < (1 - _TOLERANCE) * largest:
        return None
    return Orthogonal(diagonal.size, largest, least, _COMMON * math.sqrt(beside) + beside)


def spaced_modes(gram: FloatArray) -> Orthogonal | None:
    """Returns orthogonal modes for which delta is at least that of a banded Gram matrix, None if there are none.

    Every p-th mode: the mixture is the average of p mixtures of so few modes, and the divergence is convex.
    """
    bins, diagonal = gram.shape[0], gram.diagonal()
    by_lag = np.array([float(np.diagonal(gram, lag).max()) for lag in range(bins)])
    largest = float(diagonal.max())
    for step in range(2, bins // 2 + 1):
        beside = float(by_lag[step::step].max())
        if bins % step == 0 and beside <= _TOLERANCE * largest:
            common = _COMMON * math.sqrt(max(beside, 0.0)) + max(beside, 0.0)
            return Orthogonal(bins // step, largest, float(diagonal.min()), common)
    return None


def orthogonal(pair: Pair, direction: Direction, sampler: str) -> Orthogonal:
    """Returns the modes, refusing a pair whose modes are not orthogonal and of equal length."""
    if direction is Direction.REPLACE:
        raise InvalidArgument("sampler", sampler, "is not for replace adjacency; take auto, plain or tilted")
    modes = find_orthogonal(pair)
    if modes is None:
        raise InvalidArgument(
            "sampler", sampler, "needs orthogonal modes of one length (C = I, whole epochs); take auto, plain or tilted"
        )
    return modes
