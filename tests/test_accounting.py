from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from galton.accounting import (
    Ledger,
    Options,
    calibrate,
    certify,
    delta,
    delta_upper_bound,
    epsilon,
    epsilon_upper_bound,
    multiplier_upper_bound,
    profile,
)
from galton.accounting.certificate import samples_to_certify, target_digest
from galton.accounting.curve import trade_off
from galton.accounting.estimate import DeltaEstimate, delta_with_failure
from galton.accounting.inversion import quick_epsilon
from galton.accounting.merging import merge_loss
from galton.accounting.options import derived_seed
from galton.bounds import BOUNDS
from galton.errors import GaltonError, InvalidArgument
from galton.gaussian import gaussian_epsilon, gaussian_mu
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.pair import Pair, dominating_pair
from galton.sampling import PlainSampler, draws
from galton.strategies import Dense, Toeplitz, identity, square_root
from tests.marks import SLOW, slow_after
from tests.truth import gaussian, random_allocation, two_bins

GAUSSIAN = dominating_pair(identity(1), 1, 2.0)  # mu = 1/2
SMALL = dominating_pair(square_root(48, 6), 8, 1.2)
TWO = Pair(np.array([[1.0, 0.4], [0.4, 0.9]]), 1.5)
BOTH = (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)
EITHER, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE


# delta


@pytest.mark.parametrize("bound", ["sequence", "kl", "one-sided", "bernstein"])
@pytest.mark.parametrize("sampler", slow_after(2, ["auto", "tilted", "plain"]))
def test_delta_of_two_bins_lies_within_its_limits(bound: str, sampler: str) -> None:
    options = Options(seed=3, bound=bound, sampler=sampler, samples=200_000, rel_width=0.05)
    estimate = delta(TWO, 0.4, options=options)
    truth = max(two_bins(TWO.gram, 0.4, direction) for direction in BOTH)
    assert estimate.lower <= truth <= estimate.upper
    assert estimate.lower <= estimate.delta <= estimate.upper
    assert estimate.upper - estimate.lower < 0.3 * truth
    assert estimate.samples <= 400_000
    if bound != "sequence":
        assert estimate.samples == 400_000
    for part in estimate.by_direction:
        truth = two_bins(TWO.gram, 0.4, part.direction)
        assert part.lower <= truth <= part.upper
        assert part.deterministic_upper >= truth
    json.dumps(estimate.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("adjacency", "directions"),
    [
        (Adjacency.ADD, [Direction.NOISE_FIRST]),
        (Adjacency.REMOVE, [Direction.MIXTURE_FIRST]),
        (Adjacency.REPLACE, [Direction.REPLACE]),
        (Adjacency.ADD_OR_REMOVE, [Direction.MIXTURE_FIRST, Direction.NOISE_FIRST]),
    ],
    ids=str,
)
def test_adjacency_picks_the_divergence(adjacency: Adjacency, directions: list[Direction]) -> None:
    estimate = delta(TWO, 0.4, adjacency, options=Options(seed=1, rel_width=0.05))
    assert estimate.adjacency is adjacency
    assert [part.direction for part in estimate.by_direction] == directions
    assert estimate.lower <= max(two_bins(TWO.gram, 0.4, direction) for direction in directions) <= estimate.upper
    body = estimate.to_json()
    assert body["adjacency"] == adjacency.value
    assert [part["direction"] for part in body["by_direction"]] == [direction.value for direction in directions]


def test_a_sequence_stops_by_itself_at_the_width_asked_for() -> None:
    wide, narrow = (delta(SMALL, 0.5, options=Options(seed=1, rel_width=width)) for width in (0.02, 0.002))
    for estimate, width in ((wide, 0.02), (narrow, 0.002)):
        assert estimate.upper - estimate.lower <= width * estimate.delta * 1.001
    assert wide.samples < narrow.samples / 4
    capped = delta(SMALL, 0.5, options=Options(seed=1, rel_width=0.0001, samples=20_000))
    assert capped.samples == 40_000
    assert capped.upper - capped.lower > 0.001 * capped.delta  # the true interval is reported, not the one wished for


@SLOW
def test_limits_cover_the_truth_as_often_as_they_say() -> None:
    truth = {direction: two_bins(TWO.gram, 0.4, direction) for direction in BOTH}
    misses = 0
    for seed in range(120):
        estimate = delta(TWO, 0.4, options=Options(seed=seed, confidence=0.8, rel_width=0.1, samples=30_000))
        misses += any(not part.lower <= truth[part.direction] <= part.upper for part in estimate.by_direction)
    assert misses <= 0.2 * 120 + 4 * math.sqrt(0.2 * 0.8 * 120)


