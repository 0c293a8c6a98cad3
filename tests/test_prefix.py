"""The first rounds of a run alone: the same noise, a smaller epsilon, and a record that says so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton.accountants import subsampled_delta
from galton.accounting import Ledger, Options, delta_upper_bound
from galton.cli.options import Mechanism
from galton.errors import InvalidArgument, InvalidFile
from galton.gaussian import gaussian_epsilon
from galton.guarantee import Adjacency, Guarantee
from galton.pair import Pair, dominating_pair
from galton.plan import Plan, load_plan, make_plan, prefix_guarantee, save_plan, verify_plan
from galton.redrawn import pattern_pair
from galton.separated import separated_pair
from galton.strategies import (
    BandedInverse,
    Blt,
    Dense,
    Scaled,
    Strategy,
    Tree,
    codec,
    column_banded,
    identity,
    square_root,
)
from galton.training import PlanViolated, check_record, fork_run, stop_run
from tests.marks import SLOW
from tests.test_cli import galton
from tests.test_training import opened, rounds_of

ROUNDS = 13
RANDOM = np.random.default_rng(5)
KINDS: dict[str, Strategy] = {
    "toeplitz": square_root(ROUNDS, 4),
    "toeplitz, all bands": square_root(ROUNDS),
    "blt": Blt(ROUNDS, [0.9, 0.5], [0.2, 0.1]),
    "scaled": Scaled(square_root(ROUNDS, 3), np.linspace(1.0, 2.0, ROUNDS)),
    "dense": Dense(np.tril(RANDOM.random((ROUNDS, ROUNDS))) + np.eye(ROUNDS)),
    "banded": column_banded(square_root(ROUNDS, 5), 4),
    "banded inverse": BandedInverse(ROUNDS, [1.0, -0.5, -0.125]),
    "tree": Tree(ROUNDS),
    "tree, honaker": Tree(ROUNDS, "honaker"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [2, 7, 8, 13])
def test_a_prefix_has_the_leading_block_and_its_noise(kind: str, rounds: int) -> None:
    whole = KINDS[kind]
    part = whole.prefix(rounds)
    rows = part.rows
    np.testing.assert_allclose(part.matrix(), whole.matrix()[:rows, :rounds], rtol=1e-13, atol=0)
    assert not whole.matrix()[:rows, rounds:].any()
    np.testing.assert_allclose(part.inverse(), whole.inverse()[:rounds, :rows], rtol=1e-9, atol=1e-12)
    assert not np.abs(whole.inverse()[:rounds, rows:]).max(initial=0.0) > 1e-12


def test_every_kind_of_strategy_has_prefixes() -> None:
    assert {strategy.kind for strategy in KINDS.values()} == set(codec.KINDS)


def test_a_decoder_that_uses_later_nodes_has_no_prefix() -> None:
    with pytest.raises(InvalidArgument, match=r"^decoder = 'full': has no prefix"):
        Tree(ROUNDS, "full").prefix(5)


def test_a_prefix_is_no_longer_than_the_run() -> None:
    for rounds in (0, ROUNDS + 1):
        with pytest.raises(InvalidArgument, match="rounds"):
            KINDS["blt"].prefix(rounds)


def test_pairs_of_a_prefix_are_the_first_blocks() -> None:
    """Redrawn bins and min-separation hold C in blocks: those of the first rounds are the same, up to the scale."""
    strategy, bins, rounds = Scaled(square_root(12, 3), np.linspace(1.0, 2.0, 12)), 4, 8
    part, ratio = strategy.prefix(rounds), strategy.sensitivity(bins) / strategy.prefix(rounds).sensitivity(bins)
    redrawn, first = pattern_pair(strategy, bins).reach, pattern_pair(part, bins).reach
    np.testing.assert_allclose(first.own, redrawn.own[:2] * ratio, rtol=1e-12)
    np.testing.assert_allclose(first.following, redrawn.following[:1] * ratio, rtol=1e-12)
    separated, leading = separated_pair(strategy, bins, 3), separated_pair(part, bins, 3)
    assert separated.probability == leading.probability


# Known answers


@pytest.fixture(scope="module")
def fixed() -> Plan:
    claim = Guarantee(4.0, 1e-5, Adjacency.ZERO_OUT)
    return make_plan(claim, examples=64, batch_size=8, epochs=4, batching="fixed-order", strategy="identity")


def test_epsilon_of_known_order_is_that_of_the_gaussian_mechanism(fixed: Plan, tmp_path: Path) -> None:
    """Independent noise: two of four epochs have half of mu^2, and a round more the same as three epochs."""
    for rounds, share in ((8, 1 / 4), (16, 1 / 2), (17, 3 / 4), (32, 1.0)):
        prefix = prefix_guarantee(fixed, rounds, Options(seed=1), Ledger(tmp_path))
        exact = gaussian_epsilon(1e-5, math.sqrt(share) / fixed.noise_multiplier)
        assert exact * (1 - 1e-9) <= prefix.guarantee.epsilon <= exact * 1.01
        assert prefix.guarantee.delta == 1e-5
        assert "chosen without looking at the data" in prefix.statement
        assert f"first {rounds} of 32 planned rounds" in prefix.statement


def test_epsilon_of_poisson_batches_is_that_of_fewer_steps(tmp_path: Path) -> None:
    plan = make_plan(
        Guarantee(2.0, 1e-4), examples=512, batch_size=64, epochs=4, batching="poisson", strategy="identity"
    )
    epsilon = prefix_guarantee(plan, 16, ledger=Ledger(tmp_path)).guarantee.epsilon
    assert epsilon < 0.8 * plan.guarantee.epsilon
    deltas = [
        subsampled_delta(plan.run.column_multiplier, 1 / 8, 16, factor * epsilon, Adjacency.ADD_OR_REMOVE)
        for factor in (1.0, 0.97)
    ]
    assert deltas[0] <= 1e-4 < deltas[1]


@SLOW
def test_the_command_bounds_the_first_rounds() -> None:
    """C = I: one of four epochs with this noise is a run of one epoch with twice the multiplier."""
    mechanism = Mechanism("identity", 4, 4)
    pair = mechanism.first_rounds(identity(16), 0.7, 4)
    assert isinstance(pair, Pair)
    assert pair.noise_multiplier == pytest.approx(1.4)
    np.testing.assert_allclose(pair.gram, dominating_pair(identity(4), 4, 1.4).gram, rtol=1e-8)
    words = ["--epochs", "4", "--rounds-done", "4", "--noise-multiplier", "0.7", "--delta", "1e-3", "--json"]
    result = galton("epsilon", "identity", "--bins", "4", *words)
    told = json.loads(result.out)
    assert delta_upper_bound(pair, told["upper"]) <= 1e-3 < delta_upper_bound(pair, 0.9 * told["upper"])
    assert (told["rounds"], told["rounds_done"], told["noise_multiplier"]) == (16, 4, 0.7)


def test_the_command_refuses_rounds_that_are_no_prefix() -> None:
    words = ["epsilon", "identity", "--bins", "4", "--epochs", "2", "--noise-multiplier", "1", "--delta", "1e-3"]
    for rounds in ("9", "0"):
        result = galton(*words, "--rounds-done", rounds)
        assert result.code == 2
        assert f"--rounds-done = {rounds}" in result.err


def test_a_plan_refuses_rounds_that_are_no_prefix(fixed: Plan) -> None:
    for rounds in (33, 0):
        with pytest.raises(InvalidArgument, match="rounds_done"):
            prefix_guarantee(fixed, rounds)


def test_part_of_the_first_epoch_has_the_guarantee_of_the_whole(fixed: Plan) -> None:
    part, epoch = prefix_guarantee(fixed, 3), prefix_guarantee(fixed, 8)
    assert (part.rounds, part.guarantee) == (3, epoch.guarantee)
    assert part.guarantee.epsilon < fixed.guarantee.epsilon
    assert part.statement.startswith("The first 3 of 32 planned rounds")
    assert "that of the whole first epoch, 8 rounds" in part.statement
    assert "whole first epoch" not in epoch.statement
    begun, whole = (Mechanism("sqrt:2", 4, 4).first_rounds(square_root(16, 2), 0.7, rounds) for rounds in (1, 4))
    assert isinstance(begun, Pair)
    assert isinstance(whole, Pair)
    np.testing.assert_array_equal(begun.gram, whole.gram)


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["balls-in-bins", "balls-in-bins-redrawn", "min-separation"])
def test_sampled_prefixes_are_certified(batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALTON_STATE", str(tmp_path))
    plan = make_plan(Guarantee(2.0, 1e-4), examples=512, batch_size=64, epochs=4, batching=batching, strategy="sqrt:3")
    prefix = prefix_guarantee(plan, 17)
    assert prefix.certificate is not None
    assert prefix.certificate.accepted
    assert prefix.certificate.rounds == 17
    assert prefix.guarantee.epsilon < 0.95 * plan.guarantee.epsilon


# Runs


def test_a_stopped_run_states_the_smaller_epsilon_and_ends(fixed: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(fixed, folder) as run:
        rounds_of(run, 16)
        with pytest.raises(InvalidFile, match="held by another process"):
            stop_run(folder, fixed, independent=True)
    with pytest.raises(InvalidArgument, match="independent"):
        stop_run(folder, fixed, independent=False)
    assert check_record(folder)["stopped"] is None
    prefix = stop_run(folder, fixed, independent=True)
    exact = gaussian_epsilon(1e-5, math.sqrt(1 / 2) / fixed.noise_multiplier)
    assert prefix.guarantee.epsilon == pytest.approx(exact, rel=0.01)
    record = check_record(folder)
    assert record["stopped"] == prefix.to_json()
    assert record["guarantee"] == fixed.guarantee.to_json()
    assert record["rounds_released"] == record["rounds_done"] == 16
    with opened(fixed, folder) as run:
        assert run.done
        with pytest.raises(PlanViolated, match="stopped for good"):
            _ = run.batch
    record = check_record(folder)
    assert record["stopped"] == prefix.to_json()
    assert not record["completed"]
    with pytest.raises(InvalidFile, match="stopped for good"):
        fork_run(folder, tmp_path / "fork")


def test_rounds_that_a_kill_left_unsaved_count_too(fixed: Plan, tmp_path: Path) -> None:
    """The journal says how many rounds had their noise, not the record, which is older."""
    folder = tmp_path / "run"
    run = opened(fixed, folder, form="recompute")
    rounds_of(run, 9)
    run.save()
    old = (folder / "record.json").read_bytes()
    rounds_of(run, 17)
    run.close()
    (folder / "record.json").write_bytes(old)
    assert stop_run(folder, fixed, independent=True).rounds == 17
    assert check_record(folder)["rounds_released"] == 17


def test_the_command_stops_a_run(fixed: Plan, small_plan: Plan, tmp_path: Path) -> None:
    folder, plan = tmp_path / "run", save_plan(fixed, tmp_path / "plan")
    with opened(fixed, folder) as run:
        rounds_of(run, 8)
    words = ["stop", str(folder), "--plan"]
    refused = galton(*words, str(plan))
    assert refused.code == 2
    assert "--independent" in refused.err
    other = galton(*words, str(save_plan(small_plan, tmp_path / "other")), "--independent")
    assert other.code == 2
    assert "must be that of the run" in other.err
    result = galton(*words, str(plan), "--independent", "--json")
    assert result.code == 0
    assert json.loads(result.out)["rounds_done"] == 8
    assert galton("stop", str(tmp_path / "none"), "--plan", str(plan), "--independent").code == 2


PARTIAL: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 3, "rounds": 20}


def test_a_plan_may_end_within_an_epoch(tmp_path: Path) -> None:
    """In a fixed order the guarantee is Gaussian: its shift is the norm of the columns of a bin, added up."""
    guarantee = Guarantee(2.0, 1e-4, Adjacency.ZERO_OUT)
    plan = make_plan(guarantee, batching="fixed-order", strategy="sqrt:4", **PARTIAL)
    assert (plan.rounds, plan.epochs, plan.bins, plan.alternatives) == (20, 3, 8, ())
    columns = plan.strategy.matrix()
    assert columns.shape == (20, 20)
    worst = max(float(np.linalg.norm(columns[:, first::8].sum(axis=1))) for first in range(8))
    assert plan.sensitivity == pytest.approx(worst, rel=1e-9)
    assert gaussian_epsilon(guarantee.delta, worst / plan.stddev) == pytest.approx(2.0, rel=1e-4)
    assert load_plan(save_plan(plan, tmp_path / "plan")).digest == plan.digest
    assert verify_plan(plan).accepted
    for wrong in (16, 25, 0):
        with pytest.raises(InvalidArgument, match=r"^rounds"):
            make_plan(guarantee, batching="fixed-order", strategy="sqrt:4", **PARTIAL | {"rounds": wrong})


@SLOW
@pytest.mark.parametrize("batching", ["balls-in-bins", "balls-in-bins-redrawn"])
def test_a_plan_that_ends_within_an_epoch_has_the_noise_of_a_prefix(batching: str) -> None:
    whole = make_plan(4.0, 1e-3, batching=batching, strategy="sqrt:4", **PARTIAL | {"rounds": 24})
    first = prefix_guarantee(whole, 20).guarantee
    plan = make_plan(first, batching=batching, strategy="sqrt:4", **PARTIAL)
    assert first.epsilon < 4.0
    assert plan.stddev == pytest.approx(whole.stddev, rel=0.02)  # both are calibrated with samples
    assert verify_plan(plan).accepted
