"""Noise that varies from round to round is a C: known answers, noise in training, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from galton.accounting import Options, delta
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Direction
from galton.noise import CorrelatedNoise, key_from_seed
from galton.pair import dominating_pair
from galton.strategies import Scaled, identity
from tests import truth
from tests.test_cli import galton

SCHEDULE = np.array([2.0, 1.0])


def scheduled(epochs: int) -> Scaled:
    return Scaled(identity(2 * epochs), 1 / np.tile(SCHEDULE, epochs))


def test_delta_of_a_schedule_is_that_of_modes_of_its_lengths() -> None:
    """Two bins, one epoch: modes of length 1 / schedule in two directions, by quadrature."""
    strategy = scheduled(1)
    pair = dominating_pair(strategy, bins=2, noise_multiplier=0.8)
    shifts = np.diag(1 / SCHEDULE) / (0.8 * strategy.sensitivity(2))
    assert strategy.sensitivity(2) == 1.0
    for epsilon in (0.3, 1.0):
        exact = max(
            truth.by_quadrature(shifts, epsilon, direction)
            for direction in (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)
        )
        told = delta(pair, epsilon, Adjacency.ADD_OR_REMOVE, options=Options(seed=1, samples=1 << 16, rel_width=0.1))
        assert told.lower <= exact <= told.upper <= 1.2 * exact


def test_known_batches_of_a_schedule_are_a_gaussian_mechanism() -> None:
    """The worst bin has its rounds with the least noise: over 3 epochs mu^2 adds up there."""
    strategy = scheduled(3)
    assert strategy.sensitivity(2) == pytest.approx(np.sqrt(3.0))
    pair = dominating_pair(strategy, bins=2, noise_multiplier=2.0)
    assert pair.mu_upper == pytest.approx(1 / 2.0, rel=1e-9)
    assert gaussian_delta(1.0, pair.mu_upper) > 0


def test_training_gets_the_noise_of_the_schedule() -> None:
    noise = CorrelatedNoise(scheduled(2), 1.5)
    params = np.zeros(20_000, np.float32)
    state = noise.init(params, key_from_seed(3))
    for wanted in np.tile(SCHEDULE, 2):
        drawn, state = noise.next(state)
        deviation = float(np.asarray(drawn).std())
        assert abs(deviation / (1.5 * wanted) - 1) < 5 / np.sqrt(2 * params.size)


def test_several_batch_sizes_are_refused_with_the_reason(tmp_path: Path) -> None:
    words = ["--examples", "64", "--epochs", "2", "--epsilon", "2", "--delta", "1e-3", "--output", f"{tmp_path}/plan"]
    result = galton("plan", "--batch-size", "8,16", *words)
    assert result.code == 2
    assert "--batch-size = '8,16': must be one number" in result.err
    assert "the same bins in every epoch" in result.err


def test_bins_of_unequal_probability_are_refused_with_the_reason(tmp_path: Path) -> None:
    words = ["--examples", "64", "--batch-size", "16", "--epochs", "2", "--epsilon", "2", "--delta", "1e-3"]
    result = galton("plan", *words, "--batching", "balls-in-bins:2,1,1,1", "--output", f"{tmp_path}/plan")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--batching = 'balls-in-bins:2,1,1,1': takes no weights" in result.err
    assert "equally likely" in result.err
    assert not (tmp_path / "plan").exists()
