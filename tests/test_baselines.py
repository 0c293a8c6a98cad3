"""Baselines with a closed form or a peer: unamplified, Poisson, allocation, shuffling; and what all baselines share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from galton.baselines import (
    DEFAULT,
    MECHANISMS,
    Figure,
    Setting,
    Standing,
    Statement,
    calibrate_allocation,
    calibrate_balls_in_bins,
    calibrate_poisson,
    calibrate_shuffling,
    calibrate_unamplified,
    compare,
    estimate_balls_in_bins,
    find_mechanism,
    noise_cost,
    peers,
    plot_comparison,
    poisson,
    shuffling_bracket,
    shuffling_lower_bound,
    subsampled_delta,
)
from galton.baselines import mechanism as mechanism_module
from galton.baselines.allocation import allocation_delta
from galton.baselines.bands import best_bands
from galton.baselines.comparison import BASELINE
from galton.baselines.figure import bands_of
from galton.baselines.mechanism import row_from_json
from galton.baselines.search import least_noise
from galton.baselines.statement import statement_from_json
from galton.cache import Cache, default_cache
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta, gaussian_mu
from galton.pair import Direction
from galton.strategies import Blt, Dense, Scaled, Strategy, Toeplitz, Tree, column_banded, identity, square_root
from galton.workloads import MatrixWorkload, Workload, momentum, prefix_sums
from tests.truth import gaussian, random_allocation


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def simple_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square roots instead of optimised strategies: no optimiser in a unit test."""

    def classical(family: str, bins: int, rounds: int, workload: Workload | None) -> Strategy:
        _, _, bands = family.partition(":")
        return square_root(rounds, int(bands) if bands else None)

    monkeypatch.setattr(mechanism_module, "classical", classical)
    monkeypatch.setattr("galton.baselines.registry.classical", classical)


# Statements.


def test_a_lower_bound_is_never_a_guarantee_and_says_so() -> None:
    statement = MECHANISMS["dpsgd-shuffling"].statement
    assert statement.standing is Standing.LOWER_BOUND
    assert not statement.is_guarantee
    assert "NOT a guarantee" in str(statement)
    assert not statement.to_json()["is_guarantee"]


@pytest.mark.parametrize("standing", list(Standing))
def test_statements_survive_json(standing: Standing) -> None:
    failure = 1e-8 if standing is Standing.CERTIFIED else 0.0
    statement = Statement("add-or-remove", "Poisson", standing, "somewhere", failure)
    assert statement_from_json(json.loads(json.dumps(statement.to_json()))) == statement


def test_a_failure_probability_belongs_to_certified_figures_only() -> None:
    with pytest.raises(InvalidArgument, match="failure_probability"):
        Statement("add", "Poisson", Standing.EXACT, "x", 1e-8)
    with pytest.raises(InvalidArgument, match="failure_probability"):
        Statement("add", "Poisson", Standing.CERTIFIED, "x")


def test_every_mechanism_states_adjacency_sampling_and_standing() -> None:
    for one in MECHANISMS.values():
        assert one.description
        assert one.statement.adjacency
        assert one.statement.sampling
    guaranteed = {name for name, one in MECHANISMS.items() if one.statement.is_guarantee}
    assert set(MECHANISMS) - guaranteed == {"dpsgd-shuffling"}
    assert BASELINE in DEFAULT


# The search.


def test_the_search_errs_towards_more_noise_and_takes_few_steps() -> None:
    calls = 0

    def delta(level: float) -> float:
        nonlocal calls
        calls += 1
        return gaussian_delta(1.0, 1 / level)

    for guess in (0.01, 1.0, 3.7, 300.0):
        calls = 0
        found = least_noise(delta, 1e-5, guess)
        assert gaussian_delta(1.0, 1 / found) <= 1e-5
        assert found == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=4e-4)
        assert calls < 25


def test_the_search_copes_with_deltas_that_underflow() -> None:
    found = least_noise(lambda level: 1.0 if level < 2.0 else 0.0, 1e-5, 1.0)
    assert 2.0 <= found <= 2.0 * 1.001


@pytest.mark.parametrize("start", [1, 4, 100, 1 << 20])
@pytest.mark.parametrize("best", [1, 8, 64])
def test_the_walk_over_bands_finds_the_valley(start: int, best: int) -> None:
    seen = []

    def error(bands: int) -> float:
        seen.append(bands)
        return abs(math.log2(bands) - math.log2(best))

    assert best_bands(error, 100, start) == best
    assert len(seen) == len(set(seen))


