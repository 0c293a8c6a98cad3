"""Bins redrawn in every epoch: the pair, its samplers and their ranges, the accountant and the optimiser."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import fftconvolve
from scipy.special import logsumexp, ndtr, ndtri

from galton.accounting import Ledger, Options, calibrate, certify, delta, epsilon, profile
from galton.accounting.deterministic import direction_upper_bound
from galton.errors import FloatArray, InvalidArgument
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.many_bins import pair_of_bins
from galton.optimization import optimize
from galton.optimization.families import parse_family
from galton.optimization.participation import PARTICIPATIONS
from galton.optimization.problem import Problem
from galton.optimization.search import Target, design
from galton.pair import DominatingPair, Pair, dominating_pair
from galton.redrawn import Reach, RedrawnPair, pattern_pair, redrawn_pair
from galton.sampling import HalfSpaceSampler, Sampler, TiltedSampler, draws
from galton.sampling.base import wide_jax
from galton.sampling.depths import choose_depths, draw_depths
from galton.sampling.floors import Slopes, lay_floor, measure_floor
from galton.sampling.pattern_bound import PatternBound
from galton.sampling.redrawn import (
    RedrawnHalfSpaceSampler,
    RedrawnModel,
    RedrawnPlainSampler,
    RedrawnTiltedSampler,
    start_of,
)
from galton.sampling.strata import log_largest_average
from galton.sampling.toolkits import RedrawnToolkit, frozen_estimator
from galton.strategies import Blt, Dense, Scaled, Strategy, Toeplitz, Tree, identity, square_root
from galton.strategies.sensitivity import redrawn_sensitivity
from galton.workloads import prefix_sums
from tests.marks import SLOW, slow_after
from tests.truth import gaussian

MIXTURE, NOISE, REPLACE = Direction.MIXTURE_FIRST, Direction.NOISE_FIRST, Direction.REPLACE
DIRECTIONS = (MIXTURE, NOISE)
ALL = (*DIRECTIONS, REPLACE)
ASKED = {MIXTURE: Adjacency.REMOVE, NOISE: Adjacency.ADD, REPLACE: Adjacency.REPLACE}
ALLOCATION = json.loads((Path(__file__).parent / "data" / "redrawn_allocation.json").read_text())["rows"]


def banded(rounds: int, bands: int, seed: int) -> Dense:
    """A random banded matrix, with columns of very different sizes."""
    random = np.random.default_rng(seed)
    lag = np.arange(rounds)[:, None] - np.arange(rounds)
    entries = random.random((rounds, rounds)) + np.eye(rounds)
    return Dense(np.where((lag >= 0) & (lag < bands), entries, 0.0) * random.uniform(0.5, 2.0, rounds))


def all_modes(strategy: Strategy, bins: int, pair: RedrawnPair | None = None) -> FloatArray:
    """The modes of all patterns, one a row, scaled to sensitivity 1 in a fixed order; with the tail of a pair."""
    rounds = strategy.rounds
    matrix = np.abs(strategy.matrix()) / strategy.sensitivity(bins)
    shift = np.zeros(rounds)
    if pair is not None:
        lag = np.arange(rounds)[:, None] - np.arange(rounds)
        matrix, shift = np.where(lag <= bins, matrix, 0.0), pair.reach.tail.ravel()[:rounds]
    epochs = -(-rounds // bins)
    rows = []
    for pattern in itertools.product(range(bins), repeat=epochs):
        chosen = [epoch * bins + place for epoch, place in enumerate(pattern) if epoch * bins + place < rounds]
        rows.append(matrix[:, chosen].sum(axis=1) + shift)
    return np.array(rows)


def as_gram(modes: FloatArray, multiplier: float) -> Pair:
    """The same mechanism for the accountant of one draw: every pattern a bin of its own."""
    gram = modes @ modes.T
    return Pair((gram + gram.T) / 2 + 1e-12, multiplier)


def mean(sampler: Sampler, epsilon: float, samples: int, seed: int = 1) -> tuple[float, float]:
    values = np.concatenate([sampler.values(draw, epsilon) for draw in draws(sampler, samples, seed)])
    assert np.isfinite(values).all()
    return float(values.mean()), float(values.std() / math.sqrt(values.size))


def sharp(pair: RedrawnPair, direction: Direction, epsilon: float) -> Sampler:
    return (
        RedrawnHalfSpaceSampler(pair, epsilon) if direction is NOISE else RedrawnTiltedSampler(pair, direction, epsilon)
    )


def one_draw_sharp(pair: Pair, direction: Direction, epsilon: float) -> Sampler:
    return HalfSpaceSampler(pair, epsilon) if direction is NOISE else TiltedSampler(pair, direction, epsilon)


def agree(first: tuple[float, float], second: tuple[float, float]) -> None:
    assert abs(first[0] - second[0]) < 5 * math.hypot(first[1], second[1]) + 1e-9


STRATEGIES = {
    "one band": identity(12),
    "three bands": square_root(12, 3),
    "bins + 1 bands": square_root(12, 5),
    "random, bins + 1 bands": banded(12, 5, 1),
    "random, few bands": banded(12, 2, 2),
    "partial last epoch": banded(10, 5, 3),
    "long memory": square_root(12),
}


# The pair.


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_pair_has_the_modes_of_all_patterns(strategy: Strategy) -> None:
    pair = pattern_pair(strategy, 4)
    modes = all_modes(strategy, 4, pair)
    energies = (modes**2).sum(axis=1)
    assert pair.reach.largest_energy == pytest.approx(energies.max(), rel=1e-10)
    assert pair.reach.mean_energy == pytest.approx(energies.mean(), rel=1e-10)
    average = np.zeros(pair.epochs * pair.bins)
    average[: strategy.rounds] = modes.mean(axis=0)
    assert np.allclose(pair.reach.mean_mode.ravel(), average, rtol=1e-10)
    assert pair.mu_upper == pytest.approx(redrawn_sensitivity(strategy, 4) / strategy.sensitivity(4), rel=1e-9)
    assert (
        all_modes(strategy, 4) <= modes * (1 + 1e-12) + 1e-15
    ).all()  # the tail stands for more than what it replaces


def test_a_tail_costs_nothing_where_memory_dies_within_an_epoch() -> None:
    strategy = Blt(64, [0.1], [0.5])
    pair = pattern_pair(strategy, 16)
    assert 0 < pair.reach.tail.max() < 1e-15
    assert pair.mu_lower < 1e-15


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: redrawn_pair(Tree(8), 4), "must be a square matrix"),
        (lambda: redrawn_pair(identity(4), 8), "bins = 8"),
        (lambda: redrawn_pair(identity(20_000), 5000), "bins = 5000"),
        (lambda: Reach(-np.ones((1, 2, 2)), np.zeros((0, 2, 2)), np.zeros((1, 2))), "own = -1.0"),
        (lambda: redrawn_pair(identity(8), 4, -1.0), "noise_multiplier = -1.0"),
        (lambda: redrawn_pair(identity(8), 4, 1e200), "noise_multiplier = 1e+200"),
        (lambda: delta(redrawn_pair(identity(8), 4), 1.0, options=Options(sampler="maximum")), "sampler = 'maximum'"),
        (lambda: RedrawnTiltedSampler(pattern_pair(identity(8), 4), NOISE, 1.0), "direction = 'noise-first'"),
        (lambda: RedrawnTiltedSampler(pattern_pair(identity(8), 4), MIXTURE, 1.0, order=0), "order = 0"),
    ],
)
def test_what_cannot_be_analysed_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        build()
    assert message in str(refusal.value)


@SLOW
def test_what_no_amplification_needs_is_that_of_the_worst_pattern() -> None:
    pair = pattern_pair(Dense(np.tril(np.ones((8, 8)))), 2)
    calibration = calibrate(pair, 2.0, 1e-2, options=Options(seed=1, samples=1 << 15), tau=1.2)
    assert gaussian(2.0, pair.at(calibration.unamplified).mu_upper) == pytest.approx(1e-2, rel=1e-6)


# Samplers, against all patterns as bins of the accountant of one draw, and against closed forms.


@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize(
    "name", slow_after(3, dict.fromkeys(("partial last epoch", "random, bins + 1 bands", "long memory", *STRATEGIES)))
)
def test_samplers_agree_with_all_patterns_written_out(name: str, direction: Direction) -> None:
    strategy = STRATEGIES[name]
    pair = pattern_pair(strategy, 4, 0.9)
    written_out = as_gram(all_modes(strategy, 4, pair), 0.9)
    expected = mean(one_draw_sharp(written_out, direction, 1.0), 1.0, 40_000, seed=2)
    agree(mean(sharp(pair, direction, 1.0), 1.0, 60_000), expected)


@SLOW
@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize(("level", "multiplier"), [(0.25, 2.5), (3.0, 0.6), (8.0, 0.35)])
@pytest.mark.parametrize("seed", range(3))
def test_samplers_agree_over_epsilons(level: float, multiplier: float, seed: int, direction: Direction) -> None:
    strategy = banded(12, 5, seed)
    pair = pattern_pair(strategy, 4, multiplier)
    expected = mean(
        one_draw_sharp(as_gram(all_modes(strategy, 4), multiplier), direction, level), level, 200_000, seed=2
    )
    agree(mean(sharp(pair, direction, level), level, 50_000), expected)
    agree(mean(RedrawnPlainSampler(pair, direction), level, 400_000), expected)


@SLOW
@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize("order", [2, 1, 5])
def test_every_order_is_unbiased(order: int, direction: Direction) -> None:
    if direction is NOISE:
        pair = pattern_pair(banded(9, 4, 5), 3, 1.1)
        samplers = [RedrawnHalfSpaceSampler(pair, 0.5, deep=-0.5 * order), RedrawnPlainSampler(pair, NOISE)]
    else:
        pair = pattern_pair(banded(9, 4, 5), 3, 1.1)
        samplers = [RedrawnTiltedSampler(pair, direction, 0.5, order=order), RedrawnPlainSampler(pair, direction)]
    agree(*(mean(sampler, 0.5, 30_000, seed) for seed, sampler in enumerate(samplers)))


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_one_epoch_is_one_draw(direction: Direction) -> None:
    strategy = square_root(6, 4)
    before = mean(one_draw_sharp(dominating_pair(strategy, 6, 0.8), direction, 1.0), 1.0, 60_000)
    agree(mean(sharp(pattern_pair(strategy, 6, 0.8), direction, 1.0), 1.0, 60_000, seed=2), before)


@pytest.mark.parametrize("direction", slow_after(1, ALL))
def test_one_bin_is_the_gaussian_mechanism(direction: Direction) -> None:
    pair = pattern_pair(square_root(5, 2), 1, 0.7)
    assert pair.mu_upper == pytest.approx(1 / 0.7, rel=1e-10)
    estimate, error = mean(sharp(pair, direction, 1.0), 1.0, 60_000)
    assert abs(estimate - gaussian(1.0, direction.sides / 0.7)) < 5 * error + 1e-6


def numbers(body: Any) -> Any:
    """All that a result in JSON says but for how long it took and whose pair it was."""
    if not isinstance(body, dict):
        return body
    apart = ("seconds", "created", "participation", "statement")
    return {key: numbers(value) for key, value in body.items() if key not in apart}


@pytest.mark.parametrize(
    ("strategy", "bins"),
    slow_after(2, [(square_root(16, 4), 16), (identity(8), 8), (square_root(5, 2), 1), (Blt(600, [0.3], [0.9]), 600)]),
)
def test_one_epoch_or_one_bin_has_the_numbers_of_one_draw(strategy: Strategy, bins: int, tmp_path: Path) -> None:
    """There is one pattern for each bin: the same intervals, certificates and multipliers, to the bit."""
    options = Options(seed=3, samples=1 << 14)
    redrawn, once = redrawn_pair(strategy, bins), pair_of_bins(strategy, bins)
    multiplier = [calibrate(pair, 2.0, 1e-3, options=options, tau=1.2) for pair in (redrawn, once)]
    assert numbers(multiplier[0].to_json()) == numbers(multiplier[1].to_json())
    pairs = [pair.at(multiplier[0].noise_multiplier) for pair in (redrawn, once)]
    for ask in (delta, epsilon):
        for adjacency in (Adjacency.ADD, Adjacency.REMOVE, Adjacency.ADD_OR_REMOVE):
            argument = 2.0 if ask is delta else 1e-3
            answers = [numbers(ask(pair, argument, adjacency, options=options).to_json()) for pair in pairs]
            assert answers[0] == answers[1]
    ledgers = [Ledger(tmp_path / name) for name in ("redrawn.json", "once.json")]
    first, second = (
        certify(pair, 2.0, 1e-3, options=options, ledger=own) for pair, own in zip(pairs, ledgers, strict=True)
    )
    assert first.accepted
    assert numbers(first.to_json()) == numbers(second.to_json())
    assert (first.participation, second.participation) == ("redrawn", "bins")


def test_one_bin_needs_no_samples() -> None:
    result = delta(redrawn_pair(square_root(5, 2), 1, 0.7), 1.0, options=Options(seed=1))
    assert result.samples == 0
    assert result.lower <= gaussian(1.0, 1 / 0.7) <= result.upper <= result.lower * (1 + 1e-5)


@pytest.mark.parametrize("row", slow_after(1, [row for row in ALLOCATION if row["direction"] != "max"]))
def test_independent_noise_agrees_with_random_allocation(row: dict[str, Any]) -> None:
    rounds = row["bins"] * row["epochs"]
    pair = pattern_pair(identity(rounds), row["bins"], row["noise_multiplier"])
    direction = MIXTURE if row["direction"] == "mixture_first" else NOISE
    estimate, error = mean(sharp(pair, direction, row["epsilon"]), row["epsilon"], (1 << 20) // rounds)
    assert row["delta_lower"] - 5 * error < estimate < row["delta_upper"] + 5 * error
    assert error < 0.2 * estimate


@pytest.mark.parametrize(("rounds", "bins", "bands"), [(24, 12, 3), (24, 12, 5), (30, 10, 1), (20, 8, 3)])
def test_short_memory_is_computed_in_short_blocks(rounds: int, bins: int, bands: int) -> None:
    """Against C written out; the last epoch of one case is partial."""
    pair = pattern_pair(banded(rounds, bands, 4), bins, 0.8)
    matrix = np.zeros((pair.epochs * bins, pair.epochs * bins))
    matrix[:rounds, :rounds] = banded(rounds, bands, 4).matrix() / banded(rounds, bands, 4).sensitivity(bins) / 0.8
    points = np.random.default_rng(1).standard_normal((pair.epochs, 3, bins))
    flat = points.transpose(1, 0, 2).reshape(3, -1)
    with wide_jax():
        parts = RedrawnModel(pair).parts()
        assert parts.own.shape[-1] < bins
        assert parts.repulsion.shape[-1] < bins
        given = jax.numpy.asarray(points)
        fields, _ = parts.fields(given)
        rows = np.asarray(parts.rows(given))
        loss, slope = parts.loss_and_slope(given)
    columns = (np.asarray(fields) + np.asarray(parts.offsets)[:, None]).transpose(1, 0, 2).reshape(3, -1)
    assert np.allclose(columns, flat @ matrix, rtol=1e-9, atol=1e-9)
    assert np.allclose(rows.transpose(1, 0, 2).reshape(3, -1), flat @ matrix.T, rtol=1e-9, atol=1e-9)
    modes = all_modes(banded(rounds, bands, 4), bins) / 0.8
    modes = np.pad(modes, ((0, 0), (0, pair.epochs * bins - rounds)))
    products = flat @ modes.T - np.square(modes).sum(axis=1) / 2
    weights = np.exp(products - products.max(axis=1)[:, None])
    assert np.allclose(loss, products.max(axis=1) + np.log(weights.mean(axis=1)), rtol=1e-9)
    expected = weights @ modes / weights.sum(axis=1)[:, None]
    assert np.allclose(np.asarray(slope).transpose(1, 0, 2).reshape(3, -1), expected, rtol=1e-8, atol=1e-12)


def replaced_by_quadrature(epochs: int, epsilon: float, multiplier: float) -> float:
    """delta of replace for C = I and two bins: one epoch's loss on a grid of the plane, and its sum over epochs."""
    size, step = 1 / (multiplier * math.sqrt(epochs)), 1e-3
    line = np.linspace(-12.0, 12.0, 4001)
    near = np.exp(-((line - size) ** 2) / 2), np.exp(-(line**2) / 2), np.exp(-((line + size) ** 2) / 2)
    first, second = (np.add.outer(np.log(side), np.log(near[1])) for side in (near[0], near[2]))
    ahead, behind = np.logaddexp(first, first.T), np.logaddexp(second, second.T)
    mass = np.exp(ahead)
    cells = np.rint((ahead - behind) / step).astype(int).ravel()
    law = np.bincount(cells - cells.min(), mass.ravel())
    law, lowest = law / law.sum(), cells.min()
    total = law
    for _ in range(epochs - 1):
        total = fftconvolve(total, law)
    losses = (epochs * lowest + np.arange(total.size)) * step
    return float(total @ -np.expm1(np.minimum(epsilon - losses, 0.0)))


