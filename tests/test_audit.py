"""The audit: its bound holds and is tight, correct plans pass, planted bugs do not."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from galton.accountants import ACCOUNTANTS, Calculated, Run, find_accountant
from galton.accountants.attacks import unknown_pattern
from galton.accounting import Options
from galton.audit import Audit, RealSystem, audit
from galton.audit.audit import certified_epsilon
from galton.audit.bound import limit, rate_lower, rate_upper, visible_delta
from galton.audit.checks import FALSE_ALARM, Check, Finding, binomial, chernoff, chi_square, judge, pearson, two_samples
from galton.audit.participation import read
from galton.audit.redrawn_checks import _epoch_pairs
from galton.audit.system import Vector
from galton.audit.tallies import batch_tally
from galton.audit.trials import run_once, shape_for, shuffled_orders
from galton.batching import (
    BallsInBins,
    Batch,
    Batches,
    RedrawnBallsInBins,
    Shuffle,
    StreamingBallsInBins,
    StreamingRedrawnBallsInBins,
    truncation,
)
from galton.cli import main
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_epsilon, gaussian_mu
from galton.guarantee import Adjacency, Guarantee
from galton.noise import CorrelatedNoise, key_from_seed
from galton.plan import Plan, make_plan, save_plan
from galton.strategies import identity, square_root
from galton.strategies.toeplitz import Toeplitz
from galton.strategies.tree import Tree
from galton.strategies.whitening import Whitening
from tests.marks import SLOW, slow_after

Members = Callable[[int], NDArray[np.int64]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Plan]:
    """Small plans of several kinds, each made once. Certificates take long, so most are variants of one."""
    made: dict[str, Plan] = {}
    plain, zero_out, replaced = (
        Guarantee(2, 0.03, adjacency) for adjacency in (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE)
    )
    usual: dict[str, Any] = {"epsilon": plain, "examples": 64, "batch_size": 8, "epochs": 4, "strategy": "sqrt:8"}
    usual["batching"] = "balls-in-bins"
    directly: dict[str, dict[str, Any]] = {
        "bins": {"options": Options(seed=1)},
        "small delta": {"epsilon": Guarantee(4, 1e-3), "options": Options(seed=1)},
        "known bins": {"strategy": "sqrt", "accountant": "unamplified"},
        "fixed order": {"strategy": "sqrt", "batching": "fixed-order", "epsilon": replaced},
        "tree": {"strategy": "tree", "batching": "shuffle-once", "epsilon": zero_out},
        "cyclic Poisson": {"strategy": "sqrt:4", "batching": "cyclic-poisson"},
        "Poisson": {"strategy": "identity", "batching": "poisson"},
        "conditional": {"strategy": "sqrt:4", "batching": "poisson", "accountant": "mmcc"},
        "conditional, independent": {"strategy": "identity", "batching": "poisson", "accountant": "mmcc"},
        "independent": {"strategy": "identity", "options": Options(seed=1)},
        # padded so much that truncation, after which bins depend on each other, is as rare as for a small delta
        "redrawn": {"batching": "balls-in-bins-redrawn", "micro_batch_size": 16, "options": Options(seed=1)},
        "redrawn, replace": {"batching": "balls-in-bins-redrawn", "epsilon": replaced, "options": Options(seed=1)},
        "min-separation, replace": {
            "strategy": "sqrt:4",
            "batching": "min-separation",
            "epsilon": replaced,
            "options": Options(seed=1),
        },
        "redrawn, long memory": {"strategy": "sqrt", "batching": "balls-in-bins-redrawn", "options": Options(seed=1)},
        "min-separation": {"strategy": "sqrt:4", "batching": "min-separation", "options": Options(seed=1)},
    }

    def variant(kind: str) -> Plan:
        bins = get("bins")
        if kind == "one bin":  # the Gaussian mechanism
            strategy, scheme = square_root(32, 4), BallsInBins(64, 1, 32)
            multiplier, own = 1 / gaussian_mu(2, 0.03), strategy.sensitivity(1)
            cut = truncation(scheme, 64)
            return replace(
                bins,
                guarantee=zero_out,
                scheme=scheme,
                bins=1,
                padded_batch_size=64,
                truncation=cut,
                strategy=strategy,
                noise_multiplier=multiplier,
                sensitivity=own,
            )
        if kind == "replace":  # twice the noise is a little more than is needed
            return replace(bins, guarantee=replaced, noise_multiplier=2 * bins.noise_multiplier)
        if kind == "truncated":
            return replace(bins, guarantee=zero_out, padded_batch_size=10, truncation=truncation(bins.scheme, 10))
        if kind == "allocation":  # the same batches and noise, whose package need not be here
            plan, accountant = get("independent"), find_accountant("allocation")
            claim = plan.claim
            evidence = Calculated(accountant.name, plan.noise_multiplier, claim, accountant.stated(claim))
            return replace(plan, evidence=evidence)
        if kind == "redrawn, streaming":
            return replace(get("redrawn"), scheme=StreamingRedrawnBallsInBins(64, 8, 32))
        if kind == "redrawn, truncated":
            plan = get("redrawn")
            return replace(plan, guarantee=zero_out, padded_batch_size=10, truncation=truncation(plan.scheme, 10))
        assert kind == "streaming"
        return replace(bins, scheme=StreamingBallsInBins(64, 8, 32))

    def get(kind: str) -> Plan:
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
                made[kind] = make_plan(**usual | directly[kind]) if kind in directly else variant(kind)
        return made[kind]

    return get


SOURCES: dict[str, CorrelatedNoise] = {}


def system_of(plan: Plan, kind: type[RealSystem] = RealSystem) -> RealSystem:
    """A system whose noise was compiled before, if it was."""
    made = kind(plan)
    made.__dict__["source"] = SOURCES.setdefault(plan.digest, made.source)
    return made


def failed(audited: Audit) -> set[str]:
    return {check.name for check in audited.checks if not check.passed}


# The bound.


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (500, 1000)])
def test_clopper_pearson_limits_are_where_the_tail_has_the_failure_probability(successes: int, trials: int) -> None:
    low, high = float(rate_lower(successes, trials, 0.01)), float(rate_upper(successes, trials, 0.01))
    terms = [math.comb(trials, k) for k in range(trials + 1)]

    def law(p: float) -> list[float]:
        return [float(c) * p**k * (1 - p) ** (trials - k) for k, c in enumerate(terms)] if trials < 100 else []

    assert low <= successes / trials <= high
    if trials < 100:
        assert low == 0 or sum(law(low)[successes:]) == pytest.approx(0.01)
        assert high == 1 or sum(law(high)[: successes + 1]) == pytest.approx(0.01)


@pytest.mark.parametrize("delta", [1e-3, 0.05])
def test_the_bound_covers_the_gaussian_mechanism(delta: float) -> None:
    """300 bounds at 20% failure: exceeding the exact epsilon more than 89 times has a probability below 1e-4."""
    mu, random, size = 1.5, np.random.default_rng(1), 4000
    exact, expected = gaussian_epsilon(delta, mu), mu**2 / 2 + mu * random.standard_normal(10_000)
    above, bound = 0, 0.0
    for _ in range(300):
        first, second = (sign * mu**2 / 2 + mu * random.standard_normal(size) for sign in (1, -1))
        bound = limit("mixture-first", first, second, expected, delta, 0.2).epsilon_lower
        above += bound > exact
    assert above <= 89
    assert bound > 0.5 * exact


def test_a_larger_delta_is_taken_where_trials_are_few() -> None:
    assert visible_delta(1e-3, 10**6) == 1e-3
    assert visible_delta(1e-5, 10**6) == pytest.approx(2e-4)
    assert visible_delta(1e-9, 100) == 0.1


# The checks.


@pytest.mark.parametrize("wrong", [False, True])
def test_p_values(wrong: bool) -> None:
    """Right models have p-values that are spread out; wrong ones are found."""
    random, off = np.random.default_rng(5), 1.2 if wrong else 1.0
    throws = random.multinomial(500, [0.1] * 10, size=200).astype(np.float64)
    sizes = pearson(50 + (throws - 50) * off, np.full(10, 0.1), 500)
    findings = [
        two_samples("ks", off * random.standard_normal(20_000), random.standard_normal(40_000), ""),
        chi_square("sizes", *sizes, ""),
        binomial("pairs", int(random.binomial(100_000, 0.1 * off)), 100_000, 0.1, ""),
        chernoff("overflow", int(random.binomial(100_000, 0.1 * off)), 100_000, 0.1, ""),
    ]
    assert all(finding.p_value < 1e-6 if wrong else finding.p_value > 1e-3 for finding in findings)
    assert all(check.passed is not wrong for check in judge(findings))


def test_nothing_that_is_not_a_number_passes() -> None:
    verdict = judge([Finding("a", math.nan, math.nan, ""), Finding("b", 1.0, 1.0, "")])
    assert [check.passed for check in verdict] == [False, True]
    assert verdict[0].threshold == FALSE_ALARM / 2
    json.dumps([check.p_value for check in verdict], allow_nan=False)


@pytest.mark.parametrize("strategy", [square_root(40, 8), Tree(13)])
def test_whitening_undoes_the_correlation(strategy: Toeplitz | Tree) -> None:
    whitening, noise = Whitening(strategy), strategy.inverse()
    covariance = whitening.apply(whitening.apply(noise @ noise.T).T)
    assert np.allclose(covariance, np.eye(strategy.rounds), atol=1e-9)
    assert np.allclose(whitening.adjoint(np.eye(strategy.rounds)), whitening.apply(np.eye(strategy.rounds)).T)


# Correct plans.


AUDITED = (
    *("bins", "one bin", "streaming", "replace", "truncated", "known bins", "fixed order"),
    *("tree", "cyclic Poisson", "Poisson", "conditional, independent", "allocation"),
    *("redrawn", "redrawn, streaming", "redrawn, truncated", "redrawn, long memory", "min-separation"),
    *("redrawn, replace", "min-separation, replace"),
)


@pytest.mark.parametrize("kind", slow_after(3, AUDITED))
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_a_correct_plan_passes_and_is_not_exceeded(plans: Callable[[str], Plan], kind: str, seed: int) -> None:
    audited = audit(plans(kind), trials=10_000, seed=seed, system=system_of(plans(kind)))
    assert audited.consistent, failed(audited)
    assert audited.trials >= 4000
    assert 0.5 * audited.epsilon_certified < audited.epsilon_lower <= audited.epsilon_certified
    assert audited.epsilon_certified <= plans(kind).guarantee.epsilon
    assert audited.delta >= plans(kind).guarantee.delta


@SLOW
def test_plans_of_every_accountant_are_audited(plans: Callable[[str], Plan]) -> None:
    assert {plans(kind).accountant.name for kind in AUDITED} == set(ACCOUNTANTS)


@SLOW
def test_one_bin_is_the_gaussian_mechanism(plans: Callable[[str], Plan]) -> None:
    plan = plans("one bin")
    audited = audit(plan, trials=40_000, seed=3)
    exact = gaussian_epsilon(audited.delta, 1 / plan.noise_multiplier)
    assert 0.8 * exact < audited.epsilon_lower <= exact
    assert exact == pytest.approx(audited.epsilon_certified)
    assert audited.consistent


def test_seeds_repeat_an_audit_and_none_are_needed(plans: Callable[[str], Plan]) -> None:
    first, second = (audit(plans("fixed order"), trials=2000, seed=9) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    free = audit(plans("fixed order"), trials=2000)
    assert free.consistent
    assert free.limits != first.limits


@SLOW
def test_a_small_plan_comes_within_a_fifth(plans: Callable[[str], Plan]) -> None:
    audited = audit(plans("small delta"), trials=1_500_000)  # as many as a minute has on two cores
    assert audited.consistent, failed(audited)
    assert 0.8 * audited.epsilon_certified <= audited.epsilon_lower <= audited.epsilon_certified
    assert (audited.delta, audited.epsilon_certified) == (1e-3, 4.0)


@SLOW
@pytest.mark.parametrize("kind", ["bins", "replace", "truncated", "known bins", "cyclic Poisson"])
def test_no_false_alarm_over_many_seeds(plans: Callable[[str], Plan], kind: str) -> None:
    for seed in range(100, 112):
        audited = audit(plans(kind), trials=20_000, seed=seed, system=system_of(plans(kind)))
        assert audited.consistent, (seed, failed(audited))


# Planted bugs.


class Quiet(RealSystem):
    """Noise scaled by 0.9."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        return (0.9 * drawn for drawn in super().noise(coordinates, members, seed))


