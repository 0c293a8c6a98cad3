"""Tilts by levels and by spaced modes (docs/math.md, sections 18.6 and 18.7)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

import galton
from galton.guarantee import Direction
from galton.sampling import PlainSampler, choose_sampler, draws
from galton.sampling.base import Draw, Sampler
from galton.sampling.bounded import BoundedDraw
from galton.sampling.chained import ChainedSampler, best_chain
from galton.sampling.chains import ring
from galton.sampling.factor import upward_factor
from galton.sampling.levelled import LevelledSampler
from galton.sampling.levels import LevelChain, LevelTilt, best_levels, log_exceeding, shortfall
from galton.sampling.spaced import SpacedSampler, best_spaced
from tests.marks import SLOW
from tests.test_sampling import Elsewhere

EPSILON = 1.0


def banded(bands: int, bins: int, multiplier: float) -> galton.Pair:
    return galton.dominating_pair(galton.square_root(2 * bins, bands), bins, multiplier)


def level_tilt(pair: galton.Pair, epsilon: float) -> LevelTilt:
    tilt = best_levels(upward_factor(pair.gram).gram, epsilon)
    assert tilt is not None
    return tilt


@cache
def levelled() -> LevelledSampler:
    pair = banded(3, 12, 1.2)
    return LevelledSampler(pair, level_tilt(pair, EPSILON), EPSILON)


@cache
def spaced(bins: int = 12) -> SpacedSampler:
    pair = banded(3, bins, 0.9)
    tilt = best_spaced(upward_factor(pair.gram).gram, EPSILON)
    assert tilt is not None
    return SpacedSampler(pair, tilt, EPSILON)


def mean_and_error(sampler: Sampler, chunks: int, epsilon: float = EPSILON) -> tuple[float, float]:
    values = np.concatenate([sampler.values(sampler.draw(11, index), epsilon) for index in range(chunks)])
    return float(values.mean()), float(values.std()) / math.sqrt(values.size)


@pytest.mark.parametrize(("bands", "levels"), [(2, (0.0, 1.0, 2.5)), (3, (0.0, 1.0))])
def test_the_recursion_sums_over_all_levels(bands: int, levels: tuple[float, ...]) -> None:
    bins = ring(banded(bands, 8, 1.3).gram, 1)
    assert bins is not None
    chain = LevelChain(bins, np.array(levels))
    logs = np.array([0.1, -1.0, -3.0])[: len(levels)]
    total = 0.0
    counts = np.zeros(len(levels))
    for chosen in itertools.product(range(len(levels)), repeat=chain.steps):
        weights = [levels[index] for index in chosen]
        energy = sum(bins.lags[0] * u * (u - 1) / 2 for u in weights)
        for i, j in itertools.combinations(range(chain.steps), 2):
            energy += bins.lags[j - i] * weights[i] * weights[j] if j - i <= bins.memory else 0.0
        weight = math.exp(energy + sum(logs[index] for index in chosen))
        total += weight
        counts += weight * np.bincount(chosen, minlength=len(levels))
    assert math.exp(chain.log_normaliser(logs)) == pytest.approx(total, rel=1e-12)
    rough, slopes = chain.roughly(logs)
    assert rough == pytest.approx(math.log(total), rel=1e-12)  # a chain this short is not shortened
    assert slopes == pytest.approx(counts / total, rel=1e-10)


def test_factors_are_nowhere_below_the_tilt() -> None:
    tilt = level_tilt(banded(3, 32, 1.3), EPSILON)
    local = tilt.theta / (1 - tilt.chain.ring.memory / 32)
    points = np.random.default_rng(0).uniform(-30.0, tilt.cut, 200_000)
    logs = np.logaddexp.reduce(points[:, None] * tilt.chain.levels + tilt.log_coefficients, axis=1)
    margin = logs - local * np.exp(points)
    assert margin.min() >= -1e-11
    assert margin.min() < 1e-3  # and no more than needed
    raised = shortfall(tilt.chain.levels, tilt.log_coefficients - 0.25, local, tilt.cut)
    assert 0.2 < raised <= 0.25 + 1e-11


def test_exceedances_are_normal_tails() -> None:
    gram = np.array([[0.5, 0.2], [0.2, 0.8]])
    truth = sum(norm.sf(1.5, gram[i, k] - gram[k, k] / 2, math.sqrt(gram[k, k])) for i in (0, 1) for k in (0, 1)) / 2
    assert math.exp(log_exceeding(gram, 1.5)) == pytest.approx(truth, rel=1e-12)


def test_levelled_samples_have_the_delta_of_plain_ones() -> None:
    sampler = levelled()
    for epsilon in (EPSILON, 1.2):  # designed at the first, valid at every other
        mean, error = mean_and_error(sampler, 3, epsilon)
        plain, plain_error = mean_and_error(PlainSampler(banded(3, 12, 1.2), Direction.MIXTURE_FIRST), 3, epsilon)
        assert abs(mean - plain) < 4.5 * math.hypot(error, plain_error)
        assert error < 0.06 * mean


@SLOW
@pytest.mark.parametrize("bins", [12, 13])
def test_spaced_samples_have_the_delta_of_plain_ones(bins: int) -> None:
    for epsilon in (EPSILON, 1.2):
        mean, error = mean_and_error(spaced(bins), 2, epsilon)
        plain, plain_error = mean_and_error(PlainSampler(banded(3, bins, 0.9), Direction.NOISE_FIRST), 3, epsilon)
        assert abs(mean - plain) < 4.5 * math.hypot(error, plain_error)
        assert error < 0.05 * mean


@pytest.mark.parametrize("make", [levelled, spaced])
def test_no_value_exceeds_the_range_before_it_is_clipped(make: Callable[[], Sampler]) -> None:
    sampler = make()
    draw = sampler.draw(5, 0)
    for epsilon in (EPSILON, 1.1, 1.3):
        unclipped = np.exp(draw.log_weight) * -np.expm1(np.minimum(epsilon - draw.loss, 0.0))
        assert 0 < unclipped.max() <= sampler.value_range(epsilon)
    assert unclipped.max() < sampler.value_range(EPSILON)


@pytest.mark.parametrize("make", [levelled, spaced])
def test_rounding_brackets_the_values(make: Callable[[], Sampler]) -> None:
    sampler = make()
    draw = sampler.draw(6, 0).first(2000)
    low, middle, high = (sampler.values(draw, EPSILON, rounding) for rounding in (-1, 0, 1))
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (low < high).any()
    assert high.mean() < 1.01 * low.mean()


def test_bounds_of_log_weights_are_kept_with_the_samples() -> None:
    draw = levelled().draw(7, 0)
    assert isinstance(draw, BoundedDraw)
    few = draw.first(10)
    assert len(few) == 10
    assert (few.least < few.log_weight).all()
    assert (few.log_weight < few.most).all()


LIES: dict[str, Callable[[BoundedDraw], Draw]] = {
    "less weight at most": lambda draw: replace(draw, most=draw.most - 0.1),
    "NaN": lambda draw: replace(draw, most=draw.most * np.nan),
    "no bounds": lambda draw: Draw(draw.loss, draw.log_weight),
    "too few bounds": lambda draw: replace(draw, most=draw.most[:1]),
}


@pytest.mark.parametrize("name", LIES)
def test_workers_that_lie_about_bounds_of_weights_are_noticed(name: str) -> None:
    with pytest.raises(galton.GaltonError, match="nothing was proved"):
        list(draws(levelled(), 1, 1, Elsewhere(LIES[name])))


def test_workers_that_round_bounds_otherwise_are_not_refused() -> None:
    shifted = Elsewhere(lambda draw: replace(draw, most=draw.most + 0.9 * (draw.most - draw.least)))
    assert len(list(draws(levelled(), 1, 1, shifted))) == 1


def test_long_memory_has_no_levels_and_no_spaced_modes() -> None:
    gram = upward_factor(galton.dominating_pair(galton.square_root(48), 24, 1.0).gram).gram
    assert best_levels(gram, EPSILON) is None
    assert best_spaced(gram, EPSILON) is None


CELLS = [(2, 0.5, 1.5693, 250.0, 10.0), (8, 0.5, 2.489, 120.0, 1000.0), (2, 1.0, 1.22, 600.0, 1.0)]
"""Bands, epsilon, a multiplier with delta near 1e-10, and R/delta at most, mixture-first and noise-first."""


@pytest.mark.parametrize(("bands", "epsilon", "multiplier", "mixture", "noise"), CELLS)
def test_ranges_at_tiny_delta(bands: int, epsilon: float, multiplier: float, mixture: float, noise: float) -> None:
    pair = galton.dominating_pair(galton.square_root(2048, bands), 128, multiplier)
    gram = upward_factor(pair.gram).gram
    assert math.exp(level_tilt(pair, epsilon).log_range(epsilon)) < mixture * 1e-10
    tilt = best_spaced(gram, epsilon)
    assert tilt is not None
    assert math.exp(tilt.log_range(epsilon)) < noise * 1e-10


def test_classes_go_once_around_the_circle_whatever_the_number_of_bins() -> None:
    pair = galton.dominating_pair(galton.square_root(2048, 3), 128, 1.7425)
    tilt = best_spaced(upward_factor(pair.gram).gram, 0.5)
    assert tilt is not None
    assert (tilt.spacing, tilt.members, tilt.log_normalisers.size) == (3, 42, 128)
    assert math.exp(tilt.log_range(0.5)) < 1000e-10  # 2,200 with every fourth mode, the next divisor


def test_the_smallest_range_is_taken() -> None:
    pair = galton.dominating_pair(galton.square_root(16 * 127, 2), 127, 1.5693)  # a prime has no arcs
    assert isinstance(choose_sampler(pair, Direction.MIXTURE_FIRST, 0.5).sampler, LevelledSampler)
    assert isinstance(choose_sampler(pair, Direction.NOISE_FIRST, 0.5).sampler, SpacedSampler)


@SLOW
def test_levels_and_chains_agree_at_tiny_delta() -> None:
    pair = galton.dominating_pair(galton.square_root(2048, 2), 128, 1.22)
    gram = upward_factor(pair.gram).gram
    chain = best_chain(gram, EPSILON, 8)
    assert chain is not None
    mean, error = mean_and_error(LevelledSampler(pair, level_tilt(pair, EPSILON), EPSILON), 30)
    other, other_error = mean_and_error(ChainedSampler(pair, chain), 30)
    assert abs(mean - other) < 4.5 * math.hypot(error, other_error)
    assert error < 0.03 * mean


@SLOW
def test_a_certificate_at_tiny_delta_ends() -> None:
    pair = galton.dominating_pair(galton.square_root(2048, 2), 128, 1.5759)
    options = galton.Options(samples=400_000, seed=3)
    assert galton.certify(pair, 0.5, 1e-10, options=options).accepted
    assert not galton.certify(pair.at(1.53), 0.5, 1e-10, options=options).accepted
