"""Conditional composition: its two halves against exact enumeration, and its bound against the truth by sampling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer
from scipy.special import logsumexp, ndtr

from galton.accountants import ACCOUNTANTS, mmcc_delta, subsampled_delta
from galton.accountants.mixtures import Shift, row_losses, sums_of_bernoullis
from galton.accountants.posterior import RowGroup, chances, past
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.loss_grids import Composition
from galton.strategies import Blt, Dense, Scaled, Strategy, Toeplitz, Tree, identity, square_root
from tests.marks import slow_after
from tests.truth import gaussian

MIXTURE, NOISE = Direction.MIXTURE_FIRST, Direction.NOISE_FIRST


def patterns(rounds: int, chance: float) -> tuple[FloatArray, FloatArray]:
    """All participations, and their probabilities."""
    every = np.array(list(itertools.product((0.0, 1.0), repeat=rounds)))
    used = every.sum(axis=1)
    return every, chance**used * (1 - chance) ** (rounds - used)


def poisson_truth(
    matrix: FloatArray, chance: float, sigma: float, epsilon: float, direction: Direction, samples: int, seed: int
) -> tuple[float, float]:
    """delta of the Poisson-sampled matrix mechanism's own pair, and its standard error, by plain sampling."""
    random = np.random.default_rng(seed)
    every, weights = patterns(matrix.shape[1], chance)
    means = every @ matrix.T
    point = sigma * random.standard_normal((samples, matrix.shape[0]))
    if direction is MIXTURE:
        point += means[random.choice(len(every), size=samples, p=weights)]
    exponents = (point @ means.T - np.square(means).sum(axis=1) / 2) / sigma**2
    loss = logsumexp(exponents, axis=1, b=weights)
    values = -np.expm1(np.minimum(epsilon - (loss if direction is MIXTURE else -loss), 0.0))
    return float(values.mean()), float(values.std() / math.sqrt(samples))


# Mixtures.


def alone(shift: Shift, direction: Direction, interval: float, epsilon: float) -> float:
    """delta of a single row."""
    return Composition([(row_losses(shift, direction, interval), 1)]).delta(epsilon)


@pytest.mark.parametrize("direction", [MIXTURE, NOISE])
def test_a_row_is_that_of_dp_accounting(direction: Direction) -> None:
    points, masses = np.array([0.0, 0.4, 1.2]), np.array([0.85, 0.1, 0.05])
    composed = Composition([(row_losses(Shift(points, masses), direction, 5e-3), 30)])
    reference = peer.from_mixture_gaussian_mechanism(1.0, points, masses, value_discretization_interval=5e-3)
    theirs = (reference._pmf_remove if direction is MIXTURE else reference._pmf_add).self_compose(30)
    for epsilon in (0.1, 0.5, 1.0):
        assert composed.delta(epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-3)


def test_a_certain_shift_is_the_gaussian_mechanism() -> None:
    shift = Shift(np.array([0.0, 0.7]), np.array([0.0, 1.0]))
    for direction in (MIXTURE, NOISE):
        for epsilon in (0.2, 1.0):
            delta = alone(shift, direction, 1e-3, epsilon)
            assert gaussian(epsilon, 0.7) <= delta <= gaussian(epsilon, 0.7) * 1.001


