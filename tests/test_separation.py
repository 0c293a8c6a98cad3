"""Min-separation batches: the pair, its samplers and their ranges, the accountant and the optimiser."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer

from galton.accounting import Ledger, Options, calibrate, certify, delta, epsilon, profile
from galton.accounting.certificate import Certificate
from galton.accounting.deterministic import direction_upper_bound
from galton.accounting.quick import quick_multiplier
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.optimization import optimize
from galton.optimization.families import parse_family
from galton.optimization.participation import find_participation
from galton.optimization.problem import Problem
from galton.optimization.search import Target, design
from galton.optimization.separation import settle_separation
from galton.pair import dominating_pair
from galton.sampling import Sampler, draws
from galton.sampling.base import wide_jax
from galton.sampling.pattern_samplers import PatternHalfSpaceSampler, PatternPlainSampler, PatternTiltedSampler
from galton.sampling.separated import SeparatedModel, mechanism, usual_order
from galton.sampling.separation_bound import SeparationBound
from galton.sampling.toolkits import frozen_estimator, toolkit_for
from galton.separated import SeparatedPair, separated_pair
from galton.strategies import Dense, Scaled, Strategy, Tree, identity, square_root
from galton.strategies.sensitivity import min_separation_sensitivity
from galton.workloads import prefix_sums
from tests.marks import SLOW, slow_after
from tests.truth import gaussian

MIXTURE, NOISE, REPLACE = Direction.MIXTURE_FIRST, Direction.NOISE_FIRST, Direction.REPLACE
DIRECTIONS = (MIXTURE, NOISE)
ALL = (*DIRECTIONS, REPLACE)
ASKED = {MIXTURE: Adjacency.REMOVE, NOISE: Adjacency.ADD, REPLACE: Adjacency.REPLACE}


def banded(rounds: int, bands: int, seed: int) -> Dense:
    """A random banded matrix, with columns of very different sizes."""
    random = np.random.default_rng(seed)
    lag = np.arange(rounds)[:, None] - np.arange(rounds)
    entries = random.random((rounds, rounds)) + np.eye(rounds)
    return Dense(np.where((lag >= 0) & (lag < bands), entries, 0.0) * random.uniform(0.5, 2.0, rounds))


def written_out(strategy: Strategy, bins: int, separation: int) -> tuple[FloatArray, FloatArray]:
    """Modes of all patterns, one a row, and their probabilities: round by round, from the words of the scheme."""
    chance = 1 / (bins - separation + 1)
    patterns: dict[tuple[int, ...], float] = {}

    def go(turn: int, taken: tuple[int, ...], weight: float) -> None:
        if weight and turn >= strategy.rounds:
            patterns[taken] = patterns.get(taken, 0.0) + weight
        elif weight:
            go(turn + 1, taken, weight * (1 - chance))
            go(turn + separation, (*taken, turn), weight * chance)

    go(0, (), 1 - (separation - 1) / bins)
    for resting in range(1, separation):
        go(resting, (), 1 / bins)
    matrix = np.abs(strategy.matrix()) / strategy.sensitivity(bins)
    modes = np.array([matrix[:, list(pattern)].sum(axis=1) for pattern in patterns])
    return modes, np.array(list(patterns.values()))


def oracle(
    modes: FloatArray, weights: FloatArray, level: float, direction: Direction, samples: int = 150_000
) -> tuple[float, float]:
    """delta and its standard error by sampling the vectors of the mechanism themselves."""
    random = np.random.default_rng(5)
    points = random.standard_normal((samples, modes.shape[1]))
    if direction is not NOISE:
        points += modes[random.choice(weights.size, samples, p=weights / weights.sum())]
    half = (modes**2).sum(axis=1) / 2
    loss = np.log(np.exp(points @ modes.T - half) @ weights)
    if direction is REPLACE:
        loss -= np.log(np.exp(-points @ modes.T - half) @ weights)
    values = -np.expm1(np.minimum(level - (-loss if direction is NOISE else loss), 0.0))
    return float(values.mean()), float(values.std() / math.sqrt(samples))


def mean(sampler: Sampler, level: float, samples: int, seed: int = 1) -> tuple[float, float]:
    values = np.concatenate([sampler.values(draw, level) for draw in draws(sampler, samples, seed)])
    assert np.isfinite(values).all()
    return float(values.mean()), float(values.std() / math.sqrt(values.size))


def sharp(pair: SeparatedPair, direction: Direction, level: float) -> Sampler:
    return toolkit_for(pair).sharp(pair, direction, level)


def agree(first: tuple[float, float], second: tuple[float, float]) -> None:
    assert abs(first[0] - second[0]) < 5 * math.hypot(first[1], second[1]) + 1e-9


# (strategy, bins, separation)
CASES: dict[str, tuple[Strategy, int, int]] = {
    "as many bands": (banded(12, 3, 1), 4, 3),
    "fewer bands": (banded(12, 2, 2), 5, 3),
    "partial last block": (square_root(11, 3), 4, 3),
    "no rest": (identity(7), 4, 1),
    "bins drawn once": (banded(12, 3, 3), 3, 3),
    "bins drawn once, partial": (banded(10, 2, 3), 4, 4),
    "next to bins": (banded(12, 2, 4), 5, 4),
    "one block": (banded(4, 3, 5), 4, 4),
}


# The pair.


@pytest.mark.parametrize(("strategy", "bins", "separation"), CASES.values(), ids=CASES)
def test_the_pair_has_the_modes_of_all_patterns(strategy: Strategy, bins: int, separation: int) -> None:
    pair = separated_pair(strategy, bins, separation)
    modes, weights = written_out(strategy, bins, separation)
    energies = (modes**2).sum(axis=1)
    assert weights.sum() == pytest.approx(1.0)
    assert pair.largest_energy == pytest.approx(energies.max(), rel=1e-10)
    assert pair.largest_energy <= pair.separated_energy * (1 + 1e-12)
    if separation < bins:
        known = min_separation_sensitivity(strategy, separation) / strategy.sensitivity(bins)
        assert pair.mu_upper == pytest.approx(known, rel=1e-10)
    assert pair.mean_energy == pytest.approx(weights @ energies, rel=1e-10)
    average = np.zeros(pair.blocks * separation)
    average[: strategy.rounds] = weights @ modes
    assert np.allclose(pair.mean_mode.ravel(), average, rtol=1e-10)


@pytest.mark.parametrize(("strategy", "bins", "separation"), slow_after(3, CASES.values()), ids=CASES)
def test_the_loss_is_the_logarithm_of_the_sum_over_all_patterns(strategy: Strategy, bins: int, separation: int) -> None:
    pair = separated_pair(strategy, bins, separation, 0.3)
    modes, weights = written_out(strategy, bins, separation)
    modes = modes / 0.3
    points = 2 * np.random.default_rng(1).standard_normal((5, pair.blocks * separation))
    exponents = points[:, : strategy.rounds] @ modes.T - (modes**2).sum(axis=1) / 2
    peaks = exponents.max(axis=1)
    expected = peaks + np.log(np.exp(exponents - peaks[:, None]) @ weights)
    with wide_jax():
        blocks = jnp.asarray(points.reshape(5, pair.blocks, separation).transpose(1, 0, 2))
        losses = np.asarray(mechanism(pair).loss(blocks))
    assert np.allclose(losses, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: separated_pair(Tree(8), 4, 2), "must be a square matrix"),
        (lambda: separated_pair(identity(8), 4, 5), "separation = 5"),
        (lambda: separated_pair(identity(8), 4, 0), "separation = 0"),
        (lambda: separated_pair(square_root(8, 3), 4, 2), "separation = 2"),
        (lambda: separated_pair(identity(4), 8, 2), "bins = 8"),
        (lambda: separated_pair(identity(100_000), 2000, 1000), "separation = 1000"),
        (lambda: separated_pair(identity(8), 4, 2, -1.0), "noise_multiplier = -1.0"),
        (lambda: delta(separated_pair(identity(8), 4, 2), 1.0, options=Options(sampler="maximum")), "'maximum'"),
        (
            lambda: PatternTiltedSampler(SeparatedModel(separated_pair(identity(8), 4, 2)), NOISE, 1.0),
            "direction = 'noise-first'",
        ),
        (lambda: find_participation("min-separation:5", 4), "participation = 'min-separation:5'"),
        (lambda: find_participation("min-separation:0", 4), "participation = 'min-separation:0'"),
        (lambda: find_participation("min-separation", 4), "participation = 'min-separation'"),
        (
            lambda: optimize("blt:2", 4, 12, 1.0, 1e-3, participation="min-separation:3"),
            "family = 'blt:2'",
        ),
    ],
)
def test_what_cannot_be_analysed_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        build()
    assert message in str(refusal.value)


# Samplers, against all patterns written out, and against closed forms.


@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize(("strategy", "bins", "separation"), slow_after(0, CASES.values()), ids=CASES)
def test_samplers_agree_with_all_patterns_written_out(
    strategy: Strategy, bins: int, separation: int, direction: Direction
) -> None:
    pair = separated_pair(strategy, bins, separation, 0.8)
    modes, weights = written_out(strategy, bins, separation)
    expected = oracle(modes / 0.8, weights, 1.0, direction)
    agree(mean(sharp(pair, direction, 1.0), 1.0, 40_000), expected)
    agree(mean(PatternPlainSampler(SeparatedModel(pair), direction), 1.0, 100_000), expected)


@SLOW
@pytest.mark.parametrize("order", [1, 2, 5])
def test_every_order_is_unbiased(order: int) -> None:
    strategy = banded(9, 3, 5)
    model = SeparatedModel(separated_pair(strategy, 5, 3, 0.9))
    modes, weights = written_out(strategy, 5, 3)
    expected = oracle(modes / 0.9, weights, 0.5, MIXTURE, 1_000_000)
    agree(mean(PatternTiltedSampler(model, MIXTURE, 0.5, order=order), 0.5, 50_000), expected)
    expected = oracle(modes / 0.9, weights, 0.5, NOISE, 1_000_000)
    agree(mean(PatternHalfSpaceSampler(model, 0.5, deep=-0.5 * order), 0.5, 50_000), expected)


POISSON = [  # bins, epochs, noise of each round, epsilon
    *((4, 3, 1.2, 1.0), (8, 4, 0.9, 2.0), (16, 2, 0.8, 1.0)),
    *((16, 8, 1.0, 1.0), (16, 8, 0.7, 4.0), (32, 4, 0.6, 2.0), (8, 16, 2.0, 1.0)),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("bins", "epochs", "sigma", "level"), slow_after(1, POISSON))
def test_without_rest_and_correlation_it_is_poisson_sampling(
    bins: int, epochs: int, sigma: float, level: float, direction: Direction
) -> None:
    """The exact curve of dp-accounting, from above and from below."""
    rounds = bins * epochs

    def peer_delta(pessimistic: bool) -> float:
        step = peer.from_gaussian_mechanism(
            sigma, sampling_prob=1 / bins, pessimistic_estimate=pessimistic, value_discretization_interval=1e-3
        ).self_compose(rounds)
        one_way = step._pmf_remove if direction is MIXTURE else step._pmf_add
        return float(one_way.get_delta_for_epsilon(level))

    pair = separated_pair(identity(rounds), bins, 1, sigma / math.sqrt(epochs))
    estimate, error = mean(sharp(pair, direction, level), level, (1 << 25) // rounds)
    assert peer_delta(False) - 5 * error < estimate < peer_delta(True) + 5 * error
    assert error < 0.1 * estimate


@SLOW
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_with_rests_as_long_as_an_epoch_it_is_one_draw(direction: Direction) -> None:
    strategy = square_root(12, 4)
    once = dominating_pair(strategy, 4, 0.7)
    before = mean(toolkit_for(once).sharp(once, direction, 1.0), 1.0, 60_000)
    agree(mean(sharp(separated_pair(strategy, 4, 4, 0.7), direction, 1.0), 1.0, 60_000, seed=2), before)


@SLOW
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nearly_as_long_rests_are_nearly_one_draw(direction: Direction) -> None:
    """delta moves to that of the fixed period as the last few rounds of rest are added; it falls before that."""
    strategy = square_root(24, 4)
    once = dominating_pair(strategy, 12, 0.6)
    truth = mean(toolkit_for(once).sharp(once, direction, 2.0), 2.0, 200_000)[0]
    ways = [
        mean(sharp(separated_pair(strategy, 12, rest, 0.6), direction, 2.0), 2.0, 200_000)[0] for rest in (9, 10, 11)
    ]
    assert abs(ways[2] - truth) < abs(ways[1] - truth) < abs(ways[0] - truth)


@pytest.mark.parametrize("direction", slow_after(1, DIRECTIONS))
def test_one_bin_is_the_gaussian_mechanism(direction: Direction) -> None:
    pair = separated_pair(identity(5), 1, 1, 0.7)
    assert pair.mu_upper == pytest.approx(1 / 0.7, rel=1e-10)
    estimate, error = mean(sharp(pair, direction, 1.0), 1.0, 60_000)
    assert abs(estimate - gaussian(1.0, 1 / 0.7)) < 5 * error + 1e-6


# Ranges.


def log_mean(fields: FloatArray, bins: int, separation: int) -> float:
    """log E_s exp(fields of s), round by round."""
    chance = 1 / (bins - separation + 1)
    values = np.ones(fields.size + separation)
    for turn in range(fields.size - 1, -1, -1):
        values[turn] = (1 - chance) * values[turn + 1] + chance * math.exp(fields[turn]) * values[turn + separation]
    return math.log(values[0] * (1 - (separation - 1) / bins) + values[1:separation].sum() / bins)


@pytest.mark.parametrize(("strategy", "bins", "separation"), slow_after(2, CASES.values()), ids=CASES)
def test_the_bound_in_a_field_is_above_all_patterns(strategy: Strategy, bins: int, separation: int) -> None:
    """Of the average mode, for the sum over the patterns of a tilt."""
    pair = separated_pair(strategy, bins, separation, 0.8)
    modes, weights = written_out(strategy, bins, separation)
    modes = modes / 0.8
    products, average = modes @ modes.T, modes @ (weights @ modes)
    for order in (1, 3):
        fields = [order * average + step * products for step in range(order + 1)]
        exact = sum(float(np.log(np.exp(field) @ weights).max()) for field in fields)
        assert exact <= SeparatedModel(pair).attraction_in_field(order) <= 1.08 * exact + 1e-6


@pytest.mark.parametrize(("strategy", "bins", "separation"), slow_after(2, CASES.values()), ids=CASES)
def test_the_bound_is_above_all_patterns_and_close(strategy: Strategy, bins: int, separation: int) -> None:
    pair = separated_pair(strategy, bins, separation)
    modes, weights = written_out(strategy, bins, separation)
    products = modes @ modes.T
    strengths = np.array([0.1, 1.0, 3.0, 7.0])
    bounds = SeparationBound(pair).largest(strengths)
    for strength, bound in zip(strengths, bounds, strict=True):
        exact = max(np.log(np.exp(strength * row) @ weights) for row in products)
        assert exact <= bound <= 1.05 * exact + 1e-8
        if separation in (1, bins):
            assert bound == pytest.approx(exact, rel=1e-7)  # nothing to see, or nothing to choose


@pytest.mark.parametrize(
    "kind", slow_after(2, ["fewer bands", "next to bins", "as many bands", "no rest", "one block"])
)
def test_the_bound_holds_with_any_offsets_and_costs(kind: str) -> None:
    strategy, bins, separation = CASES[kind]
    pair = separated_pair(strategy, bins, separation)
    modes, weights = written_out(strategy, bins, separation)
    patterns = np.rint(np.linalg.solve(np.abs(strategy.matrix()), strategy.sensitivity(bins) * modes.T).T)
    random, rounds = np.random.default_rng(1), strategy.rounds
    strengths = np.array([0.1, 1.0, 3.0, 7.0])
    offsets, costs = np.zeros((2, pair.blocks * separation, 4))
    offsets[:rounds], costs[:rounds] = random.uniform(0, 1.5, (2, rounds, 4))
    bounds = SeparationBound(pair).largest(strengths, offsets, costs)
    for index, (strength, bound) in enumerate(zip(strengths, bounds, strict=True)):
        exponents = strength * modes @ modes.T + patterns @ offsets[:rounds, index]
        values = np.log(np.exp(exponents) @ weights) - patterns @ costs[:rounds, index]
        assert values.max() <= bound <= 1.05 * values.max() + 1e-8


@SLOW
@pytest.mark.parametrize(("separation", "loose"), [(4, 1.08), (8, 1.08), (12, 1.08), (15, 1.35)])
def test_no_pattern_that_a_search_tries_beats_the_bound(separation: int, loose: float) -> None:
    """The looser the longer the rest: then it helps most to see where the other pattern is."""
    rounds, bins = 64, 16
    weights = np.random.default_rng(1).uniform(0.7, 1.3, rounds)
    strategy = Scaled(square_root(rounds, separation), weights)
    gram = strategy.matrix() / strategy.sensitivity(bins)
    gram = gram.T @ gram

    def value(taken: list[int], strength: float) -> float:
        return log_mean(strength * gram[:, taken].sum(axis=1), bins, separation)

    def moved(taken: list[int]) -> Iterator[list[int]]:
        """All patterns that differ in one participation, by at most three rounds."""
        for index, step in itertools.product(range(len(taken)), (-3, -2, -1, 1, 2, 3)):
            other = [*taken[:index], taken[index] + step, *taken[index + 1 :]]
            if other[0] >= 0 and other[-1] < rounds and min(np.diff(other)) >= separation:
                yield other

    bound = SeparationBound(separated_pair(strategy, bins, separation))
    for strength in (1.0, 4.0):
        best = -math.inf
        for start in range(separation):
            taken = list(range(start, rounds, separation))
            reached, improved = value(taken, strength), True
            while improved:
                improved = False
                for other in moved(taken):
                    if (changed := value(other, strength)) > reached + 1e-12:
                        taken, reached, improved = other, changed, True
                        break
            best = max(best, reached)
        assert best <= bound.largest(np.array([strength]))[0] <= loose * best
        assert best <= bound(strength)


@SLOW
@pytest.mark.parametrize("direction", ALL)
@pytest.mark.parametrize(("level", "multiplier"), [(4.0, 0.5), (0.5, 1.5)])
def test_values_stay_within_the_range(level: float, multiplier: float, direction: Direction) -> None:
    pair = separated_pair(square_root(24, 3), 6, 3, multiplier * direction.sides)
    sampler = sharp(pair, direction, level)
    for draw in draws(sampler, 20_000, 3):
        raw = np.exp(draw.log_weight) * -np.expm1(np.minimum(level - draw.loss, 0.0))
        assert raw.max() <= sampler.value_range(level) * (1 + 1e-9)
    estimate, error = mean(sampler, level, 20_000)
    assert estimate - 5 * error <= direction_upper_bound(pair, direction, level)
    assert sampler.value_range(level) < (1000 if direction is NOISE else 20) * estimate  # sharp enough to be useful


def test_the_quick_order_is_about_that_of_the_range() -> None:
    pair = separated_pair(square_root(48, 4), 12, 4, 0.5)
    assert abs(usual_order(pair, 4.0) - SeparatedModel(pair).sampled_tilt(4.0).order) <= 1


# Floating point.


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_types_differ_by_less_than_the_slack(direction: Direction) -> None:
    model = SeparatedModel(separated_pair(square_root(64, 5), 8, 5, 0.6))

    def losses(dtype: str) -> tuple[FloatArray, float]:
        if direction is NOISE:
            sampler: Sampler = PatternHalfSpaceSampler(model, 1.0, dtype=dtype)
        else:
            sampler = PatternTiltedSampler(model, direction, 1.0, dtype=dtype)
        return sampler.draw(5, 0).loss, sampler.slack.epsilon

    (coarse, slack), (fine, other) = losses("float32"), losses("float64")
    assert 0 < np.abs(coarse - fine).max() < slack + other


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_next_to_no_noise_gives_trivial_limits(direction: Direction) -> None:
    pair, few = separated_pair(square_root(12, 3), 4, 3, 1e-3), Options(seed=1, samples=1 << 12)
    estimate = delta(pair, 1.0, ASKED[direction], options=few)
    assert estimate.lower <= estimate.delta <= estimate.upper
    assert estimate.upper == 1.0


@SLOW
def test_a_sampler_keeps_its_bits_on_the_way_to_a_worker() -> None:
    for direction in DIRECTIONS:
        sampler = sharp(separated_pair(square_root(12, 3), 4, 3), direction, 1.0)
        copy = pickle.loads(pickle.dumps(sampler))
        assert np.array_equal(copy.draw(1, 2).loss, sampler.draw(1, 2).loss)


# The accountant.


@SLOW
def test_certificates_say_how_long_examples_rest(tmp_path: Path) -> None:
    pair = separated_pair(square_root(12, 3), 4, 3, 1.5)
    certificate = certify(pair, 1.0, 1e-2, options=Options(seed=2), ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    assert certificate.participation == "min-separation:3"
    assert "every example rests for 2 rounds after taking part" in certificate.statement
    assert Certificate.from_json(certificate.to_json()).to_json() == certificate.to_json()
    for forged in ("min-separation:2", "min-separation:S", "redrawn", "bins"):
        with pytest.raises(InvalidArgument):
            Certificate.from_json(certificate.to_json() | {"participation": forged})


@SLOW
def test_the_accountant_answers_for_min_separation(tmp_path: Path) -> None:
    pair = separated_pair(square_root(12, 3), 4, 3)
    calibration = calibrate(pair, 1.0, 1e-3, options=Options(seed=1))
    assert calibration.check.upper <= 1e-3
    at = pair.at(calibration.noise_multiplier)
    certificate = certify(at, 1.0, 1e-3, options=Options(seed=2), ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    inverse = epsilon(at, 1e-3, options=Options(seed=3, rel_width=0.1))
    assert inverse.lower < 1.0
    assert inverse.epsilon == pytest.approx(1.0, rel=0.1)
    curve = profile(at, [0.5, 1.0], options=Options(seed=4, rel_width=0.2, samples=50_000))
    assert curve.uppers[0] > curve.uppers[1] > 0.7e-3


@SLOW
@pytest.mark.parametrize("direction", ALL)
def test_the_quick_estimator_agrees_near_its_design(direction: Direction) -> None:
    designed = separated_pair(square_root(24, 3), 6, 3, 0.8)
    estimator = frozen_estimator(designed, direction, 1.0, 4, 1)
    for multiplier in (0.8, 0.85):
        quick = estimator(multiplier, 1.0)
        expected = mean(sharp(designed.at(multiplier), direction, 1.0), 1.0, 60_000)
        agree((quick.delta, quick.delta * quick.relative_error), expected)


def test_other_rests_are_other_targets() -> None:
    strategy = square_root(12, 2)
    first = separated_pair(strategy, 4, 2).fingerprint()
    assert separated_pair(strategy, 4, 2, 3.0).fingerprint() == first
    assert separated_pair(strategy, 4, 3).fingerprint() != first
    assert separated_pair(strategy, 4, 2).participation != separated_pair(strategy, 4, 3).participation


@SLOW
def test_false_claims_are_rejected_and_true_ones_accepted(tmp_path: Path) -> None:
    """Coverage: 200 verifications of a claim 10% too low, at failure probability 0.05, and of one 15% too high."""
    strategy = square_root(12, 3)
    pair = separated_pair(strategy, 4, 3, 0.9)
    modes, weights = written_out(strategy, 4, 3)
    truth = max(oracle(modes / 0.9, weights, 1.0, way, 2_000_000)[0] for way in DIRECTIONS)
    accepted = {0.9: 0, 1.15: 0}
    for share in accepted:
        for seed in range(200):
            ledger = Ledger(tmp_path / f"{share}-{seed}.json")
            options = Options(seed=seed)
            claim = certify(pair, 1.0, share * truth, options=options, tau=1.1, failure=0.05, ledger=ledger)
            accepted[share] += claim.accepted
    assert accepted[0.9] <= 10 + 4 * math.sqrt(10)
    assert accepted[1.15] >= 150


# The optimiser.


@SLOW
@pytest.mark.parametrize("adjacency", [Adjacency.ADD, Adjacency.REMOVE, Adjacency.REPLACE])
def test_the_noise_level_has_the_right_gradient(adjacency: Adjacency) -> None:
    parsed = parse_family("toeplitz:3+scale", 12)
    parameters = np.concatenate(([-0.7, -0.3], np.linspace(0.3, -0.3, 12)))
    target = Target(Guarantee(1.0, 0.02, adjacency), Options(), "tilted", seed=1)
    with wide_jax():
        problem = Problem(parsed, 4, prefix_sums(12), "rmse", find_participation("min-separation:3", 4))
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
def test_an_optimum_is_better_than_its_start() -> None:
    target, options = Guarantee(2.0, 1e-3), Options(seed=1, samples=1 << 17)
    optimized = optimize(
        "toeplitz:3+scale",
        4,
        12,
        target,
        participation="min-separation:3",
        samples=1024,
        iterations=20,
        options=options,
    )
    start = square_root(12, 3)
    calibration = calibrate(separated_pair(start, 4, 3), target, options=options)
    assert optimized.participation == "min-separation:3"
    assert optimized.rmse < 0.98 * calibration.noise_multiplier * start.sensitivity(4) * start.rmse()


def test_the_separation_of_a_family_with_bands_is_their_number() -> None:
    def settled(family: str) -> tuple[str, str]:
        return settle_separation(family, 8, 32, Guarantee(1.0, 1e-5), None, Options(), 0)

    assert settled("toeplitz:4+scale") == ("toeplitz:4+scale", "min-separation:4")
    assert settled("banded:8") == ("banded:8", "min-separation:8")
    for family in ("blt:2", "dense", "toeplitz:9"):
        with pytest.raises(InvalidArgument, match="at most 8 bands"):
            settled(family)


def test_the_quick_multiplier_is_right_where_the_usual_one_is_far_too_small() -> None:
    """Few rounds, large epsilon: frozen draws at the noise of the average mode miss nearly all of delta."""
    claim, pair = Guarantee(16.0, 1e-3), separated_pair(square_root(12, 2), 4, 2)
    multiplier = quick_multiplier(pair, claim, Options(seed=1), seed=1, blocks=1).value
    limits = delta(pair.at(multiplier), claim.epsilon, options=Options(seed=2, samples=1 << 14))
    assert 0.85 * claim.delta < limits.lower <= limits.upper < 1.15 * claim.delta


@SLOW
@pytest.mark.parametrize("level", [0.5, 16.0])
def test_the_separation_is_chosen_by_the_error_of_calibrated_noise(level: float) -> None:
    bins, rounds, guarantee = 4, 12, Guarantee(level, 1e-3)

    def error(separation: int) -> float:
        strategy = square_root(rounds, separation)
        pair = separated_pair(strategy, bins, separation)
        multiplier = calibrate(pair, guarantee, options=Options(seed=5, samples=1 << 16)).noise_multiplier
        return multiplier * strategy.sensitivity(bins) * strategy.rmse()

    options = Options(seed=1, samples=1 << 16)
    optimized = optimize(
        "toeplitz", bins, rounds, guarantee, participation="min-separation:auto", iterations=2, options=options
    )
    separation = int(optimized.participation.removeprefix("min-separation:"))
    assert optimized.family == f"toeplitz:{separation}"
    assert error(separation) <= 1.01 * min(error(other) for other in (1, 2, 4))
