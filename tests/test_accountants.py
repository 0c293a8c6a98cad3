"""Accountants with a closed form or a peer, what all of them share, and which batches each of them covers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from galton.accountants import (
    ACCOUNTANTS,
    Standing,
    Statement,
    allocation_delta,
    check_covered,
    covering,
    default_accountant,
    find_accountant,
    peers,
    poisson,
    subsampled_delta,
)
from galton.accountants.search import least_noise
from galton.accounting import Options
from galton.batching import (
    SCHEMES,
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    MinSeparation,
    Poisson,
    RedrawnBallsInBins,
    Scheme,
    Shuffle,
    StreamingBallsInBins,
    StreamingRedrawnBallsInBins,
)
from galton.batching.laws import Law
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta, gaussian_mu
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.strategies import Dense, Strategy, Tree, column_banded, identity, square_root
from tests.truth import gaussian, random_allocation

CLAIM = Guarantee(1.0, 1e-5)
BOTH_SIDES = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE)
BALLS_IN_BINS, ALLOCATION = ACCOUNTANTS["balls-in-bins"], ACCOUNTANTS["allocation"]
POISSON, CYCLIC = ACCOUNTANTS["poisson"], ACCOUNTANTS["cyclic-poisson"]
UNAMPLIFIED = ACCOUNTANTS["unamplified"]


# Names, adjacencies, and the batches that are covered.

NAMES = (
    *("balls-in-bins", "redrawn", "min-separation"),
    *("poisson", "cyclic-poisson", "mmcc", "allocation", "unamplified"),
)
TWO_SIDED = {"balls-in-bins", "redrawn", "min-separation", "unamplified"}
"""Accountants that cover an example's exchange for any other, too."""


def test_accountants_are_found_by_name() -> None:
    assert tuple(ACCOUNTANTS) == NAMES
    for name in NAMES:
        assert find_accountant(name) is ACCOUNTANTS[name]
        assert ACCOUNTANTS[name].name == name