def test_mass_at_infinity_counts_in_full() -> None:
    shift = Shift(np.array([0.0, 0.1]), np.array([0.9, 0.09]), missing=0.01)
    assert alone(shift, MIXTURE, 1e-2, 5.0) >= 0.01
    assert alone(shift, NOISE, 1e-2, 5.0) < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_rounded_up_and_not_by_much(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, chance = random.uniform(0, 1, 10), random.uniform(0.01, 0.5, 10)
    every = np.array(list(itertools.product((0.0, 1.0), repeat=10)))
    weights = np.prod(np.where(every == 1, chance, 1 - chance), axis=1)
    (full,) = sums_of_bernoullis(values, chance, [10])
    sums = every @ values
    for level in np.linspace(0.01, values.sum(), 60):
        exact = float(weights[sums >= level].sum())
        bound = float(full.masses[full.points >= level - 1e-12].sum()) + full.missing
        assert bound >= exact * (1 - 1e-12)
    assert full.points @ full.masses <= 1.05 * float(values @ chance)
    assert full.masses[0] == pytest.approx(float(weights[0]), rel=1e-12)
    first, second = sums_of_bernoullis(values, chance, [1, 10])
    assert first.masses[0] == pytest.approx(1 - chance[0], rel=1e-12)
    assert second.masses == pytest.approx(full.masses)


def test_larger_shifts_are_less_private() -> None:
    for direction in (MIXTURE, NOISE):
        deltas = [
            Composition(
                [(row_losses(Shift(np.array([0.0, point]), np.array([1 - mass, mass])), direction, 1e-3), 10)]
            ).delta(0.5)
            for point, mass in ((0.5, 0.1), (0.6, 0.1), (0.6, 0.2))
        ]
        assert deltas == sorted(deltas)


# Posterior.


def inflated(strategy: Strategy, chance: float, sigma: float, failure: float) -> FloatArray:
    """The inflated chances as a matrix: entry [i, j] is for row i and round j, 0 where C is 0."""
    matrix = strategy.matrix()
    result = np.zeros_like(matrix)
    for group in past(strategy).groups:
        raised = chances(group, chance, sigma, failure)
        for lags, _ in group.stops:
            for row in range(matrix.shape[0]):
                if row + 1 >= lags:
                    used = np.arange(row, row - lags, -1)
                    result[row, used] = np.maximum(result[row, used], raised[:lags])
    return result


@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("strategy", [square_root(6), square_root(6, 3), Toeplitz(6, [1.0, 0.2, 0.9])])
def test_chances_given_the_past_exceed_the_inflated_ones_as_rarely_as_stated(strategy: Strategy, sigma: float) -> None:
    """The conditional chance of every participation, given earlier rows and earlier participations, by enumeration."""
    chance, failure, samples = 0.2, 0.01, 4000
    matrix = strategy.matrix()
    rounds = matrix.shape[1]
    bounds = inflated(strategy, chance, sigma, failure)
    every, weights = patterns(rounds, chance)
    means = every @ matrix.T
    random = np.random.default_rng(7)
    used = random.choice(len(every), size=samples, p=weights)
    outputs = means[used] + sigma * random.standard_normal((samples, matrix.shape[0]))
    for row in range(1, matrix.shape[0]):
        exponents = (outputs[:, :row] @ means[:, :row].T - np.square(means[:, :row]).sum(axis=1) / 2) / sigma**2
        joint = weights * np.exp(exponents - exponents.max(axis=1, keepdims=True))
        for column in range(row + 1):
            if matrix[row, column] == 0:
                continue
            worst = np.zeros(samples)
            for earlier in itertools.product((0.0, 1.0), repeat=column):
                given = (every[:, :column] == earlier).all(axis=1)
                total = joint[:, given].sum(axis=1)
                hit = joint[:, given & (every[:, column] == 1)].sum(axis=1)
                worst = np.maximum(worst, hit / np.maximum(total, 1e-300))
            rate = float((worst > bounds[row, column] * (1 + 1e-9)).mean())
            assert rate <= failure + 4 * math.sqrt(failure / samples)


def test_without_a_past_chances_are_not_inflated() -> None:
    group = past(identity(5)).groups[0]
    assert chances(group, 0.1, 1.0, 1e-9) == pytest.approx([0.1])
    assert past(identity(5)).pairs == 0


@pytest.mark.parametrize(
    "strategy", slow_after(1, [square_root(24, 5), square_root(24), Blt(24, [0.9, 0.4], [0.2, 0.3])])
)
def test_the_short_way_for_toeplitz_agrees_with_the_general_one(strategy: Strategy) -> None:
    dense = Dense(strategy.matrix())
    assert past(strategy).pairs >= past(dense).pairs
    for epsilon in (0.5, 2.0):
        short, long = (mmcc_delta(form, 8, 1.0, epsilon, tail=1e-9) for form in (strategy, dense))
        assert short == pytest.approx(long, rel=0.35)


def test_every_row_is_accounted_for_once() -> None:
    for strategy in (square_root(50), square_root(50, 7), identity(50), Tree(50), Dense(square_root(50).matrix())):
        assert sum(rows for group in past(strategy).groups for _, rows in group.stops) == strategy.rows


def test_negative_entries_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="negative"):
        mmcc_delta(Toeplitz(8, [1.0, -0.5], allow_negative=True), 4, 1.0, 1.0)


# The bound.


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_with_independent_noise_it_is_poisson_accounting(epsilon: float) -> None:
    bins, rounds, multiplier = 16, 64, 0.8
    exact = subsampled_delta(multiplier * 2.0, 1 / bins, rounds, epsilon)  # four epochs: sensitivity 2
    assert mmcc_delta(identity(rounds), bins, multiplier, epsilon) == pytest.approx(exact, rel=1e-2)


def test_calibration_with_independent_noise_is_that_of_poisson() -> None:
    ours, theirs = (
        ACCOUNTANTS[name].calibrate(identity(128), 32, Guarantee(1.0, 1e-5)) for name in ("mmcc", "poisson")
    )
    assert ours.noise_multiplier == pytest.approx(theirs.noise_multiplier, rel=4e-3)
    assert mmcc_delta(identity(128), 32, ours.noise_multiplier, 1.0) <= 1e-5


def random_dense(seed: int) -> Dense:
    entries = np.tril(np.random.default_rng(seed).uniform(0, 1, (6, 6)))
    entries[np.diag_indices(6)] += 0.5
    return Dense(entries)


