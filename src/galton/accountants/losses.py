"""The privacy loss of a run or a mechanism, as something to compose: distributions that dominate (docs/math.md, 13)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from galton.accountants.composition import subsampled_step
from galton.accounting import Options
from galton.accounting.limits import POINTS, Limits, upper_limits
from galton.accounting.options import derived_seed
from galton.convolution import FAR, UNIT
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.loss_grids import LARGEST_LOSS, Atoms, LossGrid
from galton.pair import DominatingPair

Steps = Sequence[tuple[LossGrid, int]]
"""Kinds of steps on one grid, each with the number of such steps."""

_LEAST_LIMIT = 1e-290
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_TINY = 1e-9
_TAIL_SHARE, _DISCLOSED = 1e-4, 1e-13
"""Share of delta, and delta, below which a curve is not looked at: the rest counts as an infinite loss."""


def both_ways(directions: Sequence[Direction]) -> tuple[Direction, ...]:
    """Returns divergences and those with the two runs exchanged, each once.

    Args:
      directions: the divergences.

    Returns:
      The given ones first.
    """
    return tuple(dict.fromkeys((*directions, *(direction.reverse for direction in directions))))


@dataclass(frozen=True)
class Aim:
    """What losses are wanted for.

    Attributes:
      directions: the divergences to be bounded.
      delta: the delta that matters: curves end where it is a small share of this.
      failure: probability that samples may fail with, for all directions together.
      options: how to sample, for accountants that do.
    """

    directions: tuple[Direction, ...]
    delta: float
    failure: float
    options: Options

    @property
    def least(self) -> float:
        """The delta at which curves end: low enough to read epsilon off at all deltas that are disclosed."""
        return min(_TAIL_SHARE * self.delta, _DISCLOSED)

    @property
    def sides(self) -> tuple[Direction, ...]:
        """The divergences whose curves are needed: a loss below 0 is one above 0 the other way round."""
        return both_ways(self.directions)


class Loss(ABC):
    """The privacy loss of something that was released, in every direction that was asked for.

    Formal guarantee: except with probability `failure`, for every direction and interval the sum of independent losses
    that `steps` returns dominates: at every epsilon, below 0 too, its hockey-stick divergence is not below the
    release's.

    Attributes:
      failure: probability, over the samples of the analysis, that the losses do not dominate; 0 without samples.
      samples: samples that it took.
      repeated: whether the errors of many steps on a coarse grid add up.
    """

    failure: float = 0.0
    samples: int = 0
    repeated: bool = False

    @abstractmethod
    def interval(self, epsilon: float) -> float:
        """Returns a grid fine enough for claims of about this epsilon.

        Args:
          epsilon: of the claim.

        Returns:
          The distance of two points of the grid.
        """

    @abstractmethod
    def steps(self, direction: Direction, interval: float) -> Steps:
        """Returns losses on a grid, whose sum dominates.

        Args:
          direction: which divergence.
          interval: distance of two points of the grid.

        Returns:
          Kinds of steps, each with the number of such steps.
        """


def dominating_atoms(forward: Limits, backward: Limits) -> Atoms:
    """Returns a loss that dominates every pair of distributions within these limits (docs/math.md, section 13.1).

    H_x(P, Q) is convex in x = e^epsilon, 1 at x = 0 and falling: it lies below the lower convex hull of upper limits at
    some x. The hull is itself the curve of a pair, whose likelihood ratio has the corners of the hull for its values.

    Args:
      forward: limits on H(P, Q).
      backward: limits on H(Q, P), which bound H(P, Q) at epsilons below 0.

    Returns:
      The loss.
    """
    ahead, uppers = _usable(forward)
    behind, reverse = _usable(backward)
    lower = behind[:0:-1]
    # H_x(P, Q) = 1 - x + x H_(1/x)(Q, P); at x = 1 the two divergences are the same.
    below = -np.expm1(-lower) + np.exp(-lower) * reverse[:0:-1]
    curve = np.concatenate(([1.0], below, [min(uppers[0], reverse[0])], uppers[1:]))
    ratios = np.exp(np.concatenate(([-np.inf], -lower, ahead)))
    kept = _lower_hull(ratios, np.minimum(curve * (1 + 4 * UNIT), 1.0))
    if len(kept) == 1:  # no limit is below 1
        return Atoms(np.empty(0), np.empty(0), 1.0)
    corners, heights = ratios[kept], curve[kept]
    slopes = np.append(np.diff(heights) / np.diff(corners), 0.0)
    atoms = Atoms(np.log(corners[1:]), np.maximum(corners[1:] * np.diff(slopes), 0.0), float(heights[-1]))
    # Both curves are straight between corners: it is enough to be above the hull at these. What the rounding of corners
    # and of this check may hide is at most so many units of rounding times the steepest relative slope.
    proved = np.array([float(atoms.masses.sum()) + atoms.infinite, *(atoms.delta(point) for point in atoms.points)])
    if np.max(heights / proved) > 1 + _TINY:  # rounding has lost masses: an infinite loss makes up for them
        missing = float(np.max(heights - proved))
        atoms, proved = replace(atoms, infinite=atoms.infinite + missing), proved + missing
    steep = np.abs(slopes[:-1]) * corners[1:]
    steepness, unit = float(np.max(steep / heights[1:])), 64 * (1 + float(np.abs(atoms.points).max()))
    if unit * steepness * UNIT > _TINY:  # the curve falls to next to nothing: the same without dividing by its height
        atoms, steepness = replace(atoms, infinite=atoms.infinite + unit * UNIT * float(np.max(steep))), 0.0
    units = unit * (1 + steepness) + 8 * corners.size
    scale = max(float(np.max(heights / proved)), 1.0) * (1 + units * UNIT)
    return Atoms(atoms.points, atoms.masses * scale, atoms.infinite * scale)


def _usable(limits: Limits) -> tuple[FloatArray, FloatArray]:
    """Epsilons whose exponentials are numbers, and limits that fall and are not 0."""
    epsilons = np.array(limits.epsilons)
    if epsilons[0] != 0:
        raise InvalidArgument("epsilons", float(epsilons[0]), "must begin at 0")
    some = epsilons <= LARGEST_LOSS
    uppers = np.maximum(np.minimum.accumulate(np.array(limits.uppers)), _LEAST_LIMIT)
    return epsilons[some], np.minimum(uppers[some], 1.0)


def _lower_hull(x: FloatArray, y: FloatArray) -> list[int]:
    """Indices of the corners of the greatest convex function below the points, from the first to the least y."""
    kept: list[int] = []
    for index in range(int(np.argmin(y)) + 1):
        while len(kept) > 1:
            before, last = kept[-2], kept[-1]
            if (y[last] - y[before]) * (x[index] - x[last]) < (y[index] - y[last]) * (x[last] - x[before]):
                break
            kept.pop()
        kept.append(index)
    return kept


@dataclass(frozen=True, eq=False)
class AtomicLoss(Loss):
    """Losses with finitely many values in every direction, all alike.

    Attributes:
      by_direction: the loss of one of them.
      times: how many there are.
      pair: what was sampled, if it was: samples of it beside other releases are sharper still.
    """

    by_direction: Mapping[Direction, Atoms]
    failure: float = 0.0
    samples: int = 0
    times: int = 1
    pair: DominatingPair | None = None

    @property
    def repeated(self) -> bool:  # type: ignore[override]
        return self.times > 1

    def interval(self, epsilon: float) -> float:
        spread = min(atoms.spread for atoms in self.by_direction.values())
        usual = 1e-4 * max(1.0, epsilon)
        return min(usual, spread / 32) if spread > 0 else usual

    def steps(self, direction: Direction, interval: float) -> Steps:
        return [(self.by_direction[direction].on_grid(interval), self.times)]


def sampled_loss(pair: DominatingPair, aim: Aim) -> AtomicLoss:
    """Returns the loss of a dominating pair, by limits on delta that hold all at once.

    Args:
      pair: the mechanism with its noise multiplier.
      aim: in which directions, and how sure.

    Returns:
      A loss that dominates; with certainty where no sample was needed.
    """
    seed = aim.options.fresh_seed()
    share = aim.failure / len(aim.sides)
    limits = {
        direction: upper_limits(pair, direction, aim.least, share, derived_seed(seed, direction.value), aim.options)
        for direction in aim.sides
    }
    samples = sum(each.samples for each in limits.values())
    atomic = _atomic(limits, aim, aim.failure if samples else 0.0, samples)
    return replace(atomic, pair=pair) if samples else atomic


def computed_loss(
    aim: Aim, upper: Callable[[Direction, float], float], last: Callable[[Direction], float]
) -> AtomicLoss:
    """Returns a loss by upper bounds on delta that need no samples.

    Args:
      aim: in which directions.
      upper: bounds delta in a direction at an epsilon above 0.
      last: an epsilon at which delta in a direction is at most `aim.least`; infinity if there is none.

    Returns:
      A loss that dominates, with certainty.
    """
    limits = {}
    for index, direction in enumerate(aim.sides):
        end = last(direction)
        epsilons = np.linspace(0.0, end, POINTS).tolist()[1:] if math.isfinite(end) else []
        # delta(0) <= delta(t) + e^t - 1
        uppers = [min(1.0, upper(direction, _TINY) + 1.1 * _TINY)]
        for point, epsilon in enumerate(epsilons):
            aim.options.tell("points of the curve", index * POINTS + point, len(aim.sides) * POINTS)
            uppers.append(upper(direction, epsilon))
        limits[direction] = Limits((0.0, *epsilons), tuple(uppers), 0)
    return _atomic(limits, aim, 0.0, 0)


def _atomic(limits: Mapping[Direction, Limits], aim: Aim, failure: float, samples: int) -> AtomicLoss:
    atoms = {direction: dominating_atoms(limits[direction], limits[direction.reverse]) for direction in aim.directions}
    return AtomicLoss(atoms, failure, samples)


@dataclass(frozen=True)
class GaussianLoss(Loss):
    """The loss of several Gaussian mechanisms of sensitivity 1 on Poisson samples of the data.

    Attributes:
      noise_multiplier: standard deviation of the noise of a step.
      probability_of_use: that an example is in the sample of a step.
      count: number of steps.
      lost: probability with which all is told, over all steps together; for steps on all of the data only.
    """

    noise_multiplier: float
    probability_of_use: float
    count: int
    lost: float = 0.0

    def interval(self, epsilon: float) -> float:
        noise, _ = self._merged
        return loss_interval(self.probability_of_use, max(noise, _LEAST_NOISE), epsilon)

    @property
    def repeated(self) -> bool:  # type: ignore[override]
        return self._merged[1] > 1

    @property
    def _merged(self) -> tuple[float, int]:
        """Steps without sampling are one step with less noise; noise beyond any use counts as less."""
        if self.probability_of_use < 1:
            return min(self.noise_multiplier, _MOST_NOISE), self.count
        return min(self.noise_multiplier / math.sqrt(self.count) * (1 - 1e-15), _MOST_NOISE), 1

    def steps(self, direction: Direction, interval: float) -> Steps:
        noise, steps = self._merged
        if noise < _LEAST_NOISE:  # nothing is private
            return [(LossGrid(interval, 0, np.zeros(1), 1.0), 1)]
        if self.probability_of_use < 1:
            return [(subsampled_step(noise, self.probability_of_use, direction, interval), steps)]
        if direction is Direction.REPLACE:
            noise, direction = noise / direction.sides, Direction.MIXTURE_FIRST
        step = subsampled_step(noise, 1.0, direction, interval)
        return [(replace(step, infinite=step.infinite + self.lost), steps)]  # all of them are one step


def loss_interval(probability_of_use: float, noise_multiplier: float, epsilon: float = 0.0) -> float:
    """Returns a grid of losses good to 1e-3 of the noise: 3% of the spread q sqrt(e^(1/s^2) - 1) of one step.

    The error of connected dots is of second order in the interval over the spread, whatever the number of steps. Where
    one step may have a loss of the size of epsilon, 1/4000 of epsilon will do. A step has at most about a million
    losses: for probabilities of use below 1e-5 the bound is looser.
    """
    spread = probability_of_use * math.sqrt(math.expm1(min(noise_multiplier**-2, 100.0)))
    span = (FAR + 1 / noise_multiplier) / noise_multiplier
    return max(min(0.03 * spread, 1e-3 * max(1.0, epsilon / 4)), span / 2**20)
