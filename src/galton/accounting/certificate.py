"""Estimate-verify-release: a claim fixed beforehand, put to the test once with fresh randomness."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from galton import files
from galton.accounting.deterministic import direction_upper_bound
from galton.accounting.ledger import Ledger, default_ledger
from galton.accounting.options import SEQUENCE, Options, derived_seed
from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein, FixedSample
from galton.errors import InvalidArgument, positive, probability
from galton.fields import Fields
from galton.guarantee import Adjacency, Direction, Guarantee, as_guarantee
from galton.pair import Pair
from galton.provenance import now, versions
from galton.sampling import choose_sampler, draws

FAILURE_SHARE = 1.5e-3
"""Default failure probability as a share of the claimed delta: 1.5e-8 at 1e-5."""

_LADDER = np.array([1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0])
"""Claims, relative to the one at stake, that a rejected verification may still prove."""

_REJECTED = "Rejected: nothing may be claimed"
"""How the statement of a rejected claim begins."""

_MOST_SAMPLES = 10**8
"""Above this many samples a tau of 1.05 is given up for 1.25."""


@dataclass(frozen=True)
class DirectionVerdict:
    """How the claim fared in one direction.

    Attributes:
      direction: mixture-first (REMOVE), noise-first (ADD) or replace.
      accepted: whether the claim was proved here.
      estimate: mean of the samples.
      delta_upper: what was proved.
      samples, budget: samples taken, and how many would have been taken at most.
      sampler, reason: which sampler, and why.
      order, range: of that sampler.
      slack_epsilon, lost: what floating point may cost; included in `delta_upper`.
    """

    direction: Direction
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

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return files.plain(asdict(self))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DirectionVerdict:
        """Rebuilds a verdict from `to_json`; a field that cannot be is refused."""
        body = Fields("by_direction", value, cls)
        return cls(
            direction=body.member("direction", Direction),
            accepted=body.truth("accepted"),
            estimate=body.real("estimate", 0.0, 1.0),
            delta_upper=body.real("delta_upper", 0.0, 1.0),
            samples=body.count("samples"),
            budget=body.count("budget"),
            sampler=body.text("sampler"),
            reason=body.text("reason"),
            order=body.count("order"),
            range=body.real("range", 0.0),
            slack_epsilon=body.real("slack_epsilon", 0.0),
            lost=body.real("lost", 0.0),
        )


@dataclass(frozen=True)
class Certificate:
    """Everything needed to repeat a verification and to judge it.

    What may be stated: a training run that is released only if this verification accepted, and that uses exactly this
    strategy, batching and noise multiplier, is (epsilon, max(delta, failure_probability))-DP after one attempt, and
    (epsilon, delta + failure_probability)-DP after several; `statement` says it, docs/certificates.md explains it.

    Attributes:
      accepted: whether the claim was proved.
      guarantee: the claim.
      delta_upper: what was proved of delta, accepted or not.
      failure_probability: that a false claim is accepted, all attempts at this target together.
      failure_probability_per_attempt: of this attempt alone.
      attempts: verifications of this target, this one included.
      strategy, bins, rounds, epochs, noise_multiplier: the mechanism; `strategy` is a content hash.
      bound: how samples were turned into a limit.
      samples: samples taken, all directions together.
      seed, seed_chosen_by_user: of the samples.
      by_direction: the verdict in each direction that was looked at.
      statement: what may be stated, in words.
      versions, created, seconds: provenance.
    """

    accepted: bool
    guarantee: Guarantee
    delta_upper: float
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

    @property
    def stated_delta(self) -> float:
        """The delta that may be stated: what was claimed, with the failures of attempts before it."""
        return _stated_delta(self.guarantee.delta, self.failure_probability, self.attempts)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `from_json` rebuilds this certificate."""
        claim = self.guarantee.to_json()
        body: dict[str, Any] = {}
        for field in fields(self):
            if field.name == "guarantee":
                body |= {"epsilon": claim["epsilon"], "delta": claim["delta"]}
                continue
            body[field.name] = getattr(self, field.name)
            if field.name == "delta_upper":
                body["adjacency"] = claim["adjacency"]
        return body | {"by_direction": [verdict.to_json() for verdict in self.by_direction]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Certificate:
        """Rebuilds a certificate from `to_json`.

        Every field is checked: type, finiteness and range, and that what is said twice agrees. That says nothing about
        where the certificate comes from: whoever can write the file can write another one (docs/certificates.md).
        """
        body = Fields("certificate", value, cls, {"guarantee": ("epsilon", "delta", "adjacency")})
        certificate = cls(
            accepted=body.truth("accepted"),
            guarantee=Guarantee(
                body.real("epsilon", 0.0), body.real("delta", 0.0, 1.0), body.member("adjacency", Adjacency)
            ),
            delta_upper=body.real("delta_upper", 0.0, 1.0),
            failure_probability=body.real("failure_probability", 0.0, 1.0),
            failure_probability_per_attempt=body.real("failure_probability_per_attempt", 0.0, 1.0),
            attempts=body.count("attempts", 1),
            strategy=body.text("strategy"),
            bins=body.count("bins", 1),
            rounds=body.count("rounds", 1),
            epochs=body.count("epochs", 1),
            noise_multiplier=positive("noise_multiplier", body.real("noise_multiplier", 0.0)),
            bound=body.text("bound"),
            samples=body.count("samples"),
            seed=body.count("seed"),
            seed_chosen_by_user=body.truth("seed_chosen_by_user"),
            by_direction=tuple(DirectionVerdict.from_json(part) for part in body.sequence("by_direction")),
            statement=body.text("statement"),
            versions=body.texts("versions"),
            created=body.text("created"),
            seconds=body.real("seconds", 0.0),
        )
        certificate.check_consistent()
        return certificate

    def check_consistent(self) -> None:
        """Refuses numbers that no verification could have given together."""
        directions = tuple(verdict.direction for verdict in self.by_direction)
        wanted = self.guarantee.directions
        if directions != (wanted if self.accepted else wanted[: len(directions)]):
            raise InvalidArgument("by_direction", [item.value for item in directions], "must be those of the adjacency")
        if self.accepted != all(verdict.accepted for verdict in self.by_direction):
            raise InvalidArgument("accepted", self.accepted, "must be the verdict of all directions together")
        if self.accepted and not self.delta_upper <= self.guarantee.delta * (1 + 1e-12):
            raise InvalidArgument("delta_upper", self.delta_upper, "must be at most delta if the claim was accepted")
        largest = max(verdict.delta_upper for verdict in self.by_direction)
        if self.delta_upper < largest or (self.accepted and self.delta_upper > largest):
            raise InvalidArgument("delta_upper", self.delta_upper, "must be the largest over the directions")
        if self.samples != sum(verdict.samples for verdict in self.by_direction):
            raise InvalidArgument("samples", self.samples, "must be the sum over the directions")
        if self.epochs != -(-self.rounds // self.bins):
            raise InvalidArgument("epochs", self.epochs, "must follow from rounds and bins")
        per_attempt, total = self.failure_probability_per_attempt, self.failure_probability
        least = per_attempt * (1 - 1e-9)
        if not 0 < least <= total or (self.attempts == 1 and total > per_attempt * (1 + 1e-9)):
            raise InvalidArgument("failure_probability", total, "must be the sum over all attempts")
        words = _stated_guarantee(self.guarantee, total, self.attempts) if self.accepted else _REJECTED
        if words not in self.statement:
            raise InvalidArgument("statement", self.statement, f"must say what the other fields do: {words}")


def target_digest(pair: Pair, guarantee: Guarantee) -> str:
    """Returns the hash under which attempts are counted: the claim, whatever the noise multiplier.

    Trying another multiplier after a rejection is one more try at the same target, and counts as such.
    """
    return files.digest(
        {
            "strategy": pair.strategy,
            "bins": pair.bins,
            "rounds": pair.rounds,
            **guarantee.to_json(),
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
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
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
      epsilon: the claim, a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: of the claim, unless the first argument is all of it.
      options: sampler, bound, samples (per direction), seed, workers, progress.
      tau: how far below the claim the truth may be expected, for the number of samples if `options.samples` is
        None; default 1.05, or 1.25 where that would take more than 1e8.
      failure: failure probability of this attempt.
      ledger: where attempts are counted (default: the user's).

    Returns:
      The certificate. Only `accepted` ones let you claim anything.
    """
    guarantee = as_guarantee(epsilon, delta)
    options = options or Options()
    failure = FAILURE_SHARE * guarantee.delta if failure is None else probability("failure", failure)
    if tau is not None and not 1.001 <= positive("tau", tau) <= 1000:
        raise InvalidArgument("tau", tau, "must lie between 1.001 and 1000")
    start = time.perf_counter()
    seed = options.fresh_seed()
    ledger = ledger or default_ledger()
    target = target_digest(pair, guarantee)
    spent = ledger.begin(target, failure)
    share = failure / len(guarantee.directions)
    verdicts = []
    for direction in guarantee.directions:
        verdicts.append(
            _verify_direction(pair, direction, guarantee, share, tau, derived_seed(seed, "certify"), options)
        )
        if not verdicts[-1].accepted:
            break
    accepted = all(verdict.accepted for verdict in verdicts)
    if accepted:
        spent = ledger.accept(target, failure)
    skipped = guarantee.directions[len(verdicts) :]
    uppers = [verdict.delta_upper for verdict in verdicts]
    uppers += [direction_upper_bound(pair, direction, guarantee.epsilon) for direction in skipped]
    total = min(1.0, spent.failure)
    return Certificate(
        accepted=accepted,
        guarantee=guarantee,
        delta_upper=max(uppers),
        failure_probability=total,
        failure_probability_per_attempt=failure,
        attempts=spent.attempts,
        strategy=pair.strategy,
        bins=pair.bins,
        rounds=pair.rounds,
        epochs=-(-pair.rounds // pair.bins),
        noise_multiplier=pair.noise_multiplier,
        bound="betting" if options.bound == SEQUENCE else options.bound,
        samples=sum(verdict.samples for verdict in verdicts),
        seed=seed,
        seed_chosen_by_user=options.seed is not None,
        by_direction=tuple(verdicts),
        statement=_statement(accepted, guarantee, total, spent.attempts, options),
        versions=versions(),
        created=now(),
        seconds=time.perf_counter() - start,
    )


def _stated_delta(delta: float, failure: float, attempts: int) -> float:
    """max(delta, failure) after one attempt, delta + all failures after several (docs/math.md, section 6)."""
    return min(1.0, max(delta, failure) if attempts == 1 else delta + failure)


def _stated_guarantee(guarantee: Guarantee, failure: float, attempts: int) -> str:
    """The guarantee that may be stated, in words."""
    delta = _stated_delta(guarantee.delta, failure, attempts)
    return f"({guarantee.epsilon:g}, {delta:.6g})-DP under {guarantee.adjacency} adjacency"


def _statement(accepted: bool, guarantee: Guarantee, total: float, attempts: int, options: Options) -> str:
    """What may be said."""
    if not accepted:
        return f"{_REJECTED}. Trying again, with any multiplier, counts as a further attempt."
    words = (
        f"A run released only because this verification accepted is {_stated_guarantee(guarantee, total, attempts)}, "
        "if it uses this strategy, balls-in-bins batches and noise multiplier."
    )
    if options.seed is not None:
        words += " The seed was chosen by the user: this holds only if it was not chosen for its outcome."
    return words + (f" Attempt {attempts} at this target." if attempts > 1 else "")


def _verify_direction(
    pair: Pair,
    direction: Direction,
    guarantee: Guarantee,
    failure: float,
    tau: float | None,
    seed: int,
    options: Options,
) -> DirectionVerdict:
    """Tests the claim in one direction: by the deterministic bound if that suffices, else by samples."""
    epsilon, delta = guarantee.epsilon, guarantee.delta
    chosen = choose_sampler(pair, direction, epsilon, options.sampler)
    sampler = chosen.sampler
    ceiling = direction_upper_bound(pair, direction, epsilon)
    value_range = sampler.value_range(epsilon)
    claim = delta - sampler.lost_delta(epsilon)

    def verdict(
        accepted: bool, estimate: float, upper: float, samples: int, budget: int, reason: str
    ) -> DirectionVerdict:
        return DirectionVerdict(
            direction=direction,
            accepted=accepted,
            estimate=min(estimate, 1.0),
            delta_upper=min(upper, ceiling),
            samples=samples,
            budget=budget,
            sampler=sampler.name if budget else "none",
            reason=reason,
            order=sampler.order,
            range=value_range,
            slack_epsilon=sampler.slack.epsilon,
            lost=sampler.slack.lost,
        )

    if ceiling <= delta:
        return verdict(True, ceiling, ceiling, 0, 0, "the deterministic bound proves the claim without sampling")
    if claim <= 0:
        return verdict(False, 1.0, 1.0, 0, 1, "the claim is below what floating point can resolve for this mechanism")
    budget = options.samples or _sample_budget(claim, tau, failure, value_range, options)
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


def _sample_budget(claim: float, tau: float | None, failure: float, value_range: float, options: Options) -> int:
    """Samples of a verification: exactly for a fixed-sample bound, at most for a sequence."""
    bound = "kl" if options.bound == SEQUENCE else options.bound
    if tau is not None:
        return samples_to_certify(claim, tau, failure, bound, value_range)
    fine = samples_to_certify(claim, 1.05, failure, bound, value_range)
    return fine if fine <= _MOST_SAMPLES else samples_to_certify(claim, 1.25, failure, bound, value_range)
