"""Samplers for orthogonal modes: importance sampling on the maximum, and order statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from galton.accounting import Options, certify, delta
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency, Direction
from galton.pair import Pair, dominating_pair
from galton.sampling import (
    MaximumSampler,
    OrderStatisticsSampler,
    PlainSampler,
    Sampler,
    TiltedSampler,
    choose_sampler,
    draws,
)
from galton.sampling.order_statistics import BracketedDraw, ranks
from galton.strategies import identity, square_root
from tests.marks import slow_after
from tests.truth import random_allocation

MIXTURE, NOISE, REPLACE = Direction.MIXTURE_FIRST, Direction.NOISE_FIRST, Direction.REPLACE
KINDS = [MaximumSampler, OrderStatisticsSampler]


def mean(sampler: Sampler, epsilon: float, samples: int, rounding: int = 0, seed: int = 1) -> tuple[float, float]:
    values = np.concatenate([sampler.values(draw, epsilon, rounding) for draw in draws(sampler, samples, seed)])
    assert (values >= 0).all()
    assert (values <= sampler.value_range(epsilon)).all()
    return float(values.mean()), float(values.std() / math.sqrt(values.size))


def cases() -> list[dict[str, float | str]]:
    """Stored answers of PLD_accounting that 50,000 samples resolve."""
    resolved = []
    for row in random_allocation():
        pair = Pair(np.eye(row["bins"]), row["noise_multiplier"])
        sampler = MaximumSampler(pair, Direction(row["direction"]), row["epsilon"])
        if sampler.value_range(row["epsilon"]) < 200 * row["delta_lower"] and row["bins"] <= 128:
            resolved.append(row)
    return resolved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case", slow_after(2, cases()), ids=lambda row: f"{row['bins']}-{row['epsilon']}-{row['direction']}"
)
def test_samples_agree_with_the_exact_accountant(
    kind: type[MaximumSampler] | type[OrderStatisticsSampler], case: dict[str, float | str]
) -> None:
    """Means lie in PLD_accounting's bracket, up to 5 standard errors; order statistics from either side."""
    pair = Pair(np.eye(int(case["bins"])), float(case["noise_multiplier"]))
    epsilon = float(case["epsilon"])
    sampler = kind(pair, Direction(case["direction"]), epsilon)
    high, error = mean(sampler, epsilon, 50_000, rounding=1)
    low, _ = mean(sampler, epsilon, 50_000, rounding=-1)
    assert low <= high
    assert high >= float(case["delta_lower"]) - 5 * error
    assert low <= float(case["delta_upper"]) + 5 * error
    if kind is MaximumSampler:
        assert high <= float(case["delta_upper"]) + 5 * error


@pytest.mark.parametrize("direction", [MIXTURE, NOISE])
def test_samples_agree_with_the_other_samplers_in_several_epochs(direction: Direction) -> None:
    epsilon = 1.0
    pair = dominating_pair(identity(24), 8, 1.2)  # three epochs
    reference, error = mean(PlainSampler(pair, direction), epsilon, 200_000, seed=5)
    if direction is MIXTURE:
        tilted, other = mean(TiltedSampler(pair, direction, epsilon), epsilon, 100_000, seed=6)
        assert abs(tilted - reference) < 5 * math.hypot(error, other)
    for kind in KINDS:
        estimate, own = mean(kind(pair, direction, epsilon), epsilon, 200_000, seed=7)
        assert abs(estimate - reference) < 5 * math.hypot(error, own)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_event_holds_all_values_and_has_the_stated_probability(epsilon: float) -> None:
    """Plain samples: values are zero outside the event, which has probability R."""
    bins, multiplier, samples = 6, 0.7, 200_000
    pair = Pair(np.eye(bins), multiplier)
    random = np.random.default_rng(0)
    energy = multiplier**-2
    for direction in (MIXTURE, NOISE):
        exponents = math.sqrt(energy) * random.standard_normal((samples, bins)) - energy / 2
        if direction is MIXTURE:
            exponents[:, 0] += energy
        loss = logsumexp(exponents, axis=1) - math.log(bins)
        top = exponents.max(axis=1)
        inside = top > epsilon if direction is MIXTURE else top < math.log(bins) - epsilon
        assert not ((loss > epsilon) if direction is MIXTURE else (-loss > epsilon))[~inside].any()
        stated = MaximumSampler(pair, direction, epsilon).value_range(epsilon)
        assert abs(inside.mean() - stated) < 5 * math.sqrt(stated / samples) + 1e-3 * stated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", [MIXTURE, NOISE])
def test_samples_serve_every_larger_epsilon(
    kind: type[MaximumSampler] | type[OrderStatisticsSampler], direction: Direction
) -> None:
    pair = Pair(np.eye(8), 0.7)
    sampler = kind(pair, direction, 0.5)
    assert sampler.least_epsilon == 0.5
    estimate, error = mean(sampler, 1.5, 200_000, seed=2)
    direct, other = mean(kind(pair, direction, 1.5), 1.5, 200_000, seed=3)
    assert abs(estimate - direct) < 5 * math.hypot(error, other)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_functions_of_seed_and_index(kind: type[MaximumSampler] | type[OrderStatisticsSampler]) -> None:
    sampler = kind(Pair(np.eye(5), 0.8), MIXTURE, 1.0)
    assert np.array_equal(sampler.draw(1, 2).loss, sampler.draw(1, 2).loss)
    assert not np.array_equal(sampler.draw(1, 2).loss, sampler.draw(1, 3).loss)
    assert not np.array_equal(sampler.draw(1, 2).loss, sampler.draw(2, 2).loss)