@pytest.mark.parametrize(
    ("epochs", "epsilon", "multiplier"), slow_after(1, [(3, 1.0, 0.9), (4, 2.0, 0.6), (8, 0.5, 1.5)])
)
def test_independent_noise_agrees_with_quadrature_for_replace(epochs: int, epsilon: float, multiplier: float) -> None:
    expected = replaced_by_quadrature(epochs, epsilon, multiplier)
    estimate, error = mean(
        RedrawnTiltedSampler(pattern_pair(identity(2 * epochs), 2, multiplier), REPLACE, epsilon), epsilon, 100_000
    )
    assert abs(estimate - expected) < 5 * error + 2e-3 * expected


# Ranges.


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_pattern_bound_in_a_field_is_a_bound_and_is_attained(strategy: Strategy) -> None:
    """Against all patterns written out, at the ends of rays, between them, and for sums over the order."""
    pair = pattern_pair(strategy, 4)
    modes = all_modes(strategy, 4, pair)
    products, average = modes @ modes.T, modes @ modes.mean(axis=0)

    def exact(strength: float, field: float) -> float:
        return max(float(np.log(np.exp(strength * row + field * average).mean())) for row in products)

    bound = PatternBound(pair.reach)
    for field in (0.1, 1.0, 7.0):
        for share in (0.0, 0.25, 0.4, 1.0):
            value = exact(share * field, field)
            assert value <= bound.largest(share * field, field) <= value + 1e-8 * (1 + value)
            assert value <= bound.in_field.total(np.array([share]), field) <= value * 1.02 + 1e-8
        for order in (1, 2, 5, 7, 30):
            shares = np.linspace(0.0, 1.0, order + 1)
            value = sum(exact(share * field, field) for share in shares)
            assert value <= bound.in_field.total(shares, field) <= value * 1.02 + 1e-8


