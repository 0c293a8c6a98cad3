"""Strategies with a banded inverse: their formulas, the noise without buffers, and the optima of their families."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from galton import Options, identity, optimize, square_root, unamplified_optimum
from galton.comparison import compare
from galton.errors import FloatArray, InvalidArgument
from galton.noise.forms import Recomputed
from galton.strategies import BandedInverse, Strategy, banded_inverse_root, lambda_cgd, parse_strategy
from tests.marks import SLOW, slow_after


def root_coefficients(power: Fraction, count: int) -> list[float]:
    """(1 - x)^power by the generalised binomial theorem, in exact fractions."""
    terms, term = [], Fraction(1)
    for k in range(count):
        terms.append(float(term))
        term = term * (k - power) / (k + 1)
    return terms


@pytest.mark.parametrize("power", [Fraction(1, 2), Fraction(1, 3), Fraction(9, 10)])
def test_inverse_roots_have_the_coefficients_of_the_binomial_series(power: Fraction) -> None:
    strategy = banded_inverse_root(40, 7, float(power))
    np.testing.assert_allclose(strategy.coefficients, root_coefficients(power, 7), rtol=1e-14)
    whole = banded_inverse_root(40, 40, float(power))
    np.testing.assert_allclose(whole.series, np.abs(root_coefficients(-power, 40)), rtol=1e-12)


def test_with_all_bands_it_is_the_square_root() -> None:
    np.testing.assert_allclose(banded_inverse_root(64, 64).series, square_root(64).series, rtol=1e-13)
    assert parse_strategy("bisr:5", 32).digest == banded_inverse_root(32, 5).digest
    assert banded_inverse_root(32, 1).matrix().tolist() == identity(32).matrix().tolist()


def test_lambda_cgd_is_a_geometric_series_with_a_known_error() -> None:
    """The prefix sums of z_t - L z_(t-1) are z_t + (1 - L) (z_0 + ... + z_(t-1))."""
    rounds, share = 50, 0.8
    strategy = lambda_cgd(rounds, share)
    np.testing.assert_allclose(strategy.series, share ** np.arange(rounds), rtol=1e-12)
    expected = np.sqrt(1 + (1 - share) ** 2 * np.arange(rounds))
    np.testing.assert_allclose(strategy.row_errors(), expected, rtol=1e-12)
    assert lambda_cgd(1, 0.5).series.tolist() == [1.0]


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: banded_inverse_root(8, 9), "bands"),
        (lambda: banded_inverse_root(8, 2, 1.0), "power"),
        (lambda: banded_inverse_root(8, 2, float("nan")), "power"),
        (lambda: lambda_cgd(8, 0.0), "decay"),
        (lambda: parse_strategy("bisr", 8), "strategy"),
        (lambda: parse_strategy("bisr:9", 8), "strategy"),
    ],
)
def test_wrong_numbers_are_named(build: Any, argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        build()


class Counted(NamedTuple):
    """Draws that say which rounds were drawn."""

    round: jax.Array
    drawn: list[int]

    def normals(self, turn: Any, draw: Any) -> jax.Array:
        jax.debug.callback(lambda turn: self.drawn.append(int(turn)), turn)
        return jnp.full(1, 1.0 + turn)


@pytest.mark.parametrize(
    ("strategy", "rounds_drawn"),
    [
        (banded_inverse_root(30, 4), [17, 18, 19, 20]),
        (identity(30), [20]),
        (square_root(30, 4), list(range(21))),
    ],
)
def test_noise_without_buffers_draws_as_many_vectors_as_the_inverse_has_bands(
    strategy: Strategy, rounds_drawn: list[int]
) -> None:
    drawn: list[int] = []
    x, _ = Recomputed(strategy).draw(Counted(jnp.asarray(20), drawn), jnp.zeros((0, 2)))  # type: ignore[arg-type]
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    assert drawn == rounds_drawn
    np.testing.assert_allclose(x, (strategy.inverse() @ np.arange(1.0, 31.0))[20], rtol=1e-5)


def classical_error(strategy: Strategy, bins: int) -> float:
    return strategy.rmse() * strategy.sensitivity(bins)


@SLOW
@pytest.mark.parametrize(("rounds", "bins"), slow_after(1, [(48, 12), (48, 48)]))
def test_optima_of_one_number_are_those_of_a_grid(rounds: int, bins: int) -> None:
    grid: FloatArray = np.linspace(0.005, 0.995, 199)
    best_share = min(classical_error(lambda_cgd(rounds, share), bins) for share in grid)
    assert classical_error(unamplified_optimum("inverse:2", bins, rounds), bins) == pytest.approx(best_share, rel=1e-3)
    best_power = min(classical_error(banded_inverse_root(rounds, 4, power), bins) for power in grid)
    assert classical_error(unamplified_optimum("bifr:4", bins, rounds), bins) == pytest.approx(best_power, rel=1e-3)


@SLOW
def test_larger_families_have_less_error() -> None:
    rounds, bins = 64, 16
    strategies = [
        banded_inverse_root(rounds, 4),
        *(unamplified_optimum(f, bins, rounds) for f in ("bifr:4", "inverse:4")),
    ]
    errors = [classical_error(strategy, bins) for strategy in strategies]
    assert errors[0] >= errors[1] * (1 - 1e-9)
    assert errors[1] >= errors[2] * (1 - 1e-6)
    assert isinstance(strategies[2], BandedInverse)
    assert strategies[2].coefficients.size == 4


@SLOW
def test_it_is_optimised_under_amplification() -> None:
    optimised = optimize("inverse:2", 4, 16, 2.0, 1e-3, samples=512, options=Options(seed=1))
    start = banded_inverse_root(16, 2)
    assert isinstance(optimised.strategy, BandedInverse)
    assert optimised.strategy.stream().memory == 1
    reference = optimize("inverse:2", 4, 16, 2.0, 1e-3, samples=512, iterations=1, start=start, options=Options(seed=1))
    assert optimised.rmse <= reference.rmse * 1.01


@SLOW
def test_rows_of_a_comparison() -> None:
    names = ["bandmf-unamplified", "cgd-unamplified", "bisr-unamplified", "bifr-unamplified", "bandinv-unamplified"]
    table = compare(16, 64, [2.0], 1e-3, mechanisms=[*names, "bisr-balls-in-bins"])
    errors = {row.mechanism: row.rmse for row in table.rows}
    assert errors["bandinv-unamplified"] <= errors["bifr-unamplified"] * 1.001 <= errors["bisr-unamplified"] * 1.002
    assert errors["bisr-balls-in-bins"] < errors["bisr-unamplified"]
