"""delta for C = I with redrawn bins without samples, against closed forms, PLD_accounting and samples."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from galton import Adjacency, Options, calibrate, certify, compose, delta, epsilon, identity, redrawn_pair
from galton.accounting.ledger import Ledger
from galton.convolution import LOST, Grid, GridTooLarge, TiltedSum
from galton.epochs import _Epoch, _rounded_down, epochs_lower, epochs_upper
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Direction
from galton.likelihoods import likelihood_lower, likelihood_upper
from galton.loss_grids import Atoms
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


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("energy", [1e-9, 300.0, 400.0, 1e9])
def test_what_is_out_of_reach_is_said(energy: float, direction: Direction) -> None:
    assert bracket(4, energy, 4, direction, 1.0) == (0.0, 1.0)


def test_an_epsilon_beyond_all_numbers_has_bounds() -> None:
    for direction in BOTH:
        lower, upper = bracket(4, 1.0, 3, direction, 1e4)
        assert lower == 0.0
        assert upper < 1e-9


def test_likelihoods_that_all_round_to_0_say_nothing() -> None:
    """Noise-first at little noise nearly all of every likelihood is below the first point of its grid."""
    lower, upper = bracket(2, 200.0, 2, Direction.NOISE_FIRST, 1.0)
    assert lower == 0.0
    assert upper > 0.999


def _payoffs(mu: float, strikes: FloatArray, rising: bool) -> FloatArray:
    """E(X - k)_+ or E(k - X)_+ for a log-normal X of mean 1, in closed form."""
    logs = np.log(np.maximum(strikes, 1e-300)) / mu
    upper, lower = ndtr(-logs + mu / 2), ndtr(-logs - mu / 2)
    if rising:
        return np.where(strikes > 0, upper - strikes * lower, 1 - strikes)
    return np.where(strikes > 0, strikes * (1 - lower) - (1 - upper), 0.0)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("mu", "level"), [(0.05, 0.0), (0.2, 1.0), (0.5, 2.0), (0.7, 0.5)])
def test_two_bins_in_two_epochs_by_integration(direction: Direction, mu: float, level: float) -> None:
    """Three normals by the trapezoidal rule, whose error is 1e-6 here, and the last one in closed form."""
    rising = direction is Direction.MIXTURE_FIRST
    normals = np.linspace(-9, 9 + mu, 91)
    chances = np.exp(-np.square(normals) / 2) / math.sqrt(2 * math.pi) * (normals[1] - normals[0])
    likelihoods = np.exp(mu * normals - mu**2 / 2)
    sums = np.add.outer(likelihoods, likelihoods)[:, :, None] / 2
    strikes = 2 * (math.exp(level) if rising else math.exp(-level)) / sums - likelihoods
    values = sums / 2 * _payoffs(mu, strikes, rising) * (1.0 if rising else math.exp(level))
    truth = float(np.einsum("i,j,k,ijk->", chances, chances, chances, values))
    lower, upper = bracket(2, mu**2, 2, direction, level)
    assert lower <= truth * (1 + 1e-5)
    assert truth * (1 - 1e-5) <= upper
    assert upper - lower < 0.02 * truth


@pytest.mark.parametrize("direction", slow_after(1, BOTH))
def test_many_epochs_are_nearly_gaussian(direction: Direction) -> None:
    """The loss of an epoch is so small that the sum of 10,000 is normal, up to its first cumulants' remainder."""
    epochs, modes, energy, level = 10_000, 4, 1e-4, 1.0
    truth = gaussian(level, math.sqrt(epochs * math.log1p(math.expm1(energy) / modes)))
    lower, upper = bracket(modes, energy, epochs, direction, level)
    assert lower <= truth * 1.001
    assert truth * 0.999 <= upper
    assert upper <= 1.002 * truth
    assert lower >= 0.8 * truth


def test_a_grid_of_losses_that_is_too_large_is_not_made() -> None:
    epoch = _Epoch(np.array([-10.0, 10.0]), np.array([0.5, 0.5]), 0.0, 0.0, 1.0)
    with pytest.raises(GridTooLarge):
        _rounded_down(epoch, 2.0**-40)


