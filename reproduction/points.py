"""One point of a figure: a mechanism at one (epsilon, delta), with its noise and its error.

Points are kept by content: a figure that shares a point with another, or is made again, does not compute it twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import numpy as np

from galton.accountants import ACCOUNTANTS
from galton.accountants.peers import version_of
from galton.accounting import Calibration, Options, calibrate
from galton.accounting.certificate import FAILURE_SHARE
from galton.accounting.quick import quick_multiplier
from galton.cache import Cache, Json
from galton.errors import InvalidArgument, count
from galton.fields import EXACT_LIMIT
from galton.guarantee import Guarantee
from galton.optimization import optimize, unamplified_optimum
from galton.optimization.spec import resolve_strategy
from galton.pair import DominatingPair, dominating_pair
from galton.redrawn import redrawn_pair
from galton.sampling.schedule import Progress
from galton.strategies import Strategy, Toeplitz, square_root
from galton.strategies.codec import strategy_from_json

DELTA = 1e-5
TAU = 1.25
"""Noise of balls-in-bins is aimed at a delta of 8e-6, of which 1.25 times are claimed, as in the paper."""
FAILURE = FAILURE_SHARE * DELTA
"""Failure probability of a certified point, both directions together: 1.5e-8."""
SEED = 1

UNAMPLIFIED, POISSON, BALLS = "unamplified", "poisson", "balls-in-bins"
ESTIMATE = "balls-in-bins estimate"
OPTIMIZED = "optimized"
REDRAWN, REDRAWN_OPTIMIZED = "redrawn bins", "optimized under redrawn bins"
ANALYSES = {UNAMPLIFIED: "unamplified", POISSON: "cyclic-poisson"}
"""Accountants of the methods that need no samples."""
PARTICIPATIONS = {OPTIMIZED: "bins", REDRAWN_OPTIMIZED: "redrawn"}
"""How an example takes part while C is optimised."""
METHODS = (UNAMPLIFIED, POISSON, BALLS, ESTIMATE, REDRAWN, *PARTICIPATIONS)

INNER = {"toeplitz": "blt:4", "blt:4+scale": "blt:4", "toeplitz+scale": "blt:4+scale"}
"""Which optimum a search starts from, so that the larger family never ends worse; a banded one from the last."""
LONG, SHORT = "unamplified optimum", "short memory"
"""Other places to start a Toeplitz search from: where large and where small epsilons lead."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Question:
    """Everything but the seed that determines a point.

    Attributes:
      method: unamplified, poisson (cyclic, for as many groups as C has bands), balls-in-bins (certified), the quick
        estimate of the same, optimized (C optimised under balls-in-bins, certified), or the two certified ones with
        bins that are redrawn in every epoch.
      strategy: SPEC of C; for optimised ones the family.
      start: where a search starts, if not from the optimum of the family inside.
    """

    method: str
    strategy: str
    bins: int
    epochs: int
    epsilon: float
    delta: float = DELTA
    start: str = ""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidArgument("method", self.method, "must be one of " + ", ".join(METHODS))

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.bins * self.epochs

    @property
    def words(self) -> str:
        """The strategy, and where its search started if not as usual."""
        return self.strategy + (f" from {self.start}" if self.start else "")

    @property
    def bands(self) -> int | None:
        """Number of bands of C, where that was chosen."""
        name, _, argument = self.strategy.partition(":")
        return int(argument) if name in ("bandmf", "banded") else 1 if name == "identity" else None


@dataclass(frozen=True, eq=False)
class Point:
    """The answer.

    Attributes:
      noise_multiplier: for sensitivity 1 over a run of fixed order.
      rmse: root-mean-square error of prefix sums with that noise, clip norm 1.
      delta_upper: certified upper limit on delta on fresh samples (failure probability 1.5e-8 with delta 1e-5);
        None where the noise is by formula, or an estimate.
      samples: samples of that certificate.
      seconds: time it took, starts not included.
      matrix: C of an optimised point, as JSON.
    """

    question: Question
    noise_multiplier: float
    rmse: float
    delta_upper: float | None
    samples: int | None
    seconds: float
    matrix: Json | None = None


