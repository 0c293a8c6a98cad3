"""Verifications of claims that are too low, and intervals, where delta is known from elsewhere.

    python benchmarks/false_claims.py --trials 100 --intervals 200 --samples 20000
    python benchmarks/false_claims.py --trials 100 --intervals 0 --samples 1000      # keeps the other results
    python benchmarks/false_claims.py --intervals 0 --only levelled,spaced           # settings with these words

Every setting is so small that delta follows by quadrature from the definition of the mechanism (`tests/truth.py`): two
batches (four for samplers of few bands) drawn once, or redrawn in each of two epochs, all directions, all samplers,
sequences and a fixed number of samples. At each level the claim is delta / level, which is false, and failure
probability 0.05 is asked for: at most 5% may be accepted. Claims of 1.25 delta, which are true, show how well the tests
can tell. Intervals at confidence 0.9 must cover delta nine times in ten; their widths are compared with what the normal
approximation would give at the same number of samples, and the last table says where the difference comes from.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from scipy.stats import norm

import galton
from benchmarks.common import RESULTS, write
from galton.bounds import EmpiricalBernstein
from galton.errors import FloatArray
from galton.pair import DominatingPair, Pair
from galton.sampling import choose_sampler, draws
from galton.sampling.base import Sampler
from galton.sampling.factor import upward_factor
from galton.sampling.levelled import LevelledSampler
from galton.sampling.levels import best_levels
from galton.sampling.spaced import SpacedSampler, best_spaced
from galton.sampling.toolkits import BinsToolkit
from tests.truth import by_quadrature

LEVELS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
TRUE_LEVEL = 0.8
CLAIMS = (*LEVELS, TRUE_LEVEL)
FAILURE = 0.05
CONFIDENCE = 0.9
MATRIX = np.array([[1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.3, 0.5, 1.0, 0.0], [0.0, 0.3, 0.5, 1.0]])
BANDED = np.eye(8) + 0.5 * np.eye(8, k=-1)
MULTIPLIER = 1.5
FEW_BANDS = ("levelled", "spaced")
"""Samplers that are chosen for many bins and few bands only, and forced here upon four bins and two bands."""


@dataclass(frozen=True)
class Setting:
    """A mechanism with few batches per epoch and two epochs, an epsilon, and how delta is tested there."""

    participation: str
    epsilon: float
    adjacency: galton.Adjacency
    sampler: str
    independent: bool = False
    bound: str = "sequence"

    @property
    def name(self) -> str:
        """All of it, in words."""
        noise = "C = I, " if self.independent else ""
        return f"{noise}{self.participation}, epsilon {self.epsilon:g}, {self.adjacency}, {self.sampler}, {self.bound}"

    @property
    def _forced(self) -> bool:
        return self.sampler in FEW_BANDS

    @property
    def _bins(self) -> int:
        return 4 if self._forced else 2

    @property
    def _matrix(self) -> FloatArray:
        return BANDED if self._forced else np.eye(4) if self.independent else MATRIX

    @cached_property
    def pair(self) -> DominatingPair:
        """The mechanism as galton sees it."""
        strategy = galton.Dense(self._matrix)
        pair = galton.redrawn_pair if self.participation == "redrawn" else galton.dominating_pair
        return pair(strategy, self._bins, MULTIPLIER)

    @cached_property
    def truth(self) -> float:
        """delta from the definition: all ways to take part, written out."""
        once = np.stack([self._matrix[:, start :: self._bins].sum(axis=1) for start in range(self._bins)])
        scale = np.linalg.norm(once, axis=1).max() * MULTIPLIER
        redrawn = [self._matrix[:, [i, 2 + j]].sum(axis=1) for i, j in itertools.product(range(2), repeat=2)]
        modes = (np.array(redrawn) if self.participation == "redrawn" else once) / scale
        points = 41 if self._forced else 101  # in three dimensions, where 61 give the same 14 digits
        return max(by_quadrature(modes, self.epsilon, direction, points) for direction in self.adjacency.directions)

    def options(self, seed: int, **more: Any) -> galton.Options:
        """How to sample."""
        sampler = "tilted" if self._forced else self.sampler
        return galton.Options(sampler=sampler, bound=self.bound, seed=seed, workers=1, **more)

    def forcing(self) -> contextlib.AbstractContextManager[object]:
        """A context in which the sharp sampler is that of this setting, also where another would be chosen."""
        if not self._forced:
            return contextlib.nullcontext()
        return mock.patch.object(BinsToolkit, "sharp", return_value=self._few_bands)

    @cached_property
    def _few_bands(self) -> Sampler:
        assert isinstance(self.pair, Pair)
        gram = upward_factor(self.pair.gram).gram
        levels, spaced = best_levels(gram, self.epsilon), best_spaced(gram, self.epsilon)
        assert levels is not None
        assert spaced is not None
        if self.sampler == "levelled":
            return LevelledSampler(self.pair, levels, self.epsilon)
        return SpacedSampler(self.pair, spaced, self.epsilon)


def settings() -> Iterator[Setting]:
    """Yields all settings."""
    both, add, remove, replace = (galton.Adjacency(name) for name in ("add-or-remove", "add", "remove", "replace"))
    for participation in ("bins", "redrawn"):
        for epsilon, adjacency in itertools.product((0.5, 2.0), (remove, add)):
            yield Setting(participation, epsilon, adjacency, "tilted")
        for adjacency in (remove, add):
            yield Setting(participation, 0.5, adjacency, "plain")
        yield Setting(participation, 0.5, both, "tilted")
        yield Setting(participation, 0.5, remove, "tilted", bound="kl")
    yield Setting("bins", 0.5, replace, "tilted")
    for sampler in ("maximum", "order-statistics"):
        yield Setting("bins", 1.0, remove, sampler, independent=True)
    for sampler, adjacency in zip(FEW_BANDS, (remove, add), strict=True):
        yield Setting("bins", 0.5, adjacency, sampler)


def accepted(setting: Setting, level: float, trials: int, samples: int, ledger: galton.Ledger) -> int:
    """Returns how many verifications accept the claim delta / level."""
    claim = galton.Guarantee(setting.epsilon, setting.truth / level, setting.adjacency)
    with setting.forcing():
        return sum(
            galton.certify(
                setting.pair, claim, options=setting.options(seed, samples=samples), failure=FAILURE, ledger=ledger
            ).accepted
            for seed in range(trials)
        )


def covered(setting: Setting, intervals: int, rel_width: float, samples: int) -> dict[str, Any]:
    """Intervals of one setting: how many miss delta on either side, and how wide they are."""
    too_low = too_high = 0
    ratios, widths = [], []
    deviation = _deviation(setting)
    for seed in range(intervals):
        options = setting.options(seed, samples=samples, rel_width=rel_width, confidence=CONFIDENCE)
        with setting.forcing():
            estimate = galton.delta(setting.pair, setting.epsilon, setting.adjacency, options=options)
        too_low += estimate.upper < setting.truth
        too_high += estimate.lower > setting.truth
        taken = max(estimate.by_direction, key=lambda part: part.delta).samples
        normal = 2 * norm.isf((1 - CONFIDENCE) / 2) * deviation / math.sqrt(taken)
        ratios.append((estimate.upper - estimate.lower) / normal)
        widths.append((estimate.upper - estimate.lower) / setting.truth)
    return {
        "setting": setting.name,
        "intervals": intervals,
        "upper_too_low": too_low,
        "lower_too_high": too_high,
        "width_to_normal": round(float(np.mean(ratios)), 3),
        "width": round(float(np.mean(widths)), 4),
    }


def _deviation(setting: Setting) -> float:
    """The largest standard deviation of a sample over the directions."""
    result = []
    for direction in setting.adjacency.directions:
        with setting.forcing():
            requested = setting.options(0).sampler
            sampler = choose_sampler(setting.pair, direction, setting.epsilon, requested).sampler
        values = np.concatenate([sampler.values(draw, setting.epsilon) for draw in draws(sampler, 1 << 17, 10**6)])
        result.append(float(values.std()))
    return max(result)


def slack(setting: Setting, failure: float, trials: int, rel_width: float, seed: int = 1) -> dict[str, Any]:
    """One limit of an interval by itself: misses when it stops and at any time, and its width beside two ideals.

    `exponential` is sqrt(2 log(1 / failure)) standard errors, the least that any bound by the moment generating
    function has, for a single look or for all; `normal` are those of the normal distribution.
    """
    (direction,) = setting.adjacency.directions
    sampler = choose_sampler(setting.pair, direction, setting.epsilon, setting.sampler).sampler
    value_range = sampler.value_range(setting.epsilon)
    pool = np.concatenate([sampler.values(draw, setting.epsilon) for draw in draws(sampler, 1 << 20, seed)])
    truth, deviation = float(pool.mean()), float(pool.std())
    random = np.random.default_rng(seed)
    at_stop = ever = 0
    widths = []
    for _ in range(trials):
        limits = EmpiricalBernstein(value_range, failure, rel_width / 2, 1 << 22)
        missed = False
        while limits.upper() - limits.lower() > rel_width * limits.mean:
            limits.add(pool[random.integers(pool.size, size=2048)])
            missed |= limits.upper() < truth
        at_stop += limits.upper() < truth
        ever += missed
        widths.append((limits.upper() - limits.mean) / (deviation / math.sqrt(limits.samples)))
    return {
        "failure": failure,
        "trials": trials,
        "missed_at_the_stop": at_stop,
        "missed_at_any_time": ever,
        "half_width": round(float(np.mean(widths)), 3),
        "exponential": round(math.sqrt(-2 * math.log(failure)), 3),
        "normal": round(float(norm.isf(failure)), 3),
    }


def main() -> None:
    """Verifies false and true claims, counts intervals that miss, and writes results/false_claims.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100, help="verifications of a setting at a level")
    parser.add_argument("--intervals", type=int, default=200, help="intervals of a setting")
    parser.add_argument("--samples", type=int, default=20_000, help="most samples of a verification, per direction")
    parser.add_argument("--only", default="", help="words, with commas between: settings that have one of them")
    chosen = parser.parse_args()
    begun = time.process_time()
    path = RESULTS / "false_claims.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings():
            if not any(word in setting.name for word in chosen.only.split(",")):
                continue
            row: dict[str, Any] = {"setting": setting.name, "delta": setting.truth, "samples": chosen.samples}
            row |= {"trials": chosen.trials, "date": time.strftime("%Y-%m-%d", time.gmtime())}
            for level in CLAIMS:
                ledger = galton.Ledger(Path(folder) / f"{len(rows)}-{level}.json")
                row[f"accepted_at_{level:g}"] = accepted(setting, level, chosen.trials, chosen.samples, ledger)
            rows.append(row)
            print(row, flush=True)
    again = {(row["setting"], row["samples"]) for row in rows}
    rows = [row for row in known["rows"] if (row["setting"], row["samples"]) not in again] + rows
    more: dict[str, Any] = {name: known[name] for name in ("coverage", "intervals", "one_limit") if name in known}
    if chosen.intervals:
        more = interval_results(chosen.intervals)
    levels = [totals(rows, samples, level) for samples in sorted({row["samples"] for row in rows}) for level in CLAIMS]
    print(*levels, more.get("coverage"), sep="\n")
    write(
        "false_claims",
        rows,
        failure=FAILURE,
        false_claims=sum(entry["verifications"] for entry in levels if entry["level"] > 1),
        levels=levels,
        **more,
        processor_seconds=round(time.process_time() - begun),
    )


def totals(rows: list[dict[str, Any]], samples: int, level: float) -> dict[str, Any]:
    """All settings together at one number of samples and one level."""
    own = [row for row in rows if row["samples"] == samples]
    trials, number = sum(row["trials"] for row in own), sum(row[f"accepted_at_{level:g}"] for row in own)
    return {
        "samples": samples,
        "level": level,
        "verifications": trials,
        "accepted": number,
        "share": round(number / trials, 4),
    }


def interval_results(intervals: int) -> dict[str, Any]:
    """Intervals of all settings, and what one limit costs."""
    rows = [covered(setting, intervals, 0.05, 60_000) for setting in settings()]
    number = sum(row["intervals"] for row in rows)
    missed = sum(row["upper_too_low"] + row["lower_too_high"] for row in rows)
    coverage = {"confidence": CONFIDENCE, "intervals": number, "covered": round(1 - missed / number, 4)}
    shares = [slack(next(settings()), failure, 1000, 0.05) for failure in (0.025, 0.05)]
    return {"coverage": coverage, "intervals": rows, "one_limit": shares}


if __name__ == "__main__":
    main()
