"""Certificates in files: nothing is lost, and what no verification could have written is refused."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from galton import files
from galton.accounting import Certificate, Ledger, Options, certify
from galton.accounting.certificate import DirectionVerdict, spelled_target_digest, target_digest
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.pair import dominating_pair
from galton.strategies import Dense, Strategy, Toeplitz, square_root

SMALL = dominating_pair(square_root(48, 6), 8, 2.85)
SEEDED = Options(seed=1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    """One of every kind: accepted at once, without samples, by another adjacency; refused; accepted after that."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "attempts.json")
    claim, replaced = Guarantee(1.0, 1e-5), Guarantee(1.0, 1e-3, Adjacency.REPLACE)
    return {
        "accepted": certify(SMALL, claim, options=SEEDED, ledger=ledger),
        "own seed": certify(SMALL, claim, ledger=ledger),
        "without samples": certify(SMALL.at(20.0), claim, ledger=ledger),
        "fixed sample": certify(SMALL, claim, options=Options(seed=1, bound="kl"), ledger=ledger),
        "replaced": certify(SMALL.at(4.0), replaced, options=SEEDED, ledger=ledger),
        "rejected": certify(SMALL.at(1.2), claim, options=SEEDED, ledger=ledger),
        "second attempt": certify(SMALL, claim, options=SEEDED, ledger=ledger, failure=1e-7),
    }


@pytest.fixture
def body(certificates: dict[str, Certificate]) -> dict[str, Any]:
    """The JSON of an accepted certificate, to be forged."""
    return copy.deepcopy(certificates["accepted"].to_json())


KINDS = {
    "accepted": (True, 1, 2),
    "own seed": (True, 1, 2),
    "without samples": (True, 1, 2),
    "fixed sample": (True, 1, 2),
    "replaced": (True, 1, 1),
    "rejected": (False, 1, 1),
    "second attempt": (True, 2, 2),
}
"""Whether it was accepted, attempts, and directions that were looked at."""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_in_json(kind: str, certificates: dict[str, Certificate]) -> None:
    certificate = certificates[kind]
    assert (certificate.accepted, certificate.attempts, len(certificate.by_direction)) == KINDS[kind]
    text = files.pretty(certificate.to_json())
    again = Certificate.from_json(json.loads(text))
    assert again == Certificate.from_json(certificate.to_json()) == certificate
    assert files.pretty(again.to_json()).encode() == text.encode()
    assert again.guarantee == certificate.guarantee
    assert again.stated_delta == certificate.stated_delta
    assert all(isinstance(verdict.direction, Direction) for verdict in again.by_direction)


def test_the_guarantee_stands_in_json_as_three_fields(body: dict[str, Any]) -> None:
    assert (body["epsilon"], body["delta"], body["adjacency"]) == (1.0, 1e-5, "add-or-remove")
    assert "guarantee" not in body
    assert [part["direction"] for part in body["by_direction"]] == ["mixture-first", "noise-first"]
    assert list(body)[:6] == ["accepted", "epsilon", "delta", "delta_upper", "adjacency", "failure_probability"]


