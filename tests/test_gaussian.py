"""The Gaussian mechanism in closed form against an integral, dp-accounting and its own inverses."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from galton.accounting import delta_upper_bound
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from galton.pair import dominating_pair
from galton.strategies import identity

MUS = np.geomspace(0.01, 50.0, 30)
EPSILONS = np.concatenate(([0.0], np.geomspace(1e-3, 500.0, 40)))

CASES = [(eps, mu) for mu in (0.05, 0.3, 1.0, 4.0, 20.0) for eps in (0.0, 0.01, 0.5, 2.0, 8.0, 40.0)]
TINY = [(ratio * mu, mu) for mu in (1e-12, 1e-9, 1e-7, 1e-3, 0.4999, 0.5001) for ratio in (1e-3, 0.1, 1.0, 6.0, -2.0)]
CASES += [(150.0, 20.0), (300.0, 20.0), (-0.5, 0.3), (-2.0, 1.0), (-8.0, 4.0)]


def integral(epsilon: float, mu: float) -> float:
    """int (p - e^eps q)_+ for p = N(mu, 1), q = N(0, 1); at x = eps/mu + mu/2 + u it is p (1 - e^(-mu u)), u > 0."""
    edge = epsilon / mu - mu / 2
    end = max(0.0, -edge) + 40.0 / max(1.0, edge / 4)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    breaks = np.linspace(0.0, end, 401)
    half = (breaks[1:] - breaks[:-1])[:, None] / 2
    u = (breaks[1:] + breaks[:-1])[:, None] / 2 + half * nodes
    density = np.exp(-((edge + u) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float((half * weights * density * -np.expm1(-mu * u)).sum())


@pytest.mark.parametrize(("epsilon", "mu"), [*CASES, *TINY])
def test_delta_is_the_hockey_stick_integral(epsilon: float, mu: float) -> None:
    """A relative 1e-10 even where delta is 1e-300; below that only the absolute value counts."""
    assert gaussian_delta(epsilon, mu) == pytest.approx(integral(epsilon, mu), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [case for case in CASES if case[0] >= 0 and 1e-12 < integral(*case) < 0.999]
)
def test_delta_and_epsilon_agree_with_dp_accounting(epsilon: float, mu: float) -> None:
    reference = privacy_loss_mechanism.GaussianPrivacyLoss(1.0 / mu)
    delta = gaussian_delta(epsilon, mu)
    assert delta == pytest.approx(reference.get_delta_for_epsilon(epsilon), rel=1e-4, abs=1e-15)
    assert gaussian_epsilon(delta, mu) == pytest.approx(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta), abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_mu_agrees_with_the_noise_of_dp_accounting(epsilon: float, delta: float) -> None:
    assert 1.0 / gaussian_mu(epsilon, delta) == pytest.approx(
        dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-5
    )


def test_delta_is_a_probability_and_monotone_over_all_scales() -> None:
    deltas = np.array([[gaussian_delta(float(eps), float(mu)) for eps in EPSILONS] for mu in MUS])
    assert np.isfinite(deltas).all()
    assert deltas.min() >= 0.0
    assert deltas.max() <= 1.0
    assert (np.diff(deltas, axis=1) <= 0).all(), "must not rise with epsilon"
    assert (np.diff(deltas, axis=0) >= -1e-12 * deltas[1:]).all(), "must not fall with mu"
    assert deltas[0, -1] == 0.0
    assert deltas[-1, 0] == 1.0


@pytest.mark.parametrize("mu", [0.0, 1e-200, 1e-8])
def test_no_noise_needed_where_nothing_moves(mu: float) -> None:
    assert gaussian_delta(0.0, mu) == pytest.approx(mu / math.sqrt(2 * math.pi), rel=1e-6, abs=1e-16)
    assert gaussian_delta(1.0, mu) == 0.0
    assert gaussian_delta(-1.0, mu) == pytest.approx(1 - math.exp(-1), abs=1e-7)


def test_zero_mu_has_delta_zero_at_any_epsilon() -> None:
    assert gaussian_delta(1000.0, 0.0) == 0.0


@settings(max_examples=200)
@given(st.floats(-12, -0.5), st.floats(math.log10(0.01), math.log10(50)))
def test_epsilon_inverts_delta(log_delta: float, log_mu: float) -> None:
    delta, mu = 10**log_delta, 10**log_mu
    epsilon = gaussian_epsilon(delta, mu)
    if epsilon == 0.0:
        assert gaussian_delta(0.0, mu) <= delta
    else:
        assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-9)


@settings(max_examples=200)
@given(st.floats(-12, -0.5), st.floats(1e-3, 500.0))
def test_mu_inverts_delta(log_delta: float, epsilon: float) -> None:
    delta = 10**log_delta
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-9)
    assert gaussian_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("mu", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 0.5, 1 - 1e-12])
def test_epsilon_is_finite_at_the_ends_of_delta(delta: float, mu: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    assert math.isfinite(epsilon)
    assert gaussian_delta(epsilon, mu) <= delta * (1 + 1e-9)
    assert gaussian_delta(max(0.0, epsilon * (1 - 1e-6) - 1e-9), mu) > delta or epsilon == 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 1e-5),
        (0.0, 1 - 1e-12),
        (1e-12, 1e-5),
        (1.0, 1e-300),
        (1.0, 1 - 1e-12),
        (1e6, 1e-300),
        (1e6, 1e-5),
        pytest.param(0.0, 1e-18),
    ],
)
def test_mu_is_the_largest_at_the_ends_of_its_range(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu * (1 - 1e-9)) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-3)) > delta


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: gaussian_epsilon(0.0, 1.0), "delta"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta"),
        (lambda: gaussian_epsilon(math.nan, 1.0), "delta"),
        (lambda: gaussian_epsilon(1e-5, 0.0), "mu"),
        (lambda: gaussian_epsilon(1e-5, math.inf), "mu"),
        (lambda: gaussian_mu(-1.0, 1e-5), "epsilon"),
        (lambda: gaussian_mu(math.nan, 1e-5), "epsilon"),
        (lambda: gaussian_mu(1.0, 0.0), "delta"),
    ],
)
def test_bad_values_are_refused_by_name(call: Callable[[], float], argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        call()


@pytest.mark.parametrize("multiplier", [1e3, 1e7, 1e12])
@pytest.mark.parametrize("ratio", [0.01, 1.0, 5.0])
def test_one_bin_with_very_much_noise_is_not_rounded_down(multiplier: float, ratio: float) -> None:
    """The difference of two normal probabilities loses all its digits here."""
    pair = dominating_pair(identity(4), bins=1, noise_multiplier=multiplier)
    epsilon = ratio / multiplier
    exact = integral(epsilon, 1 / multiplier)
    assert exact * (1 - 1e-10) <= delta_upper_bound(pair, epsilon) <= exact * (1 + 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 0.0), (-math.inf, 1.0)])
def test_infinite_epsilons_have_a_delta(epsilon: float, delta: float) -> None:
    assert gaussian_delta(epsilon, 1.0) == delta


def test_an_epsilon_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="epsilon = nan"):
        gaussian_delta(math.nan, 1.0)


def test_an_example_that_hardly_counts_has_no_delta() -> None:
    assert gaussian_delta(1.0, 1e-310) == 0.0
    assert gaussian_delta(-1.0, 1e-310) == pytest.approx(-math.expm1(-1.0))