class WrongInverse(RealSystem):
    """C z where C^-1 z was analysed."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        assert isinstance(self.plan.strategy, Toeplitz)
        other = Toeplitz(self.plan.rounds, self.plan.strategy.inverse_series, allow_negative=True)
        return RealSystem(replace(self.plan, strategy=other)).noise(coordinates, members, seed)


class Independent(RealSystem):
    """Noise that is silently independent."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        plain = replace(self.plan, strategy=identity(self.plan.rounds))
        return RealSystem(plain).noise(coordinates, members, seed)


class Repeated(RealSystem):
    """The noise of the first half once more after the resumption."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        first = list(super().noise(coordinates, members, seed))[: self.plan.rounds // 2]
        return iter(first + first)


class Rewound(RealSystem):
    """A checkpoint that keeps the buffers and forgets the round: fresh z are those of the beginning."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        state = self.source.init(np.zeros(coordinates, np.float32), None if seed is None else key_from_seed(seed))
        for turn in range(self.plan.rounds):
            if turn == self.halfway:
                state = replace(state, round=jnp.zeros((), jnp.int32))
            drawn, state = self.source.step(state)
            yield np.asarray(drawn)


class Forgetful(RealSystem):
    """A checkpoint that loses the buffers, as Opacus's does."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        state = self.source.init(np.zeros(coordinates, np.float32), None if seed is None else key_from_seed(seed))
        for turn in range(self.plan.rounds):
            if turn == self.halfway:
                state = replace(state, buffers=[0 * buffer for buffer in state.buffers])
            drawn, state = self.source.step(state)
            yield np.asarray(drawn)


class SameKey(RealSystem):
    """The same noise in every run."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        return super().noise(coordinates, members, 7)


