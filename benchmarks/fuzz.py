"""Wrong input of all kinds to the whole command line and the public API: no traceback, no NaN, bounded time and memory.

    python benchmarks/fuzz.py --cases 10000 --seed 1

Cases are a pure function of the seed and their number. They start from a call that works, of every command and of every
public function and class, and change some of its words or arguments: to other good values, to borderline, absurd and
malformed ones, to files that are missing, truncated, of a wrong kind or forged. Problems are small, and what rightly
asks for hours of work (10^12 samples, say) is not drawn. A case may end in an answer or in an error of galton's own.
It is a violation if it ends in anything else (a traceback; an exit code other than 0, 2, 3 and 130), if a result or
the output has a NaN, and if it takes more than 4 GB or a minute of processor time (a busy machine is no fault of the
case). Cases run in a child process, one after another; a child that exceeds a limit is killed, which counts as a
violation.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import io
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import galton
from benchmarks.common import write

SECONDS = 60.0
MEMORY = 4 << 30
CODES = {0, 2, 3, 130}
_POLL = 0.1
_GRACE = 600.0
"""A child that starts imports JAX and makes plans: not counted."""
_SPARE = 8 << 30
"""Address space beyond the memory limit: JAX reserves some that it never touches."""

SIZE = ["--bins", "4", "--epochs", "3"]
TARGET = ["--epsilon", "1", "--delta", "1e-2"]
QUICK = ["--samples", "2000", "--seed", "1"]
PLAN = ["--examples", "64", "--batch-size", "8", "--epochs", "2", *TARGET, "--seed", "1", "--output", "{new}"]
FIXED = ["--batching", "fixed-order", "--adjacency", "replace", "--strategy", "sqrt:4"]
UNAMPLIFIED = ["--mechanisms", "dpsgd-unamplified,tree-unamplified", "--baseline", "dpsgd-unamplified"]
COMMANDS: tuple[tuple[str, ...], ...] = tuple(
    map(
        tuple,
        (
            ["delta", "sqrt", *SIZE, "--noise-multiplier", "1.5", "--epsilon", "1", *QUICK],
            ["epsilon", "sqrt:4", *SIZE, "--noise-multiplier", "1.5", "--delta", "1e-2", *QUICK],
            ["profile", "identity", *SIZE, "--noise-multiplier", "1.5", "--points", "3", *QUICK],
            ["calibrate", "sqrt", *SIZE, *TARGET, *QUICK, "--tau", "1.5"],
            ["certify", "sqrt", *SIZE, "--noise-multiplier", "3", *TARGET, *QUICK, "--output", "{new}"],
            ["optimize", "toeplitz:2", *SIZE, *TARGET, "--participation", "fixed-order", "--output", "{new}.json"],
            ["compare", *SIZE, "--epsilons", "1,4", "--delta", "1e-5", *UNAMPLIFIED, "--plot", "{new}.png"],
            ["plan", *PLAN, *FIXED],
            ["plan", *PLAN, "--batching", "cyclic-poisson", "--strategy", "sqrt:2"],
            ["verify", "{exact}"],
            ["sign", "{exact}", "--key", "{key}", "--output", "{new}"],
            ["keygen", "{new}.pem"],
            ["report", "{exact}", "--output", "{new}"],
            ["audit", "{exact}", "--seconds", "1", "--trials", "50"],
        ),
    )
)
NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "2",
        "3",
        "4",
        "7",
        "12",
        "1.5",
        "0.5",
        "0.999",
        "1e-3",
        "-1",
        "-1.5",
        "+2",
        " 3",
        "3 ",
        "1_0",
        "0x10",
    ),
    *("1e-9", "1e-100", "1e-300", "5e-324", "1e300", "1e308", "1e400", "-1e400", "inf", "-inf", "nan", "-nan", "NaN"),
    *(
        "2147483647",
        "2147483648",
        "9223372036854775808",
        "1" + "0" * 30,
        "1" + "0" * 400,
        "5e4",
        "1,2",
        "1,",
        ",",
        "1e",
    ),
    *("", " ", "x", "None", "True", "1j", "१२", "½", "--bins", "-", "\x00", "a\nb", "\udcff", "'", "1;2", "x" * 300),
)
PATHS = (
    *("{good}", "{toeplitz}", "{workload}", "{negative}", "{tiny}", "{subnormal}", "{huge}", "{nan}", "{text}.txt"),
    *(
        "{text}.npy",
        "{text}.json",
        "{short}.npy",
        "{short}.json",
        "{forged}",
        "{kind}",
        "{numbers}",
        "{pickle}",
        "{empty}.npy",
    ),
    *(
        "{empty}.json",
        "{exact}",
        "{certified}",
        "{changed}",
        "{rewritten}",
        "{folder}",
        "{missing}.npy",
        "{missing}.json",
    ),
    *("{missing}", "{new}", "{new}.json", "{new}.png", "{file}/below", "{long}", "{long}.json", "{long}.png", "/", "."),
    *("/dev/null", "/dev/full", "/proc/self/mem", "~", "{exact}/plan.json", "{exact}/strategy.json", "{banded}"),
)
WORDS = {
    "strategy": (
        "identity",
        "sqrt",
        "sqrt:2",
        "sqrt:12",
        "sqrt:13",
        "sqrt:0",
        "sqrt:-1",
        "sqrt:1.5",
        "tree",
        "bandmf:2",
    ),
    "family": (
        "blt:1",
        "blt:2+scale",
        "toeplitz",
        "toeplitz:3",
        "banded:2",
        "dense",
        "blt:11",
        "blt",
        "dense:2",
        "sqrt",
    ),
    "workload": ("prefix", "momentum:0.9", "momentum:0.9+cooldown", "momentum:1", "momentum:nan", "momentum:", "x"),
    "adjacency": ("add-or-remove", "add", "remove", "replace", "zero-out", "ADD", ""),
    "sampler": ("auto", "plain", "tilted", "maximum", "order-statistics", "list", "halfspace"),
    "bound": ("sequence", "kl", "one-sided", "bernstein", "hoeffding"),
    "batching": (
        "fixed-order",
        "shuffle-once",
        "poisson",
        "cyclic-poisson",
        "balls-in-bins",
        "balls-in-bins-streaming",
        "x",
    ),
    "accountant": ("unamplified", "poisson", "cyclic-poisson", "mmcc", "balls-in-bins", "allocation", "list", "x"),
    "participation": ("fixed-order", "min-separation", "balls-in-bins", "x"),
    "objective": ("rmse", "max", "x"),
    "method": ("lbfgs", "paper", "x"),
    "estimator": ("mixture", "tilted", "plain", "x"),
    "mechanisms": (
        "dpsgd-unamplified",
        "dpsgd-poisson",
        "tree-unamplified",
        "bandmf-unamplified",
        "x",
        "dpsgd-unamplified,",
    ),
    "baseline": ("dpsgd-unamplified", "dpsgd-poisson", "x"),
    "epsilons": ("1", "1,2", "1,1", "0,1", "1,nan", "1,-1", "1,1e5", "1e-9,100", "1, 2"),
    "cluster": ("x", "tcp://127.0.0.1:1", "tcp://", ""),
    "samples": ("1", "2", "100", "2000", "20000"),
    "bins": ("1", "2", "3", "6", "12", "13", "20001", "1000001"),
    "epochs": ("1", "2", "3000000", "1000001"),
    "epsilon": ("1e-3", "0.1", "8", "30", "120", "1000", "9999", "10001"),
    "delta": ("0.5", "0.999", "1e-5", "1e-12", "1e-40", "1"),
    "noise_multiplier": ("0.01", "0.3", "10", "1e4", "1e-6"),
    "padded_batch_size": ("16", "32", "64", "65", "1000000000000000000"),
    "micro_batch_size": ("1", "7", "64", "1000000000000000000"),
    "examples": ("64", "65", "63", "100000", "2147483648"),
    "batch_size": ("1", "8", "7.5", "64", "65", "1e-3"),
    "merge": ("1", "2", "3", "4"),
    "rounds": ("9", "12", "8", "13"),
}
"""Good and borderline values of options, beside numbers and paths."""
LONG = {"cluster", "seconds", "trials", "iterations", "workers"}
"""Options for which only malformed numbers are drawn: others rightly ask for time, threads or another machine."""
MALFORMED = ("", "x", "nan", "-1", "1e400", "None", "0", "1.5", "-inf")


@dataclass(frozen=True)
class Case:
    """One call: of a command, with its words, or of a public name, with places and names of arguments that change."""

    index: int
    name: str
    words: tuple[str, ...] = ()
    changes: tuple[tuple[str, int], ...] = ()


@dataclass
class Outcome:
    """What became of a case: exit code (2 for an error of galton in the API), processor time, memory, what is wrong."""

    index: int
    name: str
    call: str
    code: int | None
    seconds: float
    megabytes: float
    message: str
    violation: str = ""


def cases(seed: int, start: int, stop: int) -> Iterator[Case]:
    """Yields cases; each depends on the seed and its number alone. Two in five are of the command line."""
    names = sorted(api_calls())
    for index in range(start, stop):
        random_numbers = random.Random(f"{seed} {index}")
        if random_numbers.random() < 0.4:
            words = _command_line(random_numbers)
            yield Case(index, words[0] if words else "", words=tuple(words))
        else:
            name = names[random_numbers.randrange(len(names))]
            arguments = sorted(api_calls()[name])
            count = min(len(arguments), random_numbers.choice((0, 1, 1, 1, 1, 2)))
            chosen = random_numbers.sample(arguments, count)
            changes = tuple((argument, random_numbers.randrange(len(VALUES))) for argument in chosen)
            yield Case(index, name, changes=changes)


@cache
def options_of_commands() -> dict[str, list[tuple[str, list[str], bool]]]:
    """Names, spellings and whether they are flags, of the options of every command."""
    import typer

    from galton.cli import accounting, audit, comparison, optimization, plan, report, signing  # noqa: F401
    from galton.cli.app import app

    group: Any = typer.main.get_command(app)
    return {
        name: [(part.name, list(part.opts), bool(getattr(part, "is_flag", False))) for part in entry.params]
        for name, entry in group.commands.items()
    }


def _command_line(random_numbers: random.Random) -> list[str]:
    words = list(random_numbers.choice(COMMANDS))
    for _ in range(random_numbers.choice((0, 1, 1, 2, 2, 3, 3))):
        words = _changed(words, random_numbers)
    return words


def _changed(words: list[str], random_numbers: random.Random) -> list[str]:
    """Words with one thing changed: an option's value, an option less, one more, a word out of place."""
    kind = random_numbers.random()
    if not words or kind < 0.03:
        return [random_numbers.choice(("", "--help", "--version", "nonsense", "--", "\x00", "delta", "plan"))]
    known = options_of_commands().get(words[0], [])
    if kind < 0.80 and known:
        name, spellings, flag = random_numbers.choice(known)
        spelling = random_numbers.choice(spellings)
        if name == "help":
            return words
        if not spelling.startswith("-"):  # positional
            return [words[0], _value(name, random_numbers), *words[2:]]
        if flag:
            return [*words, spelling]
        value = _value(name, random_numbers)
        for other in spellings:  # in place, where the command has it
            if other in words and words.index(other) + 1 < len(words):
                place = words.index(other)
                return [*words[: place + 1], value, *words[place + 2 :]]
        return [*words, f"{spelling}={value}"] if random_numbers.random() < 0.2 else [*words, spelling, value]
    if kind < 0.90 and len(words) > 1:
        place = random_numbers.randrange(1, len(words))
        return words[:place] + words[place + random_numbers.choice((1, 2)) :]
    return [*words, random_numbers.choice(("--nonsense", "extra", "--json", "--json=1", "--", "-x", "--output", "-"))]


