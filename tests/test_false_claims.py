"""Claims that are too low, where delta is known by quadrature: a small part of benchmarks/false_claims.py."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import false_claims
from benchmarks.false_claims import FAILURE, LEVELS, TRUE_LEVEL, Setting, accepted, covered
from galton.accounting import Ledger, Options, certify, delta
from galton.accounting.certificate import samples_to_certify
from galton.guarantee import Adjacency, Direction, Guarantee
from tests.marks import slow_after
from tests.truth import brute_force, by_quadrature, gaussian

SETTINGS = {setting.name: setting for setting in false_claims.settings()}
BOTH = Setting("bins", 0.5, Adjacency.ADD_OR_REMOVE, "tilted")


def most(trials: int) -> float:
    """What 5% of so many trials exceed by chance once in 30,000 times."""
    return FAILURE * trials + 4 * math.sqrt(FAILURE * trials)


@pytest.mark.parametrize("direction", Direction)
def test_the_truth_by_quadrature(direction: Direction) -> None:
    """Modes that are all the same are the Gaussian mechanism; others agree with samples of the mechanism itself."""
    shift = 2.0 if direction is Direction.REPLACE else 1.0
    same = np.array([[0.6, 0.8, 0.0], [0.6, 0.8, 0.0]])
    near = same + np.array([[1e-6, 0.0, 0.0], [0.0, 0.0, 1e-6]])  # two of them span a plane
    assert by_quadrature(near, 0.7, direction) == pytest.approx(gaussian(0.7, shift), rel=1e-5)
    matrix, sigma = false_claims.MATRIX, 2.0
    modes = np.stack([matrix[:, start::2].sum(axis=1) for start in range(2)]) / sigma
    estimate, error = brute_force(matrix, 2, sigma, 0.5, direction, 400_000, seed=1)
    assert abs(by_quadrature(modes, 0.5, direction) - estimate) < 5 * error


@pytest.mark.parametrize("name", slow_after(1, SETTINGS))
def test_false_claims_are_rejected_and_true_ones_accepted(name: str, tmp_path: Path) -> None:
    setting, trials = SETTINGS[name], 10
    for level in LEVELS:
        assert accepted(setting, level, trials, 20_000, Ledger(tmp_path / f"{level}.json")) <= most(trials)
    assert accepted(setting, TRUE_LEVEL, trials, 20_000, Ledger(tmp_path / "true.json")) >= trials - 2


@pytest.mark.parametrize("name", slow_after(1, SETTINGS))
def test_intervals_cover_and_are_no_wider_than_twice_the_normal_one(name: str) -> None:
    row = covered(SETTINGS[name], 20, 0.05, 60_000)
    assert row["upper_too_low"] <= most(20)
    assert row["lower_too_high"] <= most(20)
    # Samples with next to no variance stop at their first chunk, with an interval that is far narrower than asked for.
    assert row["width_to_normal"] < 2.5 or row["width"] < 0.02


def test_every_direction_is_tested_with_the_whole_failure_probability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false claim must pass the direction in which it is false: no union over directions (math.md, section 2.3)."""
    monkeypatch.setattr("galton.accounting.certificate.direction_upper_bound", lambda *_: 1.0)  # so that both sample
    claim = Guarantee(0.5, 1.2 * BOTH.truth)
    certificate = certify(
        BOTH.pair,
        claim,
        options=BOTH.options(1),
        tau=1.1,
        failure=1e-3,
        ledger=Ledger(tmp_path / "ledger"),
    )
    assert len(certificate.by_direction) == 2
    for verdict in certificate.by_direction:
        share = claim.delta - verdict.lost * verdict.range
        assert verdict.budget == samples_to_certify(share, 1.1, 1e-3, "kl", verdict.range)


def test_limits_on_the_largest_delta_need_no_union_over_directions() -> None:
    """The upper limit is the largest of limits that each fail with probability 0.05; so is the lower, of the first."""
    options = Options(sampler="tilted", bound="kl", seed=3, samples=20_000, confidence=0.9)
    both = delta(BOTH.pair, 0.5, Adjacency.ADD_OR_REMOVE, options=options)
    alone = [delta(BOTH.pair, 0.5, adjacency, options=options) for adjacency in (Adjacency.REMOVE, Adjacency.ADD)]
    assert both.upper == max(part.upper for part in alone)
    assert both.lower == alone[0].lower
