"""Estimate, verify, release: a claim fixed beforehand is tested once, with fresh randomness."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from galton import files
from galton.accounting.deterministic import direction_upper_bound
from galton.accounting.ledger import AttemptInterrupted, Ledger, default_ledger
from galton.accounting.options import SEQUENCE, Options, check_tau, derived_seed
from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein, FixedSample
from galton.errors import InvalidArgument, positive, probability
from galton.fields import Fields
from galton.guarantee import Adjacency, Direction, Guarantee, as_guarantee
from galton.pair import BATCHES, ONE_DRAW, DominatingPair
from galton.provenance import now, versions
from galton.sampling import choose_sampler, draws
from galton.separated import SeparatedPair, named_separation, separated_batches
from galton.typechecking import typechecked

FAILURE_SHARE = 1.5e-3
"""Default failure probability as a share of the claimed delta: 1.5e-8 at 1e-5."""

_LADDER = np.array([1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0])
"""Multiples of the claimed delta that a rejected verification may still prove."""

_IN_JSON = {"strategy": "strategy_hash"}
"""Fields with another name in JSON, where `strategy` is a strategy by its name."""

_REJECTED = "Rejected: nothing may be claimed"
"""How the statement of a rejected claim begins."""

_MOST_SAMPLES = 10**8
"""Above this many samples a tau of 1.05 is given up for 1.25."""


@dataclass(frozen=True)
class DirectionVerdict:
    """The outcome of a verification in one direction.

    Attributes:
      direction: mixture-first (REMOVE), noise-first (ADD) or replace.
      accepted: whether the claim was proved in this direction.
      estimate: mean of the samples.
      delta_upper: the upper limit on delta that was proved.
      samples: samples taken.
      budget: the most samples that would have been taken.
      sampler: name of the sampler, or none if no sample was needed.
      reason: why that sampler was chosen.
      order: order of the sampler.
      range: the largest value that a sample can have.
      slack_epsilon: bound on the rounding error of a loss; `delta_upper` includes it.
      lost: probability that this bound fails for a sample; `delta_upper` includes it.
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
        """Rebuilds a verdict from `to_json`; a field with an impossible value is refused."""
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