def test_no_tuple_that_a_search_tries_beats_the_range_of_replace() -> None:
    """The weight at its largest over points, for the worst tuples: a hill climb over patterns, then over the point."""
    strategy, bins, order, level = square_root(24, 7), 6, 2, 1.0
    pair = pattern_pair(strategy, bins, 0.9)
    modes = all_modes(strategy, bins, pair) / 0.9
    average, products, random = modes.mean(axis=0), modes @ modes.T, np.random.default_rng(4)
    half = (modes**2).sum(axis=1) / 2

    def log_factors(chosen: NDArray[np.int64]) -> float:
        total, fields = 0.0, order * modes @ average
        for index in range(order + 1):
            total += float(np.log(np.exp(fields).mean()))
            fields = fields + products[chosen[index]]
        return total + order**2 * float(average @ average) / 2

    best = -math.inf
    for _ in range(20):
        chosen = random.integers(len(modes), size=order + 1)
        for place in (*range(order), *range(order)):
            others = random.integers(len(modes), size=60)
            tried = [np.where(np.arange(order + 1) == place, other, chosen) for other in (*others, chosen[place])]
            chosen = max(tried, key=log_factors)
        best = max(best, log_factors(chosen))

    def value(point: FloatArray) -> float:
        """The negative logarithm."""
        ahead, behind = modes @ point - half, -modes @ point - half
        loss = logsumexp(ahead) - logsumexp(behind)
        statistic = logsumexp(ahead) - math.log(len(modes)) + float(average @ point)
        if loss <= level:
            return 1e3 + float(level - loss)
        return order * float(statistic) - math.log(-math.expm1(level - loss))

    points = [float(minimize(value, modes[index] * 0.7).fun) for index in random.integers(len(modes), size=6)]
    reached = math.exp(best - min(points))
    model = RedrawnModel(pair)
    one_loss = model.replace_tilt(order).log_bound + math.log(order**order / (1 + order) ** (1 + order))
    one_loss -= log_largest_average(order, 2 * model.slope, 8)
    assert 0.02 * math.exp(one_loss - order * level) < reached <= math.exp(one_loss - order * level)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_pattern_bound_is_a_bound_and_is_attained(strategy: Strategy) -> None:
    pair = pattern_pair(strategy, 4)
    modes = all_modes(strategy, 4, pair)
    products = modes @ modes.T
    bound = PatternBound(pair.reach)
    for strength in (0.1, 1.0, 7.0, 30.0):
        exact = max(np.log(np.exp(strength * row).mean()) for row in products)
        assert exact <= bound.largest(strength) <= exact + 1e-8 * (1 + exact)  # groups of single bins: exact
        assert exact <= bound(strength) <= exact * 1.01 + 1e-8


