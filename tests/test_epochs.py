"""delta for C = I with redrawn bins without samples, against closed forms, PLD_accounting and samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton import Adjacency, Options, calibrate, certify, compose, delta, epsilon, identity, redrawn_pair
from galton.accounting.ledger import Ledger
from galton.convolution import Grid, TiltedSum
from galton.epochs import epochs_lower, epochs_upper
from galton.errors import InvalidArgument
from galton.guarantee import Direction
from galton.likelihoods import likelihood_lower, likelihood_upper
from galton.many_bins import pair_of_bins
from galton.redrawn import pattern_pair
from galton.sampling.toolkits import toolkit_for
from tests.marks import SLOW, slow_after
from tests.truth import gaussian

BOTH = [Direction.MIXTURE_FIRST, Direction.NOISE_FIRST]
ROWS = json.loads((Path(__file__).parent / "data" / "redrawn_allocation.json").read_text())["rows"]
CELLS = [row for row in ROWS if row["direction"] != "max"]


def bracket(modes: int, energy: float, epochs: int, direction: Direction, level: float) -> tuple[float, float]:
    """Both bounds."""
    arguments = (modes, energy, epochs, direction, level)
    return epochs_lower(*arguments), epochs_upper(*arguments)


@pytest.mark.parametrize("row", slow_after(6, CELLS))
def test_random_allocation_by_another_package(row: dict[str, Any]) -> None:
    direction = Direction.MIXTURE_FIRST if row["direction"] == "mixture_first" else Direction.NOISE_FIRST
    energy = row["noise_multiplier"] ** -2 / row["epochs"]
    lower, upper = bracket(row["bins"], energy, row["epochs"], direction, row["epsilon"])
    assert row["delta_lower"] <= upper
    assert lower <= row["delta_upper"]
    assert lower <= upper <= 1.04 * lower


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("mu", "epochs", "level"), [(0.5, 4, 2.0), (0.1, 16, 0.8), (1.0, 2, 3.0), (0.05, 100, 1.0)])
def test_one_mode_is_the_gaussian_mechanism(direction: Direction, mu: float, epochs: int, level: float) -> None:
    lower, upper = bracket(1, mu**2, epochs, direction, level)
    truth = gaussian(level, mu * math.sqrt(epochs))
    assert lower <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= upper
    assert upper - lower < 0.05 * truth


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("modes", "energy", "level"), slow_after(2, [(8, 0.5, 1.0), (32, 1.0, 1.0), (128, 2.0, 0.5)]))
def test_one_epoch_is_one_draw(direction: Direction, modes: int, energy: float, level: float) -> None:
    """The bounds of `likelihoods` count what exceeds one level, and share only the cells with these."""
    lower, upper = bracket(modes, energy, 1, direction, level)
    arguments = (modes, energy, direction, level)
    assert likelihood_lower(*arguments) <= upper
    assert lower <= likelihood_upper(*arguments)
    assert upper - lower < 0.03 * upper


@SLOW
@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("bins", "epochs", "multiplier", "level"), [(128, 16, 0.18, 3.0), (64, 4, 0.3, 2.0)])
def test_samples_agree_where_a_few_likelihoods_are_large(
    direction: Direction, bins: int, epochs: int, multiplier: float, level: float
) -> None:
    """Several grids are in use here; the samplers share nothing with them."""
    pair = pattern_pair(identity(bins * epochs), bins, multiplier)
    adjacency = Adjacency.REMOVE if direction is Direction.MIXTURE_FIRST else Adjacency.ADD
    sampled = delta(pair, level, adjacency, options=Options(sampler="plain", seed=3, samples=1 << 15, rel_width=0.05))
    assert sampled.samples > 0
    lower, upper = bracket(bins, multiplier**-2 / epochs, epochs, direction, level)
    assert lower <= sampled.upper
    assert sampled.lower <= upper


def test_composed_single_epochs_are_no_better() -> None:
    """Losses from 65 limits on delta of an epoch, added up: another bound from above, less sharp."""
    single = pair_of_bins(identity(16), 16).at(1.4)
    composed = compose([single] * 4, epsilon=1.0)
    assert composed.samples == 0
    lower = max(epochs_lower(16, 1.4**-2, 4, direction, 1.0) for direction in BOTH)
    upper = max(epochs_upper(16, 1.4**-2, 4, direction, 1.0) for direction in BOTH)
    assert lower <= composed.delta
    assert upper <= composed.delta * 1.001


@pytest.mark.parametrize("direction", BOTH)
def test_bounds_fall_with_noise_and_epsilon(direction: Direction) -> None:
    energies = [0.01, 0.1, 0.5, 2.0, 6.0]
    bounds = np.array([[epochs_upper(32, energy, 8, direction, level) for level in (0.5, 1, 4)] for energy in energies])
    assert (np.diff(bounds, axis=0) > -1e-7).all()
    assert (np.diff(bounds, axis=1) < 1e-7).all()


def test_replace_has_no_such_bound() -> None:
    for bound in (epochs_upper, epochs_lower):
        with pytest.raises(InvalidArgument, match="mixture-first or noise-first"):
            bound(4, 1.0, 2, Direction.REPLACE, 1.0)


@pytest.mark.parametrize("energy", [1e-9, 1e9])
def test_what_is_out_of_reach_is_said(energy: float) -> None:
    assert bracket(4, energy, 4, Direction.MIXTURE_FIRST, 1.0) == (0.0, 1.0)


def test_law_of_a_sum_of_coins() -> None:
    """Binomial(20, 0.3) and one step of 0 or 5 more, whose probabilities are known."""
    law, error = TiltedSum([(Grid(0.5, 0, np.array([0.7, 0.3])), 20), (Grid(0.5, 0, np.eye(11)[0] / 2), 1)]).law()
    chances = [math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) / 2 for k in range(21)]
    by_sum = dict(zip(np.round(law.points * 2).astype(int).tolist(), law.masses.tolist(), strict=True))
    wrong = math.fsum(abs(by_sum.pop(k, 0.0) - chance) for k, chance in enumerate(chances)) + math.fsum(by_sum.values())
    assert wrong <= error < 1e-10


# What the accountant makes of it.


def test_questions_about_redrawn_independent_noise_need_no_sample(tmp_path: Path) -> None:
    pair = redrawn_pair(identity(128), 16)
    calibration = calibrate(pair, 2.0, 1e-4, options=Options(seed=1))
    assert calibration.check.samples == 0
    assert calibration.check.upper == pytest.approx(1e-4 / 1.05, rel=1e-3)
    at = pair.at(calibration.noise_multiplier)
    certificate = certify(at, 2.0, 1e-4, options=Options(seed=1), ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    assert certificate.samples == 0
    there = delta(at, 2.0, options=Options(seed=1))
    assert there.samples == 0
    assert there.upper - there.lower <= 0.02 * there.delta
    back = epsilon(at, there.delta, options=Options(seed=1))
    assert back.samples == 0
    assert back.lower <= 2.0 <= back.upper <= 1.02 * back.lower
    composed = compose([at], delta=1e-4)
    assert composed.samples == 0
    assert composed.epsilon == pytest.approx(2.0, rel=0.01)


def test_noise_that_is_too_little_is_not_certified(tmp_path: Path) -> None:
    pair = redrawn_pair(identity(64), 16, 0.3)
    options = Options(seed=1, samples=1 << 12)
    assert not certify(pair, 2.0, 1e-5, options=options, ledger=Ledger(tmp_path / "attempts.json")).accepted


def test_what_is_not_independent_or_not_whole_is_sampled() -> None:
    for pair in (pattern_pair(identity(20), 8), pattern_pair(identity(8), 8)):
        known = toolkit_for(pair).computable(pair, Direction.MIXTURE_FIRST)
        assert known == (pair.rounds % 8 == 0)


def test_tiny_deltas_are_sampled() -> None:
    """Below what rounding of the FFT lets through, samples say more."""
    tiny = delta(redrawn_pair(identity(64), 16, 1.0), 2.5, options=Options(seed=1, samples=1 << 12))
    assert tiny.samples > 0
    assert tiny.upper < 1e-9