@pytest.mark.parametrize("multiplier", slow_after(1, [0.05, 0.3, 5.0, 50.0]))
@pytest.mark.parametrize("adjacency", slow_after(1, [REPLACE, EITHER]), ids=str)
def test_no_overflow_for_any_noise(multiplier: float, adjacency: Adjacency) -> None:
    for pair in (SMALL.at(multiplier), dominating_pair(identity(16), 8, multiplier)):
        for level in (0.01, 1.0, 30.0, 500.0):
            estimate = delta(pair, level, adjacency, options=Options(seed=1, samples=2000))
            assert 0 <= estimate.lower <= estimate.delta <= estimate.upper <= 1
            json.dumps(estimate.to_json(), allow_nan=False)


@SLOW
def test_identity_at_128_bins_agrees_with_pld_accounting() -> None:
    rows = [r for r in random_allocation() if r["bins"] == 128 and r["direction"] == "mixture-first"]
    assert rows
    for row in rows:
        pair = dominating_pair(identity(2048), 128, row["noise_multiplier"])  # 16 epochs: the same pair
        options = Options(seed=2, samples=300_000, rel_width=0.1)
        estimate = delta(pair, row["epsilon"], Adjacency.REMOVE, options=options)
        assert estimate.lower <= row["delta_upper"]
        assert estimate.upper >= row["delta_lower"]


# Deterministic bounds


@pytest.mark.parametrize("adjacency", [EITHER, REPLACE], ids=str)
def test_deterministic_bounds_are_bounds_and_invert_each_other(adjacency: Adjacency) -> None:
    estimate = delta(SMALL, 0.6, adjacency, options=Options(seed=1))
    certain = delta_upper_bound(SMALL, 0.6, adjacency)
    assert estimate.upper <= certain < 30 * estimate.delta
    level = epsilon_upper_bound(SMALL, 1e-4, adjacency)
    assert delta_upper_bound(SMALL, level, adjacency) <= 1e-4 < delta_upper_bound(SMALL, level * 0.99, adjacency)
    multiplier = multiplier_upper_bound(SMALL, Guarantee(0.6, 1e-4, adjacency))
    enough, short = (delta_upper_bound(SMALL.at(multiplier * k), 0.6, adjacency) for k in (1.0, 0.96))
    assert enough <= 1e-4 < short


# epsilon


@pytest.mark.parametrize("target", [1e-2, 1e-5, 1e-9])
def test_epsilon_of_one_bin_is_that_of_the_gaussian_mechanism(target: float) -> None:
    estimate = epsilon(GAUSSIAN, target, options=Options(seed=1))
    assert estimate.lower <= gaussian_epsilon(target, 0.5) <= estimate.upper
    assert estimate.epsilon == pytest.approx(gaussian_epsilon(target, 0.5), rel=0.02)


@pytest.mark.parametrize("adjacency", slow_after(1, [EITHER, REPLACE]), ids=str)
@pytest.mark.parametrize("bound", slow_after(1, ["sequence", "kl"]))
def test_epsilon_inverts_delta(adjacency: Adjacency, bound: str) -> None:
    estimate = epsilon(TWO, 1e-3, adjacency, options=Options(bound=bound, seed=1, samples=400_000))
    directions = (Direction.REPLACE,) if adjacency is REPLACE else BOTH
    assert tuple(point.direction for point in estimate.by_direction) == directions

    def truth(level: float) -> float:
        return max(two_bins(TWO.gram, level, direction) for direction in directions)

    assert truth(estimate.upper) <= 1e-3 <= truth(estimate.lower)
    assert estimate.upper - estimate.lower < 0.05 * estimate.epsilon