def test_errors_of_the_other_epochs_count_too() -> None:
    """Every epoch may have a mass of 1.5 where its computed one is 1: delta of three may be 1.5^3 instead of 1."""
    assert _Epoch(np.zeros(1), np.ones(1), 0.5, 0.0, 1.0).wrong(3) >= 1.5**3 - 1
    assert _Epoch(np.zeros(1), np.ones(1), 1e-12, 0.0, 1.0).wrong(1000) < 1.001e-9


def test_atoms_in_any_order_are_the_same_loss() -> None:
    points, masses = np.array([0.3, -2.0, 0.3, 1.7]), np.array([0.2, 0.3, 0.1, 0.4])
    order = np.argsort(points)
    some, same = Atoms(points, masses, 0.0).on_grid(0.25), Atoms(points[order], masses[order], 0.0).on_grid(0.25)
    assert some.first == same.first
    np.testing.assert_allclose(some.masses, same.masses, rtol=1e-15)


def test_law_of_a_sum_of_coins() -> None:
    """Binomial(20, 0.3) and one step of 0 or 5 more, whose probabilities are known."""
    law, error = TiltedSum([(Grid(0.5, 0, np.array([0.7, 0.3])), 20), (Grid(0.5, 0, np.eye(11)[0] / 2), 1)]).law()
    chances = [math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) / 2 for k in range(21)]
    by_sum = dict(zip(np.round(law.points * 2).astype(int).tolist(), law.masses.tolist(), strict=True))
    wrong = math.fsum(abs(by_sum.pop(k, 0.0) - chance) for k, chance in enumerate(chances)) + math.fsum(by_sum.values())
    assert wrong <= error < 1e-10


def _exact(parts: list[tuple[Grid, int]]) -> tuple[int, list[Fraction]]:
    """The first place and the masses of a sum, in fractions."""
    total, first = [Fraction(1)], 0
    for term, times in parts:
        first += times * term.first
        each = [Fraction(float(mass)) for mass in term.masses]
        for _ in range(times):
            longer = [Fraction(0)] * (len(total) + len(each) - 1)
            for i, before in enumerate(total):
                for j, mass in enumerate(each):
                    longer[i + j] += before * mass
            total = longer
    return first, total


@pytest.mark.parametrize("seed", range(24))
def test_sums_on_a_grid_by_fractions(seed: int) -> None:
    """Masses from 1 down to where they underflow; whatever rounding does is within the stated error."""
    draw = random.Random(seed)
    deep = draw.choice([1, 30, 290])
    parts = []
    for _ in range(draw.randint(1, 3)):
        masses = np.array([draw.choice([draw.random(), 10 ** -draw.uniform(0, deep), 0.0]) for _ in range(4)])
        if draw.random() < 0.7:
            masses[draw.randrange(4)] += 1
        parts.append((Grid(0.25, draw.randint(-5, 5), masses / max(1.0, masses.sum())), draw.choice([1, 3, 8])))
    parts = [(term, times) for term, times in parts if term.masses.any()] or [(Grid(0.25, 0, np.full(2, 1e-300)), 8)]
    first, exact = _exact(parts)
    total = TiltedSum(parts)
    law, error = total.law()
    by_place = dict(zip(range(law.first, law.first + law.masses.size), law.masses.tolist(), strict=True))
    wrong = sum(abs(Fraction(by_place.pop(first + k, 0.0)) - mass) for k, mass in enumerate(exact))
    assert wrong + sum(map(Fraction, by_place.values())) <= error
    for level in (draw.uniform(first - 2, first + len(exact)) / 4 for _ in range(4)):
        above = [(float(mass), (first + k) / 4 - level) for k, mass in enumerate(exact) if (first + k) / 4 > level]
        truth = math.fsum(mass * -math.expm1(-gap) for mass, gap in above)
        lower, upper = total.bracket(level, lambda gaps: -np.expm1(-gaps), most=1.0)
        assert lower <= truth * (1 + 1e-14)
        assert truth * (1 - 1e-14) <= upper + LOST


def test_masses_that_underflow_are_in_the_error() -> None:
    _, error = TiltedSum([(Grid(0.25, 0, np.full(2, 1e-300)), 8)]).law()
    assert error > 0


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