# Unamplified.


@pytest.mark.parametrize("strategy", [identity(8), square_root(8, 3), Tree(8)])
def test_unamplified_is_the_gaussian_mechanism_for_any_strategy(strategy: Strategy) -> None:
    figure = calibrate_unamplified(strategy, 4, 1.0, 1e-5)
    assert gaussian(1.0, 1 / figure.noise_multiplier) == pytest.approx(1e-5, rel=1e-6)
    assert gaussian_delta(1.0, 1 / figure.noise_multiplier) <= 1e-5
    assert figure.statement.standing is Standing.EXACT


# Poisson.


@pytest.mark.parametrize(
    ("epsilon", "bands", "expected"),
    # The row "BandMF + Poisson" of the paper's CIFAR-10 table of noise multipliers.
    [(0.5, 2, 1.018), (1, 4, 0.778), (2, 8, 0.606), (4, 16, 0.481), (8, 32, 0.388)],
)
def test_cyclic_poisson_gives_the_multipliers_of_the_literature(epsilon: float, bands: int, expected: float) -> None:
    figure = calibrate_poisson(square_root(2000, bands), 100, epsilon, 1e-5)
    assert figure.noise_multiplier == pytest.approx(expected, rel=6e-3)


def test_poisson_with_certain_participation_is_the_gaussian_mechanism() -> None:
    assert subsampled_delta(2.0, 1.0, 4, 1.0) == pytest.approx(gaussian(1.0, 1.0), rel=1e-3)
    assert subsampled_delta(2.0, 1.0, 4, 1.0) >= gaussian(1.0, 1.0)
    figure = calibrate_poisson(square_root(16, 2), 2, 1.0, 1e-5)  # q = 1, 8 steps, of which a fixed order uses all
    assert figure.noise_multiplier == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=2e-3)
    assert figure.noise_multiplier >= 1 / gaussian_mu(1.0, 1e-5)


def test_one_subsampled_step_is_bounded_from_above() -> None:
    """One step has a closed form: delta = q * Gaussian delta at log(1 + (e^eps - 1)/q), mixture-first."""
    q, epsilon, sigma = 0.1, 0.5, 1.3
    exact = q * gaussian(math.log1p(math.expm1(epsilon) / q), 1 / sigma)
    found = subsampled_delta(sigma, q, 1, epsilon)
    assert exact <= found <= exact * 1.005


def test_the_account_is_of_unit_columns_even_if_the_last_ones_are_cut() -> None:
    toeplitz, normalized = square_root(64, 4), column_banded(square_root(64, 4), 4)
    one, other = (calibrate_poisson(strategy, 16, 1.0, 1e-5) for strategy in (toeplitz, normalized))
    for strategy, figure in ((toeplitz, one), (normalized, other)):
        noise = figure.noise_multiplier * strategy.sensitivity(16)
        column = poisson.column_multiplier(4 / 16, 16, 1.0, 1e-5)
        assert noise / strategy.column_norm() == pytest.approx(column, rel=1e-9)


def test_cyclic_poisson_refuses_more_bands_than_bins() -> None:
    with pytest.raises(InvalidArgument, match="at most as many bands as bins"):
        calibrate_poisson(square_root(64, 16), 8, 1.0, 1e-5)
    with pytest.raises(InvalidArgument, match="not square"):
        calibrate_poisson(Tree(16), 8, 1.0, 1e-5)


def test_bands_are_counted() -> None:
    assert bands_of(identity(5)) == 1
    assert bands_of(square_root(9, 4)) == 4
    assert bands_of(Dense(square_root(9, 4).matrix())) == 4
    assert bands_of(Scaled(square_root(9, 3), np.ones(9))) == 3
    assert bands_of(Blt(9, [0.5], [0.3])) == 9


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(peers, "import_module", absent)
    with pytest.raises(peers.MissingPackage, match="pip install dp-accounting"):
        peers.privacy_loss_distribution()
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
    adjacency = "remove" if case["direction"] == Direction.MIXTURE_FIRST.value else "add"
    epsilon, interval = float(case["epsilon"]), 0.02
    found = allocation_delta(int(case["bins"]), float(case["noise_multiplier"]), epsilon, adjacency, interval=interval)
    assert float(case["delta_lower"]) <= found <= float(case["delta_upper"]) * 1.25
    below = allocation_delta(
        int(case["bins"]), float(case["noise_multiplier"]), epsilon, adjacency, upper=False, interval=interval
    )
    assert below <= float(case["delta_upper"])


