"""A run sampled beside other releases: unbiased, within its range, sharper than adding up losses (math.md, 13.5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import galton
from galton import Adjacency, Direction, InvalidArgument, Options
from galton.accountants.beside import BesideSampler, beside
from galton.accountants.losses import dominating_atoms
from galton.accounting.limits import Limits
from galton.budget.composed import compose
from galton.loss_grids import Atoms
from galton.many_bins import many_bins_pair
from galton.pair import DominatingPair
from galton.redrawn import redrawn_pair
from galton.sampling import draws
from galton.sampling.tilted import TiltedSampler
from galton.sampling.toolkits import toolkit_for
from galton.separated import separated_pair
from tests import truth
from tests.marks import SLOW

MIXTURE = Direction.MIXTURE_FIRST


def gaussian_atoms(mu: float, points: int = 129) -> Atoms:
    """Nearly the loss of N(mu, 1) against N(0, 1): chords of its curve in closed form."""
    grid = np.linspace(0.0, 9 * mu, points)
    limits = Limits(tuple(grid.tolist()), tuple(truth.gaussian(epsilon, mu) for epsilon in grid.tolist()), 0)
    return dominating_atoms(limits, limits)


def two_modes() -> tuple[DominatingPair, np.ndarray[Any, Any]]:
    """Two bins, and their modes in an orthonormal basis."""
    pair = galton.dominating_pair(galton.square_root(4), bins=2, noise_multiplier=1.5)
    return pair, np.asarray(np.linalg.cholesky(pair.gram))


PAIRS: dict[str, Any] = {
    "bins": lambda: galton.dominating_pair(galton.square_root(16), bins=4, noise_multiplier=2.0),
    "many": lambda: many_bins_pair(galton.square_root(32), bins=16, noise_multiplier=1.0),
    "redrawn": lambda: redrawn_pair(galton.square_root(16), bins=4, noise_multiplier=2.0),
    "separated": lambda: separated_pair(galton.square_root(12, 2), bins=4, separation=2, noise_multiplier=2.0),
}


@pytest.mark.parametrize(
    "name", ["bins", *(pytest.param(name, marks=pytest.mark.slow) for name in ("many", "redrawn", "separated"))]
)
@pytest.mark.parametrize("mu", [0.2, pytest.param(0.7, marks=pytest.mark.slow)])
def test_values_are_within_their_range_and_have_the_mean_of_plain_ones(name: str, mu: float) -> None:
    """Tilted samples of every order against plain ones, whose values are delta of the others at epsilon - L."""
    pair, others, epsilon = PAIRS[name](), gaussian_atoms(mu), 0.6
    toolkit = toolkit_for(pair)

    def values(sampler: BesideSampler) -> np.ndarray[Any, Any]:
        parts = [sampler.values(draw, epsilon, 0) for draw in draws(sampler, 1 << 14, 3)]
        return np.concatenate(parts)

    plain = BesideSampler(toolkit.plain(pair, MIXTURE), others)
    assert plain.value_range(epsilon) == pytest.approx(float(others.masses.sum()), rel=1e-8)
    expected = values(plain)
    exact = [truth.gaussian(epsilon - loss, mu) for loss in next(iter(draws(plain, 1 << 14, 3))).loss[:50].tolist()]
    np.testing.assert_allclose(expected[:50], np.array(exact) - others.infinite, rtol=0.02, atol=1e-6)
    for share in (0.5, 2.0):
        sampler = BesideSampler(toolkit.sharp(pair, MIXTURE, share * epsilon), others)
        unclipped = replace_range(sampler)
        told = values(unclipped)
        assert told.max() <= sampler.value_range(epsilon)
        error = math.hypot(told.std() / len(told) ** 0.5, expected.std() / len(expected) ** 0.5)
        assert abs(told.mean() - expected.mean()) < 5 * error


def replace_range(sampler: BesideSampler) -> BesideSampler:
    """The same sampler without the clip at its range, which would hide values beyond it."""

    class Unclipped(BesideSampler):
        def _range_at(self, epsilon: float) -> float:
            return math.inf

    copy = object.__new__(Unclipped)
    vars(copy).update(vars(sampler))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.REMOVE, Adjacency.REPLACE])
def test_epsilon_and_delta_are_those_of_quadrature(adjacency: Adjacency) -> None:
    """A Gaussian mechanism beside two modes is one more coordinate of the modes: the truth in three dimensions."""
    pair, modes = two_modes()
    both = np.hstack([modes, np.full((2, 1), 0.25)])

    def exact(epsilon: float) -> float:
        return max(truth.by_quadrature(both, epsilon, direction) for direction in adjacency.directions)

    options = Options(seed=4, samples=1 << 14)
    events, at = [pair, "gaussian:sigma=4"], 1.5 if adjacency is Adjacency.REMOVE else 3.0
    told = compose(events, epsilon=at, adjacency=adjacency, options=options)
    assert told.composed_by == "direct"
    assert exact(at) <= told.delta < 1.05 * exact(at)
    inverse = compose(events, delta=told.delta, adjacency=adjacency, options=options)
    assert inverse.epsilon == pytest.approx(at, rel=0.01)
    assert exact(inverse.epsilon) <= told.delta


@SLOW
def test_direct_samples_are_sharper_than_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PAIRS["bins"]()
    few = Options(seed=5, samples=1 << 13)
    direct = compose([pair], delta=1e-4, options=few)
    monkeypatch.setattr("galton.budget.composed.direct", lambda whole, delta, options: None)
    losses = compose([pair], delta=1e-4, options=few)
    assert (direct.composed_by, losses.composed_by) == ("direct", "losses")
    assert 0.97 * losses.epsilon < direct.epsilon < losses.epsilon
    assert direct.analysis_failure == 2 * losses.analysis_failure == pytest.approx(1.5e-7)
    truth_below = galton.epsilon(pair, 1e-4, options=Options(seed=6, samples=1 << 16)).lower
    assert truth_below < direct.epsilon


def test_what_is_not_sampled_directly() -> None:
    pair, _ = two_modes()
    with pytest.raises(InvalidArgument, match="direction = 'noise-first'"):
        BesideSampler(toolkit_for(pair).plain(pair, Direction.NOISE_FIRST), gaussian_atoms(0.5))
    few = Options(seed=5, samples=1 << 10)
    assert compose([pair], epsilon=1.0, adjacency=Adjacency.ADD, options=few).composed_by == "losses"
    assert compose(["gaussian:sigma=2"], epsilon=1.0).composed_by == "losses"
    nothing = Atoms(np.empty(0), np.empty(0), 1.0)
    assert beside(pair, MIXTURE, nothing, 1.0).sampler.value_range(1.0) == 0.0


def test_the_order_falls_with_what_the_others_take() -> None:
    pair = PAIRS["bins"]()
    orders = [beside(pair, MIXTURE, gaussian_atoms(mu), 2.0).sampler.order for mu in (0.02, 0.3, 0.8)]
    assert orders == sorted(orders, reverse=True)
    assert orders[0] > orders[-1] >= 1


class Steep(TiltedSampler):
    """Weights that rounding may move further than the order says, as those of others."""

    steepness = 50


def test_weights_are_raised_as_far_as_the_run_needs() -> None:
    """The quotient of the values of two samplers that differ in steepness alone, on the same draw."""
    pair, _ = two_modes()
    assert isinstance(pair, galton.Pair)
    usual, steep = (BesideSampler(kind(pair, MIXTURE, 1.0, 3), gaussian_atoms(0.5)) for kind in (TiltedSampler, Steep))
    draw = usual.draw(1, 0)
    low, high = usual.values(draw, 1.0, rounding=1), steep.values(draw, 1.0, rounding=1)
    seen = (low > 0) & (high < steep.value_range(1.0))
    assert seen.any()
    assert np.log(high[seen] / low[seen]) == pytest.approx((50 - 3) * usual.slack.epsilon, rel=1e-2)


@pytest.mark.parametrize(
    ("bands", "multiplier", "name"), [(2, 1.25, "levelled"), pytest.param(8, 1.4596, "arcs", marks=pytest.mark.slow)]
)
def test_ranges_of_few_bands_do_not_carry_over_to_smaller_epsilons(bands: int, multiplier: float, name: str) -> None:
    """Such samples beside others claimed a delta of all that was below that of the others alone, in closed form."""
    pair = galton.dominating_pair(galton.square_root(2048, bands), bins=128, noise_multiplier=multiplier)
    toolkit = toolkit_for(pair)
    sharp = toolkit.sharp(pair, MIXTURE, 1.0)
    assert sharp.name == name
    with pytest.raises(InvalidArgument, match=f"run = .{sharp.name}"):
        BesideSampler(sharp, gaussian_atoms(0.3))
    tilting = toolkit.tilting(pair, MIXTURE, 1.0)
    assert tilting.tilts
    assert tilting.name == "chained"
    assert tilting.value_range(1.0) < TiltedSampler(pair, MIXTURE, 1.0).value_range(1.0) / 2
    few = Options(seed=1, samples=1 << 12)
    told = compose([pair, "gaussian:sigma=3.3333"], epsilon=1.0, adjacency=Adjacency.REMOVE, options=few)
    assert told.delta > truth.gaussian(1.0, 1 / 3.3333)
