"""Plans: what they claim, that they hold together, and that no byte of them can change unseen."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import galton
from galton.accountants import Certified, Evidence, Figure, Setting, Standing, Statement, find_accountant
from galton.accountants.monte_carlo import what_is_proved
from galton.accounting import Options, certify
from galton.accounting.ledger import Ledger
from galton.batching import BallsInBins, CyclicPoisson, Poisson, RedrawnBallsInBins, truncation
from galton.errors import InvalidArgument, InvalidFile
from galton.gaussian import gaussian_delta, gaussian_epsilon
from galton.guarantee import Adjacency, Guarantee
from galton.pair import dominating_pair
from galton.plan import Plan, draft, load_plan, make_plan, save_plan, verify_plan
from galton.plan.choose import references
from galton.plan.folder import PLAN, STRATEGY, SUMS
from galton.plan.leak import Leak, epsilon_if_known, leaked_mu
from galton.plan.plan import plan_from_json
from galton.strategies import Strategy
from tests.forging import fitting, rewrite_sums, with_noise
from tests.marks import SLOW, slow_after
from tests.test_cli import galton as command

SIZES: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 4}
SMALL: dict[str, Any] = {**SIZES, "epsilon": 4.0, "delta": 1e-3}
ONCE: dict[str, Any] = {"batching": "balls-in-bins"}
CLAIMS = {adjacency: Guarantee(4.0, 1e-3, adjacency) for adjacency in Adjacency}


def room_for(delta: float) -> float:
    """What a certificate has to prove so that delta may be stated."""
    return find_accountant("balls-in-bins").room(Guarantee(4.0, delta)).delta


def test_a_plan_claims_what_its_certificate_proves_and_no_more(small_plan: Plan) -> None:
    assert isinstance(small_plan.evidence, Certified)
    certificate = small_plan.evidence.certificate
    lost = truncation(small_plan.scheme, small_plan.padded_batch_size).delta(4.0)
    assert certificate.accepted
    assert certificate.noise_multiplier == small_plan.noise_multiplier
    assert certificate.strategy == small_plan.strategy.digest
    assert certificate.guarantee.delta == pytest.approx(room_for(1e-3 - lost))
    assert small_plan.evidence.proved.delta + lost <= 1e-3
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
    assert small_plan.leak.epsilon_at_delta == pytest.approx(gaussian_epsilon(1e-3, mu), rel=1e-6)
    assert small_plan.leak.delta_at_epsilon == pytest.approx(gaussian_delta(4.0, mu), rel=1e-6)
    assert small_plan.leak.epsilon_at_delta is not None
    assert small_plan.leak.epsilon_at_delta > 4.0


def test_the_plan_hands_out_its_own_batches_and_noise(small_plan: Plan) -> None:
    batches, noise = small_plan.batches(seed=1), small_plan.noise()
    assert batches.scheme == BallsInBins(64, 8, 32)
    assert batches.padded_batch_size == small_plan.padded_batch_size
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
        (("rmse",), "x"),
        (("guarantee", "if_batches_leak", "epsilon_at_delta"), 0.01),
        (("batching", "truncation", "probability"), 0.5),
        (("version",), 4),
        (("version",), 2),
        (("version",), 1),
    ],
)
def test_a_forged_plan_with_right_hashes_does_not_hold_together(
    small_plan: Plan, tmp_path: Path, where: tuple[str, ...], value: object
) -> None:
    """Someone who changes a number and writes all hashes anew still claims what the certificate does not prove."""
    folder = save_plan(small_plan, tmp_path / "plan")
    body = json.loads((folder / PLAN).read_text())
    part = body
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    if where[-1] == "attempts":
        body["evidence"]["certificate"]["failure_probability"] = 1e-3
    (folder / PLAN).write_text(json.dumps(body, indent=2) + "\n")
    rewrite_sums(folder)
    with pytest.raises(InvalidFile):
        load_plan(folder)


@pytest.fixture(scope="module")
def plans(small_plan: Plan, redrawn_plan: Plan) -> dict[str, Plan]:
    """Small plans of several accountants."""
    wanted: dict[str, dict[str, Any]] = {
        "unamplified": {"accountant": "unamplified", "strategy": "sqrt:8"},
        "shuffled": {"epsilon": CLAIMS[Adjacency.ZERO_OUT], "delta": None, "batching": "shuffle-once"},
        "poisson": {"batching": "poisson"},
        "cyclic-poisson": {"batching": "cyclic-poisson", "strategy": "sqrt:2"},
        "mmcc": {"batching": "poisson", "accountant": "mmcc", "strategy": "sqrt:2"},
    }
    certified = {"balls-in-bins": small_plan, "redrawn": redrawn_plan}
    return certified | {name: make_plan(**SMALL | words) for name, words in wanted.items()}


@pytest.fixture(scope="module")
def folders(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same on disk."""
    place = tmp_path_factory.mktemp("plans")
    return {name: save_plan(plan, place / name) for name, plan in plans.items()}


Change = Callable[[Any], Any]
Place = tuple[str | int, ...]


def forged(source: Path, target: Path, changes: dict[Place, Change]) -> Path:
    """Copies a plan, changes values of plan.json and writes the hashes anew: only its content can give it away."""
    shutil.copytree(source, target)
    body = json.loads((target / PLAN).read_text())
    for place, change in changes.items():
        part = body
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = change(part[place[-1]])
    (target / PLAN).write_text(json.dumps(body, indent=2) + "\n")
    rewrite_sums(target)
    return target


