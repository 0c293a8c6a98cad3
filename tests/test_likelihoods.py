"""delta for C = I without samples, against closed forms, quadrature and PLD_accounting."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr

from galton import Adjacency, Options, calibrate, certify, delta, dominating_pair, epsilon, identity, square_root
from galton.accounting import delta_upper_bound
from galton.accounting.ledger import Ledger
from galton.convolution import Grid, Payoff, TiltedSum
from galton.errors import InvalidArgument
from galton.guarantee import Direction
from galton.likelihoods import likelihood_lower, likelihood_upper
from tests.marks import SLOW, slow_after
from tests.truth import gaussian, random_allocation

BOTH = [Direction.MIXTURE_FIRST, Direction.NOISE_FIRST]
ROWS = random_allocation()


def bracket(modes: int, energy: float, direction: Direction, epsilon: float) -> tuple[float, float]:
    """Both bounds."""
    arguments = (modes, energy, direction, epsilon)
    return likelihood_lower(*arguments), likelihood_upper(*arguments)


def two_modes(energy: float, epsilon: float, direction: Direction) -> float:
    """delta of two orthogonal modes: given one likelihood, the other is counted by the formula of Black and Scholes."""
    mu = math.sqrt(energy)
    rising = direction is Direction.MIXTURE_FIRST
    level = 2 * math.exp(epsilon if rising else -epsilon)

    def counted(strike: float) -> float:
        """E(X - strike)_+ or E(strike - X)_+ of a log-normal X of mean 1."""
        if strike <= 0:
            return 1 - strike if rising else 0.0
        far = -math.log(strike) / mu + mu / 2
        sign = 1 if rising else -1
        return sign * (float(ndtr(sign * far)) - strike * float(ndtr(sign * (far - mu))))

    def integrand(z: float) -> float:
        return counted(level - math.exp(mu * z - energy / 2)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    kink = (math.log(level) + energy / 2) / mu
    edges = np.unique(np.clip(np.concatenate((np.linspace(-14, 14 + mu, 60), [kink])), -14, 14 + mu))
    parts = [quad(integrand, low, high, epsrel=1e-10)[0] for low, high in itertools.pairwise(edges)]
    return math.fsum(parts) / 2 * (1.0 if rising else math.exp(epsilon))


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 1.0), (0.2, 0.5), (2.0, 4.0), (1.0, 0.0), (0.4, 2.0), (0.01, 0.02)])
def test_one_mode_is_the_gaussian_mechanism(direction: Direction, mu: float, epsilon: float) -> None:
    lower, upper = bracket(1, mu**2, direction, epsilon)
    truth = gaussian(epsilon, mu)
    assert lower <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= upper
    assert upper - lower < 0.02 * truth


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(
    ("energy", "epsilon"), [(1.0, 1.0), (0.04, 0.5), (0.09, 1.0), (4.0, 6.0), (0.25, 1.5), (9.0, 0.3), (0.0016, 0.2)]
)
def test_two_modes_by_quadrature_down_to_tiny_deltas(direction: Direction, energy: float, epsilon: float) -> None:
    truth = two_modes(energy, epsilon, direction)
    lower, upper = bracket(2, energy, direction, epsilon)
    far = 1e-32  # what floating point is allowed to count where normals are beyond 12.5
    assert lower <= truth * (1 + 1e-7) + far
    assert truth * (1 - 1e-7) <= upper + far
    if truth > 1e-20:
        assert upper < 1.005 * truth
        assert lower > 0.97 * truth


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['bins']}-{row['epsilon']}-{row['direction']}" for row in ROWS])
def test_the_quick_bound_lies_in_the_bracket_of_another_package(row: dict[str, Any]) -> None:
    bound = likelihood_upper(
        int(row["bins"]), row["noise_multiplier"] ** -2, Direction(row["direction"]), row["epsilon"]
    )
    assert row["delta_lower"] <= bound <= row["delta_upper"] * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[f"{row['bins']}-{row['epsilon']}-{row['direction']}" for row in ROWS])
def test_brackets_overlap_those_of_another_package(row: dict[str, Any]) -> None:
    lower, upper = bracket(int(row["bins"]), row["noise_multiplier"] ** -2, Direction(row["direction"]), row["epsilon"])
    assert row["delta_lower"] <= lower * 1.02
    assert lower <= min(upper, row["delta_upper"])


@pytest.mark.parametrize("direction", slow_after(1, BOTH))
@pytest.mark.parametrize(("bins", "multiplier", "level"), slow_after(1, [(32, 1.2, 0.5), (128, 0.6, 1.0)]))
def test_tilted_samples_agree(direction: Direction, bins: int, multiplier: float, level: float) -> None:
    """The samplers share nothing with this computation but the Gram matrix."""
    pair = dominating_pair(identity(bins), bins=bins, noise_multiplier=multiplier)
    adjacency = Adjacency.REMOVE if direction is Direction.MIXTURE_FIRST else Adjacency.ADD
    sampled = delta(pair, level, adjacency, options=Options(sampler="tilted", seed=3, rel_width=0.05, samples=1 << 17))
    assert sampled.samples > 0
    lower, upper = bracket(bins, multiplier**-2, direction, level)
    assert lower <= sampled.upper
    assert sampled.lower <= upper


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("level", slow_after(1, [0.25, 4.0, 1.0, 16.0]))
def test_every_cell_of_small_deltas_is_in_reach(direction: Direction, level: float) -> None:
    """Mixture-first down to 1e-12 at 32 and 1,000 bins: a bound that falls with noise and with epsilon."""
    for bins in (32, 1000):
        energies = np.geomspace(0.03, 25.0, 8)
        bounds = np.array([likelihood_upper(bins, float(energy), direction, level) for energy in energies])
        assert (np.diff(bounds) >= 0).all()
        assert (bounds < 1).all()
        assert bounds.min() < 1e-12
        later = [likelihood_upper(bins, float(energy), direction, level * 1.1) for energy in energies]
        assert (np.array(later) <= bounds * (1 + 1e-9)).all()


def test_replace_has_no_such_bound() -> None:
    for bound in (likelihood_upper, likelihood_lower):
        with pytest.raises(InvalidArgument, match="mixture-first or noise-first"):
            bound(4, 1.0, Direction.REPLACE, 1.0)


@pytest.mark.parametrize("energy", [1e-9, 1e9])
def test_what_is_out_of_reach_is_said(energy: float) -> None:
    assert bracket(4, energy, Direction.MIXTURE_FIRST, 1.0) == (0.0, 1.0)


# The sum on a grid.


@pytest.mark.parametrize("level", [3.0, 10.5, 19.0, 20.0, 25.0])
def test_sums_of_coins_by_the_binomial_formula(level: float) -> None:
    """Linear and bounded payoffs of Binomial(20, 0.3), whose probabilities are known."""
    total = TiltedSum([(Grid(1.0, 0, np.array([0.7, 0.3])), 20)])
    chances = [math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(21)]
    payoffs: list[tuple[Payoff, float]] = [(lambda gaps: gaps / 20, math.inf), (lambda gaps: -np.expm1(-gaps), 1.0)]
    for payoff, most in payoffs:
        truth = math.fsum(
            chance * float(payoff(np.array([k - level]))[0]) for k, chance in enumerate(chances) if k > level
        )
        lower, upper = total.bracket(level, payoff, most)
        assert lower <= truth * (1 + 1e-12)
        assert truth * (1 - 1e-12) <= upper <= lower + 1e-9 * truth + 1e-26


# What the accountant makes of it.


def test_questions_about_independent_noise_need_no_sample() -> None:
    pair = dominating_pair(identity(64), bins=32, noise_multiplier=0.8)
    at_one = delta(pair, 1.0)
    assert at_one.samples == 0
    assert at_one.upper - at_one.lower <= 0.02 * at_one.delta
    (row,) = (
        row
        for row in ROWS
        if (row["bins"], row["noise_multiplier"], row["epsilon"], row["direction"]) == (32, 0.8, 1.0, "mixture-first")
    )
    assert at_one.lower <= row["delta_upper"]
    assert row["delta_lower"] <= at_one.upper
    back = epsilon(pair, at_one.delta)
    assert back.samples == 0
    assert back.lower <= 1.0 <= back.upper
    assert back.upper - back.lower <= 0.02


@SLOW
def test_a_sampler_that_was_asked_for_is_used() -> None:
    pair = dominating_pair(identity(16), bins=8, noise_multiplier=1.0)
    asked = delta(pair, 1.0, options=Options(sampler="maximum", seed=1, rel_width=0.2))
    assert asked.samples > 0
    assert asked.sampler == "maximum"


@SLOW
def test_noise_for_a_tiny_delta_is_calibrated_and_certified_without_samples(tmp_path: Any) -> None:
    pair = dominating_pair(identity(128), bins=128)
    calibration = calibrate(pair, 0.5, 1e-10, options=Options(seed=1))
    assert calibration.check.upper <= 1e-10
    assert calibration.check.delta == pytest.approx(1e-10 / 1.05, rel=0.02)
    certificate = certify(pair.at(calibration.noise_multiplier), 0.5, 1e-10, ledger=Ledger(tmp_path / "attempts.json"))
    assert certificate.accepted
    assert certificate.samples == 0
    less = certify(
        pair.at(0.98 * calibration.noise_multiplier),
        0.5,
        1e-10,
        options=Options(samples=1000),
        ledger=Ledger(tmp_path / "others.json"),
    )
    assert not less.accepted


def test_the_bound_is_that_of_the_mechanism_not_of_its_rounding() -> None:
    """Off-diagonal entries at rounding level, which a pair has, cost next to nothing."""
    pair = dominating_pair(identity(2048), bins=128, noise_multiplier=1.0)
    bound = delta_upper_bound(pair, 0.5)
    assert bound == pytest.approx(likelihood_upper(128, 1.0, Direction.MIXTURE_FIRST, 0.5), rel=1e-3)


def test_correlated_noise_is_still_sampled() -> None:
    pair = dominating_pair(square_root(16), bins=4, noise_multiplier=2.0)
    assert delta(pair, 1.0, options=Options(seed=1, rel_width=0.2)).samples > 0


def test_tails_of_the_normal_are_as_assumed() -> None:
    assert float(log_ndtr(-12.5)) < math.log(4e-36)
    assert float(log_ndtr(-12.49)) < math.log(8e-36)
