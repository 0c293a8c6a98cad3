"""Confidence bounds against the paper's numbers, the exact binomial law and simulation (docs/math.md, section 2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv
from scipy.stats import binom

from galton.bounds import BOUNDS, Bernstein, BettingTest, Bound, ChernoffKL, EmpiricalBernstein, FixedSample, OneSided
from galton.errors import FloatArray, GaltonError, InvalidArgument

PAPER = {"mean": 8e-6, "claim": 1e-5, "samples": 10**8}
FEW = settings(max_examples=60)
all_bounds = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)

fractions = st.floats(-6, -0.05).map(lambda x: 10.0**x)
sample_counts = st.integers(1, 10**9)
failures = st.floats(-15, -0.3).map(lambda x: 10.0**x)


def test_every_bound_is_registered_under_its_name() -> None:
    assert {name: type(bound) for name, bound in BOUNDS.items()} == {
        "bernstein": Bernstein,
        "one-sided": OneSided,
        "kl": ChernoffKL,
    }


@pytest.mark.parametrize(("name", "exponent"), [("bernstein", 18.75), ("one-sided", 20.0), ("kl", 21.5)])
def test_exponents_at_the_parameters_of_the_paper(name: str, exponent: float) -> None:
    """s = 1e8, delta = 8e-6, tau = 1.25."""
    failure = BOUNDS[name].failure_probability(8e-6, 1e-5, 10**8)
    assert -math.log(failure) == pytest.approx(exponent, abs=0.05 if name == "kl" else 1e-6)


def test_failure_of_the_paper_is_below_its_stated_value() -> None:
    assert Bernstein().failure_probability(8e-6, 1e-5, 10**8) < 7.2e-9


def test_formulas_are_those_of_the_text() -> None:
    s, delta, tau, r = 5000, 0.02, 1.3, 4.0
    q, p = delta / r, tau * delta / r
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    expected = {
        "bernstein": s * (tau - 1) ** 2 * delta / ((8 * tau / 3 - 2 / 3) * r),
        "one-sided": s * (tau - 1) ** 2 * delta / (2 * tau * r),
        "kl": s * kl,
    }
    for name, exponent in expected.items():
        failure = BOUNDS[name].failure_probability(delta, tau * delta, s, r)
        assert -math.log(failure) == pytest.approx(exponent, rel=1e-9)


@FEW
@given(fractions, fractions, sample_counts)
def test_kl_is_sharper_than_one_sided_than_bernstein(a: float, b: float, samples: int) -> None:
    mean, claim = min(a, b), max(a, b)
    assume(claim > mean * 1.001)
    kl, one_sided, bernstein = (
        BOUNDS[n].failure_probability(mean, claim, samples) for n in ("kl", "one-sided", "bernstein")
    )
    assert kl <= one_sided * (1 + 1e-9) <= bernstein * (1 + 1e-8)


@all_bounds
@FEW
@given(fractions, sample_counts, failures, st.sampled_from([1e-6, 1.0, 300.0]))
def test_limits_invert_the_exponents(bound: Bound, mean: float, samples: int, failure: float, r: float) -> None:
    mean *= r
    upper, lower = bound.upper(mean, samples, failure, r), bound.lower(mean, samples, failure, r)
    assert 0 <= lower < mean < upper <= r
    assume(upper > mean * 1.0001)
    if upper < r * (1 - 1e-9):
        assert bound.failure_probability(mean, upper, samples, r) == pytest.approx(failure, rel=1e-6)
    else:
        assert bound.below(mean / r, 1 - 1e-8) * samples <= -math.log(failure)
    if lower > 0:
        assert math.exp(-samples * bound.above(mean / r, lower / r)) == pytest.approx(failure, rel=1e-6)


@all_bounds
@FEW
@given(mean=st.one_of(st.just(0.0), fractions), claim=fractions, failure=failures, r=st.sampled_from([1.0, 0.01]))
def test_samples_needed_are_enough_and_one_less_is_not(
    bound: Bound, mean: float, claim: float, failure: float, r: float
) -> None:
    assume(claim > mean * 1.001)
    samples = bound.samples_needed(mean * r, claim * r, failure, r)
    assert bound.failure_probability(mean * r, claim * r, samples, r) <= failure * (1 + 1e-9)
    if samples > 1:
        assert bound.failure_probability(mean * r, claim * r, samples - 1, r) > failure * (1 - 1e-9)
    assert bound.upper(mean * r, samples, failure, r) <= claim * r * (1 + 1e-9)


@all_bounds
def test_limits_tighten_with_samples_and_widen_with_confidence(bound: Bound) -> None:
    by_samples = [bound.upper(0.01, s, 1e-6) - bound.lower(0.01, s, 1e-6) for s in (100, 10**4, 10**6, 10**8)]
    by_failure = [bound.upper(0.01, 10**5, f) - bound.lower(0.01, 10**5, f) for f in (0.5, 1e-3, 1e-9, 1e-15)]
    assert by_samples == sorted(by_samples, reverse=True)
    assert by_failure == sorted(by_failure)
    assert by_samples[-1] < 2e-4


@all_bounds
def test_limits_scale_with_the_range(bound: Bound) -> None:
    for limit in (bound.upper, bound.lower):
        assert limit(3e-5 * 7.0, 10**6, 1e-8, 7.0) == pytest.approx(7.0 * limit(3e-5, 10**6, 1e-8), rel=1e-9)


@all_bounds
def test_limits_at_the_ends_of_the_range(bound: Bound) -> None:
    assert bound.lower(0.0, 1000, 0.01) == 0.0
    assert bound.upper(1.0, 1000, 0.01) == 1.0
    assert 1 - 1e-8 < bound.upper(0.0, 1, 1e-9) <= 1.0
    assert 0 < bound.upper(0.0, 10**6, 1e-9) < 1e-4
    assert 0.9 < bound.lower(1.0, 1000, 0.01) < 1.0


def test_kl_of_no_event_is_the_exact_bound() -> None:
    """(1 - p)^s = failure."""
    assert ChernoffKL().upper(0.0, 1000, 1e-6) == pytest.approx(1 - 1e-6 ** (1 / 1000), rel=1e-9)


@all_bounds
def test_mean_above_the_range_by_rounding_is_the_range(bound: Bound) -> None:
    assert bound.upper(np.nextafter(1.0, 2.0), 10, 0.1) == 1.0


# The exact law of the worst case, zeros and ones.


@all_bounds
@pytest.mark.parametrize("samples", [10, 1000, 10**6])
@pytest.mark.parametrize("failure", [0.1, 1e-8])
def test_limits_contain_those_of_clopper_and_pearson(bound: Bound, samples: int, failure: float) -> None:
    for hits in sorted({0, 1, 5, samples // 10, samples // 2, samples - 1, samples}):
        exact_upper = 1.0 if hits == samples else float(betaincinv(hits + 1, samples - hits, 1 - failure))
        exact_lower = 0.0 if hits == 0 else float(betaincinv(hits, samples - hits + 1, failure))
        assert bound.upper(hits / samples, samples, failure) >= exact_upper * (1 - 1e-9)
        assert bound.lower(hits / samples, samples, failure) <= exact_lower * (1 + 1e-9)


@all_bounds
@pytest.mark.parametrize(("samples", "truth"), [(50, 0.3), (2000, 0.01), (10**6, 1e-5)])
def test_failure_probability_is_above_the_binomial_tail(bound: Bound, samples: int, truth: float) -> None:
    for hits in range(int(samples * truth) + 1):
        tail = float(binom.cdf(hits, samples, truth))
        assert bound.failure_probability(hits / samples, truth, samples) >= tail * (1 - 1e-9)


@all_bounds
@pytest.mark.parametrize("failure", [0.2, 0.01])
def test_coverage_of_zeros_and_ones_is_exact(bound: Bound, failure: float) -> None:
    """Sums the binomial law over the outcomes whose limit misses the truth."""
    samples, truth = 1000, 0.02
    hits = np.arange(100)
    law: FloatArray = np.asarray(binom.pmf(hits, samples, truth))
    missed_above = [bound.upper(int(k) / samples, samples, failure) < truth for k in hits]
    missed_below = [bound.lower(int(k) / samples, samples, failure) > truth for k in hits]
    assert law.sum() > 1 - 1e-9
    assert law[missed_above].sum() <= failure
    assert law[missed_below].sum() <= failure
    assert any(missed_above)
    assert any(missed_below)


# Heavy tails: most of the mean in rare large values, as the tilted sampler has them.

R = 5.0
HEAVY: list[tuple[Callable[[FloatArray], FloatArray], float]] = [
    (lambda u: R * u**40, R / 41),
    (lambda u: np.minimum(R, 0.01 / (1 - u)), 0.01 * (1 + math.log(R / 0.01))),
    (lambda u: np.where(u < 0.003, R, 1e-3), 0.003 * R + 0.997e-3),
]


@all_bounds
@pytest.mark.parametrize("case", range(len(HEAVY)))
def test_coverage_of_heavy_tails_by_simulation(bound: Bound, case: int) -> None:
    transform, truth = HEAVY[case]
    repeats, samples, failure = 500, 400, 0.1
    means = transform(np.random.default_rng(100 + case).uniform(size=(repeats, samples))).mean(axis=1)
    assert means.mean() == pytest.approx(truth, rel=0.05)
    allowed = int(binom.ppf(1 - 1e-6, repeats, failure))
    assert sum(bound.upper(float(m), samples, failure, R) < truth for m in means) <= allowed
    assert sum(bound.lower(float(m), samples, failure, R) > truth for m in means) <= allowed


@all_bounds
@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"mean": -1e-9}, "mean"),
        ({"mean": math.nan}, "mean"),
        ({"mean": 1.5}, "mean"),
        ({"claim": 0.0}, "claim"),
        ({"claim": 1.5}, "claim"),
        ({"claim": 7e-6}, "claim"),
        ({"samples": 0}, "samples"),
        ({"samples": 1e8}, "samples"),
        ({"value_range": 0.0}, "value_range"),
        ({"value_range": math.inf}, "value_range"),
        ({"value_range": 5e-6}, "mean"),
    ],
)
def test_bad_input_is_refused_by_name(bound: Bound, change: dict[str, Any], argument: str) -> None:
    values: dict[str, Any] = {**PAPER, **change}
    with pytest.raises(InvalidArgument) as caught:
        bound.failure_probability(**values)
    assert caught.value.argument == argument


@all_bounds
@pytest.mark.parametrize("failure", [0.0, 1.0, -0.1, math.nan])
def test_failure_must_be_a_probability(bound: Bound, failure: float) -> None:
    calls: list[Callable[[], float]] = [
        lambda: bound.samples_needed(8e-6, 1e-5, failure),
        lambda: bound.upper(8e-6, 100, failure),
        lambda: bound.lower(8e-6, 100, failure),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"^failure = "):
            call()


@all_bounds
def test_no_number_of_samples_proves_the_mean_itself(bound: Bound) -> None:
    assert bound.failure_probability(1e-5, 1e-5, 10**9) == 1.0
    with pytest.raises(InvalidArgument, match=r"^claim = .*no number of samples"):
        bound.samples_needed(1e-5, 1e-5, 0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-3, 1.1])
@pytest.mark.parametrize(
    "limit",
    [
        BettingTest(np.array([0.5]), 1.0, 1e-3),
        EmpiricalBernstein(1.0, 1e-3, 0.05, 1000),
        FixedSample(BOUNDS["kl"], 1.0, 1e-3),
    ],
    ids=lambda limit: type(limit).__name__,
)
def test_what_is_no_number_in_the_range_is_refused(limit: Any, bad: float) -> None:
    """A NaN drops out of comparisons: fed with nothing else, the betting test accepted."""
    values = np.zeros(1000)
    values[17] = bad
    with pytest.raises(GaltonError, match="not a number in its range"):
        limit.add(values)
