"""Plans: what they claim, that they hold together, and that no byte of them can change unseen."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from galton.plan.accountants import room_for
from galton.plan.guarantee import Certified

import galton
from galton.baselines import calibrate_poisson
from galton.batching import BallsInBins, CyclicPoisson, Poisson, truncation
from galton.errors import InvalidArgument, InvalidFile
from galton.gaussian import gaussian_delta, gaussian_epsilon
from galton.plan import Plan, load_plan, make_plan, save_plan, verify_plan
from galton.plan.folder import PLAN, STRATEGY, SUMS
from galton.plan.plan import leaked
from tests.marks import SLOW
from tests.test_cli import galton as command

SMALL: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 4, "epsilon": 4.0, "delta": 1e-3}


def test_a_plan_claims_what_its_certificate_proves_and_no_more(small_plan: Plan) -> None:
    assert isinstance(small_plan.evidence, Certified)
    certificate = small_plan.evidence.certificate
    lost = truncation(small_plan.scheme, small_plan.physical).delta(4.0)
    assert certificate["accepted"]
    assert certificate["noise_multiplier"] == small_plan.noise_multiplier
    assert certificate["strategy"] == small_plan.strategy.digest
    assert certificate["delta"] == pytest.approx(room_for(1e-3 - lost))
    assert small_plan.evidence.stated_delta + lost <= 1e-3
    assert 0 < small_plan.truncation.probability <= 1e-12


def test_the_noise_is_that_of_an_independent_calculation(small_plan: Plan) -> None:
    """Plain samples of the pair, drawn here with NumPy, put delta just below the claim."""
    gram = small_plan.strategy.gram(small_plan.bins) / (small_plan.noise_multiplier * small_plan.sensitivity) ** 2
    generator = np.random.default_rng(5)
    count = 400_000
    bins = generator.integers(0, 8, count)
    projected = generator.standard_normal((count, 8)) @ np.linalg.cholesky(gram).T + gram[bins]
    loss = np.log(np.exp(projected - gram.diagonal() / 2).mean(axis=1))
    values = np.maximum(0.0, 1 - np.exp(4.0 - loss))
    error = values.std() / np.sqrt(count)
    assert values.mean() <= 1e-3 + 5 * error
    assert values.mean() >= 0.9e-3 - 5 * error  # and no noise is wasted


def test_what_remains_if_batches_leak_is_the_gaussian_mechanism(small_plan: Plan) -> None:
    mu = 1 / small_plan.noise_multiplier
    assert small_plan.leak.epsilon == pytest.approx(gaussian_epsilon(1e-3, mu), rel=1e-6)
    assert small_plan.leak.delta == pytest.approx(gaussian_delta(4.0, mu), rel=1e-6)
    assert small_plan.leak.epsilon is not None
    assert small_plan.leak.epsilon > 4.0


def test_the_plan_hands_out_its_own_batches_and_noise(small_plan: Plan) -> None:
    batches, noise = small_plan.batches(seed=1), small_plan.noise()
    assert batches.scheme == BallsInBins(64, 8, 32)
    assert batches.physical == small_plan.physical
    assert noise.stddev == pytest.approx(small_plan.noise_multiplier * small_plan.strategy.sensitivity(8))
    assert replace(small_plan, clip_norm=2.5).noise().stddev == pytest.approx(2.5 * noise.stddev)
    assert noise.strategy.digest == small_plan.strategy.digest


def test_a_plan_comes_back_from_disk_as_it_was(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(small_plan, tmp_path / "plan")
    again = load_plan(folder)
    assert again.text == small_plan.text
    assert again.digest == small_plan.digest
    assert again.strategy.digest == small_plan.strategy.digest
    assert again.scheme == small_plan.scheme


def test_every_changed_byte_is_noticed(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(small_plan, tmp_path / "plan")
    generator = np.random.default_rng(3)
    for name in (PLAN, STRATEGY, SUMS):
        path = folder / name
        good = path.read_bytes()
        places = range(len(good)) if name == SUMS else generator.integers(0, len(good), 60)
        for place in places:
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(InvalidFile):
                load_plan(folder)
        for changed in (good + b"\n", good[:-1], good + b" ", b""):
            path.write_bytes(changed)
            with pytest.raises(InvalidFile):
                load_plan(folder)
        path.write_bytes(good)
    load_plan(folder)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("guarantee", "epsilon"), 1.0),
        (("guarantee", "delta"), 1e-6),
        (("guarantee", "adjacency"), "replace"),
        (("noise", "noise_multiplier"), 0.1),
        (("noise", "sensitivity"), 1.0),
        (("batching", "batches_per_epoch"), 16),
        (("batching", "scheme", "bins"), 16),
        (("batching", "truncation", "physical"), 9),
        (("clipping", "clip_norm"), -1.0),
        (("evidence", "certificate", "accepted"), False),
        (("evidence", "certificate", "attempts"), 1000),
        (("error", "rmse"), "x"),
        (("guarantee", "if_batches_leak", "epsilon"), 0.01),
        (("batching", "truncation", "probability"), 0.5),
        (("version",), 2),
    ],
)
def test_a_forged_plan_with_right_hashes_does_not_hold_together(
    small_plan: Plan, tmp_path: Path, where: tuple[str, ...], value: object
) -> None:
    """Someone who changes a number and writes all hashes anew still claims what the certificate does not prove."""
    from galton.plan import folder as on_disk

    folder = save_plan(small_plan, tmp_path / "plan")
    body = json.loads((folder / PLAN).read_text())
    part = body
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    if where[-1] == "attempts":
        body["evidence"]["certificate"]["failure_probability"] = 1e-3
    (folder / PLAN).write_text(json.dumps(body, indent=2) + "\n")
    (folder / SUMS).write_text(on_disk._sums(folder))
    with pytest.raises(InvalidFile):
        load_plan(folder)


def test_a_scheme_with_other_batches_than_analysed_is_refused(small_plan: Plan) -> None:
    """Fewer bins, so that every example takes part more often; a Poisson batch that is larger."""
    with pytest.raises(InvalidArgument, match="bins"):
        small_plan.evidence.check(replace(small_plan, scheme=BallsInBins(64, 2, 32), physical=64))
    poisson = make_plan(**{**SMALL, "epochs": 1}, batching="poisson")
    with pytest.raises(InvalidArgument, match="batch_size"):
        poisson.evidence.check(replace(poisson, scheme=Poisson(64, 32, 8), physical=65))


def test_what_remains_after_a_leak_pays_for_truncation() -> None:
    plan = make_plan(**SMALL, strategy="sqrt:8", physical=22, accountant="unamplified")
    lost = plan.truncation.delta(4.0)
    assert lost > 1e-5
    assert plan.leak.epsilon is not None
    assert plan.leak.epsilon >= 4.0 - 1e-6
    mu = 1 / plan.noise_multiplier
    assert gaussian_delta(plan.leak.epsilon, mu) + plan.truncation.delta(plan.leak.epsilon) <= 1e-3 * (1 + 1e-6)
    assert plan.leak.delta == pytest.approx(gaussian_delta(4.0, mu) + lost, rel=1e-6)


def test_nothing_on_disk_is_overwritten(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(small_plan, tmp_path / "plan")
    before = (folder / PLAN).read_bytes()
    with pytest.raises(InvalidFile, match="new or empty"):
        save_plan(small_plan, folder)
    assert (folder / PLAN).read_bytes() == before
    (tmp_path / "empty").mkdir()
    save_plan(small_plan, tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "empty"}
    with pytest.raises(InvalidFile):
        load_plan(tmp_path)


def test_verify_proves_the_claim_with_fresh_samples_and_rejects_too_little_noise(small_plan: Plan) -> None:
    assert verify_plan(small_plan, galton.Options(seed=7)).accepted
    certificate = small_plan.evidence.to_json()["certificate"] | {"noise_multiplier": 0.9 * small_plan.noise_multiplier}
    weak = replace(small_plan, noise_multiplier=0.9 * small_plan.noise_multiplier, evidence=Certified(certificate))
    assert not verify_plan(weak, galton.Options(seed=7)).accepted
    with pytest.raises(InvalidArgument, match="adjacency"):
        verify_plan(small_plan, galton.Options(adjacency="replace"))


def test_other_batchings_have_their_own_accountants() -> None:
    cyclic = make_plan(**SMALL, batching="cyclic-poisson", strategy="sqrt:2")
    assert isinstance(cyclic.scheme, CyclicPoisson)
    assert cyclic.scheme.cycle == 2
    assert cyclic.evidence.accountant == "cyclic-poisson"
    expected = calibrate_poisson(cyclic.strategy, 8, 4.0, 1e-3 - cyclic.truncation.delta(4.0)).noise_multiplier
    assert cyclic.noise_multiplier == pytest.approx(expected, rel=1e-9)
    poisson = make_plan(**SMALL, batching="poisson")
    assert poisson.spec == "identity"
    # An example may be in all rounds if coins are known: far worse than one batch an epoch.
    assert poisson.leak.delta > 0.9 > gaussian_delta(4.0, 1 / poisson.noise_multiplier)
    assert poisson.leak.epsilon is None  # so large that even rare truncation costs more than delta
    fixed = make_plan(**SMALL, batching="fixed-order", options=galton.Options(adjacency="zero-out"))
    assert fixed.noise_multiplier == pytest.approx(1 / galton.gaussian_mu(4.0, 1e-3), rel=1e-6)
    assert fixed.leak.epsilon == pytest.approx(4.0, rel=1e-6)
    replaced = make_plan(**SMALL, batching="shuffle-once", strategy="sqrt", options=galton.Options(adjacency="replace"))
    assert replaced.noise_multiplier == pytest.approx(2 * fixed.noise_multiplier, rel=1e-6)
    for plan in (cyclic, fixed, replaced):
        assert verify_plan(plan, galton.Options(adjacency=plan.adjacency)).accepted


def test_truncation_is_taken_off_delta_or_refused() -> None:
    words = {**SMALL, "strategy": "sqrt:8"}
    with pytest.raises(InvalidArgument, match="truncation would cost"):
        make_plan(**words, physical=8)
    free = make_plan(**words, physical=8, options=galton.Options(adjacency="zero-out"))
    assert free.truncation.probability > 0.9
    assert free.batches().physical == 8
    tight = make_plan(**words, physical=22)
    assert isinstance(tight.evidence, Certified)
    lost = tight.truncation.delta(4.0)
    assert 1e-5 < lost < 5e-4
    assert tight.evidence.certificate["delta"] == pytest.approx(room_for(1e-3 - lost))


def test_one_bin_has_a_place_for_an_example_more() -> None:
    plan = make_plan(**{**SMALL, "batch_size": 64}, strategy="sqrt")
    assert (plan.bins, plan.physical) == (1, 65)
    assert plan.truncation.delta(4.0) == 0
    assert make_plan(**SMALL, strategy="sqrt", micro_batch=5).physical % 5 == 0
    assert plan.noise_multiplier == pytest.approx(1 / galton.gaussian_mu(4.0, room_for(1e-3)), rel=0.02)


@SLOW
def test_the_default_strategy_is_optimised_and_beats_what_is_not() -> None:
    plan = make_plan(**{**SMALL, "epochs": 2})
    assert plan.spec == "blt:4+scale"
    assert plan.strategy.kind == "scaled"
    assert plan.rmse < min(one.rmse for one in plan.alternatives)
    other = make_plan(**{**SMALL, "epochs": 2}, strategy="sqrt:8", workload="momentum:0.9")
    assert other.workload == "momentum:0.9"


@pytest.mark.slow
def test_best_takes_the_least_error_of_all() -> None:
    plan = make_plan(**{**SMALL, "epochs": 2}, strategy="best")
    assert len(plan.alternatives) >= 6
    assert plan.rmse <= 1.02 * min(one.rmse for one in plan.alternatives)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"examples": 0}, "examples"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1000}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 1}, "delta"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"physical": 0}, "physical"),
        ({"batching": "none"}, "batching"),
        ({"accountant": "poisson"}, "accountant"),
        ({"strategy": "nonsense"}, "strategy"),
        ({"batching": "fixed-order"}, "adjacency"),
        ({"batching": "poisson", "strategy": "blt:4"}, "strategy"),
        ({"batching": "poisson", "strategy": "sqrt:2"}, "strategy"),
        ({"batching": "cyclic-poisson", "accountant": "unamplified", "strategy": "sqrt:2"}, "accountant"),
        ({"workload": "x"}, "workload"),
    ],
)
def test_bad_input_is_refused_by_name(words: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        make_plan(**{**SMALL, "strategy": "sqrt:8", **words})


def test_replace_needs_an_accountant_that_covers_it() -> None:
    with pytest.raises(InvalidArgument, match="replace"):
        make_plan(**SMALL, batching="poisson", options=galton.Options(adjacency="replace"))


def test_a_copied_plan_is_the_same_plan(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(small_plan, tmp_path / "plan")
    shutil.copytree(folder, tmp_path / "copy")
    assert load_plan(tmp_path / "copy").digest == small_plan.digest


def words_of(folder: Path, *more: str) -> list[str]:
    sizes = ["--examples", "64", "--batch-size", "8", "--epochs", "4", "--epsilon", "4", "--delta", "1e-3"]
    return ["plan", *sizes, "--strategy", "sqrt:8", "-o", str(folder), *more]


def test_the_command_line_makes_and_verifies_a_plan(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    made = command(*words_of(folder, "--json"))
    assert made.code == 0
    found = json.loads(made.out)
    assert found["path"] == str(folder)
    assert found["plan"] == load_plan(folder).digest
    assert found["guarantee"]["epsilon"] == 4.0
    assert found["certificate"]["certificate"]["accepted"]
    assert {"strategy", "noise_multiplier", "rmse", "batching", "alternatives"} <= set(found)
    shown = command("verify", str(folder))
    assert shown.code == 0
    assert "ACCEPTED" in shown.out
    assert json.loads(command("verify", str(folder), "--json").out)["accepted"]
    refused = command(*words_of(folder))
    assert (refused.code, refused.out) == (2, "")
    assert "new or empty" in refused.err
    (folder / PLAN).write_text((folder / PLAN).read_text().replace('"epsilon": 4.0', '"epsilon": 3.0'))
    changed = command("verify", str(folder))
    assert changed.code == 2
    assert "changed" in changed.err


def test_the_command_line_rejects_a_plan_with_too_little_noise(small_plan: Plan, tmp_path: Path) -> None:
    certificate = small_plan.evidence.to_json()["certificate"] | {"noise_multiplier": 0.5}
    weak = replace(small_plan, noise_multiplier=0.5, evidence=Certified(certificate))
    save_plan(replace(weak, leak=leaked(weak)), tmp_path / "plan")
    found = command("verify", str(tmp_path / "plan"), "--json")
    assert found.code == 3
    assert not json.loads(found.out)["accepted"]


@pytest.mark.parametrize(
    "more",
    [["--batch-size", "0"], ["--batching", "x"], ["--strategy", "x"], ["--physical", "3"], ["--adjacency", "x"]],
)
def test_the_command_line_refuses_bad_input_in_one_line(tmp_path: Path, more: list[str]) -> None:
    found = command(*words_of(tmp_path / "plan"), *more)
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert not (tmp_path / "plan").exists()