@pytest.mark.parametrize("kind", KINDS)
def test_other_pairs_are_refused(kind: type[MaximumSampler] | type[OrderStatisticsSampler]) -> None:
    uneven = np.diag([1.0, 0.9])
    for pair in (dominating_pair(square_root(16, 2), 8), dominating_pair(identity(15), 8), Pair(uneven)):
        with pytest.raises(InvalidArgument, match="orthogonal modes"):
            kind(pair, MIXTURE, 1.0)
    with pytest.raises(InvalidArgument, match="replace adjacency"):
        kind(Pair(np.eye(4)), REPLACE, 1.0)
    kind(dominating_pair(identity(32), 8), MIXTURE, 1.0)  # rounding upwards in the pair is no reason to refuse


@pytest.mark.parametrize("kind", KINDS)
def test_one_bin_is_the_gaussian_mechanism(kind: type[MaximumSampler] | type[OrderStatisticsSampler]) -> None:
    for direction in (MIXTURE, NOISE):
        estimate, error = mean(kind(Pair(np.eye(1), 1.0), direction, 1.0), 1.0, 100_000)
        exact = norm.cdf(0.5 - 1.0) - math.e * norm.cdf(-0.5 - 1.0)
        assert abs(estimate - exact) < 5 * error


def test_ranks_cover_all_sizes() -> None:
    for size in (1, 2, 3, 10, 1000, 12_345):
        places = ranks(size)
        assert places[0] == 1
        assert places[-1] == size
        assert places == sorted(set(places))
    assert len(ranks(100_000)) < 250


def test_order_statistics_have_the_law_of_sorted_normals() -> None:
    """Mean of the maximum and of the median of 31 others, given an event that is nearly certain."""
    sampler = OrderStatisticsSampler(Pair(np.eye(32), 2.0), MIXTURE, 1e-6, growth=1.0)
    random = np.random.default_rng(1)
    tails = sampler._tail_masses(-np.expm1(np.log(random.random(1 << 14)) / 31), random)
    assert tails.shape[1] == 31
    assert (np.diff(tails, axis=1) >= 0).all()
    for rank in (1, 5, 16, 31):
        expected, spread = rank / 32, math.sqrt(rank * (32 - rank) / 32**2 / 33)  # uniform order statistics
        assert abs(tails[:, rank - 1].mean() - expected) < 5 * spread / 128


def test_brackets_close_when_every_rank_is_drawn() -> None:
    pair = Pair(np.eye(16), 0.6)
    for direction in (MIXTURE, NOISE):
        coarse = OrderStatisticsSampler(pair, direction, 1.0, growth=2.0).draw(3, 0)
        fine = OrderStatisticsSampler(pair, direction, 1.0, growth=1.0).draw(3, 0)
        assert isinstance(coarse, BracketedDraw)
        assert isinstance(fine, BracketedDraw)
        assert (coarse.low <= coarse.loss + 1e-12).all()
        assert (coarse.loss - coarse.low).mean() > 0.01
        assert np.abs(fine.loss - fine.low).max() < 1e-12
        assert len(coarse.first(10).low) == 10


@pytest.mark.parametrize("name", ["maximum", "order-statistics"])
def test_they_answer_questions_by_name(name: str) -> None:
    row = next(
        r for r in random_allocation() if r["bins"] == 8 and r["epsilon"] == 2.0 and r["noise_multiplier"] == 0.7
    )
    pair = Pair(np.eye(8), 0.7)
    options = Options(sampler=name, samples=200_000, seed=4, rel_width=0.05)
    estimate = delta(pair, 2.0, Adjacency.REMOVE, options=options)
    assert estimate.sampler == name
    assert estimate.lower <= float(row["delta_upper"])
    assert estimate.upper >= float(row["delta_lower"])
    seeded = Options(sampler=name, seed=4)
    assert certify(pair, 2.0, 1.4 * float(row["delta_upper"]), options=seeded).accepted
    assert not certify(pair, 2.0, 0.8 * float(row["delta_lower"]), options=seeded).accepted
    assert "asked for" in choose_sampler(pair, MIXTURE, 2.0, name).reason


def loss_of(exponents: FloatArray) -> FloatArray:
    return np.asarray(logsumexp(exponents, axis=1) - math.log(exponents.shape[1]))


def test_many_bins_cost_little_with_order_statistics() -> None:
    sampler = OrderStatisticsSampler(Pair(np.eye(3000), 0.4), MIXTURE, 1.0)
    assert sampler._ranks.size < 160
    high, _ = mean(sampler, 1.0, 1 << 14, rounding=1)
    low, _ = mean(sampler, 1.0, 1 << 14, rounding=-1)
    random = np.random.default_rng(0)
    energy = 0.4**-2
    exponents = math.sqrt(energy) * random.standard_normal((2000, 3000)) - energy / 2
    exponents[:, 0] += energy
    values = -np.expm1(np.minimum(1.0 - loss_of(exponents), 0.0))
    error = 6 * float(values.std()) / math.sqrt(values.size)
    assert low - error <= float(values.mean()) <= high + error