@dataclass(frozen=True)
class Maker:
    """Makes points: looks them up first, and remembers which were asked for.

    Attributes:
      cache: where points are kept.
      seed: of everything that is drawn.
      progress: called as progress(what, done, total).
      memory: points that this process knows, shared among makers.
      points: the points of this maker.
      tally: how many things came from the cache ("cached") and how many had to be computed ("computed").
    """

    cache: Cache
    seed: int = SEED
    progress: Progress | None = None
    memory: dict[Question, Point] = field(default_factory=dict)
    points: dict[Question, Point] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        count("seed", self.seed, at_least=0, at_most=EXACT_LIMIT - 1)

    def point(self, question: Question) -> Point:
        """Returns the point, from memory, from the cache or computed."""
        if question not in self.memory:
            inputs = {"what": "point", "question": asdict(question), "tau": TAU}
            answer = self.cached(inputs, lambda: self._compute(question), __name__)
            self.memory[question] = Point(question, **answer)
        self.points[question] = self.memory[question]
        return self.points[question]

    def cached(self, inputs: Json, make: Callable[[], Json], module: str) -> Json:
        """Returns what the cache holds of this module for these inputs and this seed, or makes and keeps it."""
        versions = {package: version_of(package) for package in ("jax", "numpy", "scipy")}
        inputs = inputs | {"seed": self.seed, "versions": versions}
        known = self.cache.get(inputs, module)
        self.tally["computed" if known is None else "cached"] += 1
        if known is None:
            known = make()
            self.cache.put(inputs, known, module)
        return known

    def tracked(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yields the items, telling how far it is."""
        for index, item in enumerate(items):
            if self.progress is not None:
                words = f"epsilon {item:g}" if isinstance(item, float) else str(item)
                self.progress(f"{what} | {words}", index, len(items))
            yield item
        if self.progress is not None:
            self.progress(f"{what} | done", len(items), len(items))

    def _compute(self, question: Question) -> Json:
        options = self.options(question.delta)
        if question.method not in PARTICIPATIONS:
            begun = time.perf_counter()
            return _accounted(question, options) | {"seconds": time.perf_counter() - begun}
        start = self._start(question)
        begun = time.perf_counter()
        return _optimized(question, options, start) | {"seconds": time.perf_counter() - begun}

    def options(self, delta: float) -> Options:
        """Returns how balls-in-bins points are sampled: limits as sure as a certificate's."""
        return Options(confidence=1 - FAILURE_SHARE * delta, seed=self.seed)

    def _start(self, question: Question) -> Strategy | None:
        """Where a search starts; None leaves it to the optimiser."""
        if question.method == REDRAWN_OPTIMIZED:
            return None
        if question.start == LONG:
            return unamplified_optimum("toeplitz", question.bins, question.rounds)
        if question.start == SHORT:
            return short_memory(question.rounds)
        if question.start:
            raise InvalidArgument("start", question.start, f"must be empty, {LONG!r} or {SHORT!r}")
        inner = "toeplitz+scale" if question.strategy.startswith("banded:") else INNER.get(question.strategy)
        if inner is None:
            return None
        matrix = self.point(replace(question, strategy=inner)).matrix
        assert matrix is not None
        return strategy_from_json(matrix)


def short_memory(rounds: int) -> Toeplitz:
    """Returns a Toeplitz C close to the identity, all of whose coefficients can still grow."""
    series = square_root(rounds).coefficients
    return Toeplitz(rounds, np.maximum(series * np.exp(-np.arange(rounds) / 2.0), 1e-6 * series))


def _accounted(question: Question, options: Options) -> Json:
    """A given C with the noise of its accountant."""
    strategy = resolve_strategy(question.strategy, question.bins, question.rounds)
    guarantee = Guarantee(question.epsilon, question.delta)
    if question.method in ANALYSES:
        figure = ACCOUNTANTS[ANALYSES[question.method]].calibrate(strategy, question.bins, guarantee)
        return _answer(question, strategy, figure.noise_multiplier)
    pair: DominatingPair = (
        redrawn_pair(strategy, question.bins)
        if question.method == REDRAWN
        else dominating_pair(strategy, question.bins)
    )
    if question.method == ESTIMATE:
        aim = guarantee.with_delta(guarantee.delta / TAU)
        return _answer(question, strategy, quick_multiplier(pair, aim, options, options.fresh_seed()).value)
    calibration = calibrate(pair, guarantee, options=options, tau=TAU)
    return _answer(question, strategy, calibration.noise_multiplier, calibration)


def _optimized(question: Question, options: Options, start: Strategy | None) -> Json:
    """C optimised at this epsilon. A search that Ctrl-C cut short is no point: what it found is dropped."""
    optimum = optimize(
        question.strategy,
        question.bins,
        question.rounds,
        question.epsilon,
        question.delta,
        options=options,
        tau=TAU,
        start=start,
        participation=PARTICIPATIONS[question.method],
    )
    if optimum.interrupted:
        raise KeyboardInterrupt
    answer = _answer(question, optimum.strategy, optimum.noise_multiplier, optimum.calibration)
    return answer | {"matrix": optimum.strategy.to_json()}


def _answer(question: Question, strategy: Strategy, multiplier: float, calibration: Calibration | None = None) -> Json:
    return {
        "noise_multiplier": multiplier,
        "rmse": multiplier * strategy.sensitivity(question.bins) * strategy.rmse(),
        "delta_upper": None if calibration is None else calibration.check.upper,
        "samples": None if calibration is None else calibration.check.samples,
    }
