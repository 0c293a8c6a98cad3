"""Mechanisms side by side: what they state, their cost, lower bounds for shuffling, and the table of all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from galton.accountants import ACCOUNTANTS, Figure, Setting, Standing, peers, poisson
from galton.comparison import (
    DEFAULT,
    MECHANISMS,
    Row,
    calibrate_shuffling,
    compare,
    find_mechanism,
    noise_cost,
    plot_comparison,
    shuffling_bracket,
    shuffling_lower_bound,
)
from galton.comparison import mechanism as mechanism_module
from galton.comparison.table import BASELINE
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_mu
from galton.guarantee import Adjacency, Guarantee
from galton.optimization.bands import best_bands
from galton.strategies import Blt, Dense, Scaled, Strategy, Tree, identity, square_root
from galton.workloads import MatrixWorkload, Workload, momentum, prefix_sums
from tests.truth import gaussian

CLAIM = Guarantee(1.0, 1e-5)


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
    monkeypatch.setattr("galton.comparison.registry.classical", classical)


# Statements.


def test_a_lower_bound_is_never_a_guarantee_and_says_so() -> None:
    statement = MECHANISMS["dpsgd-shuffling"].statement
    assert statement.standing is Standing.LOWER_BOUND
    assert not statement.is_guarantee
    assert "NOT a guarantee" in str(statement)
    assert not statement.to_json()["is_guarantee"]


def test_every_mechanism_states_adjacency_sampling_and_standing() -> None:
    for mechanism in MECHANISMS.values():
        assert mechanism.description
        assert isinstance(mechanism.statement.adjacency, Adjacency)
        assert mechanism.statement.sampling
    guaranteed = {name for name, mechanism in MECHANISMS.items() if mechanism.statement.is_guarantee}
    assert set(MECHANISMS) - guaranteed == {"dpsgd-shuffling"}
    assert BASELINE in DEFAULT


# The number of bands.


@pytest.mark.parametrize("start", [1, 4, 100, 1 << 20])
@pytest.mark.parametrize("best", [1, 8, 64])
def test_the_walk_over_bands_finds_the_valley(start: int, best: int) -> None:
    seen = []

    def error(bands: int) -> float:
        seen.append(bands)
        return abs(math.log2(bands) - math.log2(best))

    assert best_bands(error, 100, start) == best
    assert len(seen) == len(set(seen))


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
    assert 0.5 * truth < shuffling_lower_bound(2, sigma, epsilon) < truth


def test_the_shuffling_bracket_is_ordered_and_its_figure_is_no_guarantee() -> None:
    for bins in (2, 100, 10_000):
        lower, upper = shuffling_bracket(bins, 0.6, 1.0)
        assert 0 < lower < upper
    figure = calibrate_shuffling(identity(256), 128, CLAIM)
    assert not figure.statement.is_guarantee
    assert shuffling_lower_bound(128, figure.noise_multiplier * (1 - 1e-4), 1.0) > 1e-5
    assert figure.noise_multiplier < 1 / gaussian_mu(1.0, 1e-5)
    with pytest.raises(InvalidArgument, match="identity"):
        calibrate_shuffling(square_root(256, 2), 128, CLAIM)


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


# Comparison.

QUICK = ("dpsgd-unamplified", "dpsgd-poisson", "dpsgd-shuffling", "bandmf-unamplified", "bandmf-cyclic-poisson")


@pytest.mark.usefixtures("simple_strategies")
def test_what_is_left_if_batches_leak() -> None:
    """Nothing is lost without a secret; with Poisson coins an example may be in all 64 rounds, of its group in 16."""
    rows = {row.mechanism: row for row in compare(16, 4, (1.0,), 1e-5, QUICK).rows}
    known = {name: row.epsilon_if_known for name, row in rows.items()}
    assert known["dpsgd-unamplified"] == pytest.approx(1.0, rel=1e-6)
    assert known["bandmf-unamplified"] == pytest.approx(1.0, rel=1e-6)
    assert known["dpsgd-shuffling"] is None
    poisson = known["dpsgd-poisson"]
    assert poisson is not None
    rounds, epochs = 64, 4
    shift = math.sqrt(rounds / epochs) / rows["dpsgd-poisson"].noise_multiplier
    assert gaussian(poisson, shift) == pytest.approx(1e-5, rel=1e-4)
    cyclic = known["bandmf-cyclic-poisson"]
    assert cyclic is not None
    assert 1.0 < cyclic <= poisson * (1 + 1e-6)


@pytest.mark.usefixtures("simple_strategies")
def test_a_comparison_has_a_row_for_each_mechanism_and_epsilon_and_repeats_from_the_cache(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    table = compare(16, 4, (4.0, 1.0), 1e-5, QUICK, progress=lambda *news: told.append(news))
    assert table.epsilons == (1.0, 4.0)
    assert [(row.mechanism, row.epsilon) for row in table.rows] == [(n, e) for n in QUICK for e in (1.0, 4.0)]
    assert told[-1] == ("done", 10, 10)
    assert len(list(own_cache.iterdir())) == 10
    for row in table.rows:
        assert Row.from_json(json.loads(json.dumps(row.to_json()))) == row
        banded = row.mechanism.startswith("bandmf")
        assert (row.bands is not None) == banded
        assert row.bands is None or row.memory == row.bands - 1
    with monkeypatch.context() as patch:
        patch.setattr("galton.cache.Cache.put", lambda *_: pytest.fail("computed again"))
        again = compare(16, 4, (1.0, 4.0), 1e-5, QUICK)
    assert again.rows == table.rows
    body = json.loads(json.dumps(table.to_json()))
    assert {row["relative_rmse"] for row in body["rows"] if row["mechanism"] == BASELINE} == {1.0}
    assert [row["worth"]["is_guarantee"] for row in body["rows"]].count(False) == 2


@pytest.mark.usefixtures("simple_strategies")
def test_the_chosen_bands_have_the_least_error() -> None:
    for name in ("unamplified", "cyclic-poisson"):
        accountant, setting = ACCOUNTANTS[name], Setting(16, 4, Guarantee(2.0, 1e-5))
        row = find_mechanism(f"bandmf-{name}").row(setting)
        errors = {}
        for bands in (1, 2, 4, 8, 16):
            strategy = square_root(64, bands)
            errors[bands] = setting.error(strategy, accountant.calibrate(strategy, 16, setting.guarantee))
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
        raise peers.MissingPackage("needs the package PLD_accounting")

    monkeypatch.setattr(poisson, "column_multiplier", absent)
    monkeypatch.setattr("galton.comparison.table.DEFAULT", ("dpsgd-unamplified", "dpsgd-poisson"))
    table = compare(4, 2, (1.0,), 1e-5)
    assert table.mechanisms == ("dpsgd-unamplified",)
    assert "PLD_accounting" in table.skipped["dpsgd-poisson"]
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
    table = compare(16, 4, (1.0, 4.0), 1e-5, QUICK)
    path = plot_comparison(table, tmp_path / "plot.svg")
    assert "<svg" in path.read_text()
    assert plot_comparison(compare(16, 4, (1.0,), 1e-5, QUICK[:2]), tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.usefixtures("simple_strategies")
@pytest.mark.parametrize("name", ["bandmf-balls-in-bins", "tree-balls-in-bins", "bandmf-mmcc", "memf-balls-in-bins"])
def test_sampled_and_composed_rows_are_guarantees(name: str) -> None:
    row = find_mechanism(name).row(Setting(8, 2, Guarantee(4.0, 1e-5)))
    assert row.statement.is_guarantee
    assert row.statement == MECHANISMS[name].statement or row.statement.standing is Standing.CERTIFIED
    assert row.rmse > 0


@pytest.mark.slow
def test_optimised_rows_use_the_optimisers_own_calibration() -> None:
    row = find_mechanism("optimized-blt:4").row(Setting(8, 4, Guarantee(2.0, 1e-5)))
    bandmf = find_mechanism("bandmf-balls-in-bins").row(Setting(8, 4, Guarantee(2.0, 1e-5)))
    assert row.statement.standing is Standing.CERTIFIED
    assert row.memory == 4
    assert row.rmse < 1.1 * bandmf.rmse