def test_no_pattern_beats_a_bound_with_coarse_groups() -> None:
    """With many bins the bound merges bins; a search over patterns must not find more than it, and comes close."""
    strategy = Scaled(square_root(160, 41), np.random.default_rng(1).uniform(0.7, 1.3, 160))
    pair = pattern_pair(strategy, 40)
    reach, random = pair.reach, np.random.default_rng(2)

    def strength_of(pattern: NDArray[np.int64], strength: float) -> float:
        total = 0.0
        for epoch, place in enumerate(pattern):
            field = reach.gram[epoch][place].copy()
            if epoch:
                field += reach.overlap[epoch - 1][pattern[epoch - 1]]
            if epoch + 1 < reach.epochs:
                field += reach.overlap[epoch][:, pattern[epoch + 1]]
            total += math.log(np.exp(strength * field).mean())
        return total

    for strength in (1.0, 20.0):
        best = -math.inf
        for _ in range(20):
            pattern = random.integers(40, size=4)
            value, improved = strength_of(pattern, strength), True
            while improved:
                improved = False
                for epoch, place in itertools.product(range(4), range(40)):
                    other = pattern.copy()
                    other[epoch] = place
                    changed = strength_of(other, strength)
                    if changed > value:
                        pattern, value, improved = other, changed, True
            best = max(best, value)
        bound = PatternBound(reach).largest(strength)
        assert best <= bound <= best * 1.05


