"""How much noise a strategy needs under each sampling, with the evidence that a plan keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from galton.accounting import Options, calibrate, certify
from galton.accounting.certificate import FAILURE_SHARE
from galton.baselines import (
    Figure,
    calibrate_allocation,
    calibrate_mmcc,
    calibrate_poisson,
    calibrate_unamplified,
)
from galton.baselines.figure import bands_of
from galton.batching import BallsInBins, CyclicPoisson, FixedOrder, Poisson, Scheme, Shuffle, StreamingBallsInBins
from galton.errors import GaltonError, InvalidArgument
from galton.pair import dominating_pair, groups_for
from galton.plan.guarantee import Calculated, Certified, Evidence
from galton.strategies import Strategy

ATTEMPTS = 4
"""Verifications that a plan may take; delta has room for the failure probabilities of all of them."""
TAU = 1.05
_RAISE = 1.01


@dataclass(frozen=True)
class Sampling:
    """A batching scheme by name, with its accountant.

    Attributes:
      accountant: the analysis that covers it best.
      make: make(examples, bins, rounds, strategy) returns the scheme.
    """

    accountant: str
    make: Callable[[int, int, int, Strategy], Scheme]


SAMPLINGS: dict[str, Sampling] = {
    "balls-in-bins": Sampling("balls-in-bins", lambda n, bins, rounds, _: BallsInBins(n, bins, rounds)),
    "balls-in-bins-streaming": Sampling(
        "balls-in-bins", lambda n, bins, rounds, _: StreamingBallsInBins(n, bins, rounds)
    ),
    "poisson": Sampling("poisson", lambda n, bins, rounds, _: Poisson(n, n / bins, rounds)),
    "cyclic-poisson": Sampling(
        "cyclic-poisson", lambda n, bins, rounds, c: CyclicPoisson(n, n / bins, bands_of(c), rounds)
    ),
    "shuffle-once": Sampling("unamplified", lambda n, bins, rounds, _: Shuffle(n, bins, rounds, reshuffle=False)),
    "fixed-order": Sampling("unamplified", lambda n, bins, rounds, _: FixedOrder(n, bins, rounds)),
}

_FIGURES: dict[str, Callable[[Strategy, int, float, float], Figure]] = {
    "unamplified": calibrate_unamplified,
    "poisson": calibrate_poisson,
    "cyclic-poisson": calibrate_poisson,
    "mmcc": calibrate_mmcc,
    "allocation": calibrate_allocation,
}
ACCOUNTANTS = ("balls-in-bins", *_FIGURES)


def prove(
    accountant: str,
    strategy: Strategy,
    bins: int,
    epsilon: float,
    delta: float,
    options: Options,
    guess: float | None = None,
) -> tuple[float, Evidence]:
    """Returns a noise multiplier with which a run is (epsilon, delta)-DP, and the evidence for it.

    Args:
      accountant: one of ACCOUNTANTS.
      strategy: C.
      bins: batches per epoch.
      epsilon, delta: the claim, what truncation costs taken off already.
      options: adjacency, seed, workers and progress.
      guess: a multiplier that was calibrated for `room_for(delta)`, to be certified; calibrated here if None.
    """
    if accountant == "balls-in-bins":
        return _certified(strategy, bins, epsilon, delta, options, guess)
    if options.adjacency == "replace" and accountant != "unamplified":
        raise InvalidArgument("adjacency", "replace", f"is not covered by the accountant {accountant}")
    figure = _FIGURES[accountant](strategy, bins, epsilon, delta)
    sides = 2 if options.adjacency == "replace" else 1
    multiplier = sides * figure.noise_multiplier
    statement = replace(figure.statement, adjacency=options.adjacency)
    return multiplier, Calculated(accountant, multiplier, float(epsilon), float(delta), statement)


def room_for(delta: float) -> float:
    """Returns the delta to be certified so that several attempts still add up to `delta`."""
    return delta * (1 - ATTEMPTS * FAILURE_SHARE)


def _certified(
    strategy: Strategy, bins: int, epsilon: float, delta: float, options: Options, guess: float | None
) -> tuple[float, Evidence]:
    """Calibrates, then certifies; a rejection raises the noise, and its failure probability is counted."""
    pair = dominating_pair(strategy, bins, merge=groups_for(bins))
    claim = room_for(delta)
    multiplier = guess or calibrate(pair, epsilon, claim, options, TAU).noise_multiplier
    for _ in range(ATTEMPTS):
        found = Certified(certify(pair.at(multiplier), epsilon, claim, options).to_json())
        if found.certificate["accepted"]:
            if found.stated_delta > delta:
                raise GaltonError(
                    f"plan: this strategy was refused {found.certificate['attempts'] - 1} times before at this target, "
                    "too often for delta; take another epsilon or another strategy"
                )
            return multiplier, found
        multiplier *= _RAISE
    raise GaltonError(
        f"plan: delta <= {claim:g} at epsilon {epsilon:g} could not be certified in {ATTEMPTS} attempts "
        f"(noise multiplier {multiplier:.5g}); take another strategy, or a larger delta"
    )
