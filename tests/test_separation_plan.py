"""Min-separation batches in plans, reports and audits: the real batches, and planted bugs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from galton.accountants import find_accountant
from galton.accountants.attacks import unknown_rests
from galton.accountants.setting import Run
from galton.accounting import Options
from galton.audit import RealSystem, audit
from galton.audit.checks import Check, judge
from galton.audit.participation import read
from galton.audit.tallies import batch_tally
from galton.batching import BallsInBins, Batch, MinSeparation, Poisson
from galton.batching.overflow import truncation
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Guarantee
from galton.plan import Plan, load_plan, make_plan, save_plan, verify_plan
from galton.report import write_report
from galton.strategies import square_root
from galton.strategies.sensitivity import min_separation_sensitivity
from galton.strategies.whitening import Whitening
from tests.marks import SLOW, slow_after
from tests.test_separation import written_out

SCHEME = MinSeparation(64, 8, 4, 40)


@pytest.fixture(scope="module")
def base() -> Plan:
    """A plan that takes no samples, to be changed."""
    return make_plan(
        Guarantee(2, 0.03), examples=64, batch_size=8, epochs=5, strategy="sqrt:4", batching="cyclic-poisson"
    )


def changed(plan: Plan, scheme: MinSeparation, padded_batch_size: int = 64) -> Plan:
    """The plan with other batches: what checks of batches read of it."""
    bins = round(scheme.examples / scheme.batch_size)
    strategy = square_root(scheme.rounds, scheme.separation)
    cut = truncation(scheme, padded_batch_size)
    return dataclasses.replace(
        plan, scheme=scheme, bins=bins, strategy=strategy, padded_batch_size=padded_batch_size, truncation=cut
    )


def batch_verdicts(system: RealSystem, auditor: int, runs: int = 2, realisations: int = 50) -> tuple[Check, ...]:
    """The verdicts on the batches of a system, as an audit reaches them."""
    plan, random = system.plan, np.random.default_rng(auditor)
    tally = batch_tally(plan)
    for _ in range(runs):
        seeds = (int.from_bytes(random.bytes(16), "little") for _ in range(realisations))
        orders = (None for _ in range(realisations))
        tally.add(read((system.batches(seed) for seed in seeds), plan.examples, plan.rounds, orders))
    return judge(tally.findings())


CORRECT: dict[str, tuple[MinSeparation, int, int]] = {  # scheme, padded batch size, number of checks
    "usual": (SCHEME, 64, 8),
    "no rest": (MinSeparation(64, 8, 1, 40), 64, 8),
    "truncated": (SCHEME, 10, 5),
    "bins drawn once": (MinSeparation(64, 8, 8, 40), 64, 7),
    "short": (MinSeparation(64, 8, 4, 6), 64, 7),
    "one block": (MinSeparation(64, 8, 8, 8), 64, 7),
}


@pytest.mark.parametrize("kind", CORRECT)
@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_correct_batches_pass(base: Plan, kind: str, seed: int) -> None:
    scheme, size, checks = CORRECT[kind]
    verdicts = batch_verdicts(RealSystem(changed(base, scheme, size)), seed)
    assert len(verdicts) == checks
    assert all(check.passed for check in verdicts), [check.name for check in verdicts if not check.passed]
    assert all(check.p_value > 1e-4 for check in verdicts)


class Planted(RealSystem):
    """Batches by a table of rounds, (examples, rounds), which has a bug."""

    def table(self, random: np.random.Generator) -> NDArray[np.bool_]:
        """Who takes part when: as analysed."""
        return self.renewals(random, self.first(random))

    def first(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Rounds to rest before the first."""
        resting = random.integers(self.plan.bins, size=self.plan.examples)
        return np.where(resting < SCHEME.separation, resting, 0)

    def renewals(self, random: np.random.Generator, resting: NDArray[np.int64]) -> NDArray[np.bool_]:
        taken = np.zeros((self.plan.examples, self.plan.rounds), bool)
        for turn in range(self.plan.rounds):
            taken[:, turn] = (resting == 0) & (random.random(resting.size) < SCHEME.sampling_probability)
            resting = np.where(taken[:, turn], SCHEME.separation - 1, np.maximum(resting - 1, 0))
        return taken

    def batches(self, seed: int | None) -> Iterator[Batch]:
        table, places = self.table(np.random.default_rng(seed)), self.plan.padded_batch_size
        for turn in range(self.plan.rounds):
            members = np.flatnonzero(table[:, turn])
            indices = np.full(places, self.plan.examples, np.int32)
            indices[: members.size] = members
            yield Batch(turn, indices, np.arange(places) < members.size, 0)


class Eligible(Planted):
    """Nobody rests at the start: the first rounds are too full."""

    def first(self, random: np.random.Generator) -> NDArray[np.int64]:
        return np.zeros(self.plan.examples, np.int64)


class NoRest(Planted):
    """Poisson sampling."""

    def table(self, random: np.random.Generator) -> NDArray[np.bool_]:
        return random.random((self.plan.examples, self.plan.rounds)) < 1 / self.plan.bins


