"""C optimised under amplification: `optimize` and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from galton import files
from galton.accounting import Calibration, Options, calibrate
from galton.accounting.calibration import DEFAULT_TAU
from galton.accounting.options import check_tau
from galton.accounting.quick import quick_multiplier
from galton.errors import FloatArray, InvalidArgument, choice, count, count_rounds
from galton.gaussian import unamplified_multiplier
from galton.guarantee import Guarantee, as_guarantee
from galton.many_bins import pair_of_bins
from galton.optimization.descent import gradient_descent
from galton.optimization.families import BltFamily, Family, parse_family
from galton.optimization.participation import ONE_DRAW, Participation, find_participation
from galton.optimization.problem import OBJECTIVES, Function, Problem, problem_for
from galton.optimization.search import History, Interrupted, Target, judge, search
from galton.optimization.separation import OPEN_SEPARATION, settle_separation
from galton.optimization.starts import blt_starts
from galton.optimization.unamplified import unamplified_optimum
from galton.sampling.base import wide_jax
from galton.strategies import Strategy, square_root
from galton.threads import one_blas_thread
from galton.typechecking import typechecked
from galton.workloads import Workload, prefix_sums

METHODS = ("lbfgs", "paper")
_LONG = 2048
"""With more rounds the classical optimum is one of few parameters, which differs from the best by little."""
_REFRESHES = 3
"""Descents of a search, each on new draws, twice as many."""
_MOST_REFRESHES = 8


@typechecked
@dataclass(frozen=True, eq=False)
class Optimized:
    """A strategy optimised under amplification, judged on fresh samples. The example of `optimize` shows one.

    Attributes:
      family: the family that C is from; a smaller one if the search was interrupted early.
      strategy: C.
      noise_multiplier: sensitivity-1 noise multiplier, from `calibrate` on fresh samples.
      sigma: standard deviation of the noise for C as given and clip norm 1: noise multiplier times sensitivity.
      rmse: root-mean-square error on the workload with that noise.
      max_error: the largest error of a round.
      objective: what was minimised, with that noise: rmse, max_error, or the value of the user's own function.
      guarantee: the guarantee that the noise gives.
      participation: how an example takes part: bins (drawn once) or redrawn.
      bins: batches per epoch.
      rounds: rounds of the run.
      calibration: the evidence for the multiplier.
      unamplified: the classical optimum for comparison: for Toeplitz C optimised without amplification, the exact
        multiplier and rmse without amplification, and estimates of both with balls-in-bins batches. Empty if it was
        not asked for.
      history: the objective by iteration. These values come from the samples that the search runs on, and so are
        biased low.
      method: lbfgs or paper.
      estimator: how delta was estimated in the search.
      samples: samples per direction and iteration.
      seed: the seed of all samples.
      interrupted: whether Ctrl-C ended the search; the result is then the best so far.
      seconds: how long it took.
    """

    family: str
    strategy: Strategy
    noise_multiplier: float
    sigma: float
    rmse: float
    max_error: float
    objective: float
    guarantee: Guarantee
    participation: str
    bins: int
    rounds: int
    calibration: Calibration
    unamplified: dict[str, float]
    history: list[dict[str, float | int | str]]
    method: str
    estimator: str
    samples: int
    seed: int
    interrupted: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary, without the coefficients (a strategy file holds them)."""
        nested = ("strategy", "calibration", "guarantee", "unamplified")
        own = {name: value for name, value in self.__dict__.items() if name not in nested}
        return (
            files.plain(own)
            | self.guarantee.to_json()
            | {
                "strategy_hash": self.strategy.digest,
                "classical": self.unamplified,
                "calibration": self.calibration.to_json(),
            }
        )