def test_allocation_is_for_independent_noise_and_whole_epochs() -> None:
    for refused, bins in ((square_root(16, 2), 8), (Dense(np.diag([1.0, 2.0])), 2), (identity(15), 8), (Tree(8), 4)):
        with pytest.raises(InvalidArgument):
            calibrate_allocation(refused, bins, 1.0, 1e-5)
    with pytest.raises(InvalidArgument, match="adjacency"):
        allocation_delta(8, 1.0, 1.0, "replace")


@pytest.mark.slow
def test_allocation_and_the_certified_accountant_agree() -> None:
    pytest.importorskip("PLD_accounting")
    exact = calibrate_allocation(identity(64), 32, 4.0, 1e-5, interval=0.02)
    ours = calibrate_balls_in_bins(identity(64), 32, 4.0, 1e-5)
    assert exact.statement.standing is Standing.EXACT
    assert ours.noise_multiplier == pytest.approx(exact.noise_multiplier, rel=0.015)  # ours aims at delta / 1.1


# Shuffling.


def test_shuffling_into_one_batch_is_the_gaussian_mechanism() -> None:
    assert shuffling_lower_bound(1, 0.8, 1.0) == pytest.approx(gaussian(1.0, 1 / 0.8), rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_the_shuffling_bound_is_below_the_divergence_it_bounds(epsilon: float) -> None:
    """Two batches: H between the two mixtures of Gaussians by summing densities over a grid of the plane."""
    sigma = 0.9
    axis = np.linspace(-8, 10, 1201)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)

    def density(mean: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        centres = mean * np.eye(2)
        exponents = np.stack([-((grid - centre) ** 2).sum(-1) / (2 * sigma**2) for centre in centres])
        return np.asarray(np.exp(logsumexp(exponents, axis=0)) / (4 * math.pi * sigma**2))

    first, second = density(2.0), density(1.0)
    cell = (axis[1] - axis[0]) ** 2
    truth = max(
        float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * cell),
        float(np.maximum(second - math.exp(epsilon) * first, 0).sum() * cell),
    )
    found = shuffling_lower_bound(2, sigma, epsilon)
    assert 0.5 * truth < found < truth


def test_the_shuffling_bracket_is_ordered_and_its_figure_is_no_guarantee() -> None:
    for bins in (2, 100, 10_000):
        lower, upper = shuffling_bracket(bins, 0.6, 1.0)
        assert 0 < lower < upper
    figure = calibrate_shuffling(identity(256), 128, 1.0, 1e-5)
    assert not figure.statement.is_guarantee
    assert shuffling_lower_bound(128, figure.noise_multiplier * (1 - 1e-4), 1.0) > 1e-5
    assert figure.noise_multiplier < 1 / gaussian_mu(1.0, 1e-5)
    with pytest.raises(InvalidArgument, match="identity"):
        calibrate_shuffling(square_root(256, 2), 128, 1.0, 1e-5)


# Balls-in-bins in the same shape.


def test_balls_in_bins_is_certified_with_a_certificates_failure() -> None:
    strategy = square_root(32, 4)
    figure = calibrate_balls_in_bins(strategy, 8, 2.0, 1e-5)
    assert figure.statement.standing is Standing.CERTIFIED
    assert 0 < figure.statement.failure_probability <= 1.5e-8 * (1 + 1e-6)
    assert figure.noise_multiplier < calibrate_unamplified(strategy, 8, 2.0, 1e-5).noise_multiplier
    quick = estimate_balls_in_bins(strategy, 8, 2.0, 1e-5)
    assert quick.statement.standing is Standing.ESTIMATE
    assert quick.noise_multiplier == pytest.approx(figure.noise_multiplier, rel=0.03)


# Cost.