SMALL: list[Strategy] = [
    square_root(6),
    square_root(6, 2),
    Toeplitz(6, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    Scaled(square_root(6, 3), [2.0, 1.5, 1.0, 1.0, 0.7, 0.5]),
    random_dense(0),
    random_dense(1),
    Tree(6),
]


@pytest.mark.parametrize("direction", [MIXTURE, NOISE])
@pytest.mark.parametrize("strategy", slow_after(1, SMALL), ids=lambda strategy: f"{strategy.kind}")
def test_it_never_beats_the_truth(strategy: Strategy, direction: Direction) -> None:
    """The truth by sampling the run's own dominating pair, all 64 participations enumerated; 4.5 sigma from below."""
    adjacency = Adjacency.REMOVE if direction is MIXTURE else Adjacency.ADD
    for bins, multiplier, epsilon in ((2, 1.0, 0.5), (2, 0.5, 1.0), (6, 0.6, 0.3), (6, 0.35, 1.5)):
        sigma = multiplier * strategy.sensitivity(bins)
        truth, error = poisson_truth(strategy.matrix(), 1 / bins, sigma, epsilon, direction, 50_000, seed=3)
        tail = 1e-6 if bins == 2 else 1e-3
        assert mmcc_delta(strategy, bins, multiplier, epsilon, tail, adjacency) >= truth - 4.5 * error


def test_it_is_useful_where_noise_is_large() -> None:
    """Few bands and a small epsilon: amplification shows, and less than cyclic Poisson sampling gives."""
    strategy = square_root(256, 4)
    figure, cyclic, unamplified = (
        ACCOUNTANTS[name].calibrate(strategy, 32, Guarantee(0.5, 1e-5))
        for name in ("mmcc", "cyclic-poisson", "unamplified")
    )
    assert cyclic.noise_multiplier < figure.noise_multiplier < 0.6 * unamplified.noise_multiplier


@pytest.mark.slow
def test_more_noise_is_more_private() -> None:
    deltas = [mmcc_delta(square_root(32), 8, multiplier, 1.0) for multiplier in (0.5, 1.0, 2.0, 4.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert mmcc_delta(square_root(32), 8, 0.02, 1.0) == pytest.approx(1.0)


def test_chances_grow_with_what_the_past_tells() -> None:
    def of(own: float, first: float) -> float:
        own_norms = np.array([0.0, own])
        other = np.array([0.0, first])
        group = RowGroup(((2, 1),), np.ones(2), own_norms, own_norms, other, other**2, other)
        return float(chances(group, 0.1, 1.0, 1e-6)[1])

    assert 0.1 < of(0.1, 0.0) < of(0.3, 0.0) < of(0.3, 0.2) < 1


def test_half_lines_are_the_best_tests() -> None:
    """A mixture's divergence by its definition, on a grid, is what the row's nodes say."""
    points, masses = np.array([0.0, 0.5, 1.5]), np.array([0.7, 0.2, 0.1])
    cuts = np.linspace(-8, 10, 40_001)
    above = ndtr(points - cuts[:, None]) @ masses
    for epsilon in (0.1, 0.7):
        exact = float((above - math.exp(epsilon) * ndtr(-cuts)).max())
        delta = alone(Shift(points, masses), MIXTURE, 1e-3, epsilon)
        assert exact <= delta <= exact * (1 + 1e-4)


def test_a_small_problem_fits_its_grid() -> None:
    """Every value is rounded up to a cell; the sum of all of them must not leave the grid on that account."""
    for terms in (1, 2, 3, 7, 100):
        for seed in range(20):
            values = np.random.default_rng([terms, seed]).uniform(0.1, 1.0, terms)
            (shift,) = sums_of_bernoullis(values, np.full(terms, 0.5), [terms])
            assert shift.missing < 1e-12
            assert shift.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert mmcc_delta(Dense([[1.0, 0.0], [0.7, 1.0]]), 1, 30.0, 1.0) < 1e-5


@pytest.mark.parametrize("direction", [MIXTURE, NOISE])
@pytest.mark.parametrize(("mu", "rows"), [(0.3, 4), (0.05, 400), (2.0, 3)])
def test_composition_of_certain_shifts_is_the_gaussian_mechanism(mu: float, rows: int, direction: Direction) -> None:
    """In closed form, down to deltas that a plain FFT would lose in its rounding; from two unequal kinds of rows."""
    more = math.sqrt(2) * mu
    kinds = [(mu, rows), (more, rows)]
    total = math.sqrt(rows * (mu**2 + more**2))
    for wanted in (3.0, 6.0, 8.0):
        epsilon = wanted * total + total**2 / 2
        interval = 0.02 * mu
        parts = [
            (row_losses(Shift(np.array([point]), np.ones(1)), direction, interval), count) for point, count in kinds
        ]
        truth = gaussian(epsilon, total)
        assert truth <= Composition(parts).delta(epsilon) <= truth * (1.03 if rows < 100 else 1.01)


def test_tiny_deltas_are_bounded_without_the_floor_of_an_fft() -> None:
    """With one bin nothing is left to chance: the Gaussian mechanism, also far below 1e-12."""
    for multiplier, epsilon in ((1.0, 10.0), (3.0, 3.0)):
        truth = gaussian(epsilon, 1 / multiplier)
        assert truth < 1e-15
        assert truth <= mmcc_delta(identity(1), 1, multiplier, epsilon) <= 1.05 * truth + 1e-30
