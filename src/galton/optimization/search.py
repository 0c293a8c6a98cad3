"""Minimising by L-BFGS on frozen draws that are renewed a few times (docs/math.md, section 8)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from galton.accounting.options import Options, derived_seed
from galton.errors import FloatArray, GaltonError
from galton.guarantee import Guarantee
from galton.optimization.noise_level import NoiseLevel, OutsideDesign
from galton.optimization.problem import NotFinite, Problem

PATIENCE = 5
"""A descent ends when this many iterations together gained less than its tolerance."""
_UNIT = 0.1
"""Parameters are measured in this unit, so that the first step of a descent, a multiple of the gradient, is short."""
_APPROACHES = 20
_FEW = 1 << 10
"""Draws of one step of an approach, at most."""
_NEAR = 0.05
"""A noise level this far, in log sigma, from the one that draws were designed for is what they say."""
_ATTEMPTS = 4
"""How often to draw, twice as many each time, if the draws have no solution at their own design."""
_SETTLED = 1e-3
"""A search ends when a descent changed the objective (a logarithm) by less than this on fresh draws."""
_SHARES = (1.0, 0.5, 0.25)
"""How much of the way that a descent went is tried, if fresh draws see no gain at its end."""
_FEWEST_JUDGED = 1 << 8
"""A point is judged by four times the samples of the search, but of no fewer than this, and no more than the usual."""
_WALL = 1.0
"""The objective (a logarithm) is cut off this far above its best value, also where it cannot be computed."""


@dataclass(frozen=True)
class Target:
    """The guarantee that sigma has to give, and how it is estimated while searching."""

    guarantee: Guarantee
    options: Options
    estimator: str = "mixture"
    samples: int = 1 << 12
    seed: int = 0


@dataclass
class History:
    """The objective by iteration, which also reports the progress of a search."""

    watch: Callable[[str, int, float], None] | None = None
    rows: list[dict[str, float | int | str]] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)

    def add(self, stage: str, value: float) -> None:
        """Records the value (a logarithm) of one more iteration."""
        objective = math.exp(min(value, 700.0))
        seconds = time.perf_counter() - self.begun
        self.rows.append(
            {"iteration": len(self.rows), "stage": stage, "objective": objective, "seconds": round(seconds, 3)}
        )
        if self.watch is not None:
            self.watch(stage, len(self.rows), objective)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: carries the best parameters found so far."""

    def __init__(self, parameters: FloatArray) -> None:
        super().__init__("interrupted")
        self.parameters = parameters


def design(
    problem: Problem,
    parameters: FloatArray,
    target: Target,
    purpose: str,
    samples: int,
    guess: float | None = None,
    near: bool = False,
) -> NoiseLevel:
    """Freezes draws designed for C at these parameters; every purpose has random numbers of its own.

    The noise level is approached in Newton steps, each on a few draws designed for the end of the last step, since
    draws designed for another noise level say little. A step that turns back is at most half of the last one: where
    rare patterns count, as at large epsilon, steps from either side may both be too long. To a guess that should be
    `near` no approach is made, if the draws that are designed for it say so themselves.
    """
    statistic, participation = problem.statistic(parameters), problem.participation
    quick = participation.estimators[0]

    def draws(log_sigma: float, purpose: str, samples: int, estimator: str) -> NoiseLevel:
        seed = derived_seed(target.seed, purpose)
        return participation.level(statistic, log_sigma, target.guarantee, estimator, samples, seed)

    log_sigma = guess
    if log_sigma is None:
        log_sigma = math.log(participation.usual_sigma(statistic, target.guarantee))
    elif near:
        level = draws(log_sigma, f"{purpose} 0", samples, target.estimator)
        try:
            if abs(level.value(statistic) - log_sigma) < _NEAR:
                return level
        except OutsideDesign:  # nothing is near
            pass
    longest, before = math.inf, 0.0
    for index in range(_APPROACHES):
        step = draws(log_sigma, f"{purpose} approach {index}", min(_FEW, samples), quick).newton_step(
            statistic, log_sigma
        )
        if step * before < 0:
            longest = abs(before) / 2
        step = before = min(max(step, -longest), longest)
        log_sigma += step
        if abs(step) < 0.03:
            break
    attempts = _ATTEMPTS if target.estimator == quick else 1
    for attempt in range(attempts):
        level = draws(log_sigma, f"{purpose} {attempt}", samples << attempt, target.estimator)
        try:
            level.value(statistic)
        except OutsideDesign:
            if attempt == attempts - 1:
                raise
        else:
            break
    return level


