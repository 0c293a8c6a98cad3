"""The benchmark beside other packages: what its tables say of the rows, without running any package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import peer_tables, peers
from benchmarks.workers.offers import MECHANISMS, refusal
from galton import gaussian_epsilon, square_root


def row(peer: str, cell: str, **answer: Any) -> dict[str, Any]:
    return {"peer": peer, "cell": cell, "budget": 60, "load": 1.0, "answer": answer}


@pytest.mark.parametrize("peer", peers.PEERS)
def test_every_package_has_a_file_and_a_label(peer: str) -> None:
    assert (Path(peers.__file__).parent / "workers" / f"{peer}.py").exists()
    assert peer in peer_tables.LABELS
    assert peer == "galton" or peer in MECHANISMS


def test_others_wait_for_the_noise_of_galton() -> None:
    names = [name for name, cell in peers.accounting([]) if cell.get("only") != "galton"]
    assert not names
    answer = row("galton", "calibrate, bins, 8 bands", sigma=12.3456, cpu_seconds=1.0)
    waiting = {name: cell for name, cell in peers.accounting([answer]) if cell.get("only") != "galton"}
    assert list(waiting) == [
        "calibrate, bins, 8 bands",
        "epsilon, bins, 8 bands, 1e-05",
        "epsilon, bins, 8 bands, 1e-10",
    ]
    assert waiting["epsilon, bins, 8 bands, 1e-05"]["sigma"] == 12.35


def test_the_check_is_the_gaussian_mechanism() -> None:
    ((_, cell),) = peers.checks()
    assert cell["expected"] == gaussian_epsilon(cell["delta"], cell["sensitivity"] / cell["sigma"])
    assert cell["sensitivity"] == pytest.approx(square_root(64, 8).sensitivity(1), rel=1e-12)


def test_what_is_not_offered_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.run", refused)
    cell = {"task": "epsilon", "batches": "bins", "coefficients": [1.0, 0.5]}
    assert peers.run("opacus", cell, 1.0) == {"answer": {"not_offered": "no bins, no correlated noise"}}
    for asked in (cell | {"batches": "Poisson", "coefficients": [1.0]}, {"task": "check"}):
        with pytest.raises(AssertionError, match="started"):
            peers.run("opacus", asked, 1.0)


@pytest.mark.parametrize(
    ("peer", "offered"),
    [
        ("opake", {"bins", "bins, correlated", "redrawn bins", "min-separation, correlated", "Poisson"}),
        ("jax_privacy", {"bins", "bins, correlated", "min-separation, correlated", "Poisson"}),
        ("dp_accounting", {"Poisson"}),
        ("pld_accounting", {"bins", "redrawn bins", "Poisson"}),
        ("opacus", {"Poisson"}),
    ],
)
def test_packages_are_asked_for_what_the_table_of_the_readme_says(peer: str, offered: set[str]) -> None:
    asked = set()
    for batches, name in peers.CASES:
        cell = {"task": "epsilon", "batches": batches, "coefficients": peers.COLUMNS[name]}
        if refusal(peer, cell) is None:
            asked.add(batches + ("" if name == "identity" else ", correlated"))
    assert asked == offered
    assert set(MECHANISMS[peer]) <= set(peers.MECHANISMS)


def test_errors_of_others_come_from_their_noise_by_one_formula() -> None:
    cell = {"task": "error", "rounds": 16}
    column = square_root(16, 4).coefficients.tolist()
    assert peers.with_error(cell, {"sigma": 2.0, "coefficients": column})["rmse"] == 2 * square_root(16, 4).rmse()
    assert peers.with_error(cell, {"rmse": 1.0}) == {"rmse": 1.0}


def test_tables_tell_figures_from_what_is_not_there() -> None:
    rows = [
        row("galton", "epsilon, bins, 8 bands, 1e-10", epsilon=1.2344, cpu_seconds=3.21),
        row("opake", "epsilon, bins, 8 bands, 1e-10", more_than=60),
        row("jax_privacy", "epsilon, bins, 8 bands, 1e-10", extrapolated_cpu_seconds=4e8, cpu_seconds=5.0),
        row("dp_accounting", "epsilon, bins, 8 bands, 1e-10", not_offered="no bins"),
        row("opacus", "epsilon, bins, 8 bands, 1e-10", failed="ImportError"),
    ]
    shown = peer_tables.crossed(rows, "epsilon", list(peers.PEERS), peer_tables.figure("epsilon"), "case")
    line = shown.splitlines()[2]
    assert line == "| bins, 8 bands, 1e-10 | 1.234, 3.2 s | more than 60 s | 13 years* | - | not run | failed |"


def test_of_several_numbers_of_bands_the_best_is_shown_with_the_time_of_all() -> None:
    rows = [
        row("opake", f"error, BandMF, cyclic Poisson, {bands} bands", rmse=rmse, cpu_seconds=2.0)
        for bands, rmse in ((1, 44.8), (2, 44.1), (4, 45.0))
    ]
    (best,) = peer_tables.best_bands(rows)
    assert best["cell"] == "error, BandMF, cyclic Poisson"
    assert (best["answer"]["rmse"], best["answer"]["cpu_seconds"]) == (44.1, 6.0)
