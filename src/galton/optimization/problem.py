"""What is minimised: an error that depends on C and on the noise it needs (docs/math.md, section 8)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray, InvalidArgument
from galton.optimization.affordable import LeastNoise
from galton.optimization.averages import smooth_log_maximum
from galton.optimization.families import Family
from galton.optimization.forms import Form
from galton.optimization.noise_level import Level
from galton.optimization.participation import ONE_DRAW, Participation
from galton.sampling.base import placed
from galton.workloads import Workload

Function = Callable[[jax.Array, jax.Array], jax.Array]
"""A user's own objective: (C, sigma) -> a positive number, written in JAX."""

OBJECTIVES = ("rmse", "max")

_SOFTNESS = 2e-3
"""Temperature of the smooth maximum of log sigma and its least value."""


class LevelFunction(Protocol):
    """log sigma as a function of the statistic that it depends on."""

    def __call__(self, statistic: FloatArray) -> Level:
        """Returns log sigma and its gradient."""


class NotFinite(InvalidArgument):
    """The objective is not finite: the search steps back from such a point, and refuses it as a start."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise the error of `workload` over a family, as a function of its free parameters.

    The value is the logarithm of the error, noise included. Call everything inside `wide_jax()`.

    Attributes:
      least_noise: what the noise of no C may fall below, since certificates would take too many samples.
    """

    family: Family
    bins: int
    workload: Workload
    objective: str | Function = "rmse"
    participation: Participation = ONE_DRAW
    least_noise: LeastNoise | None = None

    def statistic(self, parameters: FloatArray) -> FloatArray:
        """Returns the array that the noise depends on."""
        return np.asarray(self._jitted_statistic(placed(parameters)))

    def value(self, parameters: FloatArray, log_sigma: float) -> float:
        """Returns the objective at a known noise level."""
        return float(self._jitted_value(placed(parameters), log_sigma))

    def value_and_gradient(self, parameters: FloatArray, level: LevelFunction) -> tuple[float, FloatArray]:
        """Returns the objective with the noise that C needs, and its gradient."""
        solution = level(self.statistic(parameters))
        value, gradient = self._jitted_gradient(placed(parameters), solution.log_sigma, placed(solution.gradient))
        number, slopes = float(value), np.asarray(gradient)
        if not math.isfinite(number) or not np.isfinite(slopes).all():
            raise NotFinite("objective", number, "must be finite, with finite derivatives, wherever C is positive")
        return number, slopes

    def _outer(self, form: Form, log_sigma: jax.Array) -> jax.Array:
        if self.least_noise is not None:
            least = self.least_noise.log_sigma(form)
            log_sigma = _SOFTNESS * jnp.logaddexp(log_sigma / _SOFTNESS, least / _SOFTNESS)
        if callable(self.objective):
            return jnp.log(self.objective(form.dense(), jnp.exp(log_sigma)))
        return log_sigma + row_error(form.row_variances(self.workload), self.objective)

    @cached_property
    def _jitted_statistic(self) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(lambda parameters: self.participation.statistic(self.family.form(parameters), self.bins))

    @cached_property
    def _jitted_value(self) -> Callable[[jax.Array, float], jax.Array]:
        return jax.jit(lambda parameters, log_sigma: self._outer(self.family.form(parameters), log_sigma))

    @cached_property
    def _jitted_gradient(self) -> Callable[[jax.Array, float, jax.Array], tuple[jax.Array, jax.Array]]:
        def total(parameters: jax.Array, log_sigma: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
            form = self.family.form(parameters)
            value, by_sigma = jax.value_and_grad(lambda log_sigma: self._outer(form, log_sigma))(log_sigma)
            through = jax.lax.stop_gradient(by_sigma) * (self.participation.statistic(form, self.bins) * slope).sum()
            return value + through, value

        def gradient(parameters: jax.Array, log_sigma: float, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient, value = jax.grad(total, has_aux=True)(parameters, jnp.asarray(log_sigma), slope)
            return value, gradient

        return jax.jit(gradient)


def row_error(variances: jax.Array, objective: str) -> jax.Array:
    """Returns the logarithm of the root-mean-square error, or of a smooth maximum, for unit noise."""
    if objective == "rmse":
        return jnp.log(variances.mean()) / 2
    return smooth_log_maximum(variances) / 2


@lru_cache(maxsize=8)
def problem_for(
    family: Family,
    bins: int,
    workload: Workload,
    objective: str | Function,
    participation: Participation = ONE_DRAW,
    least_noise: LeastNoise | None = None,
) -> Problem:
    """Returns a cached problem, so that what is compiled for it serves every epsilon."""
    return Problem(family, bins, workload, objective, participation, least_noise)