@pytest.mark.parametrize(
    ("strategy", "memory", "operations", "draws"),
    [
        (identity(8), 0, 1, 1),
        (square_root(8, 4), 3, 4, 1),
        (Blt(8, [0.9, 0.5], [0.2, 0.2]), 2, 4, 1),
        (Scaled(Blt(8, [0.9, 0.5], [0.2, 0.2]), np.ones(8)), 2, 5, 1),
        (Dense(square_root(8).matrix()), 7, 8, 1),
        (Tree(8), 4, 9, 4),
    ],
)
def test_noise_cost(strategy: Strategy, memory: int, operations: int, draws: int) -> None:
    cost = noise_cost(strategy)
    assert (cost.memory, cost.operations, cost.draws) == (memory, operations, draws)


# The cache.


def test_the_cache_returns_what_was_stored_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "folder")
    assert cache.get({"a": 1}) is None
    cache.put({"a": 1}, {"value": 0.1})
    assert cache.get({"a": 1}) == {"value": 0.1}
    assert cache.get({"a": 2}) is None
    assert Cache(tmp_path).get({"a": 1}) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', '{"key": NaN}', None])
def test_damaged_entries_count_as_absent(tmp_path: Path, damage: str | None) -> None:
    cache = Cache(tmp_path)
    cache.put({"a": 1}, {"value": 1})
    (entry,) = tmp_path.iterdir()
    entry.write_text(entry.read_text().replace('"value":1', '"value":2') if damage is None else damage)
    assert cache.get({"a": 1}) is None
    cache.put({"a": 1}, {"value": 3})
    assert cache.get({"a": 1}) == {"value": 3}


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file")
    cache.put({"a": 1}, {"value": 1})
    assert cache.get({"a": 1}) is None


def test_no_entry_outlives_the_code_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.put({"a": 1}, {"value": 1})
    monkeypatch.setattr("galton.cache.source_digest", lambda *more: "other code")
    assert cache.get({"a": 1}) is None