def _value(name: str, random_numbers: random.Random) -> str:
    if name in LONG:
        return random_numbers.choice(MALFORMED)
    pools: list[tuple[str, ...]] = [NUMBERS]
    if name in WORDS:
        pools += [WORDS[name]] * 2
    if name in ("strategy", "workload", "output", "plot", "folder", "path", "key"):
        pools += [PATHS] * 2
    if name == "samples":  # numbers of samples that take hours are no wrong input
        pools = [MALFORMED, WORDS[name]]
    return random_numbers.choice(random_numbers.choice(pools))


# The public API


class _Objects:
    """Values that are right somewhere, and wrong elsewhere; each is made when it is first asked for."""

    @cached_property
    def root(self) -> Any:
        return galton.square_root(12)

    @cached_property
    def pair(self) -> Any:
        return galton.dominating_pair(self.root, 4, 1.5)

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
def place_of() -> Path:
    """Returns the folder of all files, that `prepare` was given."""
    return Path(os.environ["GALTON_FUZZ"])


@cache
def api_calls() -> dict[str, tuple[str, ...]]:
    """The names of the arguments of every public function and class that can be called."""
    import inspect

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
        "DeltaEstimate": lambda: o.calibration.check,
        "Plan": lambda: o.plan,
        "Statement": lambda: o.plan.evidence.statement,
        "Truncation": lambda: o.plan.truncation,
        "Mechanism": lambda: galton.MECHANISMS["dpsgd-unamplified"],
        "NoiseState": lambda: o.state,
        "Batch": lambda: next(galton.Batches(o.scheme, seed=1)),
        "Pair": lambda: o.pair,
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
        "new_key_pair": lambda: {"path": place_of() / "new.pem"},
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
        "check_record": lambda: {"folder": new},
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
        "gaussian_delta": lambda: {"epsilon": 1.0, "mu": 1.0},
        "gaussian_epsilon": lambda: {"delta": 1e-3, "mu": 1.0},
        "gaussian_mu": lambda: target,
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
        "prefix_sums": lambda: sizes,
        "profile": lambda: {"pair": o.pair} | {"options": o.options} | {"epsilons": [0.5, 1.0]},
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
    *(lambda: objects().root, lambda: objects().pair, lambda: objects().options),
    *(lambda: objects().guarantee, lambda: objects().plan, lambda: objects().scheme),
    *(lambda: objects().noise, lambda: objects().key, lambda: objects().certificate),
)