@typechecked
@dataclass(frozen=True)
class Certificate:
    """The outcome of a verification, with everything needed to repeat it and to judge it.

    Formal guarantee: a training run that is released only if this verification accepted, and that uses exactly this
    strategy, batching and noise multiplier, is (epsilon, max(delta, failure_probability))-DP after one attempt, and
    (epsilon, delta + failure_probability)-DP after several. `statement` says so in words; docs/certificates.md
    explains it.

    Attributes:
      accepted: whether the claim was proved. A rejected certificate supports no claim.
      guarantee: the claim.
      delta_upper: the upper limit on delta that was proved, whether the claim was accepted or not.
      failure_probability: bound on the probability that a false claim is accepted, over all attempts at this target.
      failure_probability_per_attempt: the same bound for this attempt alone.
      attempts: verifications of this target so far, including this one.
      strategy: content hash of the strategy.
      bins: batches per epoch.
      rounds: rounds of the run.
      epochs: epochs of the run, a partial one included.
      participation: how an example takes part: bins (drawn once), redrawn or min-separation:S.
      noise_multiplier: sensitivity-1 noise multiplier.
      bound: how samples were turned into a limit: betting, or the name of a fixed-sample bound.
      samples: samples taken over all directions.
      seed: the seed of the samples; text in JSON, whose numbers do not keep 128 bits.
      seed_chosen_by_user: whether the user chose the seed; the claim then assumes that it was not chosen for its
        outcome.
      by_direction: the verdict in every direction that was tested; the first rejection ends the test.
      statement: what may be stated, in words.
      versions: versions of galton, of the libraries it relies on, and of Python.
      created: when the verification ended, in UTC.
      seconds: how long the verification took.

    Example:
      >>> from pathlib import Path
      >>> from tempfile import TemporaryDirectory
      >>> from galton import dominating_pair, identity
      >>> pair = dominating_pair(identity(4), bins=1, noise_multiplier=4.0)
      >>> with TemporaryDirectory() as folder:  # so that this example counts as no attempt of yours
      ...     certificate = certify(pair, epsilon=1.0, delta=1e-5, ledger=Ledger(Path(folder) / "attempts.json"))
      >>> certificate.accepted, certificate.how_sure
      (True, 'A bound in closed form proves it; no sample was needed.')
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
    participation: str
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
        """The delta that may be stated: the claimed delta, with the failure probabilities of all attempts."""
        return _stated_delta(self.guarantee.delta, self.failure_probability, self.attempts)

    @property
    def how_sure(self) -> str:
        """In words, what stands behind an accepted claim: a bound in closed form, or samples and their failures."""
        if not self.samples:
            return "A bound in closed form proves it; no sample was needed."
        return (
            f"The verification took {self.samples:,} samples: a false claim would have been accepted with probability "
            f"at most {self.failure_probability:.2g}, which delta covers."
        )

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary from which `from_json` rebuilds this certificate."""
        claim = self.guarantee.to_json()
        body: dict[str, Any] = {}
        for field in fields(self):
            if field.name == "guarantee":
                body |= {"epsilon": claim["epsilon"], "delta": claim["delta"]}
                continue
            if field.name == "participation" and self.participation == ONE_DRAW:
                continue  # as galton 0.1 wrote it: plans are read back byte for byte
            if field.name != "by_direction":
                body[_IN_JSON.get(field.name, field.name)] = files.plain(getattr(self, field.name))
            else:
                body[field.name] = [verdict.to_json() for verdict in self.by_direction]
            if field.name == "delta_upper":
                body["adjacency"] = claim["adjacency"]
        return body

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Certificate:
        """Rebuilds a certificate from `to_json`.

        Every field is checked for its type, finiteness and range, and fields that repeat each other must agree. That
        does not show where the certificate comes from: whoever can write the file can also forge it
        (docs/certificates.md).

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The certificate.
        """
        if isinstance(value, dict):  # bins that are drawn once are not named; the hash was once called strategy
            value = {"participation": ONE_DRAW} | value
            if "strategy" in value and "strategy_hash" not in value:
                value["strategy_hash"] = value.pop("strategy")
        claim = {"guarantee": ("epsilon", "delta", "adjacency"), "strategy": (_IN_JSON["strategy"],)}
        body = Fields("certificate", value, cls, claim)
        certificate = cls(
            accepted=body.truth("accepted"),
            guarantee=Guarantee(
                body.real("epsilon", 0.0), body.real("delta", 0.0, 1.0), body.member("adjacency", Adjacency)
            ),
            delta_upper=body.real("delta_upper", 0.0, 1.0),
            failure_probability=body.real("failure_probability", 0.0, 1.0),
            failure_probability_per_attempt=body.real("failure_probability_per_attempt", 0.0, 1.0),
            attempts=body.count("attempts", 1),
            strategy=body.text("strategy_hash"),
            bins=body.count("bins", 1),
            rounds=body.count("rounds", 1),
            epochs=body.count("epochs", 1),
            participation=body.text("participation"),
            noise_multiplier=positive("noise_multiplier", body.real("noise_multiplier", 0.0)),
            bound=body.text("bound"),
            samples=body.count("samples"),
            seed=body.whole("seed"),
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
        """Raises `InvalidArgument` if no verification could have produced these fields together."""
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
        batches = _batches_of(self.participation)
        if self.accepted and _stated_run(batches) not in self.statement:
            raise InvalidArgument("statement", self.statement, f"must say what the other fields do: {batches}")


def _batches_of(participation: str) -> str:
    """The batches in words; raises `InvalidArgument` for a participation that no certificate has."""
    separation = named_separation(participation)
    if separation is not None:
        return separated_batches(separation)
    if participation not in BATCHES:
        remedy = "must be one of " + ", ".join((*BATCHES, f"{SeparatedPair.kind}:S"))
        raise InvalidArgument("participation", participation, remedy)
    return BATCHES[participation]


def target_digest(pair: DominatingPair, guarantee: Guarantee) -> str:
    """Returns the hash under which attempts are counted: what is claimed of which mechanism.

    The mechanism is its Gram matrix for a sensitivity of 1, to nine digits: another spelling of C, another multiple of
    it or another noise multiplier is another attempt at the same target. So is a claim that differs beyond the sixth
    digit.
    """
    claim = {"epsilon": f"{guarantee.epsilon:.6g}", "delta": f"{guarantee.delta:.6g}"}
    return files.digest({**pair.fingerprint(), **claim, "adjacency": guarantee.adjacency.value})


def spelled_target_digest(pair: DominatingPair, guarantee: Guarantee) -> str:
    """Returns the other hash under which attempts are counted: the spelling of C and all digits of the claim.

    It is that of galton 0.1, whose attempts go on counting, and does not depend on how many bins are merged.
    """
    return files.digest(
        {
            "strategy": pair.strategy,
            "bins": pair.bins,
            "rounds": pair.rounds,
            **({} if pair.participation == ONE_DRAW else {"participation": pair.participation}),
            **guarantee.to_json(),
        }
    )


def samples_to_certify(
    claim: float, tau: float, failure: float, bound: str = "kl", value_range: float = 1.0, power: float = 0.999
) -> int:
    """Returns how many samples a fixed-sample verification needs to accept with probability `power`.

    The true delta is taken to be claim / tau. It is not enough that an observed mean of claim / tau would just prove
    the claim, since half of all runs observe a larger mean.
    """
    chosen, kl = BOUNDS[bound], BOUNDS["kl"]
    truth = claim / tau / value_range
    unlikely = -math.log(1 - power)

    def passes(samples: int) -> bool:
        """Whether the claim is proved even by a mean that only a share 1 - power of all runs exceeds."""
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


@typechecked
def certify(
    pair: DominatingPair,
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    options: Options | None = None,
    tau: float | None = None,
    failure: float | None = None,
    ledger: Ledger | None = None,
    counted_for: Sequence[str] = (),
) -> Certificate:
    """Tests the claim "delta(epsilon) <= delta" once, and returns a certificate, accepted or not.

    Formal guarantee: if the claim is false, the probability of acceptance is at most `failure` (default 0.0015 *
    delta) for this attempt, over the randomness of the seed, and at most the certificate's failure_probability,
    the sum over attempts, for all attempts at the target together. All directions of the adjacency are tested,
    each with the whole of `failure`: a false claim is false in one of them, and must pass that one too.

    Args:
      pair: the mechanism with its noise multiplier.
      epsilon: the claim, a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: delta of the claim; omit it if `epsilon` is a `Guarantee`.
      options: how to sample; its confidence and rel_width are not used.
      tau: the factor by which the true delta is expected to be below the claim. It sets the number of samples if
        `options.samples` is None. Default: 1.05, or 1.25 where 1.05 would need more than 1e8 samples.
      failure: failure probability of this attempt.
      ledger: where attempts are counted; default `default_ledger()`.
      counted_for: names of what else this is an attempt at, such as the setting of a plan whose strategy may change
        from attempt to attempt; the certificate tells the most attempts at any of them.

    Returns:
      The certificate. Only an accepted one lets you claim anything.

    Example:
      >>> from pathlib import Path
      >>> from tempfile import TemporaryDirectory
      >>> from galton import dominating_pair, square_root
      >>> pair = dominating_pair(square_root(16), bins=4, noise_multiplier=3.0)
      >>> with TemporaryDirectory() as folder:  # so that this example counts as no attempt of yours
      ...     ledger = Ledger(Path(folder) / "attempts.json")
      ...     certificate = certify(pair, epsilon=1.0, delta=1e-3, options=Options(seed=1), ledger=ledger)
      >>> certificate.accepted, certificate.stated_delta
      (True, 0.001)
    """
    guarantee = as_guarantee(epsilon, delta)
    options = options or Options()
    failure = FAILURE_SHARE * guarantee.delta if failure is None else probability("failure", failure)
    if tau is not None:
        check_tau(tau)
    start = time.perf_counter()
    seed = options.fresh_seed()
    ledger = ledger or default_ledger()
    targets = (target_digest(pair, guarantee), spelled_target_digest(pair, guarantee), *counted_for)
    spent = ledger.begin(targets, failure)
    verdicts = []
    try:
        for direction in guarantee.directions:
            verdicts.append(
                _verify_direction(pair, direction, guarantee, failure, tau, derived_seed(seed, "certify"), options)
            )
            if not verdicts[-1].accepted:
                break
    except KeyboardInterrupt:
        raise AttemptInterrupted(spent) from None
    accepted = all(verdict.accepted for verdict in verdicts)
    if accepted:
        spent = ledger.accept(targets, failure)
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
        participation=pair.participation,
        noise_multiplier=pair.noise_multiplier,
        bound="betting" if options.bound == SEQUENCE else options.bound,
        samples=sum(verdict.samples for verdict in verdicts),
        seed=seed,
        seed_chosen_by_user=options.seed is not None,
        by_direction=tuple(verdicts),
        statement=_statement(accepted, guarantee, pair.batches, total, spent.attempts, options),
        versions=versions(),
        created=now(),
        seconds=time.perf_counter() - start,
    )