class Shared(RealSystem):
    """One noise for every two coordinates."""

    def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
        return (np.repeat(drawn[::2], 2)[:coordinates] for drawn in super().noise(coordinates, members, seed))


class Redrawn(RealSystem):
    """Bins drawn anew in every epoch."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        start = seed or 0
        epochs = [self.plan.batches(start + epoch) for epoch in range(self.plan.epochs)]
        return (epochs[turn // self.plan.bins].at(turn) for turn in range(self.plan.rounds))


class Shuffling(RealSystem):
    """Shuffled once and cut into equal batches."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        plan = self.plan
        return Batches(Shuffle(plan.examples, plan.bins, plan.rounds), plan.padded_batch_size, seed)


class Twice(RealSystem):
    """One example is in a second bin too."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        for batch in super().batches(seed):
            yield with_example(batch, 5) if batch.round % self.plan.bins == 3 else batch


class TwiceOnce(RealSystem):
    """One example is in a second batch, once in the whole run."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        for batch in super().batches(seed):
            yield with_example(batch, 5) if batch.round == self.plan.rounds - 2 else batch


class Skewed(RealSystem):
    """The first bin is twice as likely: what would have been the last falls into it with probability one half."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        bins, all_batches = self.plan.bins, list(super().batches(seed))
        moved = all_batches[bins - 1].examples[::2]
        for batch in all_batches:
            members = batch.examples
            if batch.round % bins == 0:
                members = np.concatenate((members, moved))
            if batch.round % bins == bins - 1:
                members = np.setdiff1d(members, moved)
            yield filled(batch, members)


def filled(batch: Batch, members: NDArray[np.int32]) -> Batch:
    indices = np.concatenate((members, np.full(batch.padded_batch_size, 64, np.int32)))[: batch.padded_batch_size]
    return Batch(batch.round, indices.astype(np.int32), np.arange(batch.padded_batch_size) < members.size, 0)


def with_example(batch: Batch, example: int) -> Batch:
    return filled(batch, np.union1d(batch.examples, [example]).astype(np.int32))


PLANTED = [
    (Quiet, {"noise variance", "noise variance by round", "ratio without canary"}),
    (WrongInverse, {"noise variance", "noise whiteness", "ratio without canary"}),
    (Independent, {"noise variance", "noise whiteness", "ratio without canary"}),
    (Repeated, {"noise repeats"}),
    (Rewound, {"noise repeats"}),
    (Forgetful, {"noise variance by round"}),
    (Shared, {"noise coordinates"}),
    (Redrawn, {"batches structure"}),
    (Shuffling, {"batches sizes"}),
    (Twice, {"batches structure"}),
    (TwiceOnce, {"batches structure"}),
    (Skewed, {"batches uniformity"}),
]


@pytest.mark.parametrize(("planted", "caught"), slow_after(5, PLANTED))
def test_planted_bugs_are_caught(plans: Callable[[str], Plan], planted: type[RealSystem], caught: set[str]) -> None:
    plan = plans("bins")
    audited = audit(plan, trials=8000, seed=4, system=system_of(plan, planted))
    assert not audited.consistent
    assert caught <= failed(audited), failed(audited)


def test_the_same_noise_in_every_run_is_caught(plans: Callable[[str], Plan]) -> None:
    plan = plans("bins")
    audited = audit(plan, trials=8000, seed=4, system=system_of(plan, SameKey))
    assert audited.runs > 1
    assert failed(audited) == {"noise fresh"}


def test_far_too_little_noise_shows_in_epsilon(plans: Callable[[str], Plan]) -> None:
    class Silent(RealSystem):
        def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
            return (0.5 * drawn for drawn in super().noise(coordinates, members, seed))

    plan = plans("bins")
    audited = audit(plan, trials=8000, seed=4, system=system_of(plan, Silent))
    assert audited.epsilon_lower > audited.epsilon_certified
    assert not audited.consistent


def test_reshuffled_batches_are_caught_in_an_unamplified_plan(plans: Callable[[str], Plan]) -> None:
    plan = plans("known bins")
    audited = audit(plan, trials=4000, seed=4, system=Redrawn(plan))
    assert "batches structure" in failed(audited)


def test_truncation_that_was_not_planned_is_caught(plans: Callable[[str], Plan]) -> None:
    class Small(RealSystem):
        def batches(self, seed: int | None) -> Iterator[Batch]:
            return Batches(self.plan.scheme, 10, seed)

    plan = plans("bins")
    audited = audit(plan, trials=8000, seed=4, system=system_of(plan, Small))
    assert "batches structure" in failed(audited)


# Bins redrawn in every epoch: the real batches, and planted bugs.


def redrawn_plan(plan: Plan, scheme: RedrawnBallsInBins, padded_batch_size: int = 64) -> Plan:
    """The plan with other batches: what checks of batches read of it."""
    cut, strategy = truncation(scheme, padded_batch_size), identity(scheme.rounds)
    changed = replace(plan, scheme=scheme, bins=scheme.bins, strategy=strategy)
    return replace(changed, padded_batch_size=padded_batch_size, truncation=cut)


REDRAWN = RedrawnBallsInBins(64, 8, 32)


def batch_verdicts(system: RealSystem, auditor: int, runs: int = 2, realisations: int = 50) -> tuple[Check, ...]:
    """The verdicts on the batches of a system, as an audit reaches them."""
    plan, random = system.plan, np.random.default_rng(auditor)
    tally = batch_tally(plan)
    for _ in range(runs):
        seeds = (int.from_bytes(random.bytes(16), "little") for _ in range(realisations))
        orders = (shuffled_orders(plan, random) for _ in range(realisations))
        tally.add(read((system.batches(seed) for seed in seeds), plan.examples, plan.rounds, orders))
    return judge(tally.findings())


CORRECT: dict[str, tuple[RedrawnBallsInBins, int, int]] = {  # scheme, padded batch size, number of checks
    "random access": (REDRAWN, 64, 7),
    "streaming": (StreamingRedrawnBallsInBins(64, 8, 32), 64, 7),
    "truncated": (REDRAWN, 10, 4),
    "partial epoch": (RedrawnBallsInBins(64, 8, 29), 64, 7),
    "one epoch": (RedrawnBallsInBins(64, 8, 8), 64, 5),
    "one epoch and a bit": (RedrawnBallsInBins(64, 8, 13), 64, 5),
    "one bin": (RedrawnBallsInBins(64, 1, 3), 64, 5),
    "many bins": (RedrawnBallsInBins(61, 40, 200), 61, 7),
}


@pytest.mark.parametrize("kind", CORRECT)
@pytest.mark.parametrize("seed", range(3))
def test_correct_redrawn_batches_pass(plans: Callable[[str], Plan], kind: str, seed: int) -> None:
    scheme, size, checks = CORRECT[kind]
    plan = redrawn_plan(plans("bins"), scheme, size)
    verdicts = batch_verdicts(RealSystem(plan), seed)
    assert len(verdicts) == checks
    assert all(check.passed for check in verdicts), [check.name for check in verdicts if not check.passed]
    assert all(check.p_value > 1e-4 for check in verdicts)


@pytest.mark.parametrize("epochs", range(2, 8))
def test_no_epoch_is_compared_twice_and_all_pairs_have_their_turn(epochs: int) -> None:
    seen = set()
    for realisation in range(4 * epochs):
        first, second = _epoch_pairs(realisation, epochs)
        assert first.size == second.size > 0
        assert len({*first.tolist(), *second.tolist()}) == 2 * first.size
        seen |= set(zip(first.tolist(), second.tolist(), strict=True))
    lags = {later - earlier for earlier, later in seen}
    assert lags == set(range(1, epochs))
    assert {(epoch, epoch + 1) for epoch in range(epochs - 1)} <= seen


class Planted(RealSystem):
    """Batches by a table of bins, (examples, epochs), which has a bug."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        return random.integers(self.plan.bins, size=(self.plan.examples, self.plan.epochs))

    def batches(self, seed: int | None) -> Iterator[Batch]:
        table = self.bins(np.random.default_rng(seed))
        for blank in super().batches(seed):
            epoch, place = divmod(blank.round, self.plan.bins)
            yield filled(blank, np.flatnonzero(table[:, epoch] == place).astype(np.int32))


