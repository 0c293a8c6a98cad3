"""Wrong input of all kinds, drawn by benchmarks/fuzz.py from a fixed seed: no traceback, no NaN, no wrong exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.fuzzing import cases, command_line, inputs, public_api, running
from galton.plan import Plan

SEED = 1
SAMPLED = {
    *("delta", "epsilon", "profile", "calibrate", "certify", "optimize", "report", "audit", "compare"),
    *("Calibration", "Certificate", "DeltaEstimate", "EpsilonEstimate", "Profile", "Optimized", "verify_plan"),
    *("make_plan", "unamplified_optimum", "plot_comparison", "multiplier_upper_bound"),
}
"""Names whose cases may take seconds: they are in the slow test."""
RUNS = {"fork_run", "release_run", "stop_run"}
"""Names that need the folder of a run: with that of a plan they refuse."""


@pytest.fixture
def place(tmp_path: Path, small_plan: Plan) -> Iterator[Path]:
    here = Path.cwd()
    with mock.patch.dict(os.environ):
        inputs.place_of.cache_clear()
        public_api.objects.cache_clear()
        running.prepare(tmp_path, small_plan)
        yield tmp_path
    os.chdir(here)


def check(drawn: Iterator[cases.Case]) -> int:
    outcomes = [running.run_case(case, SEED) for case in drawn]
    violations = [f"{outcome.index} {outcome.call}: {outcome.violation}" for outcome in outcomes if outcome.violation]
    assert violations == []
    return len(outcomes)


def test_a_hundred_quick_cases(place: Path) -> None:
    quick = (case for case in cases.cases(SEED, 0, 10**6) if case.name not in SAMPLED)
    assert check(islice(quick, 100)) == 100


@pytest.mark.slow
def test_a_thousand_cases(place: Path) -> None:
    assert check(cases.cases(SEED, 0, 1000)) == 1000


def test_files_that_a_case_has_overwritten_are_put_back(place: Path) -> None:
    before = (place / "exact" / "strategy.json").read_bytes()
    words = ("explore", "--output", "{exact}/strategy.json")
    assert running.run_case(cases.Case(0, "explore", words=words), SEED).code == 0
    assert (place / "exact" / "strategy.json").read_bytes() != before
    inputs.restore(place)
    assert (place / "exact" / "strategy.json").read_bytes() == before


def test_cases_depend_on_seed_and_number_alone() -> None:
    first = list(cases.cases(3, 0, 50))
    assert list(cases.cases(3, 20, 50)) == first[20:]
    assert list(cases.cases(4, 0, 50)) != first


def test_every_public_name_and_command_is_drawn() -> None:
    drawn = {case.name for case in cases.cases(SEED, 0, 3000)}
    assert set(public_api.api_calls()) <= drawn
    assert {words[0] for words in command_line.COMMANDS} == set(command_line.options_of_commands())


def test_every_public_name_is_called_with_arguments_that_work(place: Path) -> None:
    names = set(public_api.api_calls()) - SAMPLED - RUNS
    outcomes = {name: running.run_case(cases.Case(0, name), SEED) for name in names}
    assert {name: outcome.message for name, outcome in outcomes.items() if outcome.code != 0} == {}


def test_a_violation_is_noticed(place: Path) -> None:
    with mock.patch("galton.cli.plan.Guarantee", side_effect=ZeroDivisionError):
        words = next(words for words in command_line.COMMANDS if words[0] == "plan")
        assert "exit code 1" in running.run_case(cases.Case(0, "plan", words=words), SEED).violation
    with mock.patch("galton.gaussian_mu", side_effect=ZeroDivisionError):
        assert "ZeroDivisionError" in running.run_case(cases.Case(0, "gaussian_mu"), SEED).violation
    assert running.has_nan({"a": [1.0, float("nan")]})