def _stated_delta(delta: float, failure: float, attempts: int) -> float:
    """max(delta, failure) after one attempt, delta + all failures after several (docs/math.md, section 2.3)."""
    return min(1.0, max(delta, failure) if attempts == 1 else delta + failure)


def _stated_guarantee(guarantee: Guarantee, failure: float, attempts: int) -> str:
    """The guarantee that may be stated, in words."""
    delta = _stated_delta(guarantee.delta, failure, attempts)
    return f"({guarantee.epsilon:g}, {delta:.6g})-DP under {guarantee.adjacency} adjacency"


def _stated_run(batches: str) -> str:
    """The run that the guarantee is for, in words."""
    return f"if it uses this strategy, {batches} and noise multiplier"


def _statement(
    accepted: bool, guarantee: Guarantee, batches: str, total: float, attempts: int, options: Options
) -> str:
    """What may be stated, in words."""
    if not accepted:
        return f"{_REJECTED}. Trying again, with any multiplier, counts as a further attempt."
    words = (
        f"A run released only because this verification accepted is {_stated_guarantee(guarantee, total, attempts)}, "
        f"{_stated_run(batches)}."
    )
    if options.seed is not None:
        words += " The seed was chosen by the user: this holds only if it was not chosen for its outcome."
    return words + (f" Attempt {attempts} at this target." if attempts > 1 else "")


def _verify_direction(
    pair: DominatingPair,
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
    if ceiling > delta:
        sampler, failure = sampler.measured(seed, failure, delta)
    lost = sampler.lost_delta(epsilon) + sampler.rest(epsilon)
    claim = delta - lost
    value_range = max(sampler.value_range(epsilon), 2 * claim)  # any larger range is valid, and the test needs room

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
        words = "the claim is below what floating point and the part that samples leave out can resolve"
        return verdict(False, 1.0, 1.0, 0, 1, words)
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
    accepted = test.accepted if isinstance(test, BettingTest) else upper <= claim
    return verdict(accepted, test.mean, upper + lost, test.samples, budget, chosen.reason)


def _sample_budget(claim: float, tau: float | None, failure: float, value_range: float, options: Options) -> int:
    """Samples of a verification: the exact number for a fixed-sample bound, the largest for a sequence."""
    bound = "kl" if options.bound == SEQUENCE else options.bound
    if tau is not None:
        return samples_to_certify(claim, tau, failure, bound, value_range)
    fine = samples_to_certify(claim, 1.05, failure, bound, value_range)
    return fine if fine <= _MOST_SAMPLES else samples_to_certify(claim, 1.25, failure, bound, value_range)
