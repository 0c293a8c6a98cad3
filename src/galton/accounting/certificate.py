"""Estimate-verify-release: a claim fixed beforehand, put to the test once with fresh randomness."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from galton import files
from galton.accounting.deterministic import direction_upper_bound
from galton.accounting.ledger import Ledger, default_ledger
from galton.accounting.options import SEQUENCE, Options, derived_seed
from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein, FixedSample
from galton.errors import InvalidArgument, positive, probability
from galton.pair import Direction, Pair
from galton.provenance import now, versions
from galton.sampling import choose_sampler, draws

FAILURE_SHARE = 1.5e-3
"""Default failure probability as a share of the claimed delta: 1.5e-8 at 1e-5."""

_LADDER = np.array([1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0])
"""Claims, relative to the one at stake, that a rejected verification may still prove."""

_MOST_SAMPLES = 10**8
"""Above this many samples a tau of 1.05 is given up for 1.25."""


@dataclass(frozen=True)
class DirectionVerdict:
    """How the claim fared in one direction."""

    direction: str
    accepted: bool
    estimate: float
    delta_upper: float
    samples: int
    budget: int
    sampler: str
    reason: str
    order: int
    range: float
    slack_epsilon: float
    lost: float


@dataclass(frozen=True)
class Certificate:
    """Everything needed to repeat a verification and to judge it.

    What may be stated: a training run that is released only if this verification accepted, and that uses exactly this
    strategy, batching and noise multiplier, is (epsilon, max(delta, failure_probability))-DP after one attempt, and
    (epsilon, delta + failure_probability)-DP after several; `statement` says it, docs/certificates.md explains it.
    """

    accepted: bool
    epsilon: float
    delta: float
    delta_upper: float
    adjacency: str
    failure_probability: float
    failure_probability_per_attempt: float
    attempts: int
    strategy: str
    bins: int
    rounds: int
    epochs: int
    noise_multiplier: float
    bound: str
    samples: int
    seed: int
    seed_chosen_by_user: bool
    by_direction: tuple[DirectionVerdict, ...]
    statement: str
    versions: dict[str, str]
    created: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return asdict(self)


def target_digest(pair: Pair, epsilon: float, delta: float, adjacency: str) -> str:
    """Returns the hash under which attempts are counted: the claim, whatever the noise multiplier.

    Trying another multiplier after a rejection is one more try at the same target, and counts as such.
    """
    return files.digest(
        {
            "strategy": pair.strategy,
            "bins": pair.bins,
            "rounds": pair.rounds,
            "adjacency": adjacency,
            "epsilon": float(epsilon),
            "delta": float(delta),
        }
    )


def samples_to_certify(
    claim: float, tau: float, failure: float, bound: str = "kl", value_range: float = 1.0, power: float = 0.999
) -> int:
    """Returns how many samples a fixed-sample verification takes so that a truth of claim / tau passes with `power`.

    The count for which an observed mean of claim / tau would just do is not enough: half of all runs see more.
    """
    chosen, kl = BOUNDS[bound], BOUNDS["kl"]
    truth = claim / tau / value_range
    unlikely = -math.log(1 - power)

    def passes(samples: int) -> bool:
        """Whether even a mean that only 1 - power of all runs exceed proves the claim."""
        low, high = truth, claim / value_range
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if samples * kl.above(middle, truth) >= unlikely else (middle, high)
        return chosen.upper(high * value_range, samples, failure, value_range) <= claim

    low = chosen.samples_needed(claim / tau, claim, failure, value_range)
    high = 2 * low
    while not passes(high):
        high *= 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def certify(
    pair: Pair,
    epsilon: float,
    delta: float,
    options: Options | None = None,
    tau: float | None = None,
    failure: float | None = None,
    ledger: Ledger | None = None,
) -> Certificate:
    """Verifies the claim "delta(epsilon) <= delta" once, and returns the certificate, accepted or not.

    Formal guarantee: if the claim is false, the probability of acceptance is at most `failure` (default 0.0015 *
    delta) for this attempt, over the randomness of the seed, and at most the certificate's failure_probability,
    the sum over attempts, for all attempts at the target together. All directions of the adjacency are tested,
    each with an equal share.

    Args:
      pair: the mechanism with its noise multiplier.
      epsilon, delta: the claim.
      options: adjacency, sampler, bound, samples (per direction), seed, workers, progress.
      tau: how far below the claim the truth may be expected, for the number of samples if `options.samples` is
        None; default 1.05, or 1.25 where that would take more than 1e8.
      failure: failure probability of this attempt.
      ledger: where attempts are counted (default: the user's).
    """
    options = options or Options()
    positive("epsilon", epsilon)
    probability("delta", delta)
    failure = FAILURE_SHARE * delta if failure is None else probability("failure", failure)
    if tau is not None and not 1.001 <= positive("tau", tau) <= 1000:
        raise InvalidArgument("tau", tau, "must lie between 1.001 and 1000")
    start = time.perf_counter()
    seed = options.fresh_seed()
    ledger = ledger or default_ledger()
    target = target_digest(pair, epsilon, delta, options.adjacency)
    spent = ledger.begin(target, failure)
    share = failure / len(options.directions)
    verdicts = []
    for direction in options.directions:
        verdicts.append(_verify(pair, direction, epsilon, delta, share, tau, derived_seed(seed, "certify"), options))
        if not verdicts[-1].accepted:
            break
    accepted = all(one.accepted for one in verdicts)
    if accepted:
        spent = ledger.accept(target, failure)
    skipped = options.directions[len(verdicts) :]
    uppers = [one.delta_upper for one in verdicts] + [direction_upper_bound(pair, one, epsilon) for one in skipped]
    total = min(1.0, spent.failure)
    return Certificate(
        accepted=accepted,
        epsilon=float(epsilon),
        delta=float(delta),
        delta_upper=max(uppers),
        adjacency=options.adjacency,
        failure_probability=total,
        failure_probability_per_attempt=failure,
        attempts=spent.attempts,
        strategy=pair.strategy,
        bins=pair.bins,
        rounds=pair.rounds,
        epochs=-(-pair.rounds // pair.bins),
        noise_multiplier=pair.noise_multiplier,
        bound="betting" if options.bound == SEQUENCE else options.bound,
        samples=sum(one.samples for one in verdicts),
        seed=seed,
        seed_chosen_by_user=options.seed is not None,
        by_direction=tuple(verdicts),
        statement=_statement(accepted, epsilon, delta, total, spent.attempts, options),
        versions=versions(),
        created=now(),
        seconds=time.perf_counter() - start,
    )


def _statement(accepted: bool, epsilon: float, delta: float, total: float, attempts: int, options: Options) -> str:
    """What may be said: max(delta, failure) after one attempt, delta + all failures after several (docs/math.md)."""
    if not accepted:
        return "Rejected: nothing may be claimed. Trying again, with any multiplier, counts as a further attempt."
    stated = min(1.0, max(delta, total) if attempts == 1 else delta + total)
    words = (
        f"A run released only because this verification accepted is ({epsilon:g}, {stated:.6g})-DP under "
        f"{options.adjacency} adjacency, if it uses this strategy, balls-in-bins batches and noise multiplier."
    )
    if options.seed is not None:
        words += " The seed was chosen by the user: this holds only if it was not chosen for its outcome."
    return words + (f" Attempt {attempts} at this target." if attempts > 1 else "")


def _verify(
    pair: Pair,
    direction: Direction,
    epsilon: float,
    delta: float,
    failure: float,
    tau: float | None,
    seed: int,
    options: Options,
) -> DirectionVerdict:
    """Tests the claim in one direction: by the deterministic bound if that suffices, else by samples."""
    chosen = choose_sampler(pair, direction, epsilon, options.sampler)
    sampler = chosen.sampler
    certain = direction_upper_bound(pair, direction, epsilon)
    value_range = sampler.value_range(epsilon)
    claim = delta - sampler.lost_delta(epsilon)

    def verdict(
        accepted: bool, estimate: float, upper: float, samples: int, budget: int, reason: str
    ) -> DirectionVerdict:
        return DirectionVerdict(
            direction=direction.value,
            accepted=accepted,
            estimate=min(estimate, 1.0),
            delta_upper=min(upper, certain),
            samples=samples,
            budget=budget,
            sampler=sampler.name if budget else "none",
            reason=reason,
            order=sampler.order,
            range=value_range,
            slack_epsilon=sampler.slack.epsilon,
            lost=sampler.slack.lost,
        )

    if certain <= delta:
        return verdict(True, certain, certain, 0, 0, "the deterministic bound proves the claim without sampling")
    if claim <= 0:
        return verdict(False, 1.0, 1.0, 0, 1, "the claim is below what floating point can resolve for this mechanism")
    budget = options.samples or _budget(claim, tau, failure, value_range, options)
    test: BettingTest | FixedSample
    if options.bound == SEQUENCE:
        ladder = claim * _LADDER
        test = BettingTest(ladder[ladder < value_range], value_range, failure)
        hopeless = EmpiricalBernstein(value_range, 1e-3, 0.02, budget)
    else:
        test = FixedSample(BOUNDS[options.bound], value_range, failure)
    for draw in draws(sampler, budget, seed, options.pool, options.progress):
        test.add(sampler.values(draw, epsilon, rounding=1))
        if isinstance(test, BettingTest):
            hopeless.add(sampler.values(draw, epsilon, rounding=-1))
            if test.accepted or hopeless.lower() > delta:
                break
    upper = test.upper()
    lost = sampler.lost_delta(epsilon)
    accepted = test.accepted if isinstance(test, BettingTest) else upper <= claim
    return verdict(accepted, test.mean, upper + lost, test.samples, budget, chosen.reason)


def _budget(claim: float, tau: float | None, failure: float, value_range: float, options: Options) -> int:
    """Samples of a verification: exactly for a fixed-sample bound, at most for a sequence."""
    bound = "kl" if options.bound == SEQUENCE else options.bound
    if tau is not None:
        return samples_to_certify(claim, tau, failure, bound, value_range)
    fine = samples_to_certify(claim, 1.05, failure, bound, value_range)
    return fine if fine <= _MOST_SAMPLES else samples_to_certify(claim, 1.25, failure, bound, value_range)