def test_the_name_of_before_is_known() -> None:
    """Ledgers of galton 0.1 know targets by this hash: another one would forget refusals."""
    target = {
        "strategy": SMALL.strategy,
        "bins": 8,
        "rounds": 48,
        "adjacency": "replace",
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    assert spelled_target_digest(SMALL, Guarantee(1, 1e-5, Adjacency.REPLACE)) == files.digest(target)


SPELLINGS: dict[str, Strategy] = {
    "series": Toeplitz(8, [1.0, 0.5]),
    "a multiple": Toeplitz(8, [2.0, 1.0]),
    "a zero more": Toeplitz(8, [1.0, 0.5, 0.0]),
    "dense": Dense(Toeplitz(8, [1.0, 0.5]).matrix()),
    "a third": Toeplitz(8, [1 / 3, 0.5 / 3]),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings_are_the_same_target(name: str) -> None:
    claim = Guarantee(1.0, 1e-5)
    first = target_digest(dominating_pair(SPELLINGS["series"], 4, 1.3), claim)
    pair = dominating_pair(SPELLINGS[name], 4, 2.0)
    assert target_digest(pair, claim) == first
    assert target_digest(pair, claim.with_delta(math.nextafter(1e-5, 1))) == first
    assert target_digest(pair, claim.with_delta(1.1e-5)) != first
    assert target_digest(pair, Guarantee(1.0, 1e-5, Adjacency.REPLACE)) != first
    assert target_digest(dominating_pair(Toeplitz(8, [1.0, 0.6]), 4), claim) != first


def test_attempts_that_an_earlier_galton_counted_still_count(tmp_path: Path) -> None:
    claim = Guarantee(1.0, 1e-3)
    ledger = Ledger(tmp_path / "attempts.json")
    ledger.begin([spelled_target_digest(SMALL, claim)], 1e-7)
    second = certify(SMALL, claim, options=SEEDED, ledger=ledger)
    assert second.attempts == 2
    assert second.failure_probability == pytest.approx(1e-7 + 1.5e-6)


def test_another_strategy_is_another_attempt_at_the_same_setting(tmp_path: Path) -> None:
    claim = Guarantee(1.0, 1e-3)
    ledger = Ledger(tmp_path / "attempts.json")
    weak = dominating_pair(square_root(48, 4), 8, 0.5)
    assert not certify(weak, claim, options=SEEDED, ledger=ledger, counted_for=["setting"]).accepted
    other = certify(SMALL, claim, options=SEEDED, ledger=ledger, counted_for=["setting"])
    assert other.accepted
    assert other.attempts == 2
    assert certify(SMALL, claim, options=SEEDED, ledger=ledger).attempts == 1


def test_an_interrupted_attempt_says_that_it_counts(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="counts as rejected: the next one will be attempt 2"):
        certify(SMALL, 1.0, 1e-5, options=Options(progress=interrupt), ledger=Ledger(tmp_path / "attempts.json"))


# Forgeries: each a place in the JSON of an accepted certificate, and what is written there.

FIRST, SECOND = ("by_direction", 0), ("by_direction", 1)
Place = tuple[str | int, ...]
FORGED: list[tuple[Place, Any]] = [
    # of the wrong type
    *((("accepted",), value) for value in ("yes", "true", 1, 0)),
    *((("seed_chosen_by_user",), value) for value in ("no", 0)),
    *(
        ((name,), value)
        for name in ("epsilon", "delta", "delta_upper", "noise_multiplier")
        for value in ("1", True, [1])
    ),
    *(((name,), value) for name in ("bins", "rounds", "epochs", "samples", "seed") for value in ("8", 8.5, True)),
    *((("attempts",), value) for value in (0, -1, 1.0, 1.5, True, "1", 2)),
    *((("strategy_hash",), value) for value in (1, ["sha256:"])),
    *((("versions",), value) for value in (["0.1.0"], "0.1.0", {"galton": 1})),
    *((("by_direction",), value) for value in ({"x": 1}, "mixture-first", [1], ["mixture-first"])),
    ((*FIRST, "accepted"), 1),
    ((*FIRST, "samples"), 1.5),
    ((*FIRST, "sampler"), 1),
    # out of range
    *((("epsilon",), value) for value in (0.0, -1.0, math.inf)),
    *((("delta",), value) for value in (0.0, 1.0, -1e-5, 2.0)),
    *((("failure_probability",), value) for value in (-1e-8, 0.0, 2.0)),
    *((("failure_probability_per_attempt",), value) for value in (-1e-8, 0.0, 2.0)),
    *((("noise_multiplier",), value) for value in (0.0, -2.85, 10**400)),
    *(((name,), 0) for name in ("bins", "rounds", "epochs")),
    *(((name,), -1) for name in ("samples", "seed", "seconds")),
    ((*FIRST, "estimate"), -1e-6),
    ((*FIRST, "delta_upper"), 1.5),
    ((*FIRST, "budget"), -1),
    # at odds with what is said elsewhere
    (("delta",), 0.95),
    (("delta",), 1e-6),
    (("epsilon",), 0.1),
    (("delta_upper",), 0.95),
    (("delta_upper",), 1e-9),
    ((*SECOND, "delta_upper"), 0.95),
    (("accepted",), False),
    ((*FIRST, "accepted"), False),
    *((("adjacency",), value) for value in ("swap", "", "ADD", "add", "remove", "replace", "zero-out")),
    ((*FIRST, "direction"), "noise-first"),
    ((*FIRST, "direction"), "replace"),
    ((*FIRST, "direction"), "other"),
    ((*SECOND, "direction"), "mixture-first"),
    (("samples",), 1),
    ((*FIRST, "samples"), 1),
    (("rounds",), 49),
    (("bins",), 4),
    (("epochs",), 7),
    (("failure_probability",), 3e-8),  # above that of the one attempt
    (("failure_probability",), 1e-8),  # below it
    (("failure_probability_per_attempt",), 1e-9),
    (("statement",), "Rejected: nothing may be claimed."),
    (("statement",), "A run is (0.1, 1e-05)-DP under add-or-remove adjacency."),
    (("statement",), ""),
]
"""Seeds, samplers, versions and the like are claims that nothing in the certificate can contradict."""


def around(body: dict[str, Any], where: Place) -> Any:
    """The object that a field stands in."""
    part: Any = body
    for name in where[:-1]:
        part = part[name]
    return part


def forge(body: dict[str, Any], where: Place, value: Any) -> None:
    part = around(body, where)
    assert part[where[-1]] != value or type(part[where[-1]]) is not type(value)
    part[where[-1]] = value


def brief(value: Any) -> str:
    return "huge" if isinstance(value, int) and value > 2**64 else str(value)[:40]


@pytest.mark.parametrize(("where", "value"), FORGED, ids=brief)
def test_forged_fields_are_refused(body: dict[str, Any], where: Place, value: Any) -> None:
    forge(body, where, value)
    with pytest.raises(InvalidArgument):
        Certificate.from_json(body)


def test_the_hash_of_a_strategy_is_read_by_its_old_name(body: dict[str, Any]) -> None:
    old = {{"strategy_hash": "strategy"}.get(name, name): value for name, value in body.items()}
    assert Certificate.from_json(old).to_json() == body
    with pytest.raises(InvalidArgument, match="strategy"):
        Certificate.from_json(old | {"strategy_hash": body["strategy_hash"]})


NAMES = [field.name for field in fields(Certificate) if field.name not in ("guarantee", "participation", "strategy")]
NAMES += ["epsilon", "delta", "adjacency", "strategy_hash"]
PLACES: list[Place] = [
    *((name,) for name in NAMES),
    *((*FIRST, field.name) for field in fields(DirectionVerdict)),
]


@pytest.mark.parametrize("where", PLACES, ids=str)
def test_every_field_is_looked_at(body: dict[str, Any], where: Place) -> None:
    """No field may be null, NaN, infinite or an object of numbers, and none may be missing."""
    for value in (None, math.nan, math.inf, {"x": 1}):
        forged = copy.deepcopy(body)
        forge(forged, where, value)
        with pytest.raises(InvalidArgument):
            Certificate.from_json(forged)
    del around(body, where)[where[-1]]
    with pytest.raises(InvalidArgument, match="too many or missing"):
        Certificate.from_json(body)


@pytest.mark.parametrize("value", [None, 1, "", "Bins", "redrawn"])
def test_a_certificate_that_names_no_participation_is_for_bins_drawn_once(body: dict[str, Any], value: Any) -> None:
    """As galton 0.1 wrote it; one that names another must say so in its statement."""
    assert "participation" not in body
    assert Certificate.from_json(body).participation == "bins"
    assert Certificate.from_json(body | {"participation": "bins"}).to_json() == body
    with pytest.raises(InvalidArgument):
        Certificate.from_json(body | {"participation": value})


@pytest.mark.parametrize("where", [("more",), (*FIRST, "more"), ("guarantee",)], ids=str)
def test_fields_that_galton_does_not_write_are_refused(body: dict[str, Any], where: Place) -> None:
    around(body, where)[where[-1]] = 1
    with pytest.raises(InvalidArgument, match="too many or missing"):
        Certificate.from_json(body)


@pytest.mark.parametrize("value", [None, [], "certificate", 1, math.nan])
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a JSON object"):
        Certificate.from_json(value)


def test_directions_must_be_those_of_the_adjacency(body: dict[str, Any]) -> None:
    first, second = body["by_direction"]
    for directions in ([], [first], [second], [second, first], [first, first], [first, second, second]):
        forged = body | {"by_direction": directions, "samples": sum(part["samples"] for part in directions)}
        with pytest.raises(InvalidArgument, match="by_direction"):
            Certificate.from_json(forged)


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": True},
        {"by_direction": [], "samples": 0},
        {"delta_upper": 1e-6},
        {"statement": "A run is (1, 1e-05)-DP under add-or-remove adjacency."},
    ],
    ids=str,
)
def test_a_rejection_cannot_be_turned_into_anything_else(
    certificates: dict[str, Certificate], changes: dict[str, Any]
) -> None:
    rejected = certificates["rejected"].to_json()
    assert Certificate.from_json(rejected) == certificates["rejected"]
    with pytest.raises(InvalidArgument):
        Certificate.from_json(rejected | changes)