# Files


def make_files(place: Path, certified: galton.Plan | None) -> None:
    """Makes the files and plans that cases read."""
    np.save(place / "workload.npy", np.tril(np.ones((12, 12))))
    arrays = {
        "toeplitz": np.linspace(1, 0.5, 12),
        "negative": np.array([1.0, -0.5]),
        "tiny": 1e-160 * np.eye(12),
        "huge": 1e200 * np.eye(12),
        "nan": np.full((12, 12), np.nan),
        "subnormal": np.array([1e-310, 1.0]),
        "numbers": np.array(["a", "b"]),
        "empty": np.zeros((0, 0)),
    }
    for name, values in arrays.items():
        np.save(place / f"{name}.npy", values)
    np.save(place / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    galton.save_strategy(galton.square_root(12, 4), place / "good.json")
    coefficients = np.ones((2, 12))
    coefficients[0, 3], coefficients[1, 11] = 1e-310, 0.0
    galton.save_strategy(galton.ColumnBanded(coefficients), place / "banded.json")
    good = (place / "good.json").read_text()
    (place / "forged.json").write_text(good.replace("0.5", "0.6", 1))
    (place / "kind.json").write_text(good.replace("toeplitz", "tree", 1))
    (place / "short.json").write_text(good[: len(good) // 2])
    (place / "short.npy").write_bytes((place / "workload.npy").read_bytes()[:200])
    (place / "empty.json").write_text("")
    (place / "file").write_text("x")
    for suffix in ("txt", "npy", "json"):
        (place / f"text.{suffix}").write_text("notes")
    galton.shuffle_records([b"a", b"b", b"c"], place / "records", 2, 1)
    galton.new_key_pair(place / "key.pem")
    target = galton.Guarantee(4.0, 1e-3, galton.Adjacency.REPLACE)
    plan = galton.make_plan(target, examples=64, batch_size=8, epochs=2, batching="fixed-order", strategy="sqrt:4")
    galton.save_plan(plan, place / "exact")
    sampled = certified or galton.make_plan(4.0, 1e-3, examples=64, batch_size=16, epochs=2, strategy="sqrt:2")
    galton.save_plan(sampled, place / "certified")
    galton.save_state(place / "state", objects().noise, objects().state)
    shutil.copytree(place / "exact", place / "changed")
    with (place / "changed" / "plan.json").open("a") as file:
        file.write(" ")


def forge(place: Path, random_numbers: random.Random) -> None:
    """Rewrites a field of a plan to something else, with checksums that fit: a forger can do that too."""
    import hashlib

    folder = place / "rewritten"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / random_numbers.choice(("exact", "certified")), folder)
    body = json.loads((folder / "plan.json").read_text())
    part, key = body, random_numbers.choice(sorted(body))
    while isinstance(part[key], dict) and part[key] and random_numbers.random() < 0.9:
        part = part[key]
        key = random_numbers.choice(sorted(part))
    part[key] = random_numbers.choice(("x", None, [], {}, -1, 0, 1, 1.5, 1e308, 1e-320, True, 10**400, [[]], {"a": 1}))
    (folder / "plan.json").write_text(json.dumps(body, indent=2) + "\n")
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("plan.json", "strategy.json")
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


# Running


def run_case(case: Case, seed: int) -> Outcome:
    """Runs a case in this process."""
    place = place_of()
    for left in place.glob("new*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    forge(place, random.Random(f"{seed} {case.index} forged"))
    _reset_peak()
    start = time.process_time()
    if case.words:
        code, message, violation = _run_command(case.words, place)
        call = " ".join(case.words)
    else:
        code, message, violation, call = _run_api(case)
    seconds = time.process_time() - start
    return Outcome(case.index, case.name, call[:300], code, seconds, _peak() / 2**20, message[:300], violation)


def _run_command(words: tuple[str, ...], place: Path) -> tuple[int, str, str]:
    from galton import cli

    names = _Paths(place)
    typed = [re.sub(r"\{(\w+)\}", lambda match: names[match[1]], word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    violation, code = "", -1
    with (
        mock.patch.object(sys, "argv", ["galton", *typed]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except BaseException:
            violation = traceback.format_exc()
    told = out.getvalue() + err.getvalue()
    if code not in CODES and not violation:
        violation = f"exit code {code}: {err.getvalue()}"
    elif "Traceback" in told:
        violation = "traceback printed: " + told[-500:]
    elif code in (0, 3) and re.search(r"\bnan\b", out.getvalue(), re.IGNORECASE):
        violation = "nan printed: " + out.getvalue()[-500:]
    elif code == 2 and (err.getvalue().count("\n") != 1 or "too large for this machine" in told):
        violation = "not one line that helps: " + err.getvalue()[:500]
    return code, err.getvalue().strip(), violation


class _Paths(dict[str, str]):
    def __init__(self, place: Path) -> None:
        self._place = place

    def __missing__(self, name: str) -> str:
        if name == "long":
            return str(self._place / ("x" * 300))
        if name in ("good", "forged", "kind", "banded"):
            return str(self._place / f"{name}.json")
        if name in ("toeplitz", "workload", "negative", "tiny", "subnormal", "huge", "nan", "numbers", "pickle"):
            return str(self._place / f"{name}.npy")
        if name == "key":
            return str(self._place / "key.pem")
        return str(self._place if name == "folder" else self._place / name)


def _run_api(case: Case) -> tuple[int, str, str, str]:
    arguments = good_arguments(case.name)
    for name, index in case.changes:
        arguments[name] = VALUES[index]()
    shown = ", ".join(f"{name}={_shown(arguments[name])}" for name, _ in case.changes)
    call = f"{case.name}(.., {shown})"
    function = getattr(galton, case.name)
    positional = [arguments.pop("value")] if issubclass_of_enum(function) else []
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            result = function(*positional, **arguments)
    except galton.GaltonError as error:
        return 2, str(error), "" if "\n" not in str(error) else "more than one line", call
    except ValueError as error:
        if positional:  # an enum refuses what is not a member
            return 2, str(error), "", call
        return -1, str(error), traceback.format_exc(), call
    except BaseException as error:
        return -1, str(error), traceback.format_exc(), call
    given_nan = any(has_nan(value) for value in arguments.values())
    return 0, "", "nan in the result" if has_nan(result) and not given_nan else "", call


def issubclass_of_enum(value: Any) -> bool:
    """Whether a public name is an enum."""
    return isinstance(value, type) and issubclass(value, enum.Enum)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return f"a number of {value.bit_length()} bits"


def has_nan(value: Any, depth: int = 4) -> bool:
    """Whether a result has a NaN in it."""
    if depth == 0 or isinstance(value, str | bytes):
        return False
    if isinstance(value, float | np.floating):
        return bool(math.isnan(value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    if is_dataclass(value) and not isinstance(value, type):
        return any(has_nan(getattr(value, field.name), depth - 1) for field in fields(value))
    if isinstance(value, dict):
        return any(has_nan(part, depth - 1) for part in value.values())
    return isinstance(value, list | tuple) and any(has_nan(part, depth - 1) for part in value)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024.0 * int(match[1]) if match else 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def prepare(place: Path, certified: galton.Plan | None = None) -> None:
    """Sets up a process for `run_case`.

    Args:
      place: folder for everything that cases read and write; the working directory from now on.
      certified: a plan with a certificate; made, which takes seconds, if None.
    """
    os.environ |= {
        "GALTON_FUZZ": str(place),
        "GALTON_STATE": str(place / "ledgers"),
        "GALTON_CACHE": str(place / "cache"),
        "HOME": str(place),
        "MPLBACKEND": "Agg",
    }
    os.chdir(place)
    if not (place / "changed").exists():
        make_files(place, certified)


def _child(connection: Connection, place: Path, seed: int) -> None:
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + _SPARE, MEMORY + _SPARE))
    prepare(place)
    connection.send("ready")
    while (case := connection.recv()) is not None:
        connection.send(run_case(case, seed))


class Runner:
    """Runs cases in a child that is started anew when a case exceeds a limit."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place, self._seed = place, seed
        self._process: Any = None

    def __call__(self, case: Case) -> Outcome:
        """Returns what became of a case."""
        if self._process is None:
            self._start()
        self._connection.send(case)
        start = self._processor_seconds()
        while not self._connection.poll(_POLL):
            seconds, resident = self._processor_seconds() - start, self._resident()
            violation = "time" if seconds > SECONDS else "memory" if resident > MEMORY else ""
            if violation or not self._process.is_alive():
                return self._end(case, seconds, resident, violation or "the process died")
        try:
            outcome: Outcome = self._connection.recv()
        except EOFError:
            return self._end(case, 0.0, 0, "the process died")
        if outcome.seconds > SECONDS:
            outcome.violation = outcome.violation or "time"
        if outcome.megabytes > MEMORY >> 20:
            outcome.violation = outcome.violation or "memory"
        return outcome

    def close(self) -> None:
        """Ends the child."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_child, args=(other, self._place, self._seed), daemon=True)
        self._process.start()
        other.close()
        if not self._connection.poll(_GRACE):
            raise TimeoutError("the child did not start")
        self._connection.recv()

    def _processor_seconds(self) -> float:
        try:
            words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _resident(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _end(self, case: Case, seconds: float, resident: int, violation: str) -> Outcome:
        self.close()
        call = " ".join(case.words) or f"{case.name}({case.changes})"
        return Outcome(case.index, case.name, call[:300], None, seconds, resident / 2**20, "killed", violation)


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """A row per command or public name: how many cases, their ends, the most time and memory."""
    rows = []
    for name in sorted({outcome.name for outcome in outcomes}):
        own = [outcome for outcome in outcomes if outcome.name == name]
        rows.append(
            {
                "name": name,
                "cases": len(own),
                "codes": {str(code): number for code, number in Counter(outcome.code for outcome in own).items()},
                "most_seconds": round(max(outcome.seconds for outcome in own), 3),
                "most_megabytes": round(max(outcome.megabytes for outcome in own)),
                "violations": sum(bool(outcome.violation) for outcome in own),
            }
        )
    return rows


def main() -> None:
    """Runs cases and writes results/fuzz.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this long")
    parser.add_argument("--log", type=Path, help="write every case there, a JSON object a line")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    chosen = parser.parse_args()
    outcomes: list[Outcome] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        os.environ["GALTON_FUZZ"] = folder
        log = stack.enter_context(chosen.log.open("w")) if chosen.log else None
        runner = Runner(place, chosen.seed)
        stack.callback(runner.close)
        for case in cases(chosen.seed, chosen.start, chosen.start + chosen.cases):
            outcome = runner(case)
            outcomes.append(outcome)
            if log is not None:
                log.write(json.dumps(asdict(outcome)) + "\n")
                log.flush()
            if outcome.violation:
                print(f"{outcome.index} {outcome.call!r}\n  {outcome.violation[-1500:]}", flush=True)
            if time.perf_counter() - begun > chosen.seconds:
                break
    violations = [asdict(outcome) for outcome in outcomes if outcome.violation]
    print(f"{len(outcomes)} cases, {len(violations)} violations, {time.perf_counter() - begun:.0f} s")
    if not chosen.dry:
        limits = {"seconds": SECONDS, "megabytes": MEMORY >> 20, "exit_codes": sorted(CODES)}
        totals = {"cases": len(outcomes), "seed": chosen.seed, "start": chosen.start, "violations": violations}
        slowest = max(outcomes, key=lambda outcome: outcome.seconds)
        largest = max(outcomes, key=lambda outcome: outcome.megabytes)
        extremes = {"slowest": asdict(slowest), "largest": asdict(largest)}
        write("fuzz", summary(outcomes), **totals, limits=limits, **extremes, seconds=time.perf_counter() - begun)


if __name__ == "__main__":
    main()
