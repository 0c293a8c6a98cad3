"""`python -m reproduction` as a program, its place beside galton, and the code that its results rest on."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import galton
import reproduction
from galton.cli.options import listed
from galton.closure import closure
from reproduction import registry
from reproduction.cifar.experiment import METHODS, PRACTICAL
from reproduction.cifar.models import NETWORKS
from reproduction.command import FOLDER, app, reproduce
from reproduction.points import BALLS, POISSON, UNAMPLIFIED, Maker, Question
from reproduction.registry import RESULTS
from reproduction.result import Recipe, Row
from reproduction.tests.running import command
from tests.test_cli import galton as galton_command

HERE = Path(reproduction.__file__).parent
PACKAGES = {"galton": Path(galton.__file__).parent, "reproduction": HERE}


def as_process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m reproduction` in a working directory."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-m", "reproduction", *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_runs_in_any_working_directory(tmp_path: Path) -> None:
    result = as_process(tmp_path, "--list", "--json")
    assert result.returncode == 0
    assert set(json.loads(result.stdout)["results"]) > set(RESULTS)
    refused = as_process(tmp_path, "nonsense")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("reproduction: NAME = 'nonsense'")
    assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_results_go_into_the_checkout_wherever_it_is_run() -> None:
    assert inspect.signature(reproduce).parameters["output"].default == FOLDER == HERE / "results"
    assert FOLDER.is_absolute()
    assert {path.stem for path in FOLDER.glob("*.csv")} == {*RESULTS, "cifar", "cifar-practical"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "x"], "--seed"),
        (["--nonsense"], "--nonsense"),
        (["--fresh", "fetch-cifar"], "must come first"),
        (["fetch-cifar", "--nonsense"], "--nonsense"),
        (["fetch-cifar", "cifar"], "cifar"),
    ],
    ids=" ".join,
)
def test_bad_words_end_in_one_line(words: list[str], message: str) -> None:
    result = command(*words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["fetch-cifar", "--help"]], ids=" ".join)
def test_help_says_how_it_is_called(words: list[str]) -> None:
    result = command(*words)
    assert result.code == 0
    assert " ".join(["python -m reproduction", *words[:-1]]) in result.out


def test_help_lists_networks_and_methods() -> None:
    parameters: list[Any] = typer.main.get_command(app).params
    texts = {parameter.name: parameter.help for parameter in parameters}
    assert listed(METHODS) in texts["method"]
    assert listed(PRACTICAL) in texts["method"]
    assert listed(NETWORKS) in texts["model"]


@pytest.mark.slow
def test_a_second_run_takes_its_points_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(maker: Maker) -> list[Row]:
        questions = [Question(method, "identity", 4, 2, 2.0) for method in (UNAMPLIFIED, POISSON, BALLS)]
        return [{"series": question.method, "rmse": maker.point(question).rmse} for question in questions]

    real = RESULTS["batching-picture"]
    small = Recipe(
        "small", "Three points", 0, ("series", "rmse"), rows, lambda rows: "Three.", lambda rows: real.draw([])
    )
    monkeypatch.setattr(registry, "RESULTS", {"small": small})
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    provenances = []
    for turn in ("first", "second"):
        assert command("small", "-o", str(tmp_path / turn)).code == 0
        provenances.append(json.loads((tmp_path / turn / "small.json").read_text()))
    assert [(about["computed"], about["cached"]) for about in provenances] == [(3, 0), (0, 3)]
    assert (tmp_path / "first" / "small.csv").read_text() == (tmp_path / "second" / "small.csv").read_text()
    assert command("small", "--fresh", "-o", str(tmp_path / "third")).code == 0
    assert json.loads((tmp_path / "third" / "small.json").read_text())["computed"] == 3


# Beside galton


def test_galton_knows_nothing_of_the_reproduction() -> None:
    for path in PACKAGES["galton"].rglob("*.py"):
        assert not re.search(r"^\s*(from|import) reproduction\b", path.read_text(), re.MULTILINE), path
    for word in ("paper", "fetch-cifar"):
        result = galton_command(word)
        assert (result.code, result.out) == (2, "")
        assert word in result.err


def test_nothing_imports_through_the_table_of_public_names() -> None:
    """As in galton itself: `closure` does not follow that table."""
    modules = {path.stem for path in PACKAGES["galton"].glob("*.py")}
    for path in [*HERE.glob("*.py"), *(HERE / "cifar").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                assert "galton" not in [alias.name for alias in node.names], path
            if isinstance(node, ast.ImportFrom) and node.module == "galton":
                assert {alias.name for alias in node.names} <= modules, path


@pytest.mark.parametrize("module", ["points", "sample_study"])
def test_what_is_cached_rests_on_the_accountants_and_not_on_pictures(module: str) -> None:
    names = set(closure(f"reproduction.{module}", PACKAGES))
    assert {"galton.accounting.quick", "galton.sampling.frozen", "galton.optimization.search"} <= names
    assert "reproduction.points" in names
    assert not {"reproduction.drawing", "reproduction.writing", "reproduction.sample_counts"} & names


def test_a_result_rests_on_its_recipe() -> None:
    assert RESULTS["bandmf"].modules == ("reproduction.banded",)
    for recipe in RESULTS.values():
        (module,) = recipe.modules
        names = set(closure(module, PACKAGES))
        assert {"reproduction.points", "reproduction.drawing"} <= names, recipe.name
        assert "reproduction.registry" not in names, recipe.name