def test_a_quick_epsilon_of_zero_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target lies between delta(0), 0.088, and its bound without samples, 0.103; many steps down were a minute."""
    pair = dominating_pair(square_root(64, 4), bins=32, noise_multiplier=1.5)
    monkeypatch.setattr("galton.accounting.inversion.walk", None)
    assert quick_epsilon(pair, 0.095, 0.2, Adjacency.ADD_OR_REMOVE, 1) == 0.0


def test_epsilon_is_zero_where_delta_at_zero_is_below_the_target() -> None:
    estimate = epsilon(GAUSSIAN, 0.5, options=Options(seed=1))
    assert (estimate.epsilon, estimate.lower, estimate.upper) == (0.0, 0.0, 0.0)


def test_plain_samples_too_few_to_see_delta_still_give_a_valid_upper_limit() -> None:
    estimate = epsilon(GAUSSIAN, 1e-7, options=Options(seed=1, sampler="plain", samples=1000))
    assert estimate.lower <= gaussian_epsilon(1e-7, 0.5) <= estimate.upper
    assert estimate.upper <= estimate.deterministic_upper * (1 + 1e-9)


# profile


@pytest.mark.parametrize("sampler", slow_after(1, ["auto", "plain"]))
def test_profile_of_the_gaussian_mechanism(sampler: str) -> None:
    options = Options(seed=1, sampler=sampler, samples=300_000, rel_width=0.1)
    curve = profile(GAUSSIAN, points=9, options=options)
    for level, low, up in zip(curve.epsilons, curve.lowers, curve.uppers, strict=True):
        assert low <= gaussian(level, 0.5) * (1 + 1e-9)
        assert up >= gaussian(level, 0.5) * (1 - 1e-9)
    advantage = 2 * norm.cdf(0.25) - 1  # total variation distance of N(1/2, 1) and N(0, 1)
    assert curve.advantage == pytest.approx(advantage, rel=0.05)
    assert curve.advantage_upper >= advantage
    rates, misses = np.array(curve.false_positive_rates), np.array(curve.false_negative_rates)
    exact = norm.cdf(norm.ppf(1 - rates) - 0.5)
    assert (misses <= exact + 1e-9).all()
    assert (misses >= exact - 0.06).all()
    json.dumps(curve.to_json(), allow_nan=False)


@SLOW
@pytest.mark.parametrize("adjacency", [EITHER, Adjacency.ADD, Adjacency.REMOVE], ids=str)
def test_no_test_beats_the_trade_off_curve(adjacency: Adjacency) -> None:
    """The likelihood-ratio test, simulated, is never better than the curve of any adjacency that covers it."""
    pair = Pair(np.eye(16), 0.5)
    options = Options(seed=1, samples=1 << 16, rel_width=0.1)
    curve = profile(pair, adjacency=adjacency, points=17, options=options)
    run = PlainSampler(pair, Direction.MIXTURE_FIRST), PlainSampler(pair, Direction.NOISE_FIRST)
    used = np.concatenate([draw.loss for draw in draws(run[0], 200_000, 5)])
    unused = -np.concatenate([draw.loss for draw in draws(run[1], 200_000, 5)])
    for rate in (0.001, 0.01, 0.05, 0.2):
        miss = (used <= np.quantile(unused, 1 - rate)).mean()
        claimed = np.interp(rate, curve.false_positive_rates, curve.false_negative_rates)
        assert claimed <= miss + 0.005


def test_trade_off_of_exact_deltas_is_the_gaussian_one() -> None:
    levels = np.linspace(0, 8, 400)
    rates, misses = trade_off(levels, np.array([gaussian(level, 1.0) for level in levels]))
    assert np.abs(misses - norm.cdf(norm.ppf(1 - rates) - 1.0)).max() < 1e-3


# calibrate


@pytest.mark.parametrize(("level", "target"), [(1.0, 1e-5), (0.3, 1e-10), (8.0, 1e-3)])
def test_calibration_of_one_bin_is_the_analytic_gaussian(level: float, target: float) -> None:
    calibration = calibrate(GAUSSIAN, level, target, options=Options(seed=1), tau=1.05)
    assert calibration.guarantee == Guarantee(level, target)
    assert calibration.noise_multiplier == pytest.approx(1 / gaussian_mu(level, target / 1.05), rel=5e-3)
    assert calibration.noise_multiplier >= 1 / gaussian_mu(level, target) * (1 - 1e-9)
    assert calibration.unamplified == pytest.approx(1 / gaussian_mu(level, target))
    assert calibration.check.upper <= target


@pytest.mark.parametrize("adjacency", [EITHER, REPLACE, Adjacency.ADD], ids=str)
def test_calibrated_noise_passes_its_certificate(adjacency: Adjacency) -> None:
    claim, options = Guarantee(1.0, 1e-5, adjacency), Options(seed=1)
    calibration = calibrate(SMALL, claim, options=options, tau=1.05)
    certificate = certify(SMALL.at(calibration.noise_multiplier), claim, options=options, tau=1.05)
    assert certificate.accepted
    assert calibration.guarantee == certificate.guarantee == claim
    less = certify(SMALL.at(0.97 * calibration.noise_multiplier), claim, options=options, tau=1.05)
    assert not less.accepted


def test_a_check_against_a_claim_stops_as_soon_as_it_is_decided() -> None:
    def check(claim: float | None) -> DeltaEstimate:
        options = Options(rel_width=0.01, sampler="plain")
        return delta_with_failure(TWO, 0.5, Adjacency.REMOVE, options, 3, 1e-6, claim=claim)

    full = check(None)
    kept, refused = check(1.5 * full.delta), check(0.5 * full.delta)
    assert kept.upper <= 1.5 * full.delta
    assert refused.lower > 0.5 * full.delta
    for decided in (kept, refused):
        assert decided.samples < full.samples / 4
        assert decided.lower < full.delta < decided.upper


@SLOW
def test_a_check_whose_samples_cost_much_takes_fewer_and_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, target = dominating_pair(square_root(12), 4), Guarantee(1.0, 1e-3)
    usual = calibrate(pair, target, options=Options(seed=1))
    most = 8192
    monkeypatch.setattr("galton.accounting.calibration.CHECK_WORK", most * 4**2)
    cheap = calibrate(pair, target, options=Options(seed=1))
    assert cheap.check.samples <= 2 * most < usual.check.samples  # two directions
    assert cheap.check.upper <= target.delta
    assert usual.noise_multiplier < cheap.noise_multiplier < 1.05 * usual.noise_multiplier
    asked = calibrate(pair, target, options=Options(seed=1, samples=1 << 20))
    assert asked.noise_multiplier == pytest.approx(usual.noise_multiplier, rel=1e-12)


def test_noise_is_raised_until_a_tiny_epsilon_is_confirmed() -> None:
    """delta hardly falls with the noise there, and float32 takes a twentieth of it: steps must grow."""
    pair = dominating_pair(square_root(24, 4), 8)
    calibration = calibrate(pair, 1e-6, 1e-5, options=Options(seed=1))
    assert calibration.check.upper <= 1e-5
    assert 0.5 * calibration.unamplified < calibration.noise_multiplier < calibration.unamplified


def test_plain_calibration_solves_for_its_own_samples() -> None:
    options = Options(seed=1, sampler="plain", samples=100_000, rel_width=0.3)
    calibration = calibrate(SMALL, Guarantee(0.5, 1e-2, Adjacency.REMOVE), options=options, tau=1.2)

    def fitted(multiplier: float) -> float:
        sampler = PlainSampler(SMALL.at(multiplier), Direction.MIXTURE_FIRST)
        values = [sampler.values(draw, 0.5) for draw in draws(sampler, 100_000, derived_seed(1, "fit"))]
        return float(np.concatenate(values).mean())

    multiplier = calibration.noise_multiplier
    assert fitted(multiplier * (1 - 1e-4)) > calibration.target > fitted(multiplier * (1 + 1e-4))


# certify


def test_a_certificate_holds_all_that_is_needed_to_repeat_and_to_judge_it() -> None:
    first = certify(SMALL.at(2.85), 1.0, 1e-5)
    assert first.accepted
    assert first.delta_upper <= 1e-5
    assert not first.seed_chosen_by_user
    assert (first.bins, first.rounds, first.epochs, first.noise_multiplier) == (8, 48, 6, 2.85)
    assert first.strategy == square_root(48, 6).digest
    assert first.failure_probability == pytest.approx(1.5e-8)
    assert set(first.versions) == {"galton", "jax", "numpy", "scipy", "python"}
    again = certify(SMALL.at(2.85), 1.0, 1e-5, options=Options(seed=first.seed))
    assert again.seed_chosen_by_user
    assert "chosen by the user" in again.statement
    for outcome, repeated in zip(first.by_direction, again.by_direction, strict=True):
        assert outcome == repeated
    json.dumps(first.to_json(), allow_nan=False)


def test_seeds_come_from_the_operating_system() -> None:
    assert certify(SMALL.at(2.85), 1.0, 1e-5).seed != certify(SMALL.at(2.85), 1.0, 1e-5).seed


def test_every_rejected_attempt_counts_and_spends_failure_probability(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "attempts.json")
    rejected = [certify(SMALL, 1.0, 1e-5, ledger=ledger) for _ in range(3)]
    assert [certificate.accepted for certificate in rejected] == [False] * 3
    assert [certificate.attempts for certificate in rejected] == [1, 2, 3]
    assert rejected[2].failure_probability == pytest.approx(3 * 1.5e-8)
    other = certify(SMALL, 1.0, 2e-5, ledger=ledger)  # another claim starts afresh
    assert other.attempts == 1
    more = certify(SMALL.at(2.85), 1.0, 1e-5, ledger=ledger, failure=1e-7)  # another multiplier does not
    assert more.accepted
    assert more.attempts == 4
    assert more.failure_probability == pytest.approx(3 * 1.5e-8 + 1e-7)
    assert f"{1e-5 + 3 * 1.5e-8 + 1e-7:.6g})-DP" in more.statement


def test_accepted_attempts_do_not_count_against_later_ones(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "attempts.json")
    assert [certify(SMALL.at(2.85), 1.0, 1e-5, ledger=ledger).attempts for _ in range(2)] == [1, 1]


def test_an_interrupted_attempt_counts_as_rejected(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "attempts.json")

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(SMALL.at(2.0), 1.0, 1e-5, options=Options(progress=interrupt), ledger=ledger)
    assert ledger.begin([target_digest(SMALL.at(2.0), Guarantee(1.0, 1e-5))], 0.1).attempts == 2


@pytest.mark.parametrize("bound", slow_after(0, ["sequence", "kl"]))
def test_a_mechanism_over_budget_is_accepted_no_more_often_than_stated(bound: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "attempts.json")
    truth = max(two_bins(TWO.gram, 0.4, direction) for direction in BOTH)
    accepted = 0
    for seed in range(150):
        options = Options(seed=seed, bound=bound, samples=4096)
        accepted += certify(TWO, 0.4, truth / 1.25, options=options, failure=0.1, ledger=ledger).accepted
        accepted += certify(TWO, 0.4, truth * 0.999, options=options, failure=0.1, ledger=ledger).accepted
    assert accepted <= 0.1 * 300 + 4 * math.sqrt(0.1 * 0.9 * 300)


def test_a_hopeless_claim_is_rejected_early() -> None:
    certificate = certify(SMALL, 1.0, 1e-5)
    assert not certificate.accepted
    assert certificate.samples < certificate.by_direction[0].budget / 4
    assert certificate.delta_upper > 1e-5


def test_a_claim_above_the_deterministic_bound_needs_no_samples() -> None:
    certificate = certify(SMALL.at(20.0), 1.0, 1e-5)
    assert certificate.accepted
    assert certificate.samples == 0


@pytest.mark.parametrize("bound", ["kl", "one-sided", "bernstein"])
def test_the_number_of_samples_gives_the_power_it_promises(bound: str) -> None:
    claim, tau, failure = 1e-2, 1.25, 1e-4
    samples = samples_to_certify(claim, tau, failure, bound, power=0.99)
    assert samples > BOUNDS[bound].samples_needed(claim / tau, claim, failure)
    random = np.random.default_rng(1)
    means = random.binomial(samples, claim / tau, 2000) / samples
    passed = sum(BOUNDS[bound].upper(float(mean), samples, failure) <= claim for mean in np.unique(means))
    share = np.isin(means, [m for m in np.unique(means) if BOUNDS[bound].upper(float(m), samples, failure) <= claim])
    assert passed
    assert share.mean() > 0.98


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delta(SMALL, -1.0), "epsilon = -1.0"),
        (lambda: delta(SMALL, math.nan), "epsilon = nan"),
        (lambda: epsilon(SMALL, 0.0), "delta = 0.0"),
        (lambda: epsilon(SMALL, 1.0), "delta = 1.0"),
        (lambda: calibrate(SMALL, 0.0, 1e-5), "epsilon = 0.0"),
        (lambda: calibrate(SMALL, 1.0, 1e-5, tau=1.0), "tau = 1.0"),
        (lambda: certify(SMALL, 1.0, 2.0), "delta = 2.0"),
        (lambda: certify(SMALL, 1.0, 1e-5, failure=0.0), "failure = 0.0"),
        (lambda: profile(SMALL, [-1.0]), "epsilons = -1.0"),
        (lambda: profile(SMALL, points=1), "points = 1"),
        (lambda: Options(samples=0), "samples = 0"),
        (lambda: Options(seed=-1), "seed = -1"),
        (lambda: Options(seed=2**128), "seed = 340282366920938463463374607431768211456"),
        (lambda: Options(confidence=1.0), "confidence = 1.0"),
        (lambda: Options(rel_width=0.0), "rel_width = 0.0"),
        (lambda: delta(SMALL, 1.0, "swap"), "adjacency = 'swap'"),  # type: ignore[arg-type]
        (lambda: epsilon(SMALL, 1e-5, "swap"), "adjacency = 'swap'"),  # type: ignore[arg-type]
        (lambda: profile(SMALL, None, "swap"), "adjacency = 'swap'"),  # type: ignore[arg-type]
        (lambda: calibrate(SMALL, 1.0), "delta = None"),
        (lambda: certify(SMALL, Guarantee(1.0, 1e-5), 1e-5), "delta = 1e-05"),
        (lambda: Options(bound="magic"), "bound = 'magic'"),
        (lambda: Options(workers=0), "workers = 0"),
        (lambda: SMALL.at(0.0), "noise_multiplier = 0.0"),
        (lambda: SMALL.at(1e-200), "noise_multiplier = 1e-200"),
        (lambda: SMALL.at(1e150), "noise_multiplier = 1e+150"),
        (lambda: dominating_pair(identity(4), 5), "bins = 5"),
        (lambda: Pair(np.array([[1.0, -0.1], [-0.1, 1.0]])), "gram = -0.1"),
        (lambda: Pair(np.array([[1.0, 0.2], [0.1, 1.0]])), "gram = (2, 2)"),
        (lambda: Pair(np.zeros((1, 1))), "gram = 0.0"),
    ],
)
def test_bad_input_names_the_argument_and_its_value(call: object, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).startswith(message)


garbage = st.one_of(st.floats(), st.sampled_from([0, -1, 1e-300, 1e300, True, None, "1", 1j, 0.5, 1.0, 2.0]))
entries = st.lists(st.one_of(st.floats(-1, 3), st.floats()), min_size=1, max_size=4)


@settings(max_examples=150)
@given(entries, garbage, garbage, st.sampled_from([delta, epsilon]), st.booleans())
def test_garbage_gives_an_error_of_ours_or_a_finite_result(
    column: list[float], multiplier: Any, level: Any, question: Any, dense: bool
) -> None:
    try:
        strategy = Dense(np.diag(column)) if dense else Toeplitz(4, column)
        answer = question(dominating_pair(strategy, 1, multiplier), level, options=Options(samples=200, seed=1))
    except GaltonError:
        return
    limits = (answer.lower, getattr(answer, "delta" if question is delta else "epsilon"), answer.upper)
    assert 0 <= limits[0] <= limits[1] <= limits[2] < math.inf


@pytest.mark.parametrize("bins", [1, 2])
def test_an_astronomical_epsilon_leaves_nothing(bins: int) -> None:
    """The half-space is then infinitely far away."""
    pair = dominating_pair(Toeplitz(4, [1e-24]), bins, 1e100)
    estimate = delta(pair, 5e231, options=Options(samples=200, seed=1))
    assert 0 <= estimate.delta <= estimate.upper < 1e-100


@SLOW
def test_merge_loss_is_reported_as_factors() -> None:
    """Noise that is larger by the second factor makes up for the first: held against limits with bins merged."""
    strategy = square_root(256, 32)
    pair = dominating_pair(strategy, 64, 1.5, 2)
    loss = merge_loss(strategy, pair, 0.5, EITHER)
    assert loss is not None
    assert 1.1 < loss.delta < 4.0
    assert 1.0 < loss.noise < 1.2
    options = Options(seed=1, rel_width=0.05)
    merged = [delta(pair.at(1.5 * factor), 0.5, options=options).delta for factor in (1.0, loss.noise)]
    assert merged[0] / merged[1] == pytest.approx(loss.delta, rel=0.15)
    assert merge_loss(strategy, dominating_pair(strategy, 64, 3.0, 64), 0.5, EITHER) is None


@pytest.mark.parametrize("merge", [0, -3, 1.5, True])
def test_bins_cannot_be_merged_by_less_than_one(merge: int) -> None:
    with pytest.raises(InvalidArgument, match="merge = "):
        dominating_pair(square_root(16), 4, merge=merge)
