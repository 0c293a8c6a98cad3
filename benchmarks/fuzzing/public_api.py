"""The public API: arguments with which every name works, and the values that they are changed to."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import galton
from benchmarks.fuzzing.inputs import place_of


class _Objects:
    """Values that are right somewhere, and wrong elsewhere; each is made when it is first asked for."""

    @cached_property
    def root(self) -> Any:
        return galton.square_root(12)

    @cached_property
    def pair(self) -> Any:
        return galton.dominating_pair(self.root, 4, 1.5)

    @cached_property
    def many(self) -> Any:
        return galton.many_bins_pair(self.root, 4, 1.5)

    @cached_property
    def redrawn(self) -> Any:
        return galton.redrawn_pair(self.root, 4, 1.5)

    @cached_property
    def separated(self) -> Any:
        return galton.separated_pair(galton.square_root(12, 2), 4, 2, 1.5)

    @cached_property
    def options(self) -> Any:
        return galton.Options(samples=2000, seed=1)

    @cached_property
    def guarantee(self) -> Any:
        return galton.Guarantee(1.0, 1e-2)

    @cached_property
    def scheme(self) -> Any:
        return galton.BallsInBins(64, 8, 16)

    @cached_property
    def ledger(self) -> Any:
        return galton.Ledger(place_of() / "ledger")

    @cached_property
    def key(self) -> Any:
        return galton.key_from_seed(1)

    @cached_property
    def plan(self) -> Any:
        return galton.load_plan(place_of() / "exact")

    @cached_property
    def noise(self) -> Any:
        return galton.CorrelatedNoise(galton.identity(8), 1.0)

    @cached_property
    def params(self) -> Any:
        return {"w": np.zeros(3, np.float32)}

    @cached_property
    def state(self) -> Any:
        return self.noise.init(self.params, self.key)

    @cached_property
    def comparison(self) -> Any:
        return galton.compare(4, 3, [1.0], 1e-5, ["dpsgd-unamplified"], None, "dpsgd-unamplified")

    @cached_property
    def calibration(self) -> Any:
        return galton.calibrate(self.pair, self.guarantee, options=self.options, tau=1.5)

    @cached_property
    def certificate(self) -> Any:
        return galton.certify(self.pair.at(5.0), self.guarantee, options=self.options, ledger=self.ledger)


@cache
def objects() -> _Objects:
    """Returns the values, of this process."""
    return _Objects()


@cache
def api_calls() -> dict[str, tuple[str, ...]]:
    """The names of the arguments of every public function and class that can be called."""
    result: dict[str, tuple[str, ...]] = {}
    for name in vars(galton)["__all__"]:
        value = getattr(galton, name)
        if not callable(value) or inspect.isabstract(value):
            continue
        if inspect.isclass(value) and issubclass(value, Exception):
            continue
        if inspect.isclass(value) and issubclass(value, enum.Enum):
            result[name] = ("value",)
        else:
            result[name] = tuple(inspect.signature(value).parameters)
    return result


def good_arguments(name: str) -> dict[str, Any]:
    """Arguments with which a public function or class works."""
    o = objects()
    new = place_of() / "new"
    sizes = {"rounds": 12}
    bins = {"examples": 64, "bins": 8, "rounds": 16}
    target = {"epsilon": 1.0, "delta": 1e-2}
    results: dict[str, Callable[[], Any]] = {
        "Calibration": lambda: o.calibration,
        "Certificate": lambda: o.certificate,
        "Comparison": lambda: o.comparison,
        "Composed": lambda: galton.compose(["gaussian:sigma=3"], delta=1e-5),
        "DeltaEstimate": lambda: o.calibration.check,
        "Plan": lambda: o.plan,
        "Prefix": lambda: galton.Prefix(8, 16, o.guarantee, "x"),
        "Statement": lambda: o.plan.evidence.statement,
        "Truncation": lambda: o.plan.truncation,
        "Users": lambda: galton.group_by_user(["a", "b", "a"], 2),
        "Mechanism": lambda: galton.MECHANISMS["dpsgd-unamplified"],
        "NoiseState": lambda: o.state,
        "Batch": lambda: next(galton.Batches(o.scheme, seed=1)),
        "Pair": lambda: o.pair,
        "ManyBinsPair": lambda: o.many,
        "RedrawnPair": lambda: o.redrawn,
        "SeparatedPair": lambda: o.separated,
    }
    if name in results:
        result = results[name]()
        return {field.name: getattr(result, field.name) for field in fields(result)}
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "Adjacency": lambda: {"value": "add"},
        "Direction": lambda: {"value": "replace"},
        "Standing": lambda: {"value": "exact"},
        "BallsInBins": lambda: bins,
        "StreamingBallsInBins": lambda: bins,
        "FixedOrder": lambda: bins,
        "RedrawnBallsInBins": lambda: bins,
        "StreamingRedrawnBallsInBins": lambda: bins,
        "Budget": lambda: {"path": new},
        "Tuning": lambda: {"mean": 5.0, "shape": 1.0},
        "GaussianEvent": lambda: {"sigma": 3.0, "count": 2, "probability": 0.5},
        "LaplaceEvent": lambda: {"scale": 3.0, "count": 2},
        "KnownEvent": lambda: {"epsilon": 1.0, "delta": 1e-6, "count": 2},
        "compose": lambda: {"events": ["gaussian:sigma=3", o.plan], "delta": 1e-5, "options": o.options},
        "make_plan_within": lambda: (
            {"epsilon": galton.Guarantee(2.0, 1e-2, galton.Adjacency.REPLACE), "others": ["gaussian:sigma=9"]}
            | {"examples": 64, "batch_size": 8, "epochs": 2, "strategy": "sqrt:4", "batching": "fixed-order"}
        ),
        "privacy_loss_distribution": lambda: {"source": "gaussian:sigma=3", "delta": 1e-5, "options": o.options},
        "new_key_pair": lambda: {"path": place_of() / "new.pem"},
        "many_bins_pair": lambda: {"strategy": o.root, "bins": 4, "noise_multiplier": 1.5},
        "redrawn_pair": lambda: {"strategy": o.root, "bins": 4, "noise_multiplier": 1.5},
        "separated_pair": lambda: {
            "strategy": galton.square_root(12, 2),
            "bins": 4,
            "separation": 2,
            "noise_multiplier": 1.5,
        },
        "redrawn_sensitivity": lambda: {"strategy": o.root, "bins": 4},
        "sign_plan": lambda: {"folder": place_of() / "exact", "key": place_of() / "key.pem", "output": new},
        "Shuffle": lambda: bins,
        "Poisson": lambda: {"examples": 64, "batch_size": 8.0, "rounds": 16},
        "CyclicPoisson": lambda: {"examples": 64, "batch_size": 8.0, "cycle": 2, "rounds": 16},
        "MinSeparation": lambda: {"examples": 64, "batch_size": 4.0, "separation": 2, "rounds": 16},
        "Batches": lambda: {"scheme": o.scheme, "padded_batch_size": 40, "seed": 1},
        "BettingTest": lambda: {"claims": np.array([0.5]), "value_range": 1.0, "failure": 1e-3},
        "EmpiricalBernstein": lambda: {"value_range": 1.0, "failure": 1e-3, "rel_width": 0.1, "budget": 1000},
        "Blt": lambda: {"rounds": 12, "decay": [0.5, 0.2], "scale": [0.3, 0.1]},
        "BandedInverse": lambda: sizes | {"coefficients": [1.0, -0.5]},
        "banded_inverse_root": lambda: sizes | {"bands": 3, "power": 0.6},
        "lambda_cgd": lambda: sizes | {"decay": 0.9},
        "ColumnBanded": lambda: {"coefficients": [[1.0, 1.0, 1.0], [0.5, 0.5, 0.0]]},
        "Dense": lambda: {"entries": np.tril(np.ones((3, 3)))},
        "Scaled": lambda: {"inner": o.root, "weights": np.ones(12)},
        "Toeplitz": lambda: sizes | {"coefficients": [1.0, 0.5]},
        "Tree": lambda: sizes | {"decoder": "honaker"},
        "Guarantee": lambda: target | {"adjacency": "replace"},
        "Options": lambda: {"samples": 1000, "seed": 1, "confidence": 0.9, "workers": 1},
        "Training": lambda: sizes | {"momentum": 0.5, "learning_rates": np.ones(12)},
        "MatrixWorkload": lambda: {"entries": np.tril(np.ones((3, 3)))},
        "CorrelatedNoise": lambda: {"strategy": o.root, "stddev": 1.0, "form": "buffers"},
        "Journal": lambda: {"path": new, "key": o.key, "plan": "x", "strict": False},
        "Ledger": lambda: {"path": new},
        "NoiseRun": lambda: {"folder": new, "noise": o.noise, "params": o.params, "plan": "x", "key": o.key},
        "TrainingRun": lambda: {"plan": o.plan, "folder": new, "params": o.params, "examples": 64, "clip_norm": 1.0},
        "Verification": lambda: {"accepted": True, "plan": "x", "words": "y", "certificate": None, "seconds": 1.0},
        "EpsilonEstimate": lambda: _epsilon_estimate(),
        "Profile": lambda: _profile(),
        "Optimized": lambda: _optimized(),
        "calibrate": lambda: {"pair": o.pair} | target | {"options": o.options} | {"tau": 1.5},
        "certify": lambda: {"pair": o.pair} | target | {"options": o.options} | {"ledger": o.ledger, "failure": 1e-4},
        "check_record": lambda: {"folder": place_of() / "run"},
        "column_banded": lambda: {"strategy": o.root, "bands": 3},
        "compare": lambda: {
            "bins": 4,
            "epochs": 3,
            "epsilons": [1.0],
            "delta": 1e-5,
            "mechanisms": ["dpsgd-unamplified"],
            "baseline": "dpsgd-unamplified",
            "cache": o.comparison and None,
            "workload": None,
        },
        "cooldown": lambda: sizes | {"start": 0.5, "final": 0.1},
        "delta": lambda: {"pair": o.pair} | {"options": o.options} | {"epsilon": 1.0},
        "delta_upper_bound": lambda: {"pair": o.pair} | {"epsilon": 1.0, "adjacency": "replace"},
        "dominating_pair": lambda: {"strategy": o.root, "bins": 4, "noise_multiplier": 2.0, "merge": 2},
        "epsilon": lambda: {"pair": o.pair} | {"options": o.options} | {"delta": 1e-2},
        "epsilon_upper_bound": lambda: {"pair": o.pair} | {"delta": 1e-2},
        "fork_run": lambda: {"folder": place_of() / "exact", "new": new},
        "gaussian_delta": lambda: {"epsilon": 1.0, "mu": 1.0},
        "gaussian_epsilon": lambda: {"delta": 1e-3, "mu": 1.0},
        "gaussian_mu": lambda: target,
        "group_by_user": lambda: {"users": ["a", "b", "a"], "per_user": 2},
        "identity": lambda: sizes,
        "key_from_seed": lambda: {"seed": 3},
        "load_plan": lambda: {"folder": place_of() / "exact"},
        "load_state": lambda: {"path": place_of() / "state", "noise": o.noise, "params": o.params},
        "load_strategy": lambda: {"path": place_of() / "good.json"},
        "make_plan": lambda: (
            target
            | {"options": o.options}
            | {"epsilon": galton.Guarantee(1.0, 1e-2, galton.Adjacency.REPLACE), "delta": None}
            | {"examples": 64, "batch_size": 8, "epochs": 2, "strategy": "sqrt:4", "batching": "fixed-order"}
        ),
        "min_separation_sensitivity": lambda: {"strategy": o.root, "separation": 4},
        "momentum": lambda: sizes | {"beta": 0.9},
        "multiplier_upper_bound": lambda: {"pair": o.pair} | target,
        "open_records": lambda: {"folder": place_of() / "records"},
        "optimize": lambda: (
            {"family": "blt:1", "bins": 2, "rounds": 4, "samples": 64, "iterations": 1}
            | target
            | {"options": o.options}
        ),
        "parse_strategy": lambda: {"spec": "sqrt:2", "rounds": 12},
        "plot_comparison": lambda: {"comparison": o.comparison, "path": place_of() / "new.png"},
        "prefix_guarantee": lambda: {"plan": o.plan, "rounds_done": 8, "options": o.options, "ledger": o.ledger},
        "prefix_sums": lambda: sizes,
        "profile": lambda: {"pair": o.pair} | {"options": o.options} | {"epsilons": [0.5, 1.0]},
        "release_run": lambda: {"folder": place_of() / "exact", "output": new},
        "stop_run": lambda: {"folder": place_of() / "exact", "plan": o.plan, "independent": True, "options": o.options},
        "save_plan": lambda: {"plan": o.plan, "folder": new},
        "save_state": lambda: {"path": new, "noise": o.noise, "state": o.state},
        "save_strategy": lambda: {"strategy": o.root, "path": new},
        "scheme_from_json": lambda: {"value": o.scheme.to_json()},
        "shuffle_records": lambda: {"records": [b"a", b"bc"], "folder": new, "shards": 2, "seed": 1},
        "smallest_padded_batch_size": lambda: {"scheme": o.scheme, "max_truncation_probability": 1e-6, "multiple": 2},
        "square_root": lambda: sizes | {"bands": 3},
        "truncation": lambda: {"scheme": o.scheme, "padded_batch_size": 20},
        "truncation_probability": lambda: {"scheme": o.scheme, "padded_batch_size": 20},
        "unamplified_optimum": lambda: {"family": "toeplitz:2", "bins": 4, "rounds": 12},
        "verify_plan": lambda: {"plan": o.plan, "ledger": o.ledger},
        "default_ledger": dict,
        "fresh_key": dict,
    }
    return dict(calls[name]())


@cache
def _epsilon_estimate() -> dict[str, Any]:
    estimate = galton.epsilon(objects().pair, 1e-2, options=objects().options)
    return {field.name: getattr(estimate, field.name) for field in fields(estimate)}


@cache
def _profile() -> dict[str, Any]:
    curve = galton.profile(objects().pair, [1.0], options=objects().options)
    return {field.name: getattr(curve, field.name) for field in fields(curve)}


@cache
def _optimized() -> dict[str, Any]:
    o = objects()
    numbers = dict.fromkeys(("noise_multiplier", "sigma", "rmse", "max_error", "objective", "seconds"), 1.0)
    return numbers | {
        "family": "blt:1",
        "strategy": o.root,
        "guarantee": o.guarantee,
        "participation": "bins",
        "bins": 4,
        "rounds": 12,
        "calibration": o.calibration,
        "unamplified": {},
        "history": [],
        "method": "lbfgs",
        "estimator": "plain",
        "samples": 1,
        "seed": 1,
        "interrupted": False,
    }


VALUES: tuple[Callable[[], Any], ...] = (
    *(lambda: "x", lambda: "", lambda: None, list, lambda: [1.0], lambda: ["x"], lambda: (), dict),
    *(lambda: 1j, lambda: math.nan, lambda: math.inf, lambda: -math.inf, lambda: 10**400, lambda: -(10**400)),
    *(lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 2, lambda: 3, lambda: 1.5, lambda: 1e308),
    *(lambda: 1e-300, lambda: 5e-324, lambda: 1e-5, lambda: 2**31, lambda: 2**63, lambda: 10**18, lambda: 10**6),
    *(lambda: b"x", lambda: object(), lambda: print, lambda: np.float32(0.5), lambda: np.int64(4)),
    *(lambda: np.array(2.0), lambda: np.zeros(0), lambda: np.ones(12), lambda: np.full(3, np.nan), lambda: np.eye(3)),
    *(lambda: np.array(["a"]), lambda: np.array([1j]), lambda: np.array(None), lambda: [[1.0], [1.0, 2.0]]),
    *(lambda: [1.0, "x"], lambda: [math.nan], lambda: [10**400], lambda: "sqrt", lambda: "replace", lambda: "\x00"),
    *(lambda: "x" * 300, lambda: Path("/dev/null"), lambda: Path("x" * 300), lambda: place_of() / "none"),
    *(lambda: objects().root, lambda: objects().pair, lambda: objects().redrawn, lambda: objects().options),
    *(lambda: objects().guarantee, lambda: objects().plan, lambda: objects().scheme),
    *(lambda: objects().noise, lambda: objects().key, lambda: objects().certificate),
)