@pytest.mark.parametrize(("order", "fields"), [(1, 0), (3, 0), (1, 1), (3, 3)])
@pytest.mark.parametrize("strategy", slow_after(3, STRATEGIES.values()))
def test_the_first_pattern_has_the_law_and_the_bound_it_says(strategy: Strategy, order: int, fields: int) -> None:
    """Against all patterns written out: the chain's probabilities, and the largest weight of a first pattern."""
    pair = pattern_pair(strategy, 4, 0.7)
    law = PatternBound(pair.reach).first_pattern(0.49, order, fields / 0.49)
    with wide_jax():
        start = start_of(law, pair.reach, fields / 0.49)
    first, steps = np.asarray(start.first)[0], np.asarray(start.steps)
    modes = all_modes(strategy, 4, pair) / 0.7
    products, average = modes @ modes.T, fields * (modes @ modes.mean(axis=0))
    total, largest = 0.0, -math.inf
    for index, pattern in enumerate(itertools.product(range(4), repeat=pair.epochs)):
        probability, log_density = first[pattern[0]] / first.sum(), law.nodes[0, pattern[0]]
        for epoch, (before, after) in enumerate(itertools.pairwise(pattern)):
            probability *= steps[epoch][before, after] / steps[epoch][before].sum()
            log_density += law.nodes[epoch + 1, after] + law.pairs[epoch][before, after]
        density = probability * 4**pair.epochs
        field = average[index] if index < len(products) else average[0]
        assert math.log(density) == pytest.approx(log_density + field - float(start.log_total), abs=1e-9)
        density /= math.exp(field)
        total += probability
        row = products[index] if index < len(products) else products[0]
        attracted = sum(math.log(np.exp(step * row + average).mean()) / step for step in range(1, order + 1))
        largest = max(largest, attracted - math.log(density))
    assert total == pytest.approx(1)
    assert largest <= law.log_bound <= 1.02 * largest + 0.02
    if order == 1:
        assert math.log(np.exp(products).mean()) <= law.log_bound + 1e-12


def test_a_law_of_the_first_pattern_makes_the_range_smaller_where_epochs_overlap() -> None:
    model = RedrawnModel(pattern_pair(square_root(256, 8), 32, 0.17))
    fitted, plain = model.sampled_tilt(12.0), model.best_tilt(12.0)
    assert fitted.fitted
    assert fitted.log_range(12.0) < plain.log_range(12.0) - 1


# How deep a convex loss falls.


def linear(samples: int, seed: int, across: float) -> Slopes:
    """Observations of a loss that is linear: 0.9 along the average mode and `across` in another direction."""
    normal = np.random.default_rng(seed).standard_normal(samples)
    return Slopes(-1.0 + across * normal, np.full(samples, 0.9), np.full(samples, across))


@pytest.mark.parametrize("across", [0.3, 1.2])
def test_a_floor_under_a_linear_loss_is_nearly_what_it_is(across: float) -> None:
    """L = -1 + 0.9 (w + 2) + across z: what lies above a depth is an integral of normal probabilities."""
    floor = measure_floor(lay_floor(-2.0, linear(2_000, 1, across)), linear(200_000, 2, across), 1e-9, 0.0)
    for above, room in ((-2.0, 1.0), (-1.0, 3.0), (-1.9, 5.0)):
        level = 1.0 - 0.9 * (above + 2.0) + room * across
        depths = np.linspace(above, 9.0, 40_001)
        means = level - 1.0 + 0.9 * (depths + 2.0)
        below = -means / across
        values = ndtr(below) - np.exp(means + across**2 / 2) * ndtr(below - across)
        exact = float(np.trapezoid(values * np.exp(-(depths**2) / 2) / math.sqrt(2 * math.pi), depths))
        assert exact < floor.rest(level, above) < 1.35 * exact


def test_the_size_of_a_floor_is_a_confidence_limit() -> None:
    floor = lay_floor(-2.0, linear(500, 1, 0.5))
    truth = (-1.0 - floor.levels) / 0.5 - floor.distances  # of all points, those with z at least -truth are in the set
    wrong = sum((measure_floor(floor, linear(400, seed, 0.5), 0.3, 0.0).alphas > truth).any() for seed in range(2, 302))
    assert wrong < 0.3 * 300


def test_the_gradient_is_that_of_the_loss() -> None:
    pair = pattern_pair(square_root(12), 4, 0.5)
    with wide_jax():
        points = jax.numpy.asarray(np.random.default_rng(1).standard_normal((3, 5, 4)))
        parts = RedrawnModel(pair).parts()
        loss, slope = parts.loss_and_slope(points)
        assert np.allclose(loss, parts.loss(points), rtol=1e-12)
        assert np.allclose(slope, jax.grad(lambda points: parts.loss(points).sum())(points), rtol=1e-9)


def test_a_floor_makes_the_range_smaller_and_loses_nothing() -> None:
    """Against all patterns written out; few of them, so that only a claim above delta leaves anything to the floor."""
    strategy, level, multiplier, claim = identity(16), 12.0, 0.25, 0.02
    sampler = RedrawnHalfSpaceSampler(pattern_pair(strategy, 4, multiplier), level)
    assert sampler.narrows
    narrower, failure = sampler.measured(5, 1e-6, claim)
    assert 0.98e-6 < failure < 1e-6
    assert not narrower.narrows
    assert narrower.value_range(level) < 0.6 * sampler.value_range(level)
    written_out = one_draw_sharp(as_gram(all_modes(strategy, 4), multiplier), NOISE, level)
    exact, exact_error = mean(written_out, level, 30_000, seed=2)
    estimate, error = mean(narrower, level, 30_000)
    rest, noise = narrower.rest(level), 5 * math.hypot(error, exact_error)
    assert estimate - noise <= exact <= estimate + rest + noise
    assert rest <= 0.2 * claim


