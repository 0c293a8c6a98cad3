"""The margins of docs/math.md, sections 6.4 and 6.5, where a proof needs something of the mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from galton.errors import InvalidArgument
from galton.gaussian import gaussian_delta
from galton.guarantee import Direction
from galton.pair import ROUNDOFF, Pair
from galton.sampling import HalfSpaceSampler, MaximumSampler, PlainSampler, TiltedSampler, choose_sampler
from galton.sampling.factor import factor_residual
from galton.sampling.halfspace import _half_space_of, noise_first_bound
from galton.sampling.tilted import margin

MIXTURE = Direction.MIXTURE_FIRST


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("least", [1.0, 1e-6, 1e-12])
def test_a_half_space_allows_for_the_residual_of_the_factor(least: float, epsilon: float) -> None:
    """Its bound is not below that of any matrix within the residual, however small the energies that it relies on."""
    gram, weights = np.diag([1.0, least]), np.array([1e-9, 1 - 1e-9])
    residual = factor_residual(gram)
    space = _half_space_of(gram, weights, epsilon)
    entropy = float(weights @ np.log(2 * weights))
    for sign in (-1, 1):
        square = float(weights @ (gram + sign * residual) @ weights)
        offset = (float(weights @ gram.diagonal()) + residual) / 2 + entropy - epsilon
        assert space.bound >= offset / math.sqrt(square)


def test_a_half_space_that_the_factor_does_not_resolve_is_everything() -> None:
    assert _half_space_of(np.diag([1.0, 1e-16]), np.array([0.0, 1.0]), 1.0).bound == math.inf


def test_the_noise_first_bound_is_not_below_the_gaussian_one_of_many_bins() -> None:
    """Identical modes are a Gaussian mechanism; with 2,000 of them and little spread, rounding must not win."""
    modes, multiplier = 2000, 1e5
    gram = np.full((modes, modes), multiplier**-2)
    epsilon = 4.5 / multiplier
    truth = gaussian_delta(epsilon, 1 / multiplier)
    assert truth <= noise_first_bound(gram, epsilon) < 1.001 * truth


def test_depths_beyond_six_count_as_lost() -> None:
    near, far = Pair(np.eye(2), 1.0), Pair(np.eye(2), 0.05)
    assert HalfSpaceSampler(near, 1.0).slack.lost < 1e-10
    assert HalfSpaceSampler(far, 1.0).slack.lost >= 1e-9


def test_many_draws_of_few_strong_modes_count_the_error_of_their_weights() -> None:
    """4 (t + 2) b^2 units are too few where t (max d + 8) is above 4 b^2."""
    order, energy = 1000, 25.0
    sampler = TiltedSampler(Pair(np.eye(2), energy**-0.5), MIXTURE, 1.0, order=order)
    drawn = order**2 * (energy + 4) * ROUNDOFF
    assert sampler.slack.lost >= 4 * (order + 2) * 4 * ROUNDOFF + drawn
    assert sampler.slack.epsilon >= drawn


@pytest.mark.parametrize("order", [2, 100, 4096])
def test_the_range_allows_for_the_sum_that_it_comes_from(order: int) -> None:
    gram = 30 * np.eye(2)
    assert margin(gram, order) >= 2 * order**3 * 30 * ROUNDOFF
    residual = 2 * (order + 1) ** 2 * factor_residual(gram)
    assert margin(gram, order) >= residual


def test_energies_too_far_apart_for_tilted_samples() -> None:
    apart = Pair(np.diag([1.0, 1e-3]), 0.04)
    with pytest.raises(InvalidArgument, match="energies differ by at most 500"):
        TiltedSampler(apart, MIXTURE, 1.0)
    assert isinstance(choose_sampler(apart, MIXTURE, 1.0).sampler, PlainSampler)
    assert TiltedSampler(Pair(np.eye(2), 0.04), MIXTURE, 1.0).order >= 1  # equal ones may be as large


def test_every_normal_and_index_has_its_own_chance_to_be_lost() -> None:
    assert MaximumSampler(Pair(np.eye(64)), MIXTURE, 1.0).slack.lost >= 64e-8
    few, many = (PlainSampler(Pair(np.eye(size)), MIXTURE, "float64").slack.lost for size in (2, 64))
    assert many - few >= 62 * 2.0**-62
