"""The one shape of an accountant: an analysis that covers some laws of participation, and all that is asked of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from galton.accountants.attacks import Attack
from galton.accountants.curve import Curve
from galton.accountants.evidence import Calculated, Evidence
from galton.accountants.figure import Figure
from galton.accountants.losses import Aim, Loss, computed_loss
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Statement
from galton.accounting import Certificate, Ledger, Options
from galton.accounting.certificate import FAILURE_SHARE
from galton.batching import Scheme
from galton.batching.laws import Law
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

COMPARISON_TAU = 1.1
"""A figure to compare is aimed at delta / 1.1, so that few samples prove delta: about 0.8% more noise."""
PLAN_TAU = 1.05
"""The noise of a plan is aimed closer."""
_LEAST_FAILURE = 1e-13
"""Failure probabilities below this are lost when 1 is added to them."""


def comparison_options(delta: float, seed: int | None = None) -> Options:
    """Returns how to sample for a comparison: limits as sure as a certificate's, from a million samples.

    Where these do not prove delta (independent noise, small epsilon), the multiplier is raised until they do.

    >>> comparison_options(1e-5).confidence == 1 - 1.5e-8
    True
    """
    return Options(confidence=1 - max(FAILURE_SHARE * delta, _LEAST_FAILURE), seed=seed, samples=1 << 20)


@dataclass(frozen=True, eq=False)
class Optimum:
    """A strategy that was optimised for an accountant, with its noise if that was found on the way."""

    strategy: Strategy
    figure: Figure | None = None


@dataclass(frozen=True)
class Verdict:
    """What a second look at a run found.

    Attributes:
      accepted: whether the claim was proved again.
      words: what was done.
      certificate: the new certificate, where samples were drawn.
    """

    accepted: bool
    words: str
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Compared:
    """In which rows of `galton compare` an accountant appears; names of kinds are those of `comparison/registry.py`.

    Attributes:
      batches: its batches, in a few words.
      kinds: ways to choose C.
      candidates: of these, what a plan that looks for the best strategy considers.
      references: of these, what every plan is compared with: must take seconds.
      optimised: families whose optimum is a row too (and a candidate), with words for each; all but the first are slow.
      slow_optima: whether the first is slow, too.
      suffix: of the names of those rows.
      slow: whether its rows are left out unless asked for by name.
    """

    batches: str
    kinds: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    optimised: Mapping[str, str] = field(default_factory=dict)
    slow_optima: bool = False
    suffix: str = ""
    slow: bool = False


def between(deltas: Sequence[float], epsilon: Callable[[float], float]) -> list[float]:
    """Returns about epsilon at each of these deltas, from that at three of them: a parabola in log delta."""
    logs = np.log(deltas)
    known = np.unique(np.quantile(logs, (0.0, 0.5, 1.0), method="nearest"))
    values = [epsilon(math.exp(log_delta)) for log_delta in known.tolist()]
    if not np.isfinite(values).all():
        return [math.inf for _ in deltas]
    places: list[float] = np.polyval(np.polyfit(known, values, known.size - 1), logs).tolist()
    return [max(0.0, place) for place in places]


class Accountant(ABC):
    """An analysis. A new one is one file with the abstract members, and one line in `accountants/registry.py`.

    Accountants are values without state. Plans, reports, audits and comparisons ask them and know none by name.

    Formal guarantee: for a run whose law it `covers`, that passed `check`, and under an adjacency that it `supports`,
    what it says about delta, epsilon and noise is worth what `statement` says. Elsewhere it refuses.

    Attributes:
      name: as in plans and on the command line.
      statement: what its figure is worth, under add-or-remove adjacency.
      default_strategy: the strategy of a plan that names none.
      typical_bands: about how many bands are best: where a search for their number begins.
      bounded: the divergences that it bounds.
      compared: where it appears in comparisons.

    Example:
      >>> from galton import ACCOUNTANTS, BallsInBins
      >>> scheme = BallsInBins(examples=64, bins=4, rounds=8)
      >>> [accountant.name for accountant in ACCOUNTANTS.values() if accountant.covers(scheme.law)]
      ['balls-in-bins', 'allocation', 'unamplified']
      >>> isinstance(ACCOUNTANTS["unamplified"], Accountant)
      True
    """

    name: ClassVar[str]
    statement: ClassVar[Statement]
    default_strategy: ClassVar[str]
    compared: ClassVar[Compared]
    typical_bands: ClassVar[int] = 1
    bounded: ClassVar[frozenset[Direction]] = frozenset({Direction.MIXTURE_FIRST, Direction.NOISE_FIRST})

    @abstractmethod
    def covers(self, law: Law) -> bool:
        """Whether the guarantee holds for examples that take part like this.

        Args:
          law: how one example takes part.

        Returns:
          True if the analysis holds for this law; False for all that it does not know.
        """

    @abstractmethod
    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        """Returns the noise that this strategy needs.

        Args:
          strategy: C.
          bins: batches per epoch.
          guarantee: what the run has to give.
          options: how to sample, for accountants that do.

        Returns:
          The noise multiplier, with what it is worth.
        """

    @abstractmethod
    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        """Returns an upper bound on delta of a run, in the way that `calibrate` bounds it.

        Args:
          run: the run, with its noise.
          claim: where: its epsilon and adjacency; its delta tells what size of delta matters.
          options: how to sample, for accountants that do.

        Returns:
          A number from 0 to 1.
        """

    @abstractmethod
    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        """Returns an epsilon that the run does not exceed at this delta.

        Args:
          run: the run, with its noise.
          delta: where.
          adjacency: which data sets are neighbours.
          options: how to sample, for accountants that do.

        Returns:
          An upper bound on epsilon; infinity if there is none.
        """

    @abstractmethod
    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        """Returns upper bounds on delta of the run, at these epsilons or at others over the same span.

        Args:
          run: the run.
          guarantee: what was claimed for it: its adjacency, and what delta matters.
          epsilons: increasing, from 0.
          options: how to sample, and progress.

        Returns:
          The curve, with words on where it comes from.
        """

    def places(self, run: Run, deltas: Sequence[float], adjacency: Adjacency, options: Options) -> list[float]:
        """Returns epsilons near which the bound on delta falls to these, to draw a curve at; they are no bounds.

        Args:
          run: the run, with its noise.
          deltas: where, each above 0.
          adjacency: which data sets are neighbours.
          options: seed and progress, for accountants that sample.

        Returns:
          One epsilon for each delta; infinity, or a place too far to the left, where there is none.
        """
        return between(deltas, lambda delta: self.epsilon(run, delta, adjacency, options))

    def loss(self, run: Run, aim: Aim) -> Loss:
        """Returns the privacy loss of the run, to be composed with others; by default from `delta` at a grid.

        Args:
          run: the run, with its noise.
          aim: in which directions, and how sure.

        Returns:
          A loss that dominates the run's.
        """

        def upper(direction: Direction, epsilon: float) -> float:
            return self.delta(run, Guarantee(epsilon, aim.delta, direction.adjacency), aim.options)

        def last(direction: Direction) -> float:
            self.check_adjacency(direction.adjacency)
            return self.epsilon(run, aim.least, direction.adjacency, aim.options)

        return computed_loss(aim, upper, last)

    def supports(self, adjacency: Adjacency) -> bool:
        """Returns whether the analysis bounds all divergences of this adjacency.

        Args:
          adjacency: which data sets are neighbours.

        Returns:
          True if a figure of this accountant is a bound under it.
        """
        return set(adjacency.directions) <= self.bounded

    def most_bands(self, bins: int) -> int:
        """Returns the largest number of bands of C that the analysis allows.

        Args:
          bins: batches per epoch.

        Returns:
          At least 1.
        """
        return bins

    def estimate(self, strategy: Strategy, bins: int, guarantee: Guarantee) -> Figure:
        """Returns a figure that is quick to get, to choose among strategies by; by default that of `calibrate`.

        Args:
          strategy: C.
          bins: batches per epoch.
          guarantee: the claim, with its adjacency.

        Returns:
          The figure; it may be an estimate, which is no guarantee.
        """
        return self.calibrate(strategy, bins, guarantee)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Refuses an adjacency that the analysis does not bound.

        Args:
          adjacency: which data sets are neighbours.
        """
        if not self.supports(adjacency):
            covered = " or ".join(member.value for member in Adjacency if self.supports(member))
            remedy = f"is not covered by the accountant {self.name}; take {covered}"
            raise InvalidArgument("adjacency", adjacency.value, remedy)

    def check(self, strategy: Strategy, scheme: Scheme, bins: int) -> None:
        """Refuses a strategy or batches, of a law that is covered, for which the analysis does not hold.

        Args:
          strategy: C.
          scheme: how batches are drawn.
          bins: batches per epoch.
        """
        scheme.check_bins(bins)

    def room(self, guarantee: Guarantee) -> Guarantee:
        """Returns what has to be proved so that `guarantee` may be stated, failures of the analysis included.

        Args:
          guarantee: what is to be stated.

        Returns:
          The same guarantee with a delta that is smaller by what failures of the analysis may cost.
        """
        return guarantee

    def prove(
        self,
        strategy: Strategy,
        bins: int,
        guarantee: Guarantee,
        options: Options,
        guess: float | None = None,
        counted_for: Sequence[str] = (),
    ) -> Evidence:
        """Returns evidence for a noise multiplier with which a run has this guarantee.

        Args:
          strategy: C.
          bins: batches per epoch.
          guarantee: the claim, what truncation costs taken off already.
          options: seed, workers and progress.
          guess: a multiplier that was calibrated for `room(guarantee)`, to be proved; calibrated here if None.
          counted_for: what a rejected attempt counts for, beside the claim itself (see `certify`).
        """
        self.check_adjacency(guarantee.adjacency)
        figure = self.calibrate(strategy, bins, guarantee, options)
        return Calculated(self.name, figure.noise_multiplier, guarantee, figure.statement)

    def verify(self, run: Run, claim: Guarantee, options: Options, ledger: Ledger | None = None) -> Verdict:
        """Proves the claim again for the noise of the run; by the same calculation, unless the analysis samples.

        Args:
          run: the run, with its noise.
          claim: what has to be proved.
          options: seed, workers and progress.
          ledger: where attempts are counted.

        Returns:
          Whether the claim was proved, and how.
        """
        self.check_adjacency(claim.adjacency)
        # Other platforms and versions of this bound differ in the last digits: a millionth of the noise is granted.
        bound = self.delta(replace(run, noise_multiplier=run.noise_multiplier * (1 + 1e-6)), claim, options)
        words = f"{self.name} proves delta <= {bound:.6g} at epsilon {claim.epsilon:g}; {claim.delta:.6g} is claimed"
        return Verdict(bound <= claim.delta, words)

    def evidence_from_json(self, value: dict[str, Any]) -> Evidence:
        """Rebuilds evidence that this accountant gave.

        Args:
          value: what `Evidence.to_json` returned.

        Returns:
          The evidence, every field checked.
        """
        return Calculated.from_json(value)

    def optimum(
        self, family: str, setting: Setting, options: Options, tau: float, start: Strategy | None = None
    ) -> Optimum:
        """Returns the C of a family with the least error under this analysis.

        Args:
          family: what to optimise over, as `galton.optimize` takes it.
          setting: the run.
          options: seed, workers and progress.
          tau: room that the noise leaves for a proof, as a factor of delta.
          start: a member of the family to start a shorter search from.
        """
        remedy = f"cannot be optimised for the accountant {self.name}; take {self.default_strategy}"
        raise InvalidArgument("strategy", family, remedy)

    def gram(self, run: Run) -> FloatArray | None:
        """Returns the products of modes, or of columns of C, that the analysis rests on, if it rests on such.

        Args:
          run: strategy, batches and noise of the run.

        Returns:
          The products, in the shape of the attack's `gram`; None where there is nothing to compare.
        """
        return None

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        """Returns the best attack on one canary that the analysis has to withstand, for audits.

        Args:
          run: strategy, batches and noise of the run.
          adjacency: which data sets the attacker has to tell apart.
          whitening: of the strategy, which turns noisy sums into independent ones.

        Returns:
          The attack: what to look for, and how.
        """
        raise self.no_attack(run)

    def no_attack(self, run: Run) -> InvalidArgument:
        """Returns the error that there is no exact attack to audit this run with.

        Args:
          run: strategy, batches and noise of the run.

        Returns:
          The error, to be raised.
        """
        return InvalidArgument(
            "plan",
            self.name,
            f"the accountant {self.name} has no exact attack on {run.scheme.name} batches with this strategy: audited "
            "are runs with bins (redrawn in every epoch: of at most 4,096 rounds, or of at most one band more than "
            "bins), min-separation runs, and (cyclic) Poisson runs whose C has at most as many bands as there are "
            "groups",
        )

    def stated(self, guarantee: Guarantee) -> Statement:
        """Returns the statement for another adjacency.

        Args:
          guarantee: the claim, with its adjacency.

        Returns:
          The accountant's statement with that adjacency.
        """
        return replace(self.statement, adjacency=guarantee.adjacency)