def test_the_default_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    assert default_cache().folder == own_cache
    monkeypatch.delenv("GALTON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache().folder == Path("/somewhere/galton")


# Comparison.

QUICK = ("dpsgd-unamplified", "dpsgd-poisson", "dpsgd-shuffling", "bandmf-unamplified", "bandmf-cyclic-poisson")


@pytest.mark.usefixtures("simple_strategies")
def test_a_comparison_has_a_row_for_each_mechanism_and_epsilon_and_repeats_from_the_cache(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    found = compare(16, 4, (4.0, 1.0), 1e-5, QUICK, progress=lambda *one: told.append(one))
    assert found.epsilons == (1.0, 4.0)
    assert [(row.mechanism, row.epsilon) for row in found.rows] == [(n, e) for n in QUICK for e in (1.0, 4.0)]
    assert told[-1] == ("done", 10, 10)
    assert len(list(own_cache.iterdir())) == 10
    for row in found.rows:
        assert row_from_json(json.loads(json.dumps(row.to_json()))) == row
        banded = row.mechanism.startswith("bandmf")
        assert (row.bands is not None) == banded
        assert row.bands is None or row.memory == row.bands - 1
    with monkeypatch.context() as patch:
        patch.setattr("galton.cache.Cache.put", lambda *_: pytest.fail("computed again"))
        again = compare(16, 4, (1.0, 4.0), 1e-5, QUICK)
    assert again.rows == found.rows
    body = json.loads(json.dumps(found.to_json()))
    assert {row["relative_rmse"] for row in body["rows"] if row["mechanism"] == BASELINE} == {1.0}
    assert [row["statement"]["is_guarantee"] for row in body["rows"]].count(False) == 2


@pytest.mark.usefixtures("simple_strategies")
def test_the_chosen_bands_have_the_least_error() -> None:
    for name, accountant in (
        ("bandmf-unamplified", calibrate_unamplified),
        ("bandmf-cyclic-poisson", calibrate_poisson),
    ):
        setting = Setting(16, 4, 2.0, 1e-5)
        row = find_mechanism(name).row(setting)
        errors = {}
        for bands in (1, 2, 4, 8, 16):
            strategy = square_root(64, bands)
            errors[bands] = setting.error(strategy, accountant(strategy, 16, 2.0, 1e-5))
        assert row.bands == min(errors, key=lambda bands: errors[bands])
        assert row.rmse == pytest.approx(min(errors.values()), rel=1e-9)


@pytest.mark.usefixtures("simple_strategies")
def test_errors_are_of_the_workload_asked_for_and_cached_apart(own_cache: Path) -> None:
    names = ("dpsgd-unamplified",)
    noise = 1 / gaussian_mu(1.0, 1e-5)
    plain = compare(4, 2, (1.0,), 1e-5, names, baseline=names[0])
    same = compare(4, 2, (1.0,), 1e-5, names, baseline=names[0], workload=prefix_sums(8))
    assert len(list(own_cache.iterdir())) == 1
    assert plain.rows == same.rows
    assert plain.rows[0].rmse == pytest.approx(noise * math.sqrt(2) * math.sqrt(4.5), rel=1e-6)
    other = compare(4, 2, (1.0,), 1e-5, names, baseline=names[0], workload=momentum(8, 0.9))
    matrix = compare(4, 2, (1.0,), 1e-5, names, baseline=names[0], workload=MatrixWorkload(np.eye(8)))
    assert other.workload == "momentum:0.9"
    assert other.rows[0].rmse > plain.rows[0].rmse
    assert matrix.rows[0].rmse == pytest.approx(noise * math.sqrt(2), rel=1e-6)
    assert len(list(own_cache.iterdir())) == 3
    assert plain.relative(plain.rows[0]) == 1.0


def test_missing_packages_leave_rows_out_unless_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> Figure:
        raise peers.MissingPackage("needs the package dp-accounting")

    monkeypatch.setattr(poisson, "column_multiplier", absent)
    monkeypatch.setattr("galton.baselines.comparison.DEFAULT", ("dpsgd-unamplified", "dpsgd-poisson"))
    found = compare(4, 2, (1.0,), 1e-5)
    assert found.mechanisms == ("dpsgd-unamplified",)
    assert "dp-accounting" in found.skipped["dpsgd-poisson"]
    with pytest.raises(peers.MissingPackage):
        compare(4, 2, (1.0,), 1e-5, ("dpsgd-poisson",))


def test_a_comparison_refuses_what_makes_no_sense() -> None:
    every: tuple[Callable[[], object], ...] = (
        lambda: compare(4, 2, (), 1e-5),
        lambda: compare(4, 2, (1.0,), 1e-5, ()),
        lambda: compare(4, 2, (1.0,), 1e-5, ("sgd",)),
        lambda: compare(4, 2, (1.0,), 1e-5, baseline="sgd"),
        lambda: compare(4, 2, (-1.0,), 1e-5, ("dpsgd-unamplified",)),
        lambda: compare(4, 2, (1.0,), 2.0, ("dpsgd-unamplified",)),
        lambda: compare(0, 2, (1.0,), 1e-5, ("dpsgd-unamplified",)),
        lambda: compare(4, 2, (1.0,), 1e-5, ("dpsgd-unamplified",), workload=prefix_sums(9)),
    )
    for bad in every:
        with pytest.raises(InvalidArgument):
            bad()


@pytest.mark.usefixtures("simple_strategies")
def test_a_plot_is_written_and_names_what_is_no_guarantee(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = compare(16, 4, (1.0, 4.0), 1e-5, QUICK)
    path = plot_comparison(found, tmp_path / "plot.svg")
    assert "<svg" in path.read_text()
    assert plot_comparison(compare(16, 4, (1.0,), 1e-5, QUICK[:2]), tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.usefixtures("simple_strategies")
@pytest.mark.parametrize("name", ["bandmf-balls-in-bins", "tree-balls-in-bins", "bandmf-mmcc", "memf-balls-in-bins"])
def test_sampled_and_composed_rows_are_guarantees(name: str) -> None:
    row = find_mechanism(name).row(Setting(8, 2, 4.0, 1e-5))
    assert row.statement.is_guarantee
    assert row.statement == MECHANISMS[name].statement or row.statement.standing is Standing.CERTIFIED
    assert row.rmse > 0


@pytest.mark.slow
def test_optimised_rows_use_the_optimisers_own_calibration() -> None:
    row = find_mechanism("optimized-blt:4").row(Setting(8, 4, 2.0, 1e-5))
    bandmf = find_mechanism("bandmf-balls-in-bins").row(Setting(8, 4, 2.0, 1e-5))
    assert row.statement.standing is Standing.CERTIFIED
    assert row.memory == 4
    assert row.rmse < 1.1 * bandmf.rmse


def test_strategies_in_toeplitz_form_need_no_matrix_for_bands() -> None:
    assert bands_of(Toeplitz(100_000, [1.0, 0.5])) == 2
