"""Galton's own accountant: Monte Carlo on a dominating pair, made rigorous by certificates (docs/math.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from galton.accountants.base import (
    COMPARISON_TAU,
    PLAN_TAU,
    Accountant,
    Optimum,
    Verdict,
    between,
    comparison_options,
)
from galton.accountants.curve import Curve
from galton.accountants.evidence import CERTIFIED_LAWS, Certified, Evidence
from galton.accountants.figure import Figure
from galton.accountants.losses import Aim, Loss, sampled_loss
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Standing, Statement
from galton.accounting import (
    Calibration,
    Ledger,
    Options,
    calibrate,
    certify,
    delta,
    epsilon,
    epsilon_upper_bound,
    profile,
)
from galton.accounting.certificate import FAILURE_SHARE, Certificate
from galton.accounting.inversion import quick_epsilon
from galton.accounting.options import derived_seed
from galton.accounting.quick import quick_multiplier
from galton.batching.laws import Law
from galton.errors import GaltonError
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.optimization import optimize
from galton.optimization.participation import find_participation
from galton.pair import DominatingPair
from galton.sampling.toolkits import blocks_for, toolkit_for
from galton.strategies import Strategy

ATTEMPTS = 4
"""Verifications that a plan may take; delta has room for the failure probabilities of all of them."""
_RAISE = 1.01
_LIMIT_CONFIDENCE = 1 - 1e-6
"""Of limits on delta, epsilon and curves, which no ledger counts."""
_CURVE_WIDTH = 0.2
_MOST_SAMPLES, _FEWEST_SAMPLES = 1 << 18, 1 << 12
_SHORT_SAMPLES, _SHORT_ITERATIONS, _SHORT_REFRESHES = 1024, 20, 1
"""Of a search that begins at a good C; its result is calibrated like any other."""
_QUICKER = 8
"""How many times fewer frozen samples an estimate takes than a calibration."""
_FULL_WORK = 128**2
"""Multiplications a sample up to which a point of a curve may take the most samples."""


class MonteCarlo(Accountant):
    """Samples a dominating pair. A subclass says which pair stands for which batches.

    Attributes:
      participation: of the pair, by which its certificates say how examples take part.
    """

    participation: ClassVar[str]
    bounded: ClassVar[frozenset[Direction]] = frozenset(Direction)

    @abstractmethod
    def _pair(self, strategy: Strategy, bins: int) -> DominatingPair:
        """Returns the pair that is sampled, at noise multiplier 1."""

    def covers(self, law: Law) -> bool:
        return isinstance(law, CERTIFIED_LAWS[self.participation])

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        """Returns a noise multiplier with delta(epsilon) <= delta, checked on fresh samples.

        Formal guarantee: except with the statement's failure probability over the accountant's random numbers, a run
        with this multiplier has the guarantee, for per-example contributions of norm at most 1. The failure
        probability is that of a certificate by default, but this is a figure to compare: nothing is written to the
        ledger of attempts, and a release takes `certify`.
        """
        self.check_adjacency(guarantee.adjacency)
        options = options or comparison_options(guarantee.delta)
        calibration = calibrate(self._pair(strategy, bins), guarantee, options=options, tau=COMPARISON_TAU)
        return self._figure(calibration, options)

    def estimate(self, strategy: Strategy, bins: int, guarantee: Guarantee) -> Figure:
        """Returns a quick estimate of the same multiplier, good to about 1%: to choose by, not to rely on."""
        self.check_adjacency(guarantee.adjacency)
        options = replace(comparison_options(guarantee.delta), progress=None)
        aim = guarantee.with_delta(guarantee.delta / COMPARISON_TAU)
        pair = self._pair(strategy, bins)
        multiplier = quick_multiplier(pair, aim, options, 0, blocks=max(1, blocks_for(pair) // _QUICKER)).value
        statement = Statement(guarantee.adjacency, self.statement.sampling, Standing.ESTIMATE, "galton, frozen samples")
        return Figure(multiplier, guarantee, statement)

    def room(self, guarantee: Guarantee) -> Guarantee:
        """Returns the guarantee to be certified so that several attempts still add up to delta."""
        return guarantee.with_delta(guarantee.delta * (1 - ATTEMPTS * FAILURE_SHARE))

    def prove(
        self,
        strategy: Strategy,
        bins: int,
        guarantee: Guarantee,
        options: Options,
        guess: float | None = None,
        counted_for: Sequence[str] = (),
    ) -> Evidence:
        """Calibrates, then certifies; a rejection raises the noise, and its failure probability is counted."""
        self.check_adjacency(guarantee.adjacency)
        pair, claim = self._pair(strategy, bins), self.room(guarantee)
        multiplier = guess or calibrate(pair, claim, options=options, tau=PLAN_TAU).noise_multiplier
        for _ in range(ATTEMPTS):
            certificate = certify(pair.at(multiplier), claim, options=options, counted_for=counted_for)
            if certificate.accepted:
                if certificate.stated_delta > guarantee.delta:
                    raise GaltonError(
                        f"plan: there were {certificate.attempts - 1} rejected attempts at these examples, batches and "
                        "guarantee before, too many for delta; take another epsilon or delta"
                    )
                return Certified(self.name, certificate)
            multiplier *= _RAISE
        raise GaltonError(
            f"plan: delta <= {claim.delta:g} at epsilon {claim.epsilon:g} could not be certified in {ATTEMPTS} "
            f"attempts (noise multiplier {multiplier:.5g}); take another strategy, or a larger delta"
        )

    def verify(self, run: Run, claim: Guarantee, options: Options, ledger: Ledger | None = None) -> Verdict:
        self.check_adjacency(claim.adjacency)
        proved = self.room(claim)
        pair = self._pair(run.strategy, run.bins).at(run.noise_multiplier)
        certificate = certify(pair, proved, options=options, ledger=ledger)
        words = what_is_proved(certificate)
        paid = certificate.stated_delta <= claim.delta
        if certificate.accepted and not paid:
            words += f", but after {certificate.attempts - 1} rejected attempts, more than delta covers"
        return Verdict(certificate.accepted and paid, words, certificate)

    def evidence_from_json(self, value: dict[str, Any]) -> Evidence:
        return Certified.from_json(value)

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        self.check_adjacency(claim.adjacency)
        options = replace(options or Options(), confidence=_LIMIT_CONFIDENCE, rel_width=0.05)
        pair = self._pair(run.strategy, run.bins).at(run.noise_multiplier)
        return delta(pair, claim.epsilon, claim.adjacency, options=options).upper

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        self.check_adjacency(adjacency)
        options = replace(options or Options(), confidence=_LIMIT_CONFIDENCE, rel_width=0.05)
        pair = self._pair(run.strategy, run.bins).at(run.noise_multiplier)
        return epsilon(pair, delta, adjacency, options=options).upper

    def places(self, run: Run, deltas: Sequence[float], adjacency: Adjacency, options: Options) -> list[float]:
        """Returns quick estimates of where upper limits on delta will be at most these."""
        self.check_adjacency(adjacency)
        pair = self._pair(run.strategy, run.bins).at(run.noise_multiplier)
        blocks, seed = max(1, blocks_for(pair) // _QUICKER), derived_seed(options.fresh_seed(), "places")

        def quick(delta: float) -> float:
            ceiling = epsilon_upper_bound(pair, delta, adjacency)
            return quick_epsilon(pair, delta / (1 + _CURVE_WIDTH), ceiling, adjacency, seed, blocks)

        return between(deltas, quick)

    def loss(self, run: Run, aim: Aim) -> Loss:
        """Returns a loss that dominates the pair, by limits from samples that hold all at once."""
        return sampled_loss(self._pair(run.strategy, run.bins).at(run.noise_multiplier), aim)

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        """Returns limits by Monte Carlo that hold all at once."""
        pair = self._pair(run.strategy, run.bins).at(run.noise_multiplier)
        most = int(_MOST_SAMPLES * min(1.0, _FULL_WORK / toolkit_for(pair).work(pair)))
        how = replace(
            options,
            rel_width=_CURVE_WIDTH,
            samples=max(most, _FEWEST_SAMPLES),
            bound="sequence",
            confidence=_LIMIT_CONFIDENCE,
        )
        sampled = profile(pair, epsilons, guarantee.adjacency, options=how)
        words = (
            f"Sampled for this page by the accountant {self.name} ({sampled.samples:,} samples, seed "
            f"{sampled.seed}): all upper limits hold at once except with probability {1 - sampled.confidence:.1g}. The "
            "plan's own point, and that δ is no larger beyond it, do not rest on these samples but on what is said "
            "above."
        )
        return Curve(sampled.epsilons, sampled.uppers, sampled.deltas, words, guarantee.adjacency)

    def optimum(
        self, family: str, setting: Setting, options: Options, tau: float, start: Strategy | None = None
    ) -> Optimum:
        return self._optimum(family, setting, options, tau, start, self.participation)

    def _optimum(
        self,
        family: str,
        setting: Setting,
        options: Options,
        tau: float,
        start: Strategy | None,
        participation: str,
    ) -> Optimum:
        """The optimum for a participation by the name that `galton.optimize` knows."""
        self.check_adjacency(setting.guarantee.adjacency)
        way = find_participation(participation, setting.bins)
        optimized = optimize(
            family,
            setting.bins,
            setting.rounds,
            setting.guarantee,
            workload=setting.workload,
            participation=participation,
            start=start,
            samples=None if start is None else min(_SHORT_SAMPLES, way.samples(setting.bins, setting.rounds)),
            iterations=0 if start is None else _SHORT_ITERATIONS,
            refreshes=0 if start is None else _SHORT_REFRESHES,
            options=options,
            tau=tau,
            reference=False,
            watch=lambda stage, index, value: options.tell(f"optimising {stage} | {value:.5g}", index, index + 10),
        )
        if optimized.interrupted:  # the best so far is no optimum
            raise KeyboardInterrupt
        return Optimum(optimized.strategy, self._figure(optimized.calibration, options))

    def _figure(self, calibration: Calibration, options: Options) -> Figure:
        """What a calibration with these options is worth: the failure probabilities of all its checks together."""
        statement = Statement(
            adjacency=calibration.guarantee.adjacency,
            sampling=self.statement.sampling,
            standing=Standing.CERTIFIED,
            source=f"galton, {calibration.check.samples} samples",
            failure_probability=1 - options.confidence,
        )
        return Figure(calibration.noise_multiplier, calibration.guarantee, statement)


def what_is_proved(certificate: Certificate) -> str:
    """In words, what a verification proved, or did not."""
    claim = f"delta <= {certificate.guarantee.delta:g}"
    if certificate.samples:
        return f"{certificate.samples:,} fresh samples {'prove' if certificate.accepted else 'do NOT prove'} {claim}"
    if certificate.accepted:
        return f"a bound that needs no sample proves {claim}"
    return f"nothing proves {claim}: {certificate.by_direction[-1].reason}"