class DrawnOnce(Planted):
    """One bin for the whole run."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        return np.repeat(super().bins(random)[:, :1], self.plan.epochs, axis=1)


class InTurn(Planted):
    """The bin of the next epoch is the next bin."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        return (super().bins(random)[:, :1] + np.arange(self.plan.epochs)) % self.plan.bins


class Sticky(Planted):
    """With probability one quarter the bin stays what it was."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        table = super().bins(random)
        for epoch in range(1, self.plan.epochs):
            stays = random.random(self.plan.examples) < 0.25
            table[stays, epoch] = table[stays, epoch - 1]
        return table


class EveryOther(Planted):
    """The third epoch has the bins of the first, the fourth those of the second."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        return super().bins(random)[:, np.arange(self.plan.epochs) % 2]


class SameBatches(Planted):
    """Batches keep their members and only come in another order: each example by itself looks as it should."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        first = super().bins(random)[:, 0]
        orders = [random.permutation(self.plan.bins) for _ in range(self.plan.epochs)]
        return np.stack([order[first] for order in orders], axis=1)


class Uneven(Planted):
    """The first bin is more likely than the last."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        table = super().bins(random)
        moved = (table == self.plan.bins - 1) & (random.random(table.shape) < 0.2)
        return np.where(moved, 0, table)


