"""Bins drawn once without their Gram matrix, against the Gram matrix, closed forms and each other."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm

import galton
from galton.accounting.certificate import target_digest
from galton.accounting.quick import quick_multiplier
from galton.errors import FloatArray, InvalidArgument
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction, Guarantee
from galton.many_bins import ManyBinsPair, many_bins_pair, pair_of_bins
from galton.pair import Pair, dominating_pair
from galton.sampling.base import Sampler, wide_jax
from galton.sampling.choice import choose_sampler
from galton.sampling.halfspace import HalfSpaceSampler
from galton.sampling.many_bins import (
    ManyBinsModel,
    ManyHalfSpaceSampler,
    ManyPlainSampler,
    ManyTiltedSampler,
    unit_of,
)
from galton.sampling.normals import distance_bound
from galton.sampling.orthogonal import orthogonal_modes
from galton.sampling.plain import PlainSampler
from galton.sampling.strata import STRATA, depth_range, log_largest_average
from galton.sampling.tilted import TiltedSampler
from galton.sampling.toolkits import BinsToolkit, frozen_estimator
from galton.strategies import Blt, ColumnBanded, Scaled, Strategy, Toeplitz, Tree, identity, square_root
from galton.strategies.banded import column_banded
from galton.strategies.modes import sliding_maximum
from tests.marks import SLOW

RANDOM = np.random.default_rng(5)
SHAPES = [(40, 10), (37, 10), (30, 30), (23, 7), (16, 1)]


def weighted(rounds: int) -> FloatArray:
    return np.exp(np.random.default_rng(3).normal(size=rounds) / 3)


STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "toeplitz": square_root,
    "short": lambda rounds: square_root(rounds, 3),
    "negative": lambda rounds: Toeplitz(rounds, [1.0, -0.5, 0.2], allow_negative=True),
    "blt": lambda rounds: Blt(rounds, [0.9], [0.3]),
    "scaled": lambda rounds: Scaled(square_root(rounds), weighted(rounds)),
    "scaled twice": lambda rounds: Scaled(Scaled(Blt(rounds, [0.9], [0.3]), weighted(rounds)), weighted(rounds)),
    "banded": lambda rounds: column_banded(square_root(rounds), min(rounds, 5)),
    "wide bands": lambda rounds: column_banded(square_root(rounds), min(rounds, 14)),
    "scaled banded": lambda rounds: Scaled(column_banded(square_root(rounds), 3), weighted(rounds)),
}


def mean(sampler: Sampler, epsilon: float, chunks: int, seed: int = 1) -> tuple[float, float]:
    values = np.concatenate([sampler.values(sampler.draw(seed, index), epsilon) for index in range(chunks)])
    return float(values.mean()), float(values.std() / math.sqrt(values.size))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", STRATEGIES)
def test_modes_are_those_of_the_matrix(name: str, shape: tuple[int, int]) -> None:
    rounds, bins = shape
    strategy = STRATEGIES[name](rounds)
    modes, matrix = strategy.linear_modes(bins), strategy.modes(bins)
    assert modes is not None
    counts, point = RANDOM.random(bins), RANDOM.normal(size=rounds)
    assert np.allclose(modes.apply(counts), matrix @ counts, rtol=1e-12, atol=1e-12)
    assert np.allclose(modes.adjoint(point), matrix.T @ point, rtol=1e-12, atol=1e-12)
    assert np.allclose(modes.energies, (matrix**2).sum(axis=0), rtol=1e-12)
    assert np.isclose(strategy.sensitivity(bins), np.sqrt((matrix**2).sum(axis=0).max()), rtol=1e-12)


@pytest.mark.parametrize("blocks", [1, 3, 64])
@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_are_bounded_from_above(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galton.strategies.modes.MOST_BLOCKS", blocks)
    for rounds, bins in SHAPES:
        strategy = STRATEGIES[name](rounds)
        modes, gram = strategy.linear_modes(bins), strategy.gram(bins)
        assert modes is not None
        rows = np.array([modes.row_bounds.row(index, bins) for index in range(bins)])
        assert (rows >= gram * (1 - 1e-14)).all()
        beside = gram - np.diag(gram.diagonal())
        assert modes.row_bounds.largest_beside >= beside.max() * (1 - 1e-14)
        if blocks == 64:  # every bin is a block of its own: nothing is lost
            assert np.allclose(rows, gram, rtol=1e-9, atol=1e-9 * gram.max())


def test_long_memory_loses_little_in_the_bounds_on_rows() -> None:
    strategy = square_root(4 * 256)
    modes, gram = strategy.linear_modes(256), strategy.gram(256)
    assert modes is not None
    rows = np.array([modes.row_bounds.row(index, 256) for index in range(256)])
    assert (rows <= gram * 1.1).all()
    assert rows.mean() < 1.01 * gram.mean()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
def test_sliding_maximum_looks_ahead(size: int) -> None:
    values = RANDOM.normal(size=(2, 10)) ** 2
    padded = np.pad(values, ((0, 0), (size - 1, size - 1)))
    expected = [padded[:, start : start + size].max(axis=1) for start in range(10 + size - 1)]
    assert np.array_equal(sliding_maximum(values, size), np.array(expected).T)


def test_transforms_err_less_than_is_allowed_for() -> None:
    """Against sums in extended precision, for entries of very different size."""
    strategy = Scaled(Toeplitz(600, np.exp(-np.arange(600) / 20)), np.exp(3 * RANDOM.normal(size=600)))
    modes = strategy.linear_modes(200)
    assert modes is not None
    matrix = strategy.modes(200).astype(np.longdouble)
    point, counts = RANDOM.normal(size=600), RANDOM.random(200)
    exact = matrix.T @ point
    assert float(np.abs(modes.adjoint(point) - exact).max()) <= modes.error * np.linalg.norm(point)
    assert float(np.linalg.norm((modes.apply(counts) - matrix @ counts).astype(float))) <= modes.error * counts.sum()


SMALL = {
    "toeplitz": square_root(32),
    "scaled": Scaled(Blt(32, [0.9], [0.3]), np.linspace(1.0, 1.5, 32)),
    "banded": column_banded(square_root(30), 6),
}


CASES = [
    ("toeplitz", Direction.MIXTURE_FIRST),
    ("toeplitz", Direction.NOISE_FIRST),
    pytest.param("toeplitz", Direction.REPLACE, marks=SLOW),
    pytest.param("scaled", Direction.MIXTURE_FIRST, marks=SLOW),
    pytest.param("scaled", Direction.NOISE_FIRST, marks=SLOW),
    pytest.param("scaled", Direction.REPLACE, marks=SLOW),
    pytest.param("banded", Direction.MIXTURE_FIRST, marks=SLOW),
    ("banded", Direction.NOISE_FIRST),
    pytest.param("banded", Direction.REPLACE, marks=SLOW),
]
"""Two maps and two directions in the quick tests: every pair of them is compiled anew."""


@pytest.mark.parametrize(("name", "direction"), CASES)
def test_samples_have_the_mean_of_the_gram_matrix(name: str, direction: Direction) -> None:
    """The same delta as the samplers of the Gram matrix, at 5 standard errors; values stay within the range."""
    strategy, epsilon = SMALL[name], 0.7
    few, many = dominating_pair(strategy, 8, 1.2), many_bins_pair(strategy, 8, 1.2)
    if direction is Direction.NOISE_FIRST:
        expected = mean(HalfSpaceSampler(few, epsilon), epsilon, 8)
    else:
        expected = mean(TiltedSampler(few, direction, epsilon), epsilon, 8)
    sampler: Sampler = (
        ManyHalfSpaceSampler(many, epsilon)
        if direction is Direction.NOISE_FIRST
        else ManyTiltedSampler(many, direction, epsilon)
    )
    value, error = mean(sampler, epsilon, 20)
    assert abs(value - expected[0]) < 5 * math.hypot(error, expected[1])
    raw = sampler.draw(2, 0)
    values = np.exp(raw.log_weight) * -np.expm1(np.minimum(epsilon - raw.loss, 0.0))
    assert values.mean(axis=1).max() <= sampler.value_range(epsilon) * (1 + 1e-6)
    assert raw.loss.shape == (sampler.layout.size, STRATA)


@pytest.mark.parametrize(
    "direction", [Direction.MIXTURE_FIRST, Direction.NOISE_FIRST, pytest.param(Direction.REPLACE, marks=SLOW)]
)
def test_plain_samples_have_the_mean_of_the_gram_matrix(direction: Direction) -> None:
    strategy = SMALL["toeplitz"]
    expected = mean(PlainSampler(dominating_pair(strategy, 8, 1.2), direction), 0.3, 1)
    value, error = mean(ManyPlainSampler(many_bins_pair(strategy, 8, 1.2), direction), 0.3, 40)
    assert abs(value - expected[0]) < 5 * math.hypot(error, expected[1])


@SLOW
@pytest.mark.parametrize("direction", Direction)
def test_one_bin_is_the_gaussian_mechanism(direction: Direction) -> None:
    """A closed form, and with a single mode the coordinate along it is all there is: averages barely vary."""
    pair, epsilon = many_bins_pair(square_root(5), 1, 1.5), 0.8
    truth = gaussian_delta(epsilon, direction.sides / 1.5)
    sampler: Sampler = (
        ManyHalfSpaceSampler(pair, epsilon)
        if direction is Direction.NOISE_FIRST
        else ManyTiltedSampler(pair, direction, epsilon)
    )
    value, error = mean(sampler, epsilon, 10)
    assert abs(value - truth) < 5 * error
    assert sampler.value_range(epsilon) < 2.5 * truth
    assert error < 0.01 * truth


@SLOW
def test_independent_noise_agrees_with_its_exact_bounds() -> None:
    """C = I at 1,500 bins: the samples against the bounds without samples of `likelihoods`."""
    pair = many_bins_pair(identity(1500), 1500, 0.5)
    modes = orthogonal_modes(pair)
    assert modes is not None
    lower, upper = modes.delta_bracket(Direction.MIXTURE_FIRST, 1.0)
    value, error = mean(ManyPlainSampler(pair, Direction.MIXTURE_FIRST), 1.0, 40)
    assert lower - 5 * error < value < upper + 5 * error
    assert upper < 1.05 * lower
    estimate = galton.delta(pair, 1.0, options=galton.Options(seed=1))
    assert not estimate.samples
    assert lower <= estimate.upper <= upper * (1 + 1e-9)


def test_entries_too_far_apart_are_refused() -> None:
    """Rounding of FFTs would hide the average mode, or products would underflow."""
    apart = Scaled(Toeplitz(8, [1, 0, 0, 0, 0, 0, 0, 1e15]), [1e-16] + [1.0] * 7)
    with pytest.raises(InvalidArgument, match="strategy"):
        many_bins_pair(apart, 4)
    with pytest.raises(InvalidArgument, match="strategy"):
        many_bins_pair(Scaled(Toeplitz(8, [1e-14, 0, 0, 0, 0, 0, 0, 1e150]), [1e-163] + [1.0] * 7), 4)


def test_sensitivities_of_scaled_strategies_with_extreme_entries() -> None:
    wide = Scaled(Toeplitz(8, [1e-14, 0, 0, 0, 0, 0, 0, 1e150]), [1e-163] + [1.0] * 7)
    assert wide.sensitivity(4) == pytest.approx(np.linalg.norm(wide.modes(4), axis=0).max(), rel=1e-12)
    long = Scaled(Toeplitz(1200, np.r_[1e-14, np.zeros(599), 1e150]), np.r_[np.full(600, 1e-163), np.ones(600)])
    assert long.sensitivity(600) == pytest.approx(np.linalg.norm(long.modes(600), axis=0).max(), rel=1e-12)


def test_a_half_space_that_is_nearly_everything_has_the_range_of_all() -> None:
    """Its bound lies farther out than depths are drawn, and values come close to 1."""
    pair, epsilon = many_bins_pair(Toeplitz(2000, [1.0, 0.02]), 2000, 1 / math.sqrt(24)), 0.05
    model = ManyBinsModel(pair)
    assert model.half_space(epsilon)[1] > 30
    sampler = ManyHalfSpaceSampler(pair, epsilon)
    draw = sampler.draw(1, 0)
    values = (np.exp(draw.log_weight) * -np.expm1(np.minimum(epsilon + draw.loss, 0.0))).mean(axis=1)
    assert values.max() <= sampler.value_range(epsilon)
    assert values.max() > 0.6


@pytest.mark.parametrize(("rounds", "bins"), [(32, 8), pytest.param(2800, 700, marks=SLOW)])
def test_certificates(rounds: int, bins: int) -> None:
    pair = many_bins_pair(square_root(rounds), bins)
    guarantee = Guarantee(1.0, 1e-5)
    noise = quick_multiplier(pair, guarantee.with_delta(1e-5 / 1.1), galton.Options(seed=1), 1).value
    certificate = galton.certify(pair.at(noise), guarantee, options=galton.Options(seed=3))
    assert certificate.accepted
    assert certificate.samples < 5000
    assert certificate.bins == bins
    assert not galton.certify(pair.at(0.95 * noise), guarantee, options=galton.Options(seed=3)).accepted


@pytest.mark.slow
def test_certificates_cover() -> None:
    """A claim 5% below the truth is never accepted, and the limits hold, over 200 seeds."""
    pair, epsilon = many_bins_pair(SMALL["toeplitz"], 8, 1.2), 1.0
    truth, _ = mean(
        TiltedSampler(dominating_pair(SMALL["toeplitz"], 8, 1.2), Direction.MIXTURE_FIRST, epsilon), 1.0, 400
    )
    claim = Guarantee(epsilon, 0.95 * truth)
    for seed in range(200):
        options = galton.Options(seed=seed, samples=2000)
        assert not galton.certify(pair, claim, options=options).accepted
        estimate = galton.delta(pair, epsilon, options=galton.Options(seed=seed, confidence=0.9999, samples=4000))
        assert estimate.lower <= truth * 1.001
        assert estimate.upper >= truth * 0.999


@pytest.mark.parametrize("strata", [2, 16])
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("order", [1, 9])
def test_averages_over_strata_stay_below_their_bound(order: int, slope: float, strata: int) -> None:
    """For straight lines through any point, for lines that bend, and for depths anywhere in their strata."""
    bound = math.exp(log_largest_average(order, slope, strata))
    edges = norm.ppf(np.arange(strata + 1) / strata)
    places = np.clip(edges[:-1], -9, 9) + RANDOM.random((2000, strata)) * np.diff(np.clip(edges, -9, 9))
    offsets = RANDOM.normal(size=(2000, 1)) * (1 + slope) + 0.3
    bend = slope + RANDOM.exponential(size=(2000, 1))
    for losses in (offsets + slope * places, offsets + np.where(places > 0, bend, slope) * places):
        excess = np.maximum(losses, 0.0)
        averages = (np.exp(-order * excess) * -np.expm1(-excess)).mean(axis=1)
        assert averages.max() <= bound
        assert averages.max() > 0.5 * bound or slope > 0
    assert bound <= order**order / (1 + order) ** (1 + order) * (1 + 1e-9)


def test_the_range_of_depths_is_a_riemann_sum() -> None:
    spread, bound = 0.7, -1.3
    mass = norm.cdf(bound)
    exact = quad(lambda depth: norm.pdf(depth) * -np.expm1(spread * (depth - bound)), -12, bound)[0]
    coarse, fine = depth_range(spread, bound, mass, 16), depth_range(spread, bound, mass, 4096)
    assert exact < fine < 1.01 * exact
    assert fine < coarse < 2 * exact


def test_loss_grows_along_the_average_mode_at_least_by_the_slope() -> None:
    pair = many_bins_pair(SMALL["scaled"], 8, 1.2)
    model, unit = ManyBinsModel(pair), unit_of(pair.modes)
    half = model.energies / 2
    for _ in range(20):
        base = RANDOM.normal(size=8) * 2
        low, high = (logsumexp(base + depth * unit.image / 1.2 - half) for depth in (0.0, 0.5))
        assert high - low >= 0.5 * model.slope(Direction.MIXTURE_FIRST) * (1 - 1e-12)


@pytest.mark.parametrize("direction", Direction)
def test_bounds_without_samples_hold(direction: Direction) -> None:
    """Above the truth, by samples of the Gram matrix, and about as near to it as the bound that takes that matrix."""
    few, epsilon = dominating_pair(SMALL["toeplitz"], 8, 2.7), 1.0
    bound = BinsToolkit().ceiling(few, direction, epsilon)
    truth = frozen_estimator(few, direction, epsilon, 4, 1)(2.7, epsilon)
    ceiling = ManyBinsModel(many_bins_pair(SMALL["toeplitz"], 8, 2.7)).ceiling(direction, epsilon)
    assert truth.delta * (1 - 5 * truth.relative_error) < ceiling
    assert ceiling < 1.3 * bound


@pytest.mark.parametrize("direction", Direction)
def test_frozen_draws_know_other_multipliers(direction: Direction) -> None:
    few, many, epsilon = dominating_pair(SMALL["toeplitz"], 8, 2.9), many_bins_pair(SMALL["toeplitz"], 8, 2.6), 1.0
    estimate = frozen_estimator(many, direction, epsilon, 8, 1)(2.9, epsilon)
    truth = frozen_estimator(few, direction, epsilon, 4, 1)(2.9, epsilon)
    error = math.hypot(estimate.relative_error, truth.relative_error)
    assert abs(math.log(estimate.delta / truth.delta)) < 5 * error < 0.3


def test_few_bins_and_other_matrices_keep_their_gram_matrix() -> None:
    assert isinstance(pair_of_bins(square_root(100), 50), Pair)
    assert isinstance(pair_of_bins(Tree(1024), 1024), Pair)
    assert isinstance(pair_of_bins(square_root(3000, 8), 1500), Pair)  # short memory
    assert isinstance(pair_of_bins(square_root(4096, 256), 1024), Pair)  # longer, but nothing has to be merged
    assert isinstance(pair_of_bins(square_root(12288, 1024), 3072), ManyBinsPair)
    assert isinstance(pair_of_bins(square_root(3000, 8), 2999), ManyBinsPair)  # a prime number cannot be merged
    assert isinstance(pair_of_bins(identity(3000), 1500), ManyBinsPair)  # nothing is sampled
    assert isinstance(pair_of_bins(identity(3000), 2999), ManyBinsPair)
    assert isinstance(pair_of_bins(Scaled(square_root(4096), np.ones(4096)), 1024), ManyBinsPair)


def test_another_spelling_is_the_same_target() -> None:
    claim = Guarantee(1.0, 1e-5)
    spellings: list[Strategy] = [
        Toeplitz(12, [1.0, 0.5]),
        Toeplitz(12, [2.0, 1.0]),
        Scaled(Toeplitz(12, [1.0, 0.5]), np.full(12, 3.0)),
        ColumnBanded(np.array([[1.0] * 12, [0.5] * 11 + [0.0]])),
    ]
    digests = {
        target_digest(many_bins_pair(strategy, 4, 1.0 + index), claim) for index, strategy in enumerate(spellings)
    }
    assert len(digests) == 1
    assert target_digest(many_bins_pair(Toeplitz(12, [1.0, 0.6]), 4), claim) not in digests


def test_a_sampler_travels() -> None:
    sampler = ManyTiltedSampler(many_bins_pair(SMALL["toeplitz"], 8, 1.2), Direction.MIXTURE_FIRST, 1.0)
    copy = pickle.loads(pickle.dumps(sampler))
    assert np.array_equal(copy.draw(1, 0).loss, sampler.draw(1, 0).loss)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="strategy = 'tree'"):
        many_bins_pair(Tree(8), 4)
    with pytest.raises(InvalidArgument, match="bins = 9"):
        many_bins_pair(square_root(8), 9)
    with pytest.raises(InvalidArgument, match="too large or too small"):
        many_bins_pair(Toeplitz(4, [1e-200]), 2)
    with pytest.raises(InvalidArgument, match="take plain"):
        ManyTiltedSampler(many_bins_pair(square_root(8), 4, 0.01), Direction.MIXTURE_FIRST, 1.0)
    choice = choose_sampler(many_bins_pair(square_root(8), 4, 0.01), Direction.MIXTURE_FIRST, 1.0)
    assert choice.sampler.name == "plain"


def test_normals_that_are_not_rare_are_right_to_eleven_digits() -> None:
    tails = np.concatenate((np.geomspace(2.0**-30, 0.5, 4001), np.linspace(0.4, 0.5, 2001)))
    with wide_jax():
        computed = np.asarray(jax.scipy.special.ndtri(jnp.asarray(tails)))
    assert np.abs(computed - norm.ppf(tails)).max() < 5e-12


def test_the_distance_of_normals_is_small_for_many_of_them() -> None:
    near, lost = distance_bound(1000)
    far, more = distance_bound(4_000_000)
    assert 1e-10 < near < far < 1e-5
    assert lost < more < 1e-7
