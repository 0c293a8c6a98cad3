from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein, FixedSample
from galton.errors import FloatArray, InvalidArgument
from tests.marks import slow_after

Draw = Callable[[np.random.Generator, int], FloatArray]


def coins(random: np.random.Generator, size: int) -> FloatArray:
    return (random.random(size) < 0.02).astype(float)


def spikes(random: np.random.Generator, size: int) -> FloatArray:
    """Rare values near 1 make half of the mean, small ones the other half: the shape of a tilted estimator."""
    rare = np.where(random.random(size) < 0.005, random.uniform(0.8, 1.0, size), 0.0)
    return np.asarray(np.maximum(rare, 0.01 * random.random(size)))


def smooth(random: np.random.Generator, size: int) -> FloatArray:
    return random.beta(0.1, 1.0, size)


# Means by their closed forms; for spikes: 0.995 * 0.005 + 0.005 * 0.9.
CASES: list[tuple[Draw, float]] = [(coins, 0.02), (spikes, 0.995 * 0.005 + 0.005 * 0.9), (smooth, 0.1 / 1.1)]
cases = pytest.mark.parametrize(("draw", "mean"), CASES, ids=["coins", "spikes", "smooth"])

RUNS, FAILURE = 300, 0.1
MOST = 0.1 * RUNS + 4 * (0.1 * 0.9 * RUNS) ** 0.5  # four standard errors above the promised number of failures


@cases
def test_empirical_bernstein_holds_at_all_times_as_often_as_it_says(draw: Draw, mean: float) -> None:
    random = np.random.default_rng(1)
    above = below = 0
    for _ in range(RUNS):
        limit = EmpiricalBernstein(2.0, FAILURE, 0.05, 8000)
        wrong_upper = wrong_lower = False
        for _ in range(20):
            limit.add(2.0 * draw(random, 400))
            wrong_upper |= limit.upper() < 2 * mean
            wrong_lower |= limit.lower() > 2 * mean
        above, below = above + wrong_upper, below + wrong_lower
    assert above <= MOST
    assert below <= MOST


@cases
def test_empirical_bernstein_is_tight_enough_to_be_useful(draw: Draw, mean: float) -> None:
    random = np.random.default_rng(2)
    values = draw(random, 400_000)
    high, low = (EmpiricalBernstein(1.0, 1e-3, 0.05, 400_000) for _ in range(2))
    high.add(values)
    low.add(values)
    normal = 3.09 * values.std() / np.sqrt(values.size)  # what the central limit theorem would give, uncertified
    assert low.lower() < mean < high.upper()
    assert high.upper() - low.lower() < 4 * 2 * normal
    assert high.mean == pytest.approx(values.mean())
    assert high.samples == values.size


@pytest.mark.parametrize(("draw", "mean"), slow_after(1, CASES))
def test_a_false_claim_is_proved_no_more_often_than_stated(draw: Draw, mean: float) -> None:
    random = np.random.default_rng(3)
    proved = 0
    for _ in range(RUNS):
        test = BettingTest(np.array([mean, 1.5 * mean]), 1.0, FAILURE)
        for _ in range(20):
            test.add(draw(random, 400))
            if test.accepted:
                break
        proved += test.accepted
    assert proved <= MOST


@cases
def test_a_true_claim_is_proved_with_fewer_samples_than_hoeffding_would_need(draw: Draw, mean: float) -> None:
    random = np.random.default_rng(4)
    test = BettingTest(np.array([1.25 * mean]), 1.0, 1e-6)
    while not test.accepted:
        test.add(draw(random, 1000))
    assert test.samples < np.log(1e6) / (2 * (0.25 * mean) ** 2) / 2
    assert test.upper() == 1.25 * mean


def test_betting_pays_for_the_variance_and_not_for_the_range() -> None:
    random = np.random.default_rng(5)
    truth, claim = 0.01, 0.0125
    needed = BOUNDS["kl"].samples_needed(truth, claim, 1e-8)
    test = BettingTest(np.array([claim]), 1.0, 1e-8)
    while not test.accepted:
        test.add(random.uniform(0, 2 * truth, 500))
    assert test.samples < needed / 5


def test_a_limit_knows_only_what_it_has_seen() -> None:
    limit = EmpiricalBernstein(0.5, 0.01, 0.05, 1000)
    assert (limit.lower(), limit.upper()) == (0.0, 0.5)
    limit.add(np.full(100, 0.1))  # the first block only sets the bets
    assert (limit.lower(), limit.upper()) == (0.0, 0.5)
    test = BettingTest(np.array([0.2]), 0.5, 0.01)
    test.add(np.zeros(100))
    assert not test.accepted
    assert test.upper() == 0.5


def test_cutting_the_stream_differently_does_not_help() -> None:
    """Bets of a block are fixed by earlier blocks: the same values in one piece or two give close limits."""
    values = spikes(np.random.default_rng(6), 4096)
    whole, parts = (EmpiricalBernstein(1.0, 0.01, 0.05, 4096) for _ in range(2))
    whole.add(values)
    for part in np.split(values, 8):
        parts.add(part)
    assert whole.upper() == pytest.approx(parts.upper(), rel=0.1)


@pytest.mark.parametrize("claims", [[0.3, 0.2], [0.0], [0.5], [0.6]])
def test_claims_must_lie_in_the_range_and_increase(claims: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="must increase"):
        BettingTest(np.array(claims), 0.5, 0.01)


@pytest.mark.parametrize("name", list(BOUNDS))
def test_fixed_sample_is_the_bound_itself(name: str) -> None:
    random = np.random.default_rng(7)
    values = smooth(random, 5000)
    limit = FixedSample(BOUNDS[name], 1.0, 0.01)
    for part in np.split(values, 5):
        limit.add(part)
    assert limit.upper() == pytest.approx(BOUNDS[name].upper(float(values.mean()), 5000, 0.01))
    assert limit.lower() == pytest.approx(BOUNDS[name].lower(float(values.mean()), 5000, 0.01))