class Couples(Planted):
    """Every example with an odd index is in the batches of the one before it."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        return np.repeat(super().bins(random)[::2], 2, axis=0)


class Reshuffled(Planted):
    """Shuffled anew in every epoch into batches of one size, as data loaders do."""

    def bins(self, random: np.random.Generator) -> NDArray[np.int64]:
        equal = np.arange(self.plan.examples) % self.plan.bins
        return np.stack([random.permutation(equal) for _ in range(self.plan.epochs)], axis=1)


class TwoBins(Planted):
    """One example is in a second batch of one epoch."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        for batch in super().batches(seed):
            yield with_example(batch, 5) if batch.round in (9, 10) else batch


class SitsOut(Planted):
    """One example is in no batch of the second epoch."""

    def batches(self, seed: int | None) -> Iterator[Batch]:
        for batch in super().batches(seed):
            yield filled(batch, np.setdiff1d(batch.examples, [5])) if batch.round // 8 == 1 else batch


PLANTED_REDRAWN: list[tuple[type[Planted], set[str]]] = [
    (Planted, set()),
    (DrawnOnce, {"batches redraws", "batches company"}),
    (InTurn, {"batches redraws", "batches company"}),
    (Sticky, {"batches redraws"}),
    (EveryOther, {"batches redraws", "batches company"}),
    (SameBatches, {"batches company"}),
    (Uneven, {"batches uniformity"}),
    (Couples, {"batches pairs"}),
    (Reshuffled, {"batches sizes"}),
    (TwoBins, {"batches structure"}),
    (SitsOut, {"batches structure"}),
]