def test_failures_of_earlier_attempts_cannot_be_left_out(certificates: dict[str, Certificate]) -> None:
    """Two attempts: the sum may be larger than that of the last, and delta is stated with it."""
    second = certificates["second attempt"]
    assert second.failure_probability == pytest.approx(1.5e-8 + 1e-7)
    assert second.stated_delta == pytest.approx(1e-5 + 1.5e-8 + 1e-7, rel=1e-12)
    assert f"{second.stated_delta:.6g})-DP" in second.statement
    for changes in ({"attempts": 1}, {"failure_probability": 1e-7}, {"failure_probability": 9e-8}):
        with pytest.raises(InvalidArgument):
            Certificate.from_json(second.to_json() | changes)


def test_merging_bins_is_no_other_target(tmp_path: Path) -> None:
    strategy, claim, ledger = square_root(64), Guarantee(1.0, 1e-3), Ledger(tmp_path / "attempts.json")
    for seed in (1, 2):
        weak = dominating_pair(strategy, 16, 0.5)
        assert not certify(weak, claim, options=Options(seed=seed, samples=4096), ledger=ledger).accepted
    merged = certify(dominating_pair(strategy, 16, 6.0, merge=2), claim, options=Options(seed=3), ledger=ledger)
    assert merged.accepted
    assert merged.attempts == 3
    assert merged.stated_delta == pytest.approx(1e-3 + 3 * 1.5e-6)


