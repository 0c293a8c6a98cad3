"""Tuples from a chain, and the bound by modes far apart (docs/math.md, section 18)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import galton
from galton.guarantee import Direction
from galton.sampling import PlainSampler, choose_sampler
from galton.sampling.base import Sampler
from galton.sampling.chained import ChainedSampler, ChainTilt, best_chain
from galton.sampling.chains import Chain, affordable, ring
from galton.sampling.factor import upward_factor
from galton.sampling.orthogonal import spaced_modes
from galton.sampling.strata import STRATA
from galton.sampling.tilted import Strata, best_tilt
from tests.marks import SLOW

EPSILON = 1.0


def banded(bands: int, bins: int, multiplier: float) -> galton.Pair:
    return galton.dominating_pair(galton.square_root(2 * bins, bands), bins, multiplier)


def on_ring(gram: np.ndarray, size: int, order: int) -> ChainTilt:
    grouped = ring(gram, size)
    assert grouped is not None
    log_normaliser = float(Chain(grouped, order + 1).log_normalisers()[order + 1])
    log_shape = Strata(gram, Direction.MIXTURE_FIRST, STRATA).log_shape(order)
    return ChainTilt(grouped, order, log_normaliser, log_normaliser + grouped.log_cut(order) + log_shape + 1e-9)


def mean_and_error(sampler: Sampler, chunks: int) -> tuple[float, float]:
    values = np.concatenate([sampler.values(sampler.draw(11, index), EPSILON) for index in range(chunks)])
    return float(values.mean()), float(values.std()) / math.sqrt(values.size)


@pytest.mark.parametrize(("bands", "size"), [(2, 1), (3, 1), (2, 2)])
def test_the_recursion_sums_over_all_tuples(bands: int, size: int) -> None:
    grouped = ring(banded(bands, 8, 1.3).gram, size)
    assert grouped is not None
    assert (bands, size, grouped.memory) in {(2, 1, 1), (3, 1, 2), (2, 2, 1)}
    logs = Chain(grouped, 4).log_normalisers()
    for modes in (1, 2, 4):
        total = 0.0
        for chosen in itertools.product(range(8), repeat=modes):
            distances = [abs(i // size - j // size) for i, j in itertools.combinations(chosen, 2)]
            total += math.exp(sum(grouped.lags[far] for far in distances if far <= grouped.memory))
        assert math.exp(logs[modes]) == pytest.approx(total / 8**modes, rel=1e-12)


def test_no_attraction_on_the_ring_is_below_the_matrix() -> None:
    gram = banded(4, 24, 1.0).gram
    for size in (1, 2, 4):
        grouped = ring(gram, size)
        assert grouped is not None
        groups = np.arange(24) // size
        apart = np.abs(groups[:, None] - groups)
        apart = np.minimum(apart, grouped.groups - apart)
        bounds = np.append(grouped.lags, np.full(24, grouped.beyond))[apart]
        assert (gram <= bounds).all()


def test_long_memory_has_no_chain() -> None:
    gram = upward_factor(galton.dominating_pair(galton.square_root(48), 24, 1.0).gram).gram
    assert ring(gram, 1) is None
    assert best_chain(gram, EPSILON, 5) is None


def test_tables_have_a_limit() -> None:
    grouped = ring(banded(9, 64, 1.0).gram, 1)
    assert grouped is not None
    assert grouped.memory == 8
    most = affordable(grouped, 40)
    assert math.comb(most + 9, 9) * 64 <= 1 << 24 < math.comb(most + 10, 9) * 64


def _agrees_with_plain(bands: int, size: int, order: int) -> None:
    pair = banded(bands, 12, 1.35)
    gram = upward_factor(pair.gram).gram
    sampler = ChainedSampler(pair, on_ring(gram, size, order))
    draw = sampler.draw(3, 0)
    unclipped = (np.exp(draw.log_weight) * -np.expm1(np.minimum(EPSILON - draw.loss, 0.0))).mean(axis=1)
    assert 0 < unclipped.max() <= sampler.value_range(EPSILON)
    chained, error = mean_and_error(sampler, 4)
    plain, plain_error = mean_and_error(PlainSampler(pair, Direction.MIXTURE_FIRST), 3)
    assert abs(chained - plain) < 4.5 * math.hypot(error, plain_error)
    assert error < 0.05 * chained


@SLOW
def test_groups_of_bins_give_the_delta_of_plain_samples() -> None:
    _agrees_with_plain(bands=2, size=2, order=3)


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "size", "order"), [(2, 1, 4), (4, 1, 2), (3, 1, 6), (4, 3, 5)])
def test_chains_give_the_delta_of_plain_samples(bands: int, size: int, order: int) -> None:
    _agrees_with_plain(bands, size, order)


@pytest.mark.parametrize("direction", [Direction.MIXTURE_FIRST, Direction.NOISE_FIRST])
def test_modes_far_apart_bound_delta(direction: Direction) -> None:
    pair = banded(3, 24, 1.1)
    modes = spaced_modes(pair.gram)
    assert modes is not None
    assert modes.modes == 8
    mean, error = mean_and_error(PlainSampler(pair, direction), 2)
    bound = modes.delta_upper(direction, EPSILON)
    assert mean + 5 * error < bound
    assert galton.delta_upper_bound(pair, EPSILON) <= max(
        modes.delta_upper(other, EPSILON) for other in (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)
    )


def test_modes_far_apart_need_a_divisor() -> None:
    assert spaced_modes(banded(3, 23, 1.0).gram) is None
    assert spaced_modes(galton.dominating_pair(galton.square_root(48), 24, 1.0).gram) is None


def test_tiny_delta_with_few_bands_takes_a_chain() -> None:
    pair = galton.dominating_pair(galton.square_root(128 * 16, 4), 128, 1.007)
    chosen = choose_sampler(pair, Direction.MIXTURE_FIRST, 2.0).sampler
    assert isinstance(chosen, ChainedSampler)
    tilted = math.exp(best_tilt(upward_factor(pair.gram).gram, Direction.MIXTURE_FIRST, 2.0).log_range(2.0))
    assert chosen.value_range(2.0) < tilted / 100
    assert galton.delta_upper_bound(pair, 2.0) < 1e-7


def test_eight_bands_at_usual_delta_take_a_chain() -> None:
    pair = galton.dominating_pair(galton.square_root(128 * 16, 8), 128, 1.02)
    chosen = choose_sampler(pair, Direction.MIXTURE_FIRST, 1.0).sampler
    assert isinstance(chosen, ChainedSampler)
    assert chosen.value_range(1.0) < 25 * 8e-6  # delta is 8.0e-6, and the tilted sampler has 390 times that


@SLOW
def test_limits_on_delta_are_as_sharp_as_a_certificate() -> None:
    pair = galton.dominating_pair(galton.square_root(128 * 16, 8), 128, 1.02)
    estimate = galton.delta(pair, 1.0, options=galton.Options(seed=2))
    assert estimate.upper - estimate.lower <= 0.02 * estimate.delta
    assert estimate.samples < 500_000