@SLOW
@pytest.mark.parametrize(("level", "multiplier"), [(4.0, 0.45), (8.0, 0.3)])
def test_a_floor_leaves_next_to_nothing_out(level: float, multiplier: float) -> None:
    sampler = RedrawnHalfSpaceSampler(pattern_pair(square_root(512, 8), 32, multiplier), level)
    narrower, _ = sampler.measured(5, 1e-6)
    assert narrower.value_range(level) < 0.2 * sampler.value_range(level)
    expected, estimate = mean(sampler, level, 50_000), mean(narrower, level, 25_000, seed=2)
    assert narrower.rest(level) < 0.02 * estimate[0]
    assert abs(expected[0] - estimate[0]) < 5 * math.hypot(expected[1], estimate[1]) + 0.02 * estimate[0]


def test_a_sampler_that_needs_no_floor_stays_as_it_is() -> None:
    sampler = RedrawnHalfSpaceSampler(pattern_pair(square_root(8, 2), 4, 2.0), 1.0)
    assert sampler.measured(1, 1e-6) == (sampler, 1e-6)


@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize(("level", "multiplier"), slow_after(0, [(4.0, 0.5), (0.5, 1.5)]))
def test_values_stay_within_the_range(level: float, multiplier: float, direction: Direction) -> None:
    pair = pattern_pair(square_root(24, 6), 6, multiplier * direction.sides)
    sampler = sharp(pair, direction, level)
    for draw in draws(sampler, 20_000, 3):
        raw = (np.exp(draw.log_weight) * -np.expm1(np.minimum(level - draw.loss, 0.0))).mean(axis=1)
        assert raw.max() <= sampler.value_range(level) * (1 + 1e-9)
    estimate, error = mean(sampler, level, 20_000)
    assert estimate - 5 * error <= direction_upper_bound(pair, direction, level)
    assert sampler.value_range(level) < 40 * estimate  # sharp enough to be useful


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_loss_grows_along_the_average_mode_by_the_least_component(strategy: Strategy) -> None:
    """Against all patterns written out; and far out, where one pattern is all of the sum, it grows no faster."""
    pair = pattern_pair(strategy, 4, 0.7)
    modes = np.pad(all_modes(strategy, 4, pair) / 0.7, ((0, 0), (0, pair.epochs * 4 - strategy.rounds)))
    model, average = RedrawnModel(pair), modes.mean(axis=0)
    components = modes @ average / np.linalg.norm(average)
    assert components.min() * (1 - 1e-8) <= model.slope <= components.min()
    least = modes[components.argmin()]
    points = np.array([0 * least, 40 * least])
    steps = points + 1e-3 * average / np.linalg.norm(average)
    with wide_jax():
        parts = model.parts()
        given, moved = (jax.numpy.asarray(part.reshape(2, pair.epochs, 4).swapaxes(0, 1)) for part in (points, steps))
        gained = np.asarray(parts.loss(moved) - parts.loss(given)) / 1e-3
    assert (gained >= model.slope * (1 - 1e-6)).all()


@pytest.mark.parametrize("order", [1, 4])
def test_no_curve_with_that_slope_beats_the_average_over_strata(order: int) -> None:
    """A search over steeper and kinked curves, for points anywhere in their strata."""
    slope, strata, random = 0.7, 8, np.random.default_rng(1)
    edges = ndtri(np.arange(strata + 1) / strata)
    bound, best = math.exp(log_largest_average(order, slope, strata)), 0.0
    for _ in range(4000):
        start, steeper, kink = random.normal(), random.exponential() * random.integers(2), random.normal()
        places = np.clip(start, edges[:-1], edges[1:]) + 0.1 * random.integers(2) * random.normal(size=strata)
        places = np.clip(places, np.maximum(edges[:-1], -9), np.minimum(edges[1:], 9))
        excess = math.log1p(1 / order) + slope * (places - start) + steeper * (places - kink) * (places > kink)
        values = np.exp(-order * excess) * -np.expm1(-np.maximum(excess, 0.0))
        best = max(best, float(values.mean()))
    assert 0.95 * bound < best <= bound  # cells of 0.05 leave some percent


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_strata_make_values_vary_less(direction: Direction) -> None:
    sampler = sharp(pattern_pair(square_root(64, 9), 8, 0.9), direction, 2.0)
    parts = [np.exp(draw.log_weight) * -np.expm1(np.minimum(2.0 - draw.loss, 0.0)) for draw in draws(sampler, 8192, 1)]
    values = np.concatenate(parts)
    assert values.shape[1] == sampler.strata
    assert values.mean(axis=1).var() < 0.1 * values.var()  # an eighth, if they were independent


def test_the_noise_first_bound_covers_the_rounding_of_large_energies() -> None:
    """Next to no noise: what rounding may take off the energy counts for more than any fixed relative margin."""
    pair = pattern_pair(identity(2048), 128, 0.0001)
    spread, energy = float(np.linalg.norm(pair.reach.mean_mode)) / 0.0001, pair.reach.mean_energy / 0.0001**2
    level = (energy - spread**2) / 2 + spread**2 / 2 + 20 * spread
    rounded_up = energy * (1 + 2048 * 2.0**-52)
    at_worst = gaussian_delta(level - (rounded_up - spread**2) / 2, spread)
    assert at_worst > gaussian_delta(level - (energy - spread**2) / 2, spread) * (1 + 1e-7)
    assert RedrawnModel(pair).noise_first_bound(level) >= at_worst


def test_a_half_space_sampler_refuses_a_smaller_epsilon() -> None:
    sampler = RedrawnHalfSpaceSampler(pattern_pair(square_root(8, 2), 4), 2.0)
    with pytest.raises(InvalidArgument, match=r"epsilon = 0\.5"):
        sampler.value_range(0.5)