@typechecked
def optimize(
    family: str,
    bins: int,
    rounds: int,
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    workload: Workload | None = None,
    objective: str | Function = "rmse",
    method: str = "lbfgs",
    participation: str = ONE_DRAW.name,
    estimator: str = "",
    samples: int | None = None,
    iterations: int = 0,
    refreshes: int = 0,
    start: Strategy | None = None,
    options: Options | None = None,
    tau: float = DEFAULT_TAU,
    reference: bool = True,
    watch: Callable[[str, int, float], None] | None = None,
) -> Optimized:
    """Finds the C of a family with the least error at an (epsilon, delta) guarantee under balls-in-bins batching.

    The search runs on frozen samples; the noise multiplier of the result comes from `calibrate`, on fresh samples,
    and holds with its confidence. A larger family starts from the optimum of a smaller family that it contains.
    Ctrl-C ends the search and returns the best C so far.

    Args:
      family: blt:D, toeplitz or toeplitz:W, either with +scale for a weight per round; banded:W; or dense.
      bins: batches per epoch.
      rounds: rounds of the run.
      epsilon: a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: delta of the guarantee; omit it if `epsilon` is a `Guarantee`.
      workload: the workload whose error is minimised; default prefix sums.
      objective: rmse, max (the largest error of a round), or a differentiable JAX function of (C, sigma) that returns
        a positive number, where sigma is the standard deviation of the noise for C as given and clip norm 1.
      method: lbfgs, or paper (new plain samples in every iteration, bisection, gradient descent).
      participation: how an example takes part: bins (drawn once), redrawn (in every epoch) or min-separation:S (rounds
        at least S apart, one in `bins` on average); the last is for families with at most S bands, and with
        min-separation:auto S is chosen, for `toeplitz` and `toeplitz+scale` with the number of bands.
      estimator: how delta is estimated in the search: mixture (default), tilted or plain (default of `paper`); for
        redrawn bins and min-separation tilted only.
      samples: samples per direction and iteration; None for the default, 4096 (where tilted is the only estimator 1024,
        and down to 256 for more than 512 rounds).
      iterations: the most iterations per descent; 0 for the default, 60 (300 for `paper`).
      refreshes: how many descents at most, each on new draws, twice as many; 0 for the default, 3.
      start: a member of the family to start from.
      options: how `calibrate` samples; its seed is also that of the search.
      tau: the multiplier is calibrated to delta / tau, to leave room for a certificate.
      reference: whether to find the classical optimum for comparison (`unamplified`), which takes seconds.
      watch: called as watch(stage, iteration, objective).

    Returns:
      The strategy with its noise multiplier and its error.

    Example:
      >>> target = Guarantee(epsilon=2.0, delta=1e-5)
      >>> optimized = optimize("blt:2", bins=4, rounds=16, epsilon=target, samples=1024, options=Options(seed=1))
      >>> optimized.rmse < optimized.unamplified["rmse"]
      True
    """
    begun = time.perf_counter()
    options = options or Options()
    guarantee = as_guarantee(epsilon, delta)
    count_rounds(rounds)
    count("bins", bins, at_most=rounds)
    if samples is not None:
        count("samples", samples, at_most=1 << 24)
    count("iterations", iterations, at_least=0)
    count("refreshes", refreshes, at_least=0, at_most=_MOST_REFRESHES)
    choice("method", method, METHODS)
    check_tau(tau)
    if not callable(objective):
        choice("objective", objective, OBJECTIVES)
    if workload is not None and workload.rounds != rounds:
        raise InvalidArgument("workload", workload.rounds, f"must have as many rounds as the run, {rounds}")
    if start is not None:
        _check_start(start, rounds)
    seed = options.fresh_seed()
    aim = guarantee.with_delta(guarantee.delta / tau)
    if participation == OPEN_SEPARATION:
        family, participation = settle_separation(family, bins, rounds, aim, workload, options, seed)
    way = find_participation(participation, bins)
    samples = way.samples(bins, rounds) if samples is None else samples
    usual = "plain" if method == "paper" and "plain" in way.estimators else way.estimators[0]
    estimator = choice("estimator", estimator or usual, way.estimators)
    parsed = parse_family(family, rounds).with_weights(way.most_weights(bins, rounds))
    parsed.check_memory(bins)
    most = way.most_bands(rounds)
    if parsed.most_bands > most:
        remedy = f"must have at most {most} bands for participation {way.name}, such as toeplitz:{most}+scale"
        raise InvalidArgument("family", family, remedy)
    way.pair(square_root(rounds, 1), bins)  # refuses bins that cannot be calibrated before the search begins
    target_workload = _shared_prefix_sums(rounds) if workload is None else workload
    target = Target(aim, replace(options, progress=None), estimator, samples, seed)
    history = History(watch)
    run = Run(bins, target_workload, objective, target, method, iterations, history, way)
    interrupted = False
    with wide_jax(), one_blas_thread():
        _check_objective(parsed, run)
        try:
            parameters = run.optimum(parsed, start, refreshes or _REFRESHES)
        except Interrupted as stop:
            parameters, interrupted = stop.parameters, True
            parsed = run.family or parsed
    strategy = parsed.strategy(parameters)
    pair = way.pair(strategy, bins)
    fresh = replace(options, seed=None if options.seed is None else seed)
    calibration = calibrate(pair, guarantee, options=fresh, tau=tau)
    sigma = calibration.noise_multiplier * strategy.sensitivity(bins)
    errors = strategy.row_errors(target_workload)
    rmse, largest = sigma * float((errors**2).mean() ** 0.5), sigma * float(errors.max())
    if callable(objective):
        with wide_jax():
            reached = float(objective(jnp.asarray(strategy.matrix()), jnp.asarray(sigma)))
    else:
        reached = rmse if objective == "rmse" else largest
    return Optimized(
        family=parsed.name,
        strategy=strategy,
        noise_multiplier=calibration.noise_multiplier,
        sigma=sigma,
        rmse=rmse,
        max_error=largest,
        objective=reached,
        guarantee=guarantee,
        participation=way.name,
        bins=bins,
        rounds=rounds,
        calibration=calibration,
        unamplified=_unamplified_reference(bins, rounds, guarantee, workload, target) if reference else {},
        history=history.rows,
        method=method,
        estimator=estimator,
        samples=samples,
        seed=seed,
        interrupted=interrupted,
        seconds=time.perf_counter() - begun,
    )


