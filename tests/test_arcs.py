"""The tilt by arcs of neighbouring bins (docs/math.md, section 18.9)."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

import galton
from galton.accounting.quick import quick_multiplier, refined_multiplier
from galton.guarantee import Direction
from galton.sampling import PlainSampler, choose_sampler
from galton.sampling.arc_ranges import ArcRange
from galton.sampling.arced import ArcSampler
from galton.sampling.arcs import ArcChain, ArcTilt, best_arcs, splits, spread_counts
from galton.sampling.base import Sampler
from galton.sampling.bounded import BoundedDraw
from galton.sampling.chained import ChainedSampler, best_chain
from galton.sampling.chains import ring
from galton.sampling.factor import upward_factor
from galton.sampling.strata import STRATA, even_line
from tests.marks import SLOW

EPSILON = 1.0
SETTINGS = [(3, 12, 1.2), (16, 48, 1.1)]
"""Bands, bins and multiplier: parts of one bin, and of two."""


def banded(bands: int, bins: int, multiplier: float) -> galton.Pair:
    return galton.dominating_pair(galton.square_root(2 * bins, bands), bins, multiplier)


def arc_tilt(pair: galton.Pair, epsilon: float) -> ArcTilt:
    tilt = best_arcs(upward_factor(pair.gram).gram, epsilon)
    assert tilt is not None
    return tilt


@cache
def arcs(bands: int, bins: int, multiplier: float) -> ArcSampler:
    pair = banded(bands, bins, multiplier)
    return ArcSampler(pair, arc_tilt(pair, EPSILON), EPSILON)


def mean_and_error(sampler: Sampler, chunks: int, epsilon: float = EPSILON) -> tuple[float, float]:
    values = np.concatenate([sampler.values(sampler.draw(11, index), epsilon) for index in range(chunks)])
    return float(values.mean()), float(values.std()) / math.sqrt(values.size)


def chain_of(bands: int, bins: int, width: int, sectors: tuple[int, ...]) -> ArcChain:
    circle = ring(banded(bands, bins, 1.3).gram, 1, 32)
    assert circle is not None
    return ArcChain(circle, width, sectors, (0, 1, 2))


CHAINS = [(2, 6, 1, (1, 1)), (3, 12, 2, (2,)), (3, 12, 1, (1, 1, 2)), (3, 12, 2, (1, 1))]


@pytest.mark.parametrize(("bands", "bins", "width", "sectors"), CHAINS)
def test_the_recursion_sums_over_all_modes(bands: int, bins: int, width: int, sectors: tuple[int, ...]) -> None:
    chain = chain_of(bands, bins, width, sectors)
    logs, raised = np.array([0.1, -1.0, -2.0]), chain.raised()
    rows = [row for row in itertools.product(range(3), repeat=chain.size) if sum(row) <= 2]
    total, counts, first = 0.0, np.zeros(3), np.zeros(3)
    for spread in itertools.product(rows, repeat=chain.arcs):
        modes = np.concatenate(spread)
        weight = math.exp(modes @ raised @ modes / 2 - chain.ring.lags[0] * modes.sum() / 2)
        for row in spread:
            weight *= math.exp(logs[sum(row)]) * math.factorial(sum(row)) / math.prod(map(math.factorial, row))
        total += weight
        first[sum(spread[0])] += weight
        counts += weight * np.bincount([sum(row) for row in spread], minlength=3)
    start, futures, log_total = chain.futures(logs)
    assert log_total == pytest.approx(math.log(total), rel=1e-12)
    assert np.bincount(chain.kinds, start) / start.sum() == pytest.approx(first / total, rel=1e-10)
    assert futures.shape == (chain.arcs - 1, start.size, start.size)
    rough, slopes = chain.roughly(logs)
    assert rough == pytest.approx(math.log(total), abs=0.02)  # as if the circle were long
    assert slopes == pytest.approx(counts / total, abs=0.02 * chain.arcs)


@pytest.mark.parametrize(("bands", "bins", "width", "sectors"), CHAINS)
def test_modes_attract_each_other_by_no_less_than_the_gram_matrix(
    bands: int, bins: int, width: int, sectors: tuple[int, ...]
) -> None:
    chain, gram = chain_of(bands, bins, width, sectors), banded(bands, bins, 1.3).gram
    raised = chain.raised()
    assert (raised == raised.T).all()
    assert (raised >= gram - chain.ring.beyond).all()
    if width == 1 and set(sectors) == {1}:
        largest = np.array([max(gram[i, (i + lag) % bins] for i in range(bins)) for lag in range(bins)])
        apart = np.subtract.outer(np.arange(bins), np.arange(bins)) % bins
        assert raised == pytest.approx(np.maximum(largest, largest[-np.arange(bins)])[apart], abs=1e-12)


def test_ways_are_drawn_as_often_as_their_weights_say() -> None:
    table = splits(np.array([1, 0, 1, 0]), np.log([3.0, 2.0, 1.0, 6.0]), np.array([[1], [2], [3], [4]]))
    assert table.ends == pytest.approx([0.25, 1.0, 1.75, 2.0])
    assert table.rows.ravel().tolist() == [2, 4, 1, 3]
    assert spread_counts(2, (0, 2)).tolist() == [[0, 0], [0, 2], [1, 1], [2, 0]]


def test_products_of_factors_are_nowhere_below_the_tilt() -> None:
    tilt = arc_tilt(banded(3, 32, 1.3), EPSILON)
    points = np.random.default_rng(0).uniform(-30.0, tilt.cut, 200_000)
    logs = np.logaddexp.reduce(points[:, None] * np.array(tilt.chain.totals) + tilt.log_coefficients, axis=1)
    margin = logs - tilt.theta * np.exp(points)
    assert margin.min() >= -1e-11
    assert margin.min() < 1e-3  # and no more than needed


@pytest.mark.parametrize(("bands", "bins", "multiplier"), SETTINGS)
def test_samples_have_the_delta_of_plain_ones(bands: int, bins: int, multiplier: float) -> None:
    sampler = arcs(bands, bins, multiplier)
    assert sampler.tilt.chain.width == (1 if bands == 3 else 2)
    for epsilon in (EPSILON, 1.2):  # designed at the first, valid at every other
        mean, error = mean_and_error(sampler, 8, epsilon)
        plain = PlainSampler(banded(bands, bins, multiplier), Direction.MIXTURE_FIRST)
        other, other_error = mean_and_error(plain, 3, epsilon)
        assert abs(mean - other) < 4.5 * math.hypot(error, other_error)
        assert error < 0.1 * mean


@pytest.mark.parametrize(("bands", "bins", "multiplier"), SETTINGS)
def test_no_value_exceeds_the_range_before_it_is_clipped(bands: int, bins: int, multiplier: float) -> None:
    sampler = arcs(bands, bins, multiplier)
    draw = sampler.draw(5, 0)
    assert isinstance(draw, BoundedDraw)
    for epsilon in (EPSILON, 1.1, 1.3):
        unclipped = np.exp(draw.most) * -np.expm1(np.minimum(epsilon - sampler.slack.epsilon - draw.loss, 0.0))
        assert unclipped.shape == (sampler.layout.size, STRATA)
        assert 0 < unclipped.mean(axis=1).max() <= sampler.value_range(epsilon)


def test_rounding_brackets_the_values() -> None:
    sampler = arcs(*SETTINGS[0])
    draw = sampler.draw(6, 0).first(2000)
    low, middle, high = (sampler.values(draw, EPSILON, rounding) for rounding in (-1, 0, 1))
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (low < high).any()
    assert high.mean() < 1.01 * low.mean()


def test_averages_on_a_line_are_within_the_range() -> None:
    """Against averages of the two bounds themselves, at random peaks and cuts, one point in every stratum."""
    strength, power, slope, share, log_below = 24.0, 12, 0.145, 0.4, math.log(1.5)
    ranges, rng = ArcRange(strength, power, slope), np.random.default_rng(3)
    edges = norm.ppf(np.arange(STRATA + 1) / STRATA)
    edges[[0, -1]] = -9.0, 9.0
    largest = 0.0
    for peak, cut in rng.uniform(-3.0, 3.0, (2000, 2)):
        w = rng.uniform(edges[:-1], edges[1:], (200, STRATA))
        x = np.maximum((1 + strength) * np.exp(slope * (w - peak)) - strength, 0.0)
        below = 1.5 / (1 - share) * x * np.exp(1 - x)
        values = np.where(w < cut, below, np.exp(-power * slope * (w - cut)) / share)
        largest = max(largest, float(values.max(axis=0).mean()))  # each stratum at the largest of its points
    bound = math.exp(ranges.log_range(0.0, log_below, share))
    assert largest < bound < 1.1 * largest
    best = ranges.best_share(0.0, log_below)
    assert all(
        ranges.log_range(0.0, log_below, best) < ranges.log_range(0.0, log_below, other) + 0.01
        for other in (0.5 * best, 0.8 * best, 1.2 * best, 1.5 * best)
    )


def test_all_log_likelihoods_grow_alike_along_the_even_line() -> None:
    factor = upward_factor(banded(4, 24, 1.1).gram)
    line = even_line(factor.gram, factor.residual)
    assert line is not None
    direction = factor.root.T @ line.weights
    assert float(direction @ direction) == pytest.approx(1.0, rel=1e-9)  # a unit vector of z
    assert factor.root @ direction == pytest.approx(np.full(24, line.slope), rel=max(line.uneven, 1e-12))
    assert even_line(np.ones((5, 5)), 1e-16) is None


CELLS = [(3, 1.0, 1.2537, 520.0), (4, 1.0, 1.2926, 500.0), (8, 1.0, 1.4596, 700.0), (16, 1.0, 1.7795, 1900.0)]
"""Bands, epsilon, a multiplier with delta near 1e-10, and R/delta at most."""


@pytest.mark.parametrize(("bands", "epsilon", "multiplier", "most"), CELLS)
def test_ranges_at_tiny_delta(bands: int, epsilon: float, multiplier: float, most: float) -> None:
    pair = galton.dominating_pair(galton.square_root(2048, bands), 128, multiplier)
    assert math.exp(arc_tilt(pair, epsilon).log_range(epsilon)) < most * 1e-10


def test_the_smallest_range_is_taken() -> None:
    pair = galton.dominating_pair(galton.square_root(2048, 8), 128, 1.4596)
    sampler = choose_sampler(pair, Direction.MIXTURE_FIRST, 1.0).sampler
    assert isinstance(sampler, ArcSampler)
    gram = upward_factor(pair.gram).gram
    assert best_arcs(gram, 1.0, math.log(1e-12)) is None  # what is not worth it is not returned


def test_there_are_no_arcs_without_a_divisor_or_with_long_memory() -> None:
    assert best_arcs(upward_factor(banded(3, 23, 1.0).gram).gram, EPSILON) is None
    gram = upward_factor(galton.dominating_pair(galton.square_root(48), 24, 1.0).gram).gram
    assert best_arcs(gram, EPSILON) is None


@SLOW
def test_arcs_and_chains_agree_at_tiny_delta() -> None:
    pair = galton.dominating_pair(galton.square_root(2048, 4), 128, 1.2926)
    chain = best_chain(upward_factor(pair.gram).gram, EPSILON, 8)
    assert chain is not None
    mean, error = mean_and_error(ArcSampler(pair, arc_tilt(pair, EPSILON), EPSILON), 40)
    other, other_error = mean_and_error(ChainedSampler(pair, chain), 25)
    assert abs(mean - other) < 4.5 * math.hypot(error, other_error)
    assert error < 0.03 * mean


@SLOW
def test_calibration_at_tiny_delta_is_right_to_a_few_percent() -> None:
    """The quick estimator alone has a relative error of 0.24 here."""
    pair = galton.dominating_pair(galton.square_root(2048, 3), 128)
    goal = galton.Guarantee(epsilon=0.5, delta=1e-10 / 1.05)
    options = galton.Options(seed=4)
    quick = quick_multiplier(pair, goal, options, 4)
    at = pair.at(refined_multiplier(pair, goal, quick, options, 4))
    mean, error = mean_and_error(ArcSampler(at, arc_tilt(at, 0.5), 0.5), 40, 0.5)
    assert abs(mean - goal.delta) < 4.5 * error + 0.03 * goal.delta
    assert error < 0.02 * mean