@pytest.mark.parametrize("name", ["other", "", "Poisson", "balls_in_bins"])
def test_an_unknown_accountant_is_refused_and_all_names_are_listed(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        find_accountant(name)
    assert refused.value.argument == "accountant"
    assert refused.value.remedy == "must be one of " + ", ".join(NAMES)


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_an_adjacency_that_is_not_supported_is_refused(name: str, adjacency: Adjacency) -> None:
    accountant = ACCOUNTANTS[name]
    assert accountant.supports(adjacency) == (adjacency is not Adjacency.REPLACE or name in TWO_SIDED)
    if accountant.supports(adjacency):
        accountant.check_adjacency(adjacency)
        return
    guarantee = Guarantee(1.0, 1e-5, adjacency)
    refusals = (
        lambda: accountant.check_adjacency(adjacency),
        lambda: accountant.calibrate(identity(8), 4, guarantee),
        lambda: accountant.estimate(identity(8), 4, guarantee),
        lambda: accountant.prove(identity(8), 4, guarantee, Options(seed=1)),
    )
    for refused in refusals:
        with pytest.raises(
            InvalidArgument, match=f"^adjacency = '{adjacency}': is not covered by the accountant {name}"
        ):
            refused()


COVERED: list[tuple[Scheme, tuple[str, ...]]] = [
    (BallsInBins(1000, 7, 17), ("balls-in-bins", "allocation", "unamplified")),
    (StreamingBallsInBins(1000, 7, 17), ("balls-in-bins", "allocation", "unamplified")),
    (RedrawnBallsInBins(1000, 7, 17), ("redrawn",)),
    (StreamingRedrawnBallsInBins(1000, 7, 17), ("redrawn",)),
    (Poisson(1000, 50, 17), ("poisson", "mmcc")),
    (CyclicPoisson(1000, 50, 4, 17), ("cyclic-poisson",)),
    (MinSeparation(1000, 50, 4, 17), ("min-separation",)),
    (Shuffle(1000, 7, 17), ("unamplified",)),
    (Shuffle(1000, 7, 17, reshuffle=True), ()),
    (Shuffle(1000, 7, 7, reshuffle=True), ("unamplified",)),
    (FixedOrder(1000, 7, 17), ("unamplified",)),
]
"""Batches, and who covers them, the one to be preferred first."""


@pytest.mark.parametrize(("scheme", "right"), COVERED, ids=lambda case: getattr(case, "kind", None))
def test_accountants_that_do_not_cover_a_scheme_are_refused(scheme: Scheme, right: tuple[str, ...]) -> None:
    assert tuple(accountant.name for accountant in covering(scheme)) == right
    for name, accountant in ACCOUNTANTS.items():
        if name in right:
            check_covered(accountant, scheme)
        else:
            with pytest.raises(
                InvalidArgument, match=f"^accountant = '{name}': does not cover {scheme.name}"
            ) as refused:
                check_covered(accountant, scheme)
            assert refused.value.remedy.endswith("covered by: " + (", ".join(right) or "none that galton has"))
    if right:
        assert default_accountant(scheme).name == right[0]
    else:
        with pytest.raises(InvalidArgument, match=f"^batching = '{scheme.kind}': is not covered by any accountant"):
            default_accountant(scheme)


def test_every_kind_of_batches_is_in_the_table() -> None:
    assert {scheme.kind for scheme, _ in COVERED} == set(SCHEMES)


class Rumour(Law):
    """A law that no analysis knows."""


@pytest.mark.parametrize("name", NAMES)
def test_a_law_that_nobody_knows_is_covered_by_nobody(name: str) -> None:
    """Also Law itself: coverage is never the default."""
    assert ACCOUNTANTS[name].covers(Rumour()) is False
    assert ACCOUNTANTS[name].covers(Law()) is False


# Statements.


@pytest.mark.parametrize("standing", list(Standing))
def test_statements_survive_json(standing: Standing) -> None:
    failure = 1e-8 if standing is Standing.CERTIFIED else 0.0
    statement = Statement(Adjacency.ADD_OR_REMOVE, "Poisson", standing, "somewhere", failure)
    assert Statement.from_json(json.loads(json.dumps(statement.to_json()))) == statement


@pytest.mark.parametrize(
    "forged",
    [
        {"is_guarantee": False},
        {"is_guarantee": None},
        {"standing": "sure"},
        {"standing": "lower bound"},
        {"adjacency": "swap"},
        {"failure_probability": 1e-8},
        {"failure_probability": "0"},
        {"source": None},
        {"sampling": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_statements_that_contradict_themselves_are_refused(forged: dict[str, object]) -> None:
    statement = Statement(Adjacency.ADD_OR_REMOVE, "Poisson", Standing.EXACT, "somewhere")
    with pytest.raises(InvalidArgument):
        Statement.from_json(statement.to_json() | forged)


def test_a_failure_probability_belongs_to_certified_figures_only() -> None:
    with pytest.raises(InvalidArgument, match="failure_probability"):
        Statement(Adjacency.ADD, "Poisson", Standing.EXACT, "x", 1e-8)
    with pytest.raises(InvalidArgument, match="failure_probability"):
        Statement(Adjacency.ADD, "Poisson", Standing.CERTIFIED, "x")


# The search.


def test_the_search_errs_towards_more_noise_and_takes_few_steps() -> None:
    calls = 0

    def delta(level: float) -> float:
        nonlocal calls
        calls += 1
        return gaussian_delta(1.0, 1 / level)

    for guess in (0.01, 1.0, 3.7, 300.0):
        calls = 0
        noise = least_noise(delta, 1e-5, guess)
        assert gaussian_delta(1.0, 1 / noise) <= 1e-5
        assert noise == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=4e-4)
        assert calls < 25


def test_the_search_copes_with_deltas_that_underflow() -> None:
    noise = least_noise(lambda level: 1.0 if level < 2.0 else 0.0, 1e-5, 1.0)
    assert 2.0 <= noise <= 2.0 * 1.001


# Unamplified.


@pytest.mark.parametrize("strategy", [identity(8), square_root(8, 3), Tree(8)])
def test_unamplified_is_the_gaussian_mechanism_for_any_strategy(strategy: Strategy) -> None:
    figure = UNAMPLIFIED.calibrate(strategy, 4, CLAIM)
    assert gaussian(1.0, 1 / figure.noise_multiplier) == pytest.approx(1e-5, rel=1e-6)
    assert gaussian_delta(1.0, 1 / figure.noise_multiplier) <= 1e-5
    assert figure.statement.standing is Standing.EXACT


def test_unamplified_needs_twice_the_noise_where_an_example_may_become_its_opposite() -> None:
    either, replaced = (UNAMPLIFIED.calibrate(identity(8), 4, Guarantee(1.0, 1e-5, name)) for name in BOTH_SIDES)
    assert replaced.noise_multiplier == pytest.approx(2 * either.noise_multiplier, rel=1e-12)
    assert replaced.statement.adjacency is Adjacency.REPLACE


# Poisson.


@pytest.mark.parametrize(
    ("epsilon", "bands", "expected"),
    # The row "BandMF + Poisson" of the paper's CIFAR-10 table of noise multipliers.
    [(0.5, 2, 1.018), (1, 4, 0.778), (2, 8, 0.606), (4, 16, 0.481), (8, 32, 0.388)],
)
def test_cyclic_poisson_gives_the_multipliers_of_the_literature(epsilon: float, bands: int, expected: float) -> None:
    figure = CYCLIC.calibrate(square_root(2000, bands), 100, Guarantee(epsilon, 1e-5))
    assert figure.noise_multiplier == pytest.approx(expected, rel=6e-3)


def test_poisson_with_certain_participation_is_the_gaussian_mechanism() -> None:
    assert subsampled_delta(2.0, 1.0, 4, 1.0) == pytest.approx(gaussian(1.0, 1.0), rel=1e-3)
    assert subsampled_delta(2.0, 1.0, 4, 1.0) >= gaussian(1.0, 1.0)
    figure = CYCLIC.calibrate(square_root(16, 2), 2, CLAIM)  # q = 1, 8 steps, of which a fixed order uses all
    assert figure.noise_multiplier == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=2e-3)
    assert figure.noise_multiplier >= 1 / gaussian_mu(1.0, 1e-5)


def test_one_subsampled_step_is_bounded_from_above() -> None:
    """One step has a closed form: delta = q * Gaussian delta at log(1 + (e^eps - 1)/q), mixture-first."""
    q, epsilon, sigma = 0.1, 0.5, 1.3
    exact = q * gaussian(math.log1p(math.expm1(epsilon) / q), 1 / sigma)
    assert exact <= subsampled_delta(sigma, q, 1, epsilon) <= exact * 1.005


def test_the_account_is_of_unit_columns_even_if_the_last_ones_are_cut() -> None:
    toeplitz, normalized = square_root(64, 4), column_banded(square_root(64, 4), 4)
    for strategy in (toeplitz, normalized):
        figure = CYCLIC.calibrate(strategy, 16, CLAIM)
        noise = figure.noise_multiplier * strategy.sensitivity(16)
        column = poisson.column_multiplier(4 / 16, 16, 1.0, 1e-5)
        assert noise / strategy.column_norm() == pytest.approx(column, rel=1e-9)


def test_cyclic_poisson_refuses_more_bands_than_bins() -> None:
    with pytest.raises(InvalidArgument, match="at most 8 bands for cyclic-poisson batches"):
        CYCLIC.calibrate(square_root(64, 16), 8, CLAIM)
    with pytest.raises(InvalidArgument, match="not square"):
        CYCLIC.calibrate(Tree(16), 8, CLAIM)


def test_poisson_is_cyclic_poisson_with_one_group_and_refuses_more_bands() -> None:
    plain, cyclic = (accountant.calibrate(identity(64), 8, CLAIM) for accountant in (POISSON, CYCLIC))
    assert plain == cyclic
    with pytest.raises(InvalidArgument, match="at most 1 bands for poisson batches"):
        POISSON.calibrate(square_root(64, 2), 8, CLAIM)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(peers, "import_module", absent)
    with pytest.raises(peers.MissingPackage, match="pip install PLD_accounting"):
        peers.random_allocation()
    assert peers.version_of("no-such-package-at-all") == "none"


# Random allocation.


@pytest.mark.parametrize(
    "case",
    [row for row in random_allocation() if row["bins"] == 8 and row["noise_multiplier"] == 0.7],
    ids=lambda row: f"{row['epsilon']}-{row['direction']}",
)
def test_allocation_lies_above_the_stored_bracket_and_close(case: dict[str, float | str]) -> None:
    pytest.importorskip("PLD_accounting")
    adjacency = Adjacency.REMOVE if case["direction"] == Direction.MIXTURE_FIRST.value else Adjacency.ADD
    epsilon, interval = float(case["epsilon"]), 0.02
    above = allocation_delta(int(case["bins"]), float(case["noise_multiplier"]), epsilon, adjacency, interval=interval)
    assert float(case["delta_lower"]) <= above <= float(case["delta_upper"]) * 1.25
    below = allocation_delta(
        int(case["bins"]), float(case["noise_multiplier"]), epsilon, adjacency, upper=False, interval=interval
    )
    assert below <= float(case["delta_upper"])


def test_allocation_is_for_independent_noise_and_whole_epochs() -> None:
    for refused, bins in ((square_root(16, 2), 8), (Dense(np.diag([1.0, 2.0])), 2), (identity(15), 8), (Tree(8), 4)):
        with pytest.raises(InvalidArgument):
            ALLOCATION.calibrate(refused, bins, CLAIM)
    with pytest.raises(InvalidArgument, match="adjacency"):
        allocation_delta(8, 1.0, 1.0, Adjacency.REPLACE)


@pytest.mark.slow
def test_allocation_and_the_certified_accountant_agree() -> None:
    pytest.importorskip("PLD_accounting")
    exact = ALLOCATION.calibrate(identity(64), 32, Guarantee(4.0, 1e-5))
    ours = BALLS_IN_BINS.calibrate(identity(64), 32, Guarantee(4.0, 1e-5))
    assert exact.statement.standing is Standing.EXACT
    assert ours.noise_multiplier == pytest.approx(exact.noise_multiplier, rel=0.015)  # ours aims at delta / 1.1


# Balls-in-bins in the same shape.


def test_balls_in_bins_is_certified_with_a_certificates_failure() -> None:
    strategy, guarantee = square_root(32, 4), Guarantee(2.0, 1e-5)
    figure = BALLS_IN_BINS.calibrate(strategy, 8, guarantee)
    assert figure.guarantee == guarantee
    assert figure.statement.standing is Standing.CERTIFIED
    assert 0 < figure.statement.failure_probability <= 1.5e-8 * (1 + 1e-6)
    assert figure.noise_multiplier < UNAMPLIFIED.calibrate(strategy, 8, guarantee).noise_multiplier
    quick = BALLS_IN_BINS.estimate(strategy, 8, guarantee)
    assert quick.statement.standing is Standing.ESTIMATE
    assert quick.noise_multiplier == pytest.approx(figure.noise_multiplier, rel=0.03)
