"""Composition of subsampled Gaussian steps: never below the truth, whatever delta and the number of steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer
from scipy.integrate import quad
from scipy.special import ndtr

from galton.accountants import poisson, subsampled_delta
from galton.accountants.composition import subsampled_step
from galton.accountants.losses import loss_interval
from galton.accountants.poisson import subsampled_epsilon
from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta, gaussian_mu
from galton.guarantee import Adjacency, Direction
from galton.loss_grids import Composition, LossGrid
from tests.marks import SLOW, slow_after

BOTH = Adjacency.ADD_OR_REMOVE.directions


def exact_step(epsilon: float, s: float, q: float, direction: Direction) -> float:
    """delta of one step in closed form: the loss is monotone, so that the best test is a half-line."""
    if direction is Direction.MIXTURE_FIRST:
        edge = s * (math.log(math.expm1(epsilon) + q) - math.log(q)) + 0.5 / s
        return (1 - q) * float(ndtr(-edge)) + q * float(ndtr(1 / s - edge)) - math.exp(epsilon) * float(ndtr(-edge))
    if math.exp(-epsilon) <= 1 - q:
        return 0.0
    edge = s * (math.log(math.exp(-epsilon) - 1 + q) - math.log(q)) + 0.5 / s
    mixture = (1 - q) * float(ndtr(edge)) + q * float(ndtr(edge - 1 / s))
    return float(ndtr(edge)) - math.exp(epsilon) * mixture


def bound(s: float, q: float, steps: int, epsilon: float, direction: Direction) -> float:
    return Composition([(subsampled_step(s, q, direction, loss_interval(q, s)), steps)]).delta(epsilon)


# The first four rows are those at which an FFT without its error was too low, once by so much that delta was negative.
GAUSSIANS = [
    *[(2048, 8.0, 1e-13), (2048, 8.0, 1e-14), (100_000, 8.0, 1e-12), (100_000, 1.0, 1e-9)],
    *[(1_000_000, 1.0, 1e-15), (1_000_000, 8.0, 1e-5), (10_000, 0.1, 1e-15), (1, 1.0, 1e-5), (7, 20.0, 1e-15)],
]


@pytest.mark.parametrize(("steps", "epsilon", "delta"), GAUSSIANS)
@pytest.mark.parametrize("direction", BOTH)
def test_without_subsampling_it_is_the_gaussian_mechanism_rounded_up(
    steps: int, epsilon: float, delta: float, direction: Direction
) -> None:
    s = math.sqrt(steps) / gaussian_mu(epsilon, delta)
    assert delta < bound(s, 1.0, steps, epsilon, direction) < delta * 1.02


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 4.0])
@pytest.mark.parametrize(("s", "q"), [(0.5, 0.01), (1.0, 0.1), (2.0, 0.5), (0.8, 1e-4), (4.0, 0.99)])
def test_one_step_in_closed_form(s: float, q: float, epsilon: float, direction: Direction) -> None:
    exact = exact_step(epsilon, s, q, direction)
    upper = bound(s, q, 1, epsilon, direction)
    assert exact * (1 - 1e-9) - 1e-15 <= upper <= exact * 1.01 + 1e-12


@pytest.mark.parametrize(("s", "q", "epsilon"), [(1.0, 0.1, 1.0), (0.7, 0.02, 3.0), (0.5, 0.3, 6.0)])
def test_two_steps_by_integration(s: float, q: float, epsilon: float) -> None:
    def loss(u: float) -> float:
        return float(np.logaddexp(math.log1p(-q), math.log(q) + u / s - 0.5 / s**2))

    def inner(u: float) -> float:
        density = math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
        mixture = density * math.exp(loss(u))
        left = epsilon - loss(u)
        if left <= math.log1p(-q):
            return mixture * -math.expm1(left)
        return mixture * exact_step(left, s, q, Direction.MIXTURE_FIRST)

    exact = quad(inner, -12, 12 + 1 / s, limit=500, epsabs=0, epsrel=1e-10)[0]
    assert exact * (1 - 1e-8) <= bound(s, q, 2, epsilon, Direction.MIXTURE_FIRST) <= exact * 1.01


CASES = [
    (1.0, 0.01, 1000, 1.0),
    (0.8, 0.01, 2000, 2.0),
    (0.6, 1 / 128, 2048, 8.0),
    (2.0, 0.1, 100, 0.5),
    (5, 0.5, 50, 1),
]


@pytest.mark.parametrize(("s", "q", "steps", "epsilon"), [*CASES, pytest.param(0.4, 0.001, 10_000, 4.0, marks=SLOW)])
def test_agrees_with_dp_accounting_where_that_has_digits(s: float, q: float, steps: int, epsilon: float) -> None:
    pld = peer.from_gaussian_mechanism(
        s,
        sampling_prob=q,
        value_discretization_interval=loss_interval(q, s),
        pessimistic_estimate=True,
        use_connect_dots=True,
    )
    theirs = pld.self_compose(steps).get_delta_for_epsilon(epsilon)
    assert subsampled_delta(s, q, steps, epsilon) == pytest.approx(theirs, rel=2e-6)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("s", "q", "steps", "epsilon"), [(0.6, 1 / 128, 2048, 8.0), (1.0, 0.01, 1000, 2.0)])
def test_a_finer_grid_is_lower_and_not_by_much(
    s: float, q: float, steps: int, epsilon: float, direction: Direction
) -> None:
    interval = loss_interval(q, s)
    levels = [
        Composition([(subsampled_step(s, q, direction, interval / finer), steps)]).delta(epsilon) for finer in (1, 2, 4)
    ]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] < 1.25 * levels[-1]


@pytest.mark.parametrize(
    ("q", "steps", "epsilon", "delta", "finest"),
    # A grid of 0.25 million losses will do; 16 million took minutes. The others need all grids.
    [(0.25, 8, 1.0, 0.5, 16.0), (0.01, 200, 8.0, 1e-5, 1.0), (0.001, 100_000, 300.0, 1e-5, 1.0)],
)
def test_a_noise_level_is_searched_for_from_coarse_to_fine(
    monkeypatch: pytest.MonkeyPatch, q: float, steps: int, epsilon: float, delta: float, finest: float
) -> None:
    grids: list[float] = []

    def noted(*given: Any) -> float:
        grids.append(given[5])
        return subsampled_delta(*given)

    poisson.column_multiplier.cache_clear()
    monkeypatch.setattr(poisson, "subsampled_delta", noted)
    level = poisson.column_multiplier(q, steps, epsilon, delta)
    assert grids == sorted(grids, reverse=True)
    assert grids[-1] == finest
    assert subsampled_delta(level, q, steps, epsilon) <= delta < subsampled_delta(level * (1 - 5e-4), q, steps, epsilon)


def test_small_sums_by_enumeration() -> None:
    """A grid of three losses and four steps: all 81 sums."""
    masses = np.array([0.5, 0.3, 0.15])
    grid = LossGrid(0.25, -1, masses, 0.05)
    table = {-0.25: 0.5, 0.0: 0.3, 0.25: 0.15}
    sums = {0.0: 1.0}
    for _ in range(4):
        sums = {
            total: sum(sums.get(round(total - loss, 6), 0.0) * mass for loss, mass in table.items())
            for total in {round(start + loss, 6) for start in sums for loss in table}
        }
    for epsilon in (0.0, 0.1, 0.5, 0.9, 1.2):
        finite = sum(mass * -math.expm1(min(epsilon - total, 0.0)) for total, mass in sums.items())
        assert Composition([(grid, 4)]).delta(epsilon) == pytest.approx(finite + 1 - 0.95**4, rel=1e-8)
        assert Composition([(grid, 4)]).delta(epsilon) >= finite + 1 - 0.95**4


def test_tiny_deltas_are_positive_and_fall_with_epsilon() -> None:
    levels = [subsampled_delta(0.9, 0.01, 2000, epsilon) for epsilon in (2.0, 4.0, 6.0, 8.0, 10.0, 12.0)]
    assert levels == sorted(levels, reverse=True)
    assert 0 < levels[-1] < 1e-15


@pytest.mark.slow
def test_epsilon_is_the_inverse() -> None:
    epsilon = subsampled_epsilon(1.0, 0.01, 1000, 1e-6, Adjacency.ADD_OR_REMOVE)
    assert subsampled_delta(1.0, 0.01, 1000, epsilon) <= 1e-6 < subsampled_delta(1.0, 0.01, 1000, 0.998 * epsilon)


def test_all_examples_in_every_batch_is_exact() -> None:
    assert subsampled_delta(10.0, 1.0, 100, 1.0) == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-8)


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"probability_of_use": 0.0}, "probability_of_use"),
        ({"probability_of_use": 1.5}, "probability_of_use"),
        ({"steps": 0}, "steps"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"adjacency": Adjacency.REPLACE}, "adjacency"),
    ],
)
def test_bad_arguments_are_named(words: dict[str, float], argument: str) -> None:
    good = {"noise_multiplier": 1.0, "probability_of_use": 0.1, "steps": 10, "epsilon": 1.0}
    with pytest.raises(InvalidArgument) as refused:
        subsampled_delta(**{**good, **words})  # type: ignore[arg-type]
    assert refused.value.argument == argument


@pytest.mark.parametrize(
    ("s", "q", "steps", "epsilon"),
    slow_after(
        3,
        [
            *[(1e-160, 0.1, 1, 5.0), (1e200, 0.1, 2, 0.5), (0.2, 1 - 1e-13, 5, 1.0), (0.05, 0.5, 100, 1.0)],
            (0.5, 1e-4, 10**6, 100.0),
        ],
    ),
)
def test_extremes_have_a_bound_from_0_to_1(s: float, q: float, steps: int, epsilon: float) -> None:
    assert 0 <= subsampled_delta(s, q, steps, epsilon) <= 1


def test_large_deltas_are_not_rounded_to_1() -> None:
    assert 0.62 < bound(1.0, 0.999, 10, 3.0, Direction.MIXTURE_FIRST) < 0.625


def test_a_direction_that_is_not_meant_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="direction = 'replace'"):
        subsampled_step(1.0, 0.1, Direction.REPLACE, 1e-3)