class Periodic(Planted):
    """Bins drawn once: nobody rests for too short, and all rounds are equally likely."""

    def table(self, random: np.random.Generator) -> NDArray[np.bool_]:
        place = random.integers(self.plan.bins, size=(self.plan.examples, 1))
        return np.asarray(np.arange(self.plan.rounds) % self.plan.bins == place)


class Couples(Planted):
    """Every example with an odd index is in the batches of the one before it."""

    def table(self, random: np.random.Generator) -> NDArray[np.bool_]:
        return np.repeat(super().table(random)[::2], 2, axis=0)


class Tired(Planted):
    """Nobody takes part in the last round."""

    def table(self, random: np.random.Generator) -> NDArray[np.bool_]:
        table = super().table(random)
        table[:, -1] = False
        return table


PLANTED: list[tuple[type[Planted], set[str]]] = [
    (Planted, set()),
    (Eligible, {"batches start"}),
    (NoRest, {"batches structure"}),
    (Periodic, {"batches waits"}),
    (Couples, {"batches pairs"}),
    (Tired, {"batches end"}),
]


@pytest.mark.parametrize(("planted", "caught"), PLANTED)
def test_planted_bugs_are_caught(base: Plan, planted: type[Planted], caught: set[str]) -> None:
    verdicts = batch_verdicts(planted(changed(base, SCHEME)), auditor=4)
    failing = {check.name for check in verdicts if not check.passed}
    assert caught <= failing, failing
    assert failing or planted is Planted


@pytest.mark.parametrize(("bands", "rounds"), [(1, 7), (3, 12), (3, 10), (5, 12)])
def test_the_ratio_of_an_attack_is_that_of_all_patterns(bands: int, rounds: int) -> None:
    bins, strategy = 5, square_root(rounds, bands)
    run = Run(strategy, MinSeparation(20, 4, bands, rounds), bins, 0.7)
    attack = unknown_rests(run, Adjacency.ADD_OR_REMOVE, Whitening(strategy))
    modes, weights = written_out(strategy, bins, bands)
    modes, random = modes / 0.7, np.random.default_rng(3)
    points = random.standard_normal((rounds, 50)) + modes[random.choice(weights.size, 50, p=weights)].T
    exact = np.log(weights @ np.exp(modes @ points - (modes**2).sum(axis=1)[:, None] / 2))
    scaled = strategy.matrix() / run.sigma
    assert attack.ratio(scaled.T @ points, np.zeros(50, np.int64)) == pytest.approx(exact, abs=1e-9)
    with_canary, without = attack.model(random, np.zeros(50_000, np.int64))
    for ratios in (-with_canary, without):  # E_P exp(-L) = E_Q exp(L) = 1
        values = np.exp(ratios)
        assert values.mean() == pytest.approx(1, abs=5 * values.std() / math.sqrt(values.size))
    analysed = find_accountant("min-separation").gram(run)
    assert analysed is not None
    assert np.allclose(analysed, attack.gram, rtol=1e-9, atol=1e-12)


def test_only_the_batches_that_were_analysed_are_covered() -> None:
    accountant, strategy = find_accountant("min-separation"), square_root(32, 4)
    accountant.check(strategy, MinSeparation(64, 8, 4, 32), 8)
    for scheme in (MinSeparation(64, 8, 5, 32), MinSeparation(64, 8, 3, 32), MinSeparation(64, 7.5, 4, 32)):
        with pytest.raises(InvalidArgument):
            accountant.check(strategy, scheme, 8)
    assert not accountant.covers(Poisson(64, 8, 32).law)
    assert not accountant.covers(BallsInBins(64, 8, 32).law)
    with pytest.raises(InvalidArgument, match="at most 8 bands"):
        accountant.calibrate(square_root(32, 9), 8, Guarantee(1, 1e-3))


@SLOW
def test_a_plan_is_made_verified_reported_and_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "state"))
    plan = make_plan(
        Guarantee(2, 0.03),
        examples=64,
        batch_size=8,
        epochs=4,
        strategy="sqrt:4",
        batching="min-separation",
        options=Options(seed=1),
    )
    assert plan.accountant.name == "min-separation"
    assert plan.evidence.certificate is not None
    assert plan.evidence.certificate.participation == "min-separation:4"
    shift = min_separation_sensitivity(plan.strategy, 4) / plan.strategy.sensitivity(8) / plan.noise_multiplier
    assert plan.leak.delta_at_epsilon == pytest.approx(gaussian_delta(2, shift), rel=1e-6)
    save_plan(plan, tmp_path / "plan")
    again = load_plan(tmp_path / "plan")
    assert again.to_json() == plan.to_json()
    assert verify_plan(again, options=Options(seed=2)).accepted
    write_report(plan, tmp_path / "report.html")
    assert "rests for 3 rounds" in (tmp_path / "report.html").read_text()
    audited = audit(plan, trials=8000, seed=1)
    assert audited.consistent, [check.name for check in audited.checks if not check.passed]
    assert 0.5 * audited.epsilon_certified < audited.epsilon_lower <= audited.epsilon_certified
    other = Run(plan.strategy, MinSeparation(64, 8, 5, 32), 8, plan.noise_multiplier)
    with pytest.raises(InvalidArgument, match=r"evidence\.participation = 'min-separation:4'"):
        plan.evidence.check(other, plan.claim)