@pytest.mark.parametrize(("planted", "caught"), PLANTED_REDRAWN)
def test_bugs_planted_in_redrawn_batches_are_caught(
    plans: Callable[[str], Plan], planted: type[Planted], caught: set[str]
) -> None:
    verdicts = batch_verdicts(planted(redrawn_plan(plans("bins"), REDRAWN)), auditor=4)
    failing = {check.name for check in verdicts if not check.passed}
    assert caught <= failing, failing
    assert failing or planted is Planted


@pytest.mark.parametrize(
    ("planted", "caught"), slow_after(1, [(DrawnOnce, "batches redraws"), (TwoBins, "batches structure")])
)
def test_an_audit_of_redrawn_batches_catches_bugs(
    plans: Callable[[str], Plan], planted: type[Planted], caught: str
) -> None:
    plan = plans("redrawn")
    audited = audit(plan, trials=8000, seed=4, system=system_of(plan, planted))
    assert not audited.consistent
    assert caught in failed(audited)


@pytest.mark.parametrize(("bands", "rounds", "error"), [(1, 12, 0), (3, 12, 0), (3, 10, 0), (5, 12, 0), (12, 12, 1e-3)])
def test_the_ratio_of_redrawn_bins_is_that_of_all_patterns(bands: int, rounds: int, error: float) -> None:
    """Against the mixture over all 64 patterns; with more than bins + 1 bands the ratio is close to it."""
    random, strategy = np.random.default_rng(3), square_root(rounds, bands)
    run = Run(strategy, RedrawnBallsInBins(20, 4, rounds), 4, 0.7)
    attack = unknown_pattern(run, Adjacency.ADD_OR_REMOVE, Whitening(strategy))
    scaled = strategy.matrix() / run.sigma
    takes_part = np.zeros((12, 64))
    for epoch, bins in enumerate(np.indices((4, 4, 4)).reshape(3, 64)):
        takes_part[4 * epoch + bins, np.arange(64)] = 1
    modes = scaled @ takes_part[:rounds]
    points = random.standard_normal((rounds, 50)) + modes[:, random.integers(64, size=50)]
    exact = np.log(np.exp(modes.T @ points - (modes**2).sum(axis=0)[:, None] / 2).mean(axis=0))
    none = np.zeros(50, np.int64)
    assert attack.ratio(scaled.T @ points, none) == pytest.approx(exact, abs=error or 1e-9)
    with_canary, without = attack.model(random, np.zeros(100_000, np.int64))
    for ratios in (-with_canary, without):  # E_P exp(-L) = E_Q exp(L) = 1
        values = np.exp(ratios)
        assert values.mean() == pytest.approx(1, abs=5 * values.std() / np.sqrt(values.size) + error)