def refusal(folder: Path) -> str:
    """Why a plan is not read; the reason must fit in a line."""
    with pytest.raises(InvalidFile) as refused:
        load_plan(folder)
    assert "\n" not in str(refused.value)
    assert str(folder / PLAN) in str(refused.value)
    return str(refused.value)


def to(value: object) -> Change:
    return lambda _: value


def times(factor: float) -> Change:
    return lambda old: factor * old


def without(name: str) -> Change:
    return lambda old: {key: value for key, value in old.items() if key != name}


def less_noise(factor: float) -> dict[Place, Change]:
    """Less noise, in every number of a plan that tells how much there is."""
    places = (("noise", "noise_multiplier"), ("noise", "stddev"), ("rmse",))
    return {place: times(factor) for place in places}


ONE_DRAW = "if it uses this strategy, balls-in-bins batches and noise multiplier"
"""What a certificate for bins that are drawn once says of the run."""


def with_batches_of(scheme: type[BallsInBins], accountant: str) -> dict[Place, Change]:
    """Batches of another kind, in every number of a plan that tells how they are drawn, and their accountant."""

    def cut(old: dict[str, Any]) -> dict[str, Any]:
        return truncation(scheme(64, 8, 32), old["physical"]).to_json()

    return {
        (*SCHEME, "kind"): to(scheme.kind),
        TRUNCATION: cut,
        ("evidence", "accountant"): to(accountant),
    }