def test_small_failures_are_not_lost_beside_large_ones(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "attempts.json")
    ledger.begin(["a"], 1e-17)
    ledger.begin(["a"], 0.5)
    ledger.accept(["a"], 0.5)
    assert ledger.begin(["a"], 1e-17).failure >= 2e-17
    ledger.begin(["b", "setting"], 1e-30)
    assert ledger.begin(["c", "setting"], 1e-8).attempts == 2


def test_a_seed_of_128_bits_survives_readers_that_round(certificates: dict[str, Certificate]) -> None:
    """A seed from the operating system has 128 bits and is text; smaller ones are the numbers of earlier files."""
    own, given = certificates["own seed"], certificates["accepted"]
    body = json.loads(json.dumps(own.to_json()), parse_int=lambda digits: int(float(digits)))
    assert own.seed >= 2**53
    assert body["seed"] == str(own.seed)
    assert Certificate.from_json(body).seed == own.seed
    assert given.to_json()["seed"] == given.seed == 1


@pytest.mark.parametrize("seed", ["-9007199254740993", "9007199254740991", "1e30", "²" * 20, "9" * 101, ""])
def test_seeds_in_text_are_whole_numbers_that_need_it(body: dict[str, Any], seed: str) -> None:
    with pytest.raises(InvalidArgument, match="as text if it is 2"):
        Certificate.from_json(body | {"seed": seed})


def test_a_recorded_seed_repeats_the_verdict(certificates: dict[str, Certificate], tmp_path: Path) -> None:
    own = certificates["own seed"]
    seed = int(own.to_json()["seed"])
    again = certify(SMALL, own.guarantee, options=Options(seed=seed), ledger=Ledger(tmp_path / "attempts.json"))
    assert again.by_direction == own.by_direction
