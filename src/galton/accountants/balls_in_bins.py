"""Balls-in-bins for any C, by galton's own accountant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from galton.accountants.attacks import Attack, unknown_bin
from galton.accountants.base import (
    COMPARISON_TAU,
    PLAN_TAU,
    Accountant,
    Compared,
    Optimum,
    Verdict,
    comparison_options,
)
from galton.accountants.curve import Curve
from galton.accountants.evidence import Certified, Evidence
from galton.accountants.figure import Figure
from galton.accountants.setting import Run, Setting
from galton.accountants.statement import Standing, Statement
from galton.accounting import Calibration, Ledger, Options, calibrate, certify, delta, epsilon, profile
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.quick import quick_multiplier
from galton.batching.laws import Law, RandomBin
from galton.errors import GaltonError
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.optimization import optimize
from galton.pair import Pair, dominating_pair, groups_for
from galton.strategies import Strategy
from galton.strategies.whitening import Whitening

SAMPLING = "balls-in-bins: one batch in each epoch, the same in all epochs, uniformly and independently"
ATTEMPTS = 4
"""Verifications that a plan may take; delta has room for the failure probabilities of all of them."""
_RAISE = 1.01
_EPSILON_CONFIDENCE = 1 - 1e-6
_CURVE_WIDTH = 0.2
_MOST_SAMPLES, _FEWEST_SAMPLES = 1 << 18, 1 << 12
_FULL_MODES = 128
"""Modes up to which a point of a curve may take the most samples; beyond, a sample costs their square."""


class BallsInBins(Accountant):
    """Monte Carlo on the dominating pair, made rigorous by certificates (docs/math.md)."""

    name: ClassVar[str] = "balls-in-bins"
    default_strategy: ClassVar[str] = "blt:4+scale"
    typical_bands: ClassVar[int] = 16
    bounded: ClassVar[frozenset[Direction]] = frozenset(Direction)
    compared: ClassVar[Compared] = Compared(
        batches="balls-in-bins batches",
        kinds=("dpsgd", "bandmf", "banded", "memf", "tree"),
        candidates=("dpsgd", "bandmf", "memf"),
        optimised={
            "blt:4": "BLT with 4 buffers",
            "toeplitz": "full Toeplitz C",
            "blt:4+scale": "BLT with 4 buffers and a weight per round",
            "toeplitz+scale": "full Toeplitz C with a weight per round",
        },
    )
    statement: ClassVar[Statement] = Statement(
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling=SAMPLING,
        standing=Standing.CERTIFIED,
        source="galton",
        failure_probability=FAILURE_SHARE * 1e-5,
    )

    def covers(self, law: Law) -> bool:
        return isinstance(law, RandomBin)

    def calibrate(self, strategy: Strategy, bins: int, guarantee: Guarantee, options: Options | None = None) -> Figure:
        """Returns a noise multiplier with delta(epsilon) <= delta, checked on fresh samples.

        Formal guarantee: except with the statement's failure probability over the accountant's random numbers, a run
        with this multiplier has the guarantee, for per-example contributions of norm at most 1. The failure
        probability is that of a certificate by default, but this is a figure to compare: nothing is written to the
        ledger of attempts, and a release takes `certify`.
        """
        options = options or comparison_options(guarantee.delta)
        calibration = calibrate(_pair(strategy, bins), guarantee, options=options, tau=COMPARISON_TAU)
        return _figure(calibration, options)

    def estimate(self, strategy: Strategy, bins: int, guarantee: Guarantee) -> Figure:
        """Returns a quick estimate of the same multiplier, good to about 1%: to choose by, not to rely on."""
        options = replace(comparison_options(guarantee.delta), progress=None)
        aim = guarantee.with_delta(guarantee.delta / COMPARISON_TAU)
        multiplier, _ = quick_multiplier(_pair(strategy, bins), aim, options, 0, blocks=1)
        source = "galton, 4096 frozen samples a direction"
        return Figure(multiplier, guarantee, Statement(guarantee.adjacency, SAMPLING, Standing.ESTIMATE, source))

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
        pair, claim = _pair(strategy, bins), self.room(guarantee)
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
        proved = self.room(claim)
        pair = _pair(run.strategy, run.bins).at(run.noise_multiplier)
        certificate = certify(pair, proved, options=options, ledger=ledger)
        verb = "prove" if certificate.accepted else "do NOT prove"
        words = f"{certificate.samples:,} fresh samples {verb} delta <= {proved.delta:g}"
        paid = certificate.stated_delta <= claim.delta
        if certificate.accepted and not paid:
            words += f", but after {certificate.attempts - 1} rejected attempts, more than delta covers"
        return Verdict(certificate.accepted and paid, words, certificate)

    def evidence_from_json(self, value: dict[str, Any]) -> Evidence:
        return Certified.from_json(value)

    def delta(self, run: Run, claim: Guarantee, options: Options | None = None) -> float:
        options = replace(options or Options(), confidence=_EPSILON_CONFIDENCE, rel_width=0.05)
        pair = _pair(run.strategy, run.bins).at(run.noise_multiplier)
        return delta(pair, claim.epsilon, claim.adjacency, options=options).upper

    def epsilon(self, run: Run, delta: float, adjacency: Adjacency, options: Options | None = None) -> float:
        options = replace(options or Options(), confidence=_EPSILON_CONFIDENCE, rel_width=0.05)
        pair = _pair(run.strategy, run.bins).at(run.noise_multiplier)
        return epsilon(pair, delta, adjacency, options=options).upper

    def curve(self, run: Run, guarantee: Guarantee, epsilons: Sequence[float], options: Options) -> Curve:
        """Returns limits by Monte Carlo that hold all at once."""
        pair = _pair(run.strategy, run.bins).at(run.noise_multiplier)
        most = int(_MOST_SAMPLES * min(1.0, (_FULL_MODES / pair.modes) ** 2))
        how = replace(options, rel_width=_CURVE_WIDTH, samples=max(most, _FEWEST_SAMPLES), bound="sequence")
        sampled = profile(pair, epsilons, guarantee.adjacency, options=how)
        words = (
            f"Sampled for this page by the balls-in-bins accountant ({sampled.samples:,} samples, seed "
            f"{sampled.seed}): all upper limits hold at once with probability {sampled.confidence:g}. The plan's own "
            "point, and that δ is no larger beyond it, do not rest on these samples but on what is said above."
        )
        return Curve(sampled.epsilons, sampled.uppers, sampled.deltas, words, guarantee.adjacency)

    def optimum(self, family: str, setting: Setting, options: Options, tau: float) -> Optimum:
        optimized = optimize(
            family,
            setting.bins,
            setting.rounds,
            setting.guarantee,
            workload=setting.workload,
            options=options,
            tau=tau,
            watch=lambda stage, index, value: options.tell(f"optimising {stage} | {value:.5g}", index, index + 10),
        )
        if optimized.interrupted:  # the best so far is no optimum
            raise KeyboardInterrupt
        return Optimum(optimized.strategy, _figure(optimized.calibration, options))

    def pair(self, run: Run) -> Pair:
        return dominating_pair(run.strategy, run.bins, run.noise_multiplier)

    def attack(self, run: Run, adjacency: Adjacency, whitening: Whitening) -> Attack:
        return unknown_bin(run, adjacency, whitening)


def _pair(strategy: Strategy, bins: int) -> Pair:
    return dominating_pair(strategy, bins, merge=groups_for(bins))


def _figure(calibration: Calibration, options: Options) -> Figure:
    """What a calibration with these options is worth: the failure probabilities of all its checks together."""
    statement = Statement(
        adjacency=calibration.guarantee.adjacency,
        sampling=SAMPLING,
        standing=Standing.CERTIFIED,
        source=f"galton, {calibration.check.samples} samples",
        failure_probability=1 - options.confidence,
    )
    return Figure(calibration.noise_multiplier, calibration.guarantee, statement)