CERTIFICATE, TRUNCATION, STATEMENT = ("evidence", "certificate"), ("batching", "truncation"), ("evidence", "statement")
LEAK, SCHEME = ("guarantee", "if_batches_leak"), ("batching", "scheme")
FORGED: dict[str, tuple[str, dict[Place, Change], str]] = {
    "failures below nothing": (
        "balls-in-bins",
        {
            **less_noise(0.4),
            (*CERTIFICATE, "noise_multiplier"): times(0.4),
            (*CERTIFICATE, "delta"): to(0.95),
            (*CERTIFICATE, "delta_upper"): to(0.95),
            (*CERTIFICATE, "failure_probability"): to(-0.949),
            (*CERTIFICATE, "attempts"): to(2),
        },
        "certificate.failure_probability = -0.949",
    ),
    "nothing proved": (
        "balls-in-bins",
        {(*CERTIFICATE, "delta"): to(0.95), (*CERTIFICATE, "delta_upper"): to(0.95)},
        "largest over the directions",
    ),
    "nothing proved in any direction": (
        "balls-in-bins",
        {
            (*CERTIFICATE, "delta"): to(0.95),
            (*CERTIFICATE, "delta_upper"): to(0.95),
            (*CERTIFICATE, "by_direction", 0, "delta_upper"): to(0.95),
            (*CERTIFICATE, "statement"): to(f"(4, 0.95)-DP under add-or-remove adjacency, {ONE_DRAW}"),
        },
        "delta = ",
    ),
    "larger than delta": (
        "balls-in-bins",
        {(*CERTIFICATE, "delta_upper"): to(0.95), (*CERTIFICATE, "by_direction", 0, "delta_upper"): to(0.95)},
        "delta_upper = 0.95",
    ),
    "rejected": ("balls-in-bins", {(*CERTIFICATE, "accepted"): to(False)}, "accepted = False"),
    "rejected in a direction": (
        "balls-in-bins",
        {(*CERTIFICATE, "by_direction", 1, "accepted"): to(False)},
        "accepted = True",
    ),
    "rejected all along": (
        "balls-in-bins",
        {
            (*CERTIFICATE, "accepted"): to(False),
            (*CERTIFICATE, "by_direction", 1, "accepted"): to(False),
            (*CERTIFICATE, "statement"): to("Rejected: nothing may be claimed."),
        },
        "evidence.accepted = False",
    ),
    "one direction": ("balls-in-bins", {(*CERTIFICATE, "by_direction"): lambda old: old[:1]}, "by_direction"),
    "other samples": ("balls-in-bins", {(*CERTIFICATE, "samples"): times(2)}, "samples"),
    "no attempt": ("balls-in-bins", {(*CERTIFICATE, "attempts"): to(0)}, "certificate.attempts = 0"),
    "many attempts": (
        "balls-in-bins",
        {
            (*CERTIFICATE, "attempts"): to(1000),
            (*CERTIFICATE, "failure_probability"): to(1e-3),
            (*CERTIFICATE, "statement"): to(f"(4, 0.001994)-DP under add-or-remove adjacency, {ONE_DRAW}"),
        },
        "delta = ",
    ),
    "another strategy": ("balls-in-bins", {(*CERTIFICATE, "strategy_hash"): to("sha256:0")}, "evidence.strategy"),
    "another strategy's hash": ("balls-in-bins", {("strategy_hash",): to("sha256:0")}, "not as galton writes it"),
    "other bins": (
        "balls-in-bins",
        {(*CERTIFICATE, "bins"): to(16), (*CERTIFICATE, "epochs"): to(2)},
        "evidence.bins = 16",
    ),
    "other epochs": ("balls-in-bins", {(*CERTIFICATE, "epochs"): to(5)}, "epochs = 5"),
    "less noise": ("balls-in-bins", less_noise(0.9), "noise_multiplier = "),
    "less noise, calculated": ("poisson", less_noise(0.9), "noise_multiplier = "),
    "more noise proved": ("mmcc", {("evidence", "noise_multiplier"): times(1.1)}, "noise_multiplier = "),
    "a smaller epsilon": ("balls-in-bins", {("guarantee", "epsilon"): to(3.9)}, "epsilon = 3.9"),
    "a smaller epsilon, calculated": ("shuffled", {("guarantee", "epsilon"): to(3.9)}, "epsilon = 3.9"),
    "a smaller delta": ("balls-in-bins", {("guarantee", "delta"): to(9e-4)}, "delta = "),
    "a smaller delta, calculated": ("cyclic-poisson", {("guarantee", "delta"): to(9e-4)}, "delta = "),
    "less than truncation costs": ("balls-in-bins", {("guarantee", "delta"): to(1e-15)}, "truncation costs"),
    "no delta": ("poisson", {("guarantee", "delta"): to(0.0)}, "delta = 0.0"),
    "epsilon 0": ("poisson", {("guarantee", "epsilon"): to(0.0)}, "epsilon = 0.0"),
    "another adjacency": ("balls-in-bins", {("guarantee", "adjacency"): to("replace")}, "adjacency = 'add-or-remove'"),
    "another adjacency, certified": (
        "balls-in-bins",
        {("guarantee", "adjacency"): to("replace"), (*CERTIFICATE, "adjacency"): to("replace")},
        "by_direction",
    ),
    "an adjacency that is not covered": ("poisson", {("guarantee", "adjacency"): to("replace")}, "not covered"),
    "an adjacency of other sizes": (
        "shuffled",
        {("guarantee", "adjacency"): to("add-or-remove"), (*STATEMENT, "adjacency"): to("add-or-remove")},
        "adjacency = 'add-or-remove'",
    ),
    "an unknown adjacency": ("balls-in-bins", {("guarantee", "adjacency"): to("x")}, "guarantee.adjacency = 'x'"),
    "an unknown adjacency, certified": (
        "balls-in-bins",
        {(*CERTIFICATE, "adjacency"): to("x")},
        "certificate.adjacency = 'x'",
    ),
    "an unknown adjacency, calculated": ("mmcc", {(*STATEMENT, "adjacency"): to("x")}, "statement.adjacency = 'x'"),
    "an unknown accountant": ("balls-in-bins", {("evidence", "accountant"): to("x")}, "accountant = 'x'"),
    "an accountant without certificates": (
        "balls-in-bins",
        {("evidence", "accountant"): to("unamplified")},
        "evidence = ['certificate'",
    ),
    "an accountant with certificates": (
        "unamplified",
        {("evidence", "accountant"): to("balls-in-bins")},
        "evidence = ['certificate'",
    ),
    "an accountant of other batches": ("shuffled", {("evidence", "accountant"): to("poisson")}, "does not cover"),
    "batches known that are not": ("poisson", {("evidence", "accountant"): to("unamplified")}, "does not cover"),
    "groups that are not": ("poisson", {("evidence", "accountant"): to("cyclic-poisson")}, "does not cover"),
    "an accountant of other noise": ("unamplified", {("evidence", "accountant"): to("allocation")}, "strategy = "),
    "an accountant of fewer bands": ("mmcc", {("evidence", "accountant"): to("poisson")}, "strategy = "),
    "an estimate": (
        "poisson",
        {(*STATEMENT, "standing"): to("estimate"), (*STATEMENT, "is_guarantee"): to(False)},
        "is no guarantee",
    ),
    "an estimate that guarantees": ("poisson", {(*STATEMENT, "standing"): to("estimate")}, "is_guarantee = True"),
    "certified without certificate": (
        "poisson",
        {(*STATEMENT, "standing"): to("certified"), (*STATEMENT, "failure_probability"): to(0.5)},
        "needs a certificate",
    ),
    "exact and failing": ("shuffled", {(*STATEMENT, "failure_probability"): to(1.0)}, "failure_probability = 1.0"),
    "an unknown standing": ("shuffled", {(*STATEMENT, "standing"): to("x")}, "statement.standing = 'x'"),
    "bins drawn once": ("redrawn", {(*SCHEME, "kind"): to("balls-in-bins")}, "does not cover"),
    "bins drawn once, with their accountant": (
        "redrawn",
        with_batches_of(BallsInBins, "balls-in-bins"),
        "evidence.participation = 'redrawn'",
    ),
    "bins drawn once, certified": (
        "redrawn",
        {**with_batches_of(BallsInBins, "balls-in-bins"), (*CERTIFICATE, "participation"): to("bins")},
        "statement = ",
    ),
    "bins drawn once, unnamed": (
        "redrawn",
        {**with_batches_of(BallsInBins, "balls-in-bins"), CERTIFICATE: without("participation")},
        "statement = ",
    ),
    "bins redrawn": ("balls-in-bins", {(*SCHEME, "kind"): to("balls-in-bins-redrawn")}, "does not cover"),
    "bins redrawn, with their accountant": (
        "balls-in-bins",
        with_batches_of(RedrawnBallsInBins, "redrawn"),
        "evidence.participation = 'bins'",
    ),
    "bins redrawn, certified": (
        "balls-in-bins",
        {
            **with_batches_of(RedrawnBallsInBins, "redrawn"),
            CERTIFICATE: lambda old: {**old, "participation": "redrawn"},
        },
        "statement = ",
    ),
    "an unknown participation": ("redrawn", {(*CERTIFICATE, "participation"): to("x")}, "participation = 'x'"),
    "unknown batches": ("balls-in-bins", {(*SCHEME, "kind"): to("x")}, "kind = 'x'"),
    "larger batches": ("balls-in-bins", {(*SCHEME, "bins"): to(4)}, "bins = 4"),
    "larger batches by chance": ("poisson", {(*SCHEME, "batch_size"): to(16.0)}, "batch_size = 16.0"),
    "fewer groups": ("cyclic-poisson", {(*SCHEME, "cycle"): to(1)}, "1 groups"),
    "shuffled anew": ("shuffled", {(*SCHEME, "reshuffle"): to(True)}, "does not cover"),
    "shuffled in words": ("shuffled", {(*SCHEME, "reshuffle"): to("")}, "reshuffle = ''"),
    "other rounds": ("poisson", {(*SCHEME, "rounds"): to(16)}, "strategy = 32"),
    "more bins than there are": ("poisson", {("batching", "batches_per_epoch"): to(16)}, "batch_size = 8.0"),
    "as many bins as there are not numbers": ("poisson", {("batching", "batches_per_epoch"): to(10**400)}, "too large"),
    "fewer places": ("balls-in-bins", {(*TRUNCATION, "physical"): to(20)}, "truncation.per_batch"),
    "more places than numbers": ("balls-in-bins", {(*TRUNCATION, "physical"): to(10**400)}, "too large"),
    "no place": ("balls-in-bins", {(*TRUNCATION, "physical"): to(0)}, "truncation.physical = 0"),
    "truncation without a field": (
        "balls-in-bins",
        {TRUNCATION: without("expected")},
        "truncation = ['expected']",
    ),
    "no displacement": ("poisson", {(*TRUNCATION, "displacement"): to(0.0)}, "truncation.displacement = 0.0"),
    **{
        f"another {name}": ("balls-in-bins", {(*TRUNCATION, name): times(0.5)}, f"truncation.{name} = ")
        for name in ("per_batch", "probability", "probability_lower", "expected", "displacement")
    },
    "a small leak": (
        "balls-in-bins",
        {(*LEAK, "epsilon_at_delta"): to(0.01)},
        "epsilon_at_delta = 0.01",
    ),
    "a leak in delta": (
        "balls-in-bins",
        {(*LEAK, "delta_at_epsilon"): times(0.5)},
        "delta_at_epsilon = ",
    ),
    "a leak without epsilon": (
        "balls-in-bins",
        {(*LEAK, "epsilon_at_delta"): to(None)},
        "epsilon_at_delta = None",
    ),
    "a leak with epsilon": (
        "poisson",
        {(*LEAK, "epsilon_at_delta"): to(5.0)},
        "epsilon_at_delta = 5.0",
    ),
    "another sensitivity": ("balls-in-bins", {("noise", "sensitivity"): times(0.5)}, "sensitivity = "),
    "noise without end": ("mmcc", {("clipping", "clip_norm"): to(1e308)}, "Out of range"),
    "a larger claim in words": ("poisson", {("guarantee", "statement"): to("private")}, "not as galton writes it"),
    "a leak in words": ("poisson", {(*LEAK, "statement"): to("private")}, "not as galton writes it"),
    "something else": ("poisson", {("noise",): lambda old: {**old, "more": 1}}, "not as galton writes it"),
    "not a number": ("poisson", {("guarantee", "epsilon"): to(math.nan)}, "NaN is not allowed"),
    "infinite": ("poisson", {("noise", "noise_multiplier"): to(math.inf)}, "Infinity is not allowed"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_plans_are_refused_for_the_right_reason(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    kind, changes, reason = FORGED[name]
    assert reason in refusal(forged(folders[kind], tmp_path / "plan", changes))


OTHER_TYPES: dict[type, tuple[object, ...]] = {
    str: (1, 0.5, True, None, [], {}),
    bool: ("true", 1, 0, None, [], {}),
    int: ("1", 0.5, True, None, [], {}, 10**400),
    float: ("1", True, False, None, [], {}, 10**400),
    type(None): ("null", True, [], {}),
    list: ("x", 1, None, {}),
    dict: ("x", 1, None, [], [1], [["kind", "x"]]),
}
UNCHECKED = {("evidence", "certificate", name) for name in ("attempts", "seed")} | {
    ("evidence", "certificate", "by_direction", index, name) for index in (0, 1) for name in ("order", "budget")
}
"""Where any whole number will do, however large."""


def places_in(body: Any, above: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value of a JSON text, with where it is."""
    parts = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in parts:
        yield (*above, name), value
        yield from places_in(value, (*above, name))


@pytest.mark.parametrize("kind", slow_after(2, ["balls-in-bins", "poisson", "redrawn", "shuffled"]))
def test_no_value_of_a_plan_may_have_another_type(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    for place, value in places_in(json.loads((folders[kind] / PLAN).read_text())):
        for other in OTHER_TYPES[type(value)]:
            if type(other) is int and place in UNCHECKED:
                continue
            refusal(forged(folders[kind], tmp_path / "plan", {place: to(other)}))
            shutil.rmtree(tmp_path / "plan")


@pytest.mark.parametrize("kind", ["balls-in-bins", "redrawn", "poisson"])
def test_no_field_of_a_plan_may_be_missing(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    for place, _ in places_in(json.loads((folders[kind] / PLAN).read_text())):
        *above, name = place
        if isinstance(name, str) and above and above[-1] != "versions":
            refusal(forged(folders[kind], tmp_path / "plan", {tuple(above): without(name)}))
            shutil.rmtree(tmp_path / "plan")


MADE_BEFORE = [
    *sorted((Path(__file__).parents[1] / "reproduction" / "results" / "cifar" / "plans").iterdir()),
    Path(__file__).parent / "data" / "plan-2",
]
"""Plans of version 1, and one of version 2 with users, a search and a certificate."""


@pytest.mark.parametrize("folder", MADE_BEFORE, ids=lambda folder: folder.name)
def test_plans_that_were_made_before_are_read_and_written_as_they_are(folder: Path, tmp_path: Path) -> None:
    plan = load_plan(folder)
    assert plan.text.encode() == (folder / PLAN).read_bytes()
    again = save_plan(plan, tmp_path / "plan")
    files = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in again.iterdir()) == files == sorted((PLAN, STRATEGY, SUMS))
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in files)


def test_a_scheme_with_other_batches_than_analysed_is_refused(small_plan: Plan) -> None:
    """Fewer bins, so that every example takes part more often; a Poisson batch that is larger."""
    with pytest.raises(InvalidArgument, match="bins"):
        replace(small_plan, scheme=BallsInBins(64, 2, 32), padded_batch_size=64).check()
    poisson = make_plan(**{**SMALL, "epochs": 1}, batching="poisson")
    with pytest.raises(InvalidArgument, match="batch_size"):
        replace(poisson, scheme=Poisson(64, 32, 8), padded_batch_size=65).check()


def test_what_remains_after_a_leak_pays_for_truncation() -> None:
    plan = make_plan(**SMALL, strategy="sqrt:8", padded_batch_size=22, accountant="unamplified")
    lost = plan.truncation.displacement
    assert lost > 1e-7
    assert plan.leak.epsilon_at_delta is not None
    mu = 1 / plan.noise_multiplier
    left = (1 - lost) * gaussian_delta(plan.leak.epsilon_at_delta, mu) + lost
    assert left == pytest.approx(1e-3, rel=1e-6)
    assert plan.leak.delta_at_epsilon == pytest.approx((1 - lost) * gaussian_delta(4.0, mu) + lost, rel=1e-6)


def test_what_remains_is_what_the_officers_numbers_say(plans: dict[str, Plan]) -> None:
    """No e^epsilon for truncation, which it costs while batches are secret (docs/math.md, section 14.3)."""
    for plan in plans.values():
        assert plan.leak.epsilon_at_delta == epsilon_if_known(plan, plan.guarantee.delta)
    poisson = plans["poisson"]
    mu, lost = leaked_mu(poisson), poisson.truncation.displacement
    epsilon = poisson.leak.epsilon_at_delta
    assert epsilon is not None
    assert poisson.truncation.delta(epsilon) > poisson.guarantee.delta
    assert gaussian_delta(epsilon, mu) + lost == pytest.approx(poisson.guarantee.delta, rel=1e-3)


def test_older_plans_state_no_less_than_what_remains() -> None:
    """They counted truncation e^epsilon times: more than what follows is true, less is refused."""
    folder = MADE_BEFORE[-1]
    plan = load_plan(folder)
    assert plan.leak.epsilon_at_delta is not None
    now = epsilon_if_known(plan, plan.guarantee.delta)
    assert now is not None
    assert 0 <= plan.leak.epsilon_at_delta - now < 0.01
    value = json.loads((folder / PLAN).read_text())
    value["guarantee"]["if_batches_leak"]["epsilon_at_delta"] *= 0.99
    with pytest.raises(InvalidArgument, match="epsilon_at_delta"):
        plan_from_json(value, plan.strategy)


def test_what_remains_is_rounded_up_in_words() -> None:
    claim = Guarantee(4.0, 1e-3)
    assert Leak(6.85121, 0.25).claim(claim) == "(6.852, 0.001)-DP"
    assert Leak(None, 0.75881).claim(claim) == "(4, 0.7589)-DP"
    assert str(Guarantee(2.02734375, 9.9436512345e-6)).startswith("(2.02735, 9.94366e-06)-DP")


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
    less = 0.9 * small_plan.noise_multiplier
    weak = replace(small_plan, noise_multiplier=less, evidence=fitting(small_plan.evidence, less))
    assert not verify_plan(weak, galton.Options(seed=7)).accepted
    with pytest.raises(InvalidArgument, match="adjacency"):
        verify_plan(replace(small_plan, guarantee=CLAIMS[Adjacency.REPLACE]), galton.Options(seed=7))


@pytest.mark.parametrize("kind", ["balls-in-bins", "unamplified", "shuffled", "poisson", "cyclic-poisson", "mmcc"])
def test_half_the_noise_is_refused_and_not_proved_again(plans: dict[str, Plan], kind: str) -> None:
    """With the evidence as it is, or with evidence that was made to fit."""
    plan, half = plans[kind], 0.5 * plans[kind].noise_multiplier
    weak = replace(plan, noise_multiplier=half)
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        verify_plan(weak, galton.Options(seed=7))
    assert verify_plan(plan, galton.Options(seed=7)).accepted
    assert not verify_plan(replace(weak, evidence=fitting(plan.evidence, half)), galton.Options(seed=7)).accepted


def test_other_batchings_have_their_own_accountants() -> None:
    cyclic = make_plan(**SMALL, batching="cyclic-poisson", strategy="sqrt:2")
    assert isinstance(cyclic.scheme, CyclicPoisson)
    assert cyclic.scheme.cycle == 2
    assert cyclic.evidence.accountant == "cyclic-poisson"
    claim = Guarantee(4.0, 1e-3 - cyclic.truncation.delta(4.0))
    expected = find_accountant("cyclic-poisson").calibrate(cyclic.strategy, 8, claim).noise_multiplier
    assert cyclic.noise_multiplier == pytest.approx(expected, rel=1e-9)
    poisson = make_plan(**SMALL, batching="poisson")
    assert poisson.spec == "identity"
    # An example may be in all rounds if coins are known: far worse than one batch an epoch.
    assert poisson.leak.delta_at_epsilon > 0.9 > gaussian_delta(4.0, 1 / poisson.noise_multiplier)
    assert poisson.leak.epsilon_at_delta is not None
    assert poisson.leak.epsilon_at_delta > 10.0
    fixed = make_plan(CLAIMS[Adjacency.ZERO_OUT], **SIZES, batching="fixed-order")
    assert fixed.noise_multiplier == pytest.approx(1 / galton.gaussian_mu(4.0, 1e-3), rel=1e-6)
    assert fixed.leak.epsilon_at_delta == pytest.approx(4.0, rel=1e-6)
    replaced = make_plan(CLAIMS[Adjacency.REPLACE], **SIZES, batching="shuffle-once", strategy="sqrt")
    assert replaced.noise_multiplier == pytest.approx(2 * fixed.noise_multiplier, rel=1e-6)
    for plan in (cyclic, fixed, replaced):
        assert verify_plan(plan).accepted


def test_truncation_is_taken_off_delta_or_refused() -> None:
    words = SIZES | ONCE | {"strategy": "sqrt:8"}
    with pytest.raises(InvalidArgument, match="truncation would cost"):
        make_plan(4.0, 1e-3, **words, padded_batch_size=8)
    free = make_plan(CLAIMS[Adjacency.ZERO_OUT], **words, padded_batch_size=8)
    assert free.truncation.probability > 0.9
    assert free.batches().padded_batch_size == 8
    tight = make_plan(4.0, 1e-3, **words, padded_batch_size=22)
    assert isinstance(tight.evidence, Certified)
    lost = tight.truncation.delta(4.0)
    assert 1e-5 < lost < 5e-4
    assert tight.evidence.certificate.guarantee.delta == pytest.approx(room_for(1e-3 - lost))


def test_one_bin_has_a_place_for_an_example_more() -> None:
    plan = make_plan(**{**SMALL, "batch_size": 64}, strategy="sqrt")
    assert (plan.bins, plan.padded_batch_size) == (1, 65)
    assert plan.truncation.delta(4.0) == 0
    assert make_plan(**SMALL, **ONCE, strategy="sqrt", micro_batch_size=5).padded_batch_size % 5 == 0
    assert plan.noise_multiplier == pytest.approx(1 / galton.gaussian_mu(4.0, room_for(1e-3)), rel=0.02)


@SLOW
def test_the_default_strategy_is_optimised_and_beats_what_is_not() -> None:
    plan = make_plan(**{**SMALL, "epochs": 2}, **ONCE)
    assert plan.spec == "blt:4+scale"
    assert plan.strategy.kind == "scaled"
    assert plan.rmse < min(alternative.rmse for alternative in plan.alternatives)
    other = make_plan(**{**SMALL, "epochs": 2}, **ONCE, strategy="sqrt:8", workload="momentum:0.9")
    assert other.workload == "momentum:0.9"


def figures_of(monkeypatch: pytest.MonkeyPatch, multipliers: dict[str, float]) -> list[str]:
    """Lets the quick estimates of accountants be these; returns the names of those that were asked."""
    asked = []
    for name, multiplier in multipliers.items():
        accountant = find_accountant(name)

        def estimate(
            strategy: Strategy, bins: int, claim: Guarantee, name: str = name, level: float = multiplier
        ) -> Figure:
            asked.append(name)
            statement = Statement(claim.adjacency, "bins", Standing.ESTIMATE, "made up")
            return Figure(level, claim, statement)

        monkeypatch.setattr(accountant, "estimate", estimate)
    return asked


@pytest.mark.parametrize(
    ("redrawn", "chosen"), [(0.6, "balls-in-bins-redrawn"), (0.674, "balls-in-bins"), (0.7, "balls-in-bins")]
)
def test_a_plan_that_names_no_batching_has_the_lesser_error(
    small_plan: Plan, redrawn_plan: Plan, monkeypatch: pytest.MonkeyPatch, redrawn: float, chosen: str
) -> None:
    """A tie goes to bins that are drawn once."""
    figures_of(monkeypatch, {"balls-in-bins": 0.675, "redrawn": redrawn})
    proofs = {plan.evidence.accountant: plan.evidence for plan in (small_plan, redrawn_plan)}
    for name, proof in proofs.items():
        monkeypatch.setattr(find_accountant(name), "prove", lambda *_, proof=proof: proof)
    said: list[str] = []
    plan = make_plan(**SMALL, strategy="sqrt:8", notes=said.append)
    assert plan.scheme.kind == chosen
    assert plan.evidence is proofs["redrawn" if chosen.endswith("redrawn") else "balls-in-bins"]
    rejected = plan.alternatives[0]
    level = {"sqrt:8-balls-in-bins": 0.675, "sqrt:8-redrawn": redrawn}[rejected.name]
    unit = plan.rmse / plan.noise_multiplier
    assert rejected.rmse == pytest.approx(level * unit)
    assert rejected.standing == "estimate"
    errors = sorted((0.675 * unit, redrawn * unit), key=lambda error: error == rejected.rmse)
    assert said[0].startswith(f"{chosen}: error ")
    assert all(f"{error:.5g}" in said[0] for error in errors)


ONLY_ONCE: dict[str, tuple[dict[str, Any], str]] = {
    "one epoch": ({"epochs": 1}, "nothing to redraw"),
    "one bin": ({"batch_size": 64, "strategy": "sqrt:2"}, "nothing to redraw"),
    "accountant": ({"accountant": "unamplified"}, "accountant unamplified is for bins drawn once"),
    "long": ({"examples": 2048, "batch_size": 2}, "takes long for so many rounds"),
    "small epsilon": ({"epsilon": 0.05}, "hardly differs at so small an epsilon"),
    "tree": ({"strategy": "tree"}, "must be a square matrix"),
}


@pytest.mark.parametrize("kind", ONLY_ONCE)
def test_where_redrawn_bins_are_not_compared_a_plan_says_why(
    small_plan: Plan, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    words, reason = ONLY_ONCE[kind]
    asked = figures_of(monkeypatch, {"balls-in-bins": 0.675})
    proved: list[str] = []

    class Enough(Exception):
        """What follows is a plan like any other."""

    for name in ("balls-in-bins", "redrawn", "unamplified"):

        def prove(*_: object, name: str = name) -> Evidence:
            proved.append(name)
            raise Enough

        monkeypatch.setattr(find_accountant(name), "prove", prove)
    said: list[str] = []
    with pytest.raises(Enough):
        make_plan(**{**SMALL, "strategy": "sqrt:8", **words}, notes=said.append)
    assert said[0].startswith("balls-in-bins: ")
    assert reason in said[0]
    assert proved == [words.get("accountant", "balls-in-bins")]
    assert asked == []


def test_the_accountant_of_redrawn_bins_needs_no_batching(redrawn_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_accountant("redrawn"), "prove", lambda *_: redrawn_plan.evidence)
    assert make_plan(**SMALL, strategy="sqrt:8", accountant="redrawn").scheme == redrawn_plan.scheme


@pytest.mark.slow
def test_by_default_bins_are_redrawn_where_that_helps(tmp_path: Path) -> None:
    """With few bands and a large epsilon the gain is far above all tolerances; each C is optimised for its batches."""
    sizes = ["--examples", "64", "--batch-size", "8", "--epochs", "4", "--epsilon", "4", "--delta", "1e-3"]
    made = command("plan", *sizes, "--strategy", "toeplitz:4", "--seed", "1", "-o", str(tmp_path / "plan"), "--json")
    printed = json.loads(made.out)
    assert printed["batching"]["scheme"]["kind"] == "balls-in-bins-redrawn"
    other = printed["alternatives"][0]
    assert (other["name"], other["standing"]) == ("toeplitz:4-balls-in-bins", "certified")
    assert printed["rmse"] < 0.97 * other["rmse"]
    assert "each with its own C, certified" in printed["notes"][0]


@pytest.mark.slow
def test_best_takes_the_least_error_of_all() -> None:
    plan = make_plan(**{**SMALL, "epochs": 2}, **ONCE, strategy="best")
    assert len(plan.alternatives) >= 6
    assert plan.rmse <= 1.02 * min(alternative.rmse for alternative in plan.alternatives)


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
        ({"padded_batch_size": 0}, "padded_batch_size"),
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


def test_weights_of_so_many_rounds_that_they_do_not_fit_into_memory_are_refused_by_name_and_no_default() -> None:
    many = {**SMALL, "strategy": "blt:2+scale", "batching": "balls-in-bins", "epochs": 10_000}
    with pytest.raises(InvalidArgument, match=r"strategy = 'blt:2\+scale': needs .* GB of memory"):
        make_plan(**many)
    analysis = find_accountant("balls-in-bins")
    assert draft._default_strategy(analysis, 8, 80_000) == "blt:4"
    assert draft._default_strategy(analysis, 8, 8_000) == "blt:4+scale"


def test_a_reference_that_does_not_fit_into_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galton.errors._MOST_GIGABYTES", 2e-6)
    names = {alternative.name for alternative in references(Setting(8, 3, Guarantee(4.0, 1e-3)), Options())}
    assert "dpsgd-unamplified" in names
    assert "memf-unamplified" not in names


def test_replace_needs_an_accountant_that_covers_it() -> None:
    with pytest.raises(InvalidArgument, match="replace"):
        make_plan(CLAIMS[Adjacency.REPLACE], **SIZES, batching="poisson")


def test_a_copied_plan_is_the_same_plan(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(small_plan, tmp_path / "plan")
    shutil.copytree(folder, tmp_path / "copy")
    assert load_plan(tmp_path / "copy").digest == small_plan.digest


def words_of(folder: Path, *more: str) -> list[str]:
    sizes = ["--examples", "64", "--batch-size", "8", "--epochs", "4", "--epsilon", "4", "--delta", "1e-3"]
    return ["plan", *sizes, "--strategy", "sqrt:8", "--batching", "balls-in-bins", "-o", str(folder), *more]


def test_the_command_line_makes_and_verifies_a_plan(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    made = command(*words_of(folder, "--json"))
    assert made.code == 0
    printed = json.loads(made.out)
    assert printed["path"] == str(folder)
    assert printed["plan"] == load_plan(folder).digest
    assert printed["guarantee"]["epsilon"] == 4.0
    assert printed["evidence"]["certificate"]["accepted"]
    assert {"strategy", "noise_multiplier", "rmse", "batching", "alternatives"} <= set(printed)
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
    save_plan(with_noise(small_plan, 0.5), tmp_path / "plan")
    rejected = command("verify", str(tmp_path / "plan"), "--json")
    assert rejected.code == 3
    assert not json.loads(rejected.out)["accepted"]


@pytest.mark.parametrize(
    "more",
    [
        ["--batch-size", "0"],
        ["--batching", "x"],
        ["--strategy", "x"],
        ["--padded-batch-size", "3"],
        ["--adjacency", "x"],
    ],
)
def test_the_command_line_refuses_bad_input_in_one_line(tmp_path: Path, more: list[str]) -> None:
    refused = command(*words_of(tmp_path / "plan"), *more)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.count("\n") == 1
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("name", ["bandmf-poisson-epsilon1", "bandmf-poisson-epsilon2", "bandmf-poisson-epsilon8"])
def test_plans_of_before_are_proved_again_by_the_bound_of_today(name: str) -> None:
    plan = load_plan(Path(__file__).parents[1] / "reproduction" / "results" / "cifar" / "plans" / name)
    assert verify_plan(plan).accepted
    less = replace(plan, noise_multiplier=0.999 * plan.noise_multiplier)
    assert not less.accountant.verify(less.run, less.claim, galton.Options()).accepted


def test_the_statement_is_about_verify_then_release(plans: dict[str, Plan]) -> None:
    """The theorem of docs/math.md, 2.3, is about a run that is released only if its verification accepts."""
    sampled, calculated = plans["balls-in-bins"], plans["poisson"]
    assert sampled.evidence.certificate is not None
    assert sampled.evidence.certificate.samples > 0
    assert "follows this plan, released only because its verification accepted, is (4, 0.001)-DP" in sampled.statement
    assert "a false claim would have been accepted with probability at most" in sampled.statement
    assert "follows this plan is (4, 0.001)-DP" in calculated.statement
    assert "verification" not in calculated.statement


def test_a_claim_that_a_closed_form_proved_has_no_probability_of_failure(small_plan: Plan, tmp_path: Path) -> None:
    pair = dominating_pair(small_plan.strategy, small_plan.bins, 20.0)
    certificate = certify(pair, small_plan.claim, ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.samples == 0
    plan = replace(small_plan, evidence=Certified("balls-in-bins", certificate))
    assert plan.evidence.words == "A bound in closed form proves it; no sample was needed."
    assert "released only because" not in plan.statement


def test_a_verification_says_what_proved_the_claim_or_did_not(small_plan: Plan) -> None:
    def words(noise_multiplier: float) -> str:
        evidence = fitting(small_plan.evidence, noise_multiplier)
        changed = replace(small_plan, noise_multiplier=noise_multiplier, evidence=evidence)
        return verify_plan(changed, galton.Options(seed=7)).words

    assert words(50.0).startswith("a bound that needs no sample proves delta <= ")
    assert "fresh samples do NOT prove delta <= " in words(0.9 * small_plan.noise_multiplier)


def test_a_rejection_without_a_sample_says_why(tmp_path: Path) -> None:
    pair = galton.redrawn_pair(galton.identity(8), 4, 0.057)
    certificate = certify(pair, CLAIMS[Adjacency.ADD_OR_REMOVE], ledger=Ledger(tmp_path / "attempts.json"))
    assert (certificate.accepted, certificate.samples) == (False, 0)
    assert "nothing proves delta <= " in what_is_proved(certificate)
    assert "floating point" in what_is_proved(certificate)


def test_the_number_of_examples_is_said_to_be_public(plans: dict[str, Plan]) -> None:
    """Where neighbours differ in size; under the other adjacencies they have the same, and nothing is to be said."""
    assert f"The number of examples, {plans['poisson'].examples}, is public" in plans["poisson"].statement
    assert plans["shuffled"].guarantee.adjacency.equal_sizes
    assert "public" not in plans["shuffled"].statement


def test_a_delta_above_one_in_the_number_of_examples_is_warned_of(plans: dict[str, Plan], tmp_path: Path) -> None:
    plan = plans["poisson"]
    limit = 1 / plan.examples
    assert replace(plan, guarantee=plan.guarantee.with_delta(limit)).warnings == ()
    (warning,) = replace(plan, guarantee=plan.guarantee.with_delta(1.01 * limit)).warnings
    assert "is above 1 / examples" in warning
    options = ["--batching", "poisson", "--strategy", "identity"]
    sizes = ["--examples", "64", "--batch-size", "8", "--epochs", "2", "--epsilon", "4"]
    made = command("plan", *sizes, "--delta", "0.1", *options, "-o", str(tmp_path / "large"), "--json")
    assert "galton: warning: delta = 0.1 is above 1 / examples = 0.0156" in made.err
    assert len(json.loads(made.out)["warnings"]) == 1