@pytest.mark.parametrize(
    ("spread", "bound", "deep", "top"),
    slow_after(2, [(0.9, -1.8, -3.7, -1.8), (1.5, 0.1, -3.5, -2.5), (0.3, -4.0, -4.0, -4.0), (3.0, 0.5, -30.0, 0.5)]),
)
def test_depths_have_the_density_and_the_range_they_say(spread: float, bound: float, deep: float, top: float) -> None:
    """Weighted by 1/q, depths are normal up to the top; no value c(w) / q(w) exceeds the range, which is tight."""
    with wide_jax():
        depths, value_range, lost = choose_depths(spread, bound, deep, top)
        drawn = draw_depths(jax.random.key(3), 1 << 13, 8, depths)
        depth, log_density = (np.asarray(part) for part in drawn)
    assert lost < 1e-8
    assert (depth[:-1].max(axis=1) <= depth[1:].min(axis=1)).all()  # one stratum after the other
    weights = np.exp(-log_density)
    for level in (top, top - 0.2, top - 0.5, top - 1.0):
        values = weights * (depth <= level)
        assert abs(values.mean() - ndtr(level)) < 5 * values.std() / math.sqrt(values.size) + 1e-15
    assert depth.max() <= top + 1e-9
    ceiling = -np.expm1(spread * np.minimum(depth - bound, 0.0))
    assert (ceiling * weights).max() <= value_range
    grid = np.linspace(top - 12.0, top, 100_001)  # E c(w) below the top: if that is the bound, what needs no samples
    exact = float(np.trapezoid(-np.expm1(spread * (grid - bound)) * np.exp(-(grid**2) / 2), grid)) / 2.5066282746
    if top == bound:
        assert exact == pytest.approx(gaussian(spread**2 / 2 - spread * bound, spread), rel=1e-4)
    assert exact < value_range < 1.3 * exact


# Floating point.


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_types_differ_by_less_than_the_slack(direction: Direction) -> None:
    pair = pattern_pair(square_root(64, 9), 8, 0.6)

    def losses(dtype: str) -> tuple[FloatArray, float]:
        if direction is NOISE:
            sampler: Sampler = RedrawnHalfSpaceSampler(pair, 1.0, dtype=dtype)
        else:
            sampler = RedrawnTiltedSampler(pair, direction, 1.0, dtype=dtype)
        return sampler.draw(5, 0).loss, sampler.slack.epsilon

    (coarse, slack), (fine, other) = losses("float32"), losses("float64")
    assert 0 < np.abs(coarse - fine).max() < slack + other


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_next_to_no_noise_gives_trivial_limits(direction: Direction) -> None:
    pair, few = redrawn_pair(square_root(12, 3), 4, 1e-3), Options(seed=1, samples=1 << 14)
    estimate = delta(pair, 1.0, ASKED[direction], options=few)
    assert estimate.lower <= estimate.delta <= estimate.upper
    assert estimate.upper == 1.0


@SLOW
def test_a_sampler_keeps_its_bits_on_the_way_to_a_worker() -> None:
    for direction in ALL:
        sampler = sharp(pattern_pair(square_root(12, 3), 4), direction, 1.0)
        copy = pickle.loads(pickle.dumps(sampler))
        assert np.array_equal(copy.draw(1, 2).loss, sampler.draw(1, 2).loss)


# The accountant.


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE])
def test_the_accountant_answers_for_redrawn_bins(adjacency: Adjacency, tmp_path: Path) -> None:
    pair, claim = redrawn_pair(square_root(12, 3), 4), Guarantee(1.0, 1e-3, adjacency)
    calibration = calibrate(pair, claim, options=Options(seed=1))
    assert calibration.check.upper <= 1e-3
    at = pair.at(calibration.noise_multiplier)
    certificate = certify(at, claim, options=Options(seed=2), ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    assert certificate.participation == "redrawn"
    assert "balls-in-bins batches redrawn in every epoch" in certificate.statement
    assert type(certificate).from_json(certificate.to_json()).to_json() == certificate.to_json()
    inverse = epsilon(at, 1e-3, adjacency, options=Options(seed=3, rel_width=0.1))
    assert inverse.lower < 1.0
    assert inverse.epsilon == pytest.approx(1.0, rel=0.1)
    curve = profile(at, [0.5, 1.0], adjacency, options=Options(seed=4, rel_width=0.2, samples=50_000))
    assert curve.uppers[0] > curve.uppers[1] > 0.7e-3


@pytest.mark.slow
@pytest.mark.parametrize("direction", ALL)
def test_the_quick_estimator_agrees_near_its_design(direction: Direction) -> None:
    strategy = square_root(24, 6)
    designed = pattern_pair(strategy, 6, 1.0)
    estimator = frozen_estimator(designed, direction, 1.0, 4, 1)
    for multiplier in (1.0, 1.08):
        quick = estimator(multiplier, 1.0)
        expected = mean(sharp(designed.at(multiplier), direction, 1.0), 1.0, 60_000)
        agree((quick.delta, quick.delta * quick.relative_error), expected)


def test_redrawing_and_one_draw_are_different_targets() -> None:
    strategy = square_root(12, 3)
    first, second = dominating_pair(strategy, 4).fingerprint(), redrawn_pair(strategy, 4).fingerprint()
    assert first != second
    assert redrawn_pair(strategy, 4, 3.0).fingerprint() == second


@SLOW
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE])
def test_false_claims_are_rejected_and_true_ones_accepted(adjacency: Adjacency, tmp_path: Path) -> None:
    """Coverage: 200 verifications of a claim 10% too low, at failure probability 0.05, and of one 15% too high."""
    strategy = square_root(12, 3)
    pair = redrawn_pair(strategy, 4, 1.0)
    written_out = as_gram(all_modes(strategy, 4), 1.0)
    truth = max(mean(one_draw_sharp(written_out, way, 1.0), 1.0, 4_000_000)[0] for way in adjacency.directions)
    accepted = {0.9: 0, 1.15: 0}
    for share in accepted:
        for seed in range(200):
            ledger = Ledger(tmp_path / f"{share}-{seed}.json")
            options = Options(seed=seed)
            guarantee = Guarantee(1.0, share * truth, adjacency)
            claim = certify(pair, guarantee, options=options, tau=1.1, failure=0.05, ledger=ledger)
            accepted[share] += claim.accepted
    assert accepted[0.9] <= 10 + 4 * math.sqrt(10)
    assert accepted[1.15] >= 150


