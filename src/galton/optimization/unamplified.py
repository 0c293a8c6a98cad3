"""The classical optimum: C for multi-epoch participation without amplification.

The sensitivity is that of a fixed order, max_i ||m_i||: every example takes part in rounds i, i + b, i + 2b, ... For
banded C with at most b bands, and for Toeplitz C with non-increasing coefficients, it is also that of every schedule
in which an example takes part at most `epochs` times, b rounds or more apart.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument, choice, count, count_rounds
from galton.optimization.families import BandedFamily, BltFamily, Family, ToeplitzFamily, parse_family
from galton.optimization.forms import BufferForm, Form, MatrixForm, SeriesForm
from galton.optimization.problem import NotFinite, row_error
from galton.optimization.search import descend
from galton.optimization.starts import fitted_blt
from galton.sampling.base import wide_jax
from galton.strategies import ColumnBanded, Dense, Scaled, Strategy, square_root
from galton.strategies.sensitivity import min_separation_sensitivity, unknown_sensitivity
from galton.threads import one_blas_thread
from galton.typechecking import typechecked
from galton.workloads import Workload, prefix_sums

PARTICIPATIONS = ("fixed-order", "min-separation")
_ITERATIONS, _FEWEST_ITERATIONS = 500, 20
_WORK = 4_000_000
"""Iterations times rounds: long runs take fewer. With 50 of 80,000 rounds the error ends 0.2% above that of 500."""
_TOLERANCE = 1e-7


@typechecked
def unamplified_optimum(
    family: str,
    bins: int,
    rounds: int,
    workload: Workload | None = None,
    objective: str = "rmse",
    participation: str = "fixed-order",
) -> Strategy:
    """Returns the C of a family with the least error times sensitivity, without amplification.

    Args:
      family: as for `optimize`; the columns of banded:W get norm 1 if W <= bins.
      bins: rounds between two participations of an example.
      rounds: rounds of the run.
      workload: the workload whose error is minimised; default prefix sums.
      objective: rmse, or max for the largest error of a round.
      participation: fixed-order (every bins-th round), or min-separation (at least `bins` rounds apart), which is
        refused where the sensitivity of the result is not known exactly.

    Returns:
      The strategy. Its noise has standard deviation noise multiplier times `strategy.sensitivity(bins)`.

    Example:
      >>> from galton import square_root
      >>> best, other = unamplified_optimum("toeplitz:4", bins=4, rounds=16), square_root(16, bands=4)
      >>> best.rmse() * best.sensitivity(4) < other.rmse() * other.sensitivity(4)
      True
    """
    count_rounds(rounds)
    count("bins", bins, at_most=rounds)
    choice("participation", participation, PARTICIPATIONS)
    choice("objective", objective, ("rmse", "max"))
    parsed = parse_family(family, rounds)
    parsed.check_memory(bins)
    target = prefix_sums(rounds) if workload is None else workload
    if target.rounds != rounds:
        raise InvalidArgument("workload", target.rounds, f"must have as many rounds as the run, {rounds}")
    few_bands = isinstance(parsed, BandedFamily) and parsed.bands <= bins
    if participation == "min-separation" and parsed.columns_are_free and not few_bands:
        raise unknown_sensitivity(family, bins)
    strategy = (
        _optimum(parsed, bins, target, objective) if workload is not None else _cached_optimum(parsed, bins, objective)
    )
    if participation == "min-separation":
        min_separation_sensitivity(strategy, bins)
    return strategy


@lru_cache(maxsize=64)
def _cached_optimum(family: Family, bins: int, objective: str) -> Strategy:
    return _optimum(family, bins, prefix_sums(family.rounds), objective)


def _optimum(family: Family, bins: int, workload: Workload, objective: str) -> Strategy:
    starts: list[Strategy] = []
    if isinstance(family, BltFamily):
        starts.append(fitted_blt(family.rounds, family.buffers, float(family.rounds)))
    elif isinstance(family, ToeplitzFamily):
        wide = family.bands > 2 * bins
        if wide:  # the best coefficients dip once per epoch; a start with fewer bands finds that
            starts.append(_optimum(ToeplitzFamily(family.rounds, 2 * bins), bins, workload, objective))
        if not wide or objective == "max":  # for the mean the other start ends no better
            starts.append(square_root(family.rounds, family.bands))
    else:
        starts.extend(family.simple_members())
        inner = family.contained_family()
        if inner is not None:
            starts.append(_optimum(inner, bins, workload, objective))
    with wide_jax(), one_blas_thread():

        @jax.jit
        def value_and_gradient(parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
            def value(parameters: jax.Array) -> jax.Array:
                form = _with_equal_norms(family, family.form(parameters), bins)
                largest = form.largest_energy(bins)
                return jnp.log(largest) / 2 + row_error(form.row_variances(workload), objective)

            return jax.value_and_grad(value)(parameters)

        def function(parameters: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = value_and_gradient(jnp.asarray(parameters))
            slopes = np.asarray(gradient)
            if not np.isfinite(value) or not np.isfinite(slopes).all():
                raise NotFinite("objective", float(value), "must be finite")
            return float(value), slopes

        iterations = min(_ITERATIONS, max(_FEWEST_ITERATIONS, _WORK // family.rounds))
        ends = [
            descend(function, family.parameters(start), iterations, lambda value: None, _TOLERANCE) for start in starts
        ]
        best = min(ends, key=lambda end: function(end)[0])
        if not family.columns_are_free:
            return family.strategy(best)
        return _scale_columns(
            family.strategy(best), 1 / np.asarray(_column_norms(family, family.form(jnp.asarray(best)), bins))
        )


def _column_norms(family: Family, form: Form, bins: int) -> jax.Array:
    """What to divide each column by to give all modes (columns, for few bands) norm 1.

    That costs nothing: at the optimum no bin has a smaller sensitivity than another.
    """
    if isinstance(family, BandedFamily) and family.bands <= bins:
        return jnp.sqrt(jnp.square(form.dense()).sum(axis=0))
    norms = jnp.sqrt(jnp.square(form.modes(bins)).sum(axis=0))
    return norms[jnp.arange(family.rounds) % bins]


def _with_equal_norms(family: Family, form: Form, bins: int) -> Form:
    if not family.columns_are_free:
        return form
    norms = _column_norms(family, form, bins)
    if isinstance(form, BufferForm):
        assert form.weights is not None
        return BufferForm(form.series, form.weights / norms, form.decay, form.scale)
    if isinstance(form, SeriesForm):
        assert form.weights is not None
        return SeriesForm(form.series, form.weights / norms)
    return MatrixForm(form.dense() / norms)


def _scale_columns(strategy: Strategy, factors: FloatArray) -> Strategy:
    if isinstance(strategy, Scaled):
        return Scaled(strategy.inner, strategy.weights * factors)
    if isinstance(strategy, ColumnBanded):
        return ColumnBanded(strategy.coefficients * factors)
    return Dense(strategy.matrix() * factors)