class Judgement(NamedTuple):
    """The objective (a logarithm) on fresh samples, and log sigma there."""

    value: float
    log_sigma: float


def judge(
    problem: Problem,
    parameters: FloatArray,
    target: Target,
    purpose: str,
    samples: int | None = None,
    guess: float | None = None,
    near: bool = False,
) -> Judgement:
    """Returns the objective on fresh samples, which the search never saw; `guess` is log sigma, if about known."""
    fresh = replace(target, estimator=problem.participation.estimators[0])
    usual = problem.participation.samples(problem.bins, problem.family.rounds)
    samples = samples or 4 * max(_FEWEST_JUDGED, min(target.samples, usual))
    level = design(problem, parameters, fresh, f"judge {purpose}", samples, guess, near)
    log_sigma = level.value(problem.statistic(parameters))
    return Judgement(problem.value(parameters, log_sigma), log_sigma)


def descend(
    function: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    iterations: int,
    report: Callable[[float], None],
    tolerance: float,
) -> FloatArray:
    """L-BFGS from `start`; returns the best point seen, also when interrupted (then wrapped in `Interrupted`)."""
    best, best_value = start, math.inf
    values: list[float] = []

    def safe(parameters: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best, best_value
        try:
            value, gradient = function(parameters)
        except (NotFinite, OutsideDesign, np.linalg.LinAlgError):
            if not math.isfinite(best_value):
                raise
            value, gradient = math.inf, parameters
        if value > best_value + _WALL:
            # As if a parabola rose from the best point to the wall: the line search comes back by about half. With
            # the true value, which can be astronomical, it would come back to where it was.
            away = parameters - best
            return best_value + _WALL, away * (2 * _WALL / max(float(away @ away), 1e-300))
        if value < best_value:
            best, best_value = parameters.copy(), value
        return value, gradient

    def scaled(steps: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = safe(start + _UNIT * steps)
        return value, _UNIT * gradient

    def after_iteration(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        report(values[-1])
        if len(values) > PATIENCE and values[-1 - PATIENCE] - values[-1] < tolerance:
            raise StopIteration

    try:
        minimize(
            scaled,
            np.zeros_like(start),
            jac=True,
            method="L-BFGS-B",
            callback=after_iteration,
            options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-10},
        )
    except KeyboardInterrupt:
        raise Interrupted(best) from None
    return best


def search(
    problem: Problem, start: FloatArray, target: Target, iterations: int, refreshes: int, history: History
) -> FloatArray:
    """Returns the best parameters: descends on frozen draws and judges on fresh ones, until those see no gain.

    A descent may follow its draws too far, to errors that other draws do not see: part of the way is then tried, and
    the next descent, on twice as many draws, goes on from there. The start is judged too, so that the result is no
    worse than the start, up to the noise of the judgement.
    """
    name = problem.family.name
    best, known = start, Judgement(math.inf, math.nan)
    try:
        known = judge(problem, start, target, name)
        for refresh in range(refreshes):
            level = design(problem, best, target, f"{name} {refresh}", target.samples << refresh, known.log_sigma, True)
            candidate = descend(
                lambda parameters: problem.value_and_gradient(parameters, level),  # noqa: B023
                best,
                iterations,
                lambda value: history.add(name, value),
                problem.participation.tolerance(problem.bins),
            )
            settled = False
            for share in _SHARES:
                point = best + share * (candidate - best)
                try:
                    guess = level.value(problem.statistic(point))
                    judged = judge(problem, point, target, name, guess=guess, near=True)
                except GaltonError:  # without a noise level the point is no candidate
                    continue
                gained = known.value - judged.value
                settled = share == 1.0 and abs(gained) < _SETTLED
                if gained > 0:
                    best, known = point, judged
                if gained > 0 or settled:
                    break
            if settled:
                break
    except Interrupted as stop:
        raise Interrupted(_better_of(problem, best, known.value, stop.parameters, target)) from None
    except KeyboardInterrupt:  # while judging or drawing
        raise Interrupted(best) from None
    return best


def _better_of(
    problem: Problem, known: FloatArray, known_value: float, other: FloatArray, target: Target
) -> FloatArray:
    """The better of two on fresh draws, when the search was cut short."""
    try:
        return other if judge(problem, other, target, problem.family.name).value < known_value else known
    except GaltonError:
        return known