# The optimiser.


@pytest.mark.parametrize("family", ["toeplitz:5", "toeplitz:3+scale", "blt:2", "banded:3"])
def test_blocks_of_a_form_are_those_of_its_strategy(family: str) -> None:
    parsed = parse_family(family, 10)
    start = square_root(10, 3) if family == "banded:3" else None
    parameters = np.random.default_rng(1).normal(size=parsed.parameters(start).size) if start else None
    if parameters is None:
        size = {"toeplitz:5": 4, "toeplitz:3+scale": 12, "blt:2": 4}[family]
        parameters = np.random.default_rng(1).normal(size=size)
    with wide_jax():
        problem = Problem(parsed, 4, prefix_sums(10), "rmse", PARTICIPATIONS["redrawn"])
        blocks = problem.statistic(parameters)
    strategy = parsed.strategy(parameters)
    reach = pattern_pair(strategy, 4).reach
    scale = strategy.sensitivity(4)
    assert np.allclose(blocks[:, :4], reach.own * scale, rtol=1e-9)
    assert np.allclose(blocks[:-1, 4:8], reach.following * scale, rtol=1e-9, atol=1e-14)
    assert np.allclose(blocks[:, -1], reach.tail * scale, rtol=1e-9, atol=1e-14)


@SLOW
@pytest.mark.parametrize("adjacency", [Adjacency.ADD, Adjacency.REMOVE, Adjacency.REPLACE])
def test_the_noise_level_has_the_right_gradient(adjacency: Adjacency) -> None:
    parsed = parse_family("blt:2", 12)
    parameters = np.array([0.5, -1.0, -1.0, -1.5])
    target = Target(Guarantee(1.0, 0.02, adjacency), Options(), "tilted", seed=1)
    with wide_jax():
        problem = Problem(parsed, 4, prefix_sums(12), "rmse", PARTICIPATIONS["redrawn"])
        statistic = problem.statistic(parameters)
        level = design(problem, parameters, target, "test", 4096)
        gradient = level(statistic).gradient
        assert level.value(statistic) == pytest.approx(level(statistic).log_sigma, abs=1e-4)
        random = np.random.default_rng(3)
        for _ in range(3):
            way = random.normal(size=statistic.shape) * statistic
            step = 1e-3 / np.abs(way).max() * statistic.max()
            there, back = (level(statistic + sign * step * way).log_sigma for sign in (1, -1))
            assert (there - back) / (2 * step) == pytest.approx(float((gradient * way).sum()), rel=0.05, abs=5e-4)


@SLOW
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE])
def test_the_noise_level_is_that_of_calibrate(adjacency: Adjacency) -> None:
    strategy = square_root(12, 3)
    parsed = parse_family("toeplitz:3", 12)
    with wide_jax():
        problem = Problem(parsed, 4, prefix_sums(12), "rmse", PARTICIPATIONS["redrawn"])
        parameters = parsed.parameters(strategy)
        target = Target(Guarantee(1.0, 1e-3, adjacency), Options(), "tilted", seed=1)
        log_sigma = design(problem, parameters, target, "test", 1 << 13)(problem.statistic(parameters)).log_sigma
    claim = Guarantee(1.0, 1e-3, adjacency)
    calibration = calibrate(redrawn_pair(strategy, 4), claim, options=Options(seed=1), tau=1.02)
    assert math.exp(log_sigma) == pytest.approx(calibration.noise_multiplier * strategy.sensitivity(4), rel=0.015)


@SLOW
def test_an_optimum_is_better_than_its_start() -> None:
    target, options = Guarantee(2.0, 1e-3), Options(seed=1, samples=1 << 17)
    optimized = optimize(
        "toeplitz:3+scale", 4, 12, target, participation="redrawn", samples=1024, iterations=20, options=options
    )
    start = square_root(12, 3)
    calibration = calibrate(redrawn_pair(start, 4), target, options=options)
    assert optimized.participation == "redrawn"
    assert optimized.rmse < 0.97 * calibration.noise_multiplier * start.sensitivity(4) * start.rmse()
    again = calibrate(redrawn_pair(optimized.strategy, 4), target, options=Options(seed=9))
    assert again.noise_multiplier == pytest.approx(optimized.noise_multiplier, rel=0.01)


def test_an_unknown_participation_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="participation = 'sometimes'"):
        optimize("blt:2", 4, 12, 1.0, 1e-3, participation="sometimes")


@pytest.mark.parametrize(
    ("pair", "level", "claim"),
    [
        (redrawn_pair(Toeplitz(64, [1.0, 0.01]), 8, 0.25), 12.0, 5e-4),  # noise-first, by its floor
        pytest.param(redrawn_pair(square_root(256, 8), 32, 0.17), 20.0, 0.03, marks=SLOW),  # mixture-first
    ],
)
def test_a_range_below_the_claim_is_no_obstacle(
    pair: DominatingPair, level: float, claim: float, tmp_path: Path
) -> None:
    """The closed form does not prove these claims, but hardly any sample counts."""
    certificate = certify(pair, level, claim, options=Options(seed=1), ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    assert certificate.samples > 0


def test_one_epoch_by_patterns_is_bins_drawn_once() -> None:
    """Both pairs are the same mechanism; delta of C = I needs no samples unless they are asked for."""
    options = Options(sampler="plain", seed=1, rel_width=0.05)
    estimate = delta(pattern_pair(identity(8), 8, 0.8), 2.0, options=options)
    known = delta(dominating_pair(identity(8), 8, 0.8), 2.0)
    assert estimate.samples > known.samples == 0
    assert estimate.lower <= known.upper
    assert known.lower <= estimate.upper


def test_where_the_gaussian_bound_is_0_no_other_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr(RedrawnToolkit, "ceiling", slow)
    assert direction_upper_bound(redrawn_pair(identity(16), 4, 1000.0), Direction.MIXTURE_FIRST, 1.0) == 1e-300