@lru_cache(maxsize=8)
def _shared_prefix_sums(rounds: int) -> Workload:
    """The same object for the same rounds, so that `problem_for` finds its cached problem."""
    return prefix_sums(rounds)


@dataclass
class Run:
    """What stays the same in an optimisation, from the smallest family to the one asked for."""

    bins: int
    workload: Workload
    objective: str | Function
    target: Target
    method: str
    iterations: int
    history: History
    participation: Participation = ONE_DRAW
    family: Family | None = None

    def problem(self, family: Family) -> Problem:
        """Returns the problem for one family."""
        make = problem_for if isinstance(self.objective, Hashable) else Problem
        least = self.participation.least_noise(self.bins, family.rounds, self.target.guarantee)
        return make(family, self.bins, self.workload, self.objective, self.participation, least)

    def optimum(self, family: Family, start: Strategy | None = None, refreshes: int = _REFRESHES) -> FloatArray:
        """Returns the parameters of the best member found in so many descents."""
        problem = self.problem(family)
        if start is not None:
            first = family.parameters(start)
        elif isinstance(family, BltFamily):
            self.family = family
            first = self._best_start(problem, blt_starts(family, self.bins))
        else:
            starts = [family.parameters(member) for member in family.simple_members()]
            inner = family.contained_family()
            if inner is not None and (not starts or self.participation.tries_longer_memory):
                roughly = self.optimum(inner, refreshes=self.participation.inner_refreshes(self.bins))
                starts.insert(0, family.parameters(inner.strategy(roughly)))
            self.family = family
            first = self._best_start(problem, starts) if len(starts) > 1 else starts[0]
        self.family = family
        if self.method == "paper":
            return gradient_descent(problem, first, self.target, self.iterations or 300, self.history)
        return search(problem, first, self.target, self.iterations or 60, refreshes, self.history)

    def _best_start(self, problem: Problem, starts: list[FloatArray]) -> FloatArray:
        """The start with the least objective on fresh draws; the noise of one is where to look for that of the next."""
        values: list[float] = []
        guess: float | None = None
        few = min(1 << 11, 4 * self.participation.samples(self.bins, problem.family.rounds))
        try:
            for start in starts:
                loudness = math.log(self.participation.sensitivity(problem.statistic(start)))
                nearby = None if guess is None else guess + loudness
                known = judge(problem, start, self.target, "start", few, nearby)
                values.append(known.value)
                guess = known.log_sigma - loudness
        except KeyboardInterrupt:
            raise Interrupted(starts[0]) from None
        return starts[int(np.argmin(values))]


def _check_start(start: Strategy, rounds: int) -> None:
    if start.rounds != rounds or start.rows != rounds:
        raise InvalidArgument("start", start.rounds, f"must be a square strategy for the rounds of the run, {rounds}")
    if start.has_negative:
        raise InvalidArgument("start", start.kind, "must not have negative entries: no member of a family has")


def _check_objective(family: Family, run: Run) -> None:
    """Refuses a user's objective that is not a finite positive number even at a simple C."""
    if not callable(run.objective):
        return
    matrix = jnp.asarray(square_root(family.rounds).matrix())
    try:
        jax.eval_shape(run.objective, matrix, jnp.asarray(1.0))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise InvalidArgument("objective", run.objective, "must be written in JAX (jax.numpy), not NumPy") from None
    except TypeError:  # not an array: refused below
        pass
    value = run.objective(matrix, jnp.asarray(1.0))
    if not isinstance(value, jax.Array | np.ndarray | np.generic | float | int):
        raise InvalidArgument("objective", value, "must return a number for (C, sigma)")
    if jnp.ndim(value) != 0 or not jnp.isfinite(value) or not value > 0:
        raise InvalidArgument("objective", str(value), "must return one finite positive number for (C, sigma)")


def _unamplified_reference(
    bins: int, rounds: int, guarantee: Guarantee, workload: Workload | None, target: Target
) -> dict[str, float]:
    """The classical optimum (Toeplitz; for long runs BLT) without amplification, and with it, by a quick estimate."""
    strategy = unamplified_optimum("toeplitz" if rounds <= _LONG else "blt:4", bins, rounds, workload)
    error = strategy.rmse(workload) * strategy.sensitivity(bins)
    exact = unamplified_multiplier(guarantee)
    pair = pair_of_bins(strategy, bins)
    estimate = quick_multiplier(pair, target.guarantee, target.options, target.seed, blocks=1).value
    return {
        "noise_multiplier": exact,
        "rmse": exact * error,
        "balls_in_bins_noise_multiplier_estimate": estimate,
        "balls_in_bins_rmse_estimate": estimate * error,
    }