@dataclass(frozen=True, eq=False)
class Counting:
    """An attack whose ratio is the number of participations, in a run without noise."""

    weights: NDArray[np.float32]
    gram: None = None
    mirrored: bool = False
    silent: bool = True

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> NDArray[np.float64]:
        assert not own.any()  # nothing is known of an example
        return statistics[0].astype(np.float64)

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(
        self, random: np.random.Generator, own: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        raise NotImplementedError


@pytest.mark.parametrize("size", [64, 10])
@pytest.mark.parametrize("scheme", [REDRAWN, StreamingRedrawnBallsInBins(64, 8, 32)], ids=lambda s: s.kind)
def test_an_attack_sees_one_participation_in_every_epoch(
    plans: Callable[[str], Plan], scheme: RedrawnBallsInBins, size: int
) -> None:
    class Noiseless(RealSystem):
        def noise(self, coordinates: int, members: Members, seed: int | None) -> Iterator[Vector]:
            return (np.zeros(coordinates, np.float32) for _ in range(self.plan.rounds))

    plan, attack = redrawn_plan(plans("bins"), scheme, size), Counting(np.ones((32, 1), np.float32))
    shape = shape_for(plan, attack, 1.0, 400)
    outcome = run_once(plan, Noiseless(plan), attack, shape, np.random.default_rng(1), True, 2)
    assert (outcome.inside[outcome.whole] == 4).all()
    assert not outcome.outside.any()
    assert outcome.whole.all() == (size == 64)
    assert (outcome.inside < 4).any() == (size == 10)


def test_one_shuffle_for_all_epochs_of_a_stream_is_caught(
    plans: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of one order hardly move: an example stays near its bin."""
    monkeypatch.setattr(StreamingRedrawnBallsInBins, "reshuffled_data", False)
    plan = redrawn_plan(plans("bins"), StreamingRedrawnBallsInBins(64, 8, 32))
    assert {check.name for check in batch_verdicts(RealSystem(plan), 1) if not check.passed} >= {"batches redraws"}


def test_bins_that_were_not_redrawn_and_those_that_were_are_told_apart(plans: Callable[[str], Plan]) -> None:
    """The real batches of either scheme under the plan of the other."""
    once, redrawn = plans("bins"), redrawn_plan(plans("bins"), REDRAWN)

    class Swapped(RealSystem):
        def batches(self, seed: int | None) -> Iterator[Batch]:
            other = redrawn if self.plan is once else once
            return Batches(other.scheme, self.plan.padded_batch_size, seed)

    for plan in (once, redrawn):
        assert not all(check.passed for check in batch_verdicts(Swapped(plan), auditor=2))


# What is refused, and the command.


def test_what_has_no_exact_attack_is_refused(plans: Callable[[str], Plan]) -> None:
    known = replace(plans("cyclic Poisson"), evidence=plans("known bins").evidence)
    for plan in (plans("conditional"), known):
        with pytest.raises(InvalidArgument, match="at most as many bands"):
            audit(plan)


@pytest.mark.parametrize(("name", "value"), [("seconds", 0), ("trials", 0), ("seed", -1)])
def test_bad_arguments(plans: Callable[[str], Plan], name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=name):
        audit(plans("fixed order"), **{name: value})  # type: ignore[arg-type]


def test_wrong_numbers_of_batches_are_refused(plans: Callable[[str], Plan]) -> None:
    class Short(RealSystem):
        def batches(self, seed: int | None) -> Iterator[Batch]:
            return (batch for batch in super().batches(seed) if batch.round)

    plan = plans("fixed order")
    with pytest.raises(InvalidArgument, match="as many as the plan has rounds"):
        audit(plan, trials=100, system=Short(plan))


@pytest.mark.parametrize("kind", ["bins", "known bins", "cyclic Poisson"])
def test_epsilon_certified_at_a_larger_delta_is_smaller(plans: Callable[[str], Plan], kind: str) -> None:
    plan = plans(kind)
    epsilons = [certified_epsilon(plan, delta, seed=1) for delta in (plan.guarantee.delta, 0.06, 0.1)]
    assert epsilons[0] == plan.guarantee.epsilon > epsilons[1] > epsilons[2] > 0


def run_audit(
    patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, *words: str
) -> tuple[int, str]:
    patch.setattr("sys.argv", ["galton", "audit", str(folder), *words])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_command_and_its_exit_codes(
    plans: Callable[[str], Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = save_plan(plans("fixed order"), tmp_path / "plan")
    words = ("--trials", "4000", "--seed", "1")
    code, text = run_audit(monkeypatch, capsys, folder, *words, "--json")
    body = json.loads(text)
    assert (code, body["consistent"]) == (0, True)
    assert body["epsilon_lower"] <= body["epsilon_certified"]
    assert {"delta", "trials", "seconds", "checks", "limits", "failure", "false_alarm"} <= set(body)
    assert {"name", "statistic", "p_value", "threshold", "passed"} <= set(body["checks"][0])
    monkeypatch.setattr("galton.noise.stream.MARGIN", 0.9)
    code, text = run_audit(monkeypatch, capsys, folder, *words)
    assert code == 3
    assert "NOT CONSISTENT" in text
    assert run_audit(monkeypatch, capsys, tmp_path / "nothing")[0] == 2
