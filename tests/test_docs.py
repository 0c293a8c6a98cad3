"""The documentation: every page is in the navigation, every public name in the reference, and what pages show runs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import galton
from galton.cli import load_commands
from galton.cli.app import SECTIONS, app
from galton.explorer import render, shipped_results
from galton.plan import Plan, save_plan
from tests import schemas
from tests.test_cli import galton as run_galton

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
NAMES: list[str] = vars(galton)["__all__"]
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADAPTERS = ("galton.training.jax", "galton.training.torch", "galton.training.opacus")
EXTRAS = {"torch": "torch", "opacus": "opacus", "jax_privacy": "jax_privacy"}
"""Packages without which a page cannot run, by a word of its code."""
NOT_RUN = ("--cluster", "--examples 50000")
"""Commands that need more than a test has: a cluster, or minutes."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Blocks of code of a page, with their languages."""
    return FENCE.findall(PAGES[page])


def commands(page: str) -> Iterator[list[str]]:
    for language, code in blocks(page):
        if language == "sh":
            for line in code.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["galton"]:
                    yield words[1 : words.index(">") if ">" in words else None]


RUNNABLE = sorted(page for page in PAGES if blocks(page) and not page.startswith("reference/"))


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(re.findall(r": (\S+\.md)$", NAVIGATION, re.MULTILINE)) == sorted(PAGES)


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", PAGES[page], re.MULTILINE)]
    assert len(shown) == len(set(shown))
    modules = vars(galton)["_MODULES"]
    assert {f"{modules[name]}.{name}" for name in NAMES} <= set(shown)
    for adapter in ADAPTERS:
        assert [name for name in shown if name.startswith(f"{adapter}.")]


def test_every_command_and_every_variable_is_in_the_reference() -> None:
    load_commands()
    assert "<!-- help of every command -->" in PAGES["reference/cli.md"]
    assert {name for names in SECTIONS.values() for name in names} == {
        command.callback.__name__ for command in app.registered_commands if command.callback is not None
    }
    source = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    for variable in set(re.findall(r"\"((?:GALTON|XDG)_[A-Z_]+)\"", source)):
        assert variable in PAGES["reference/environment.md"]


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


@pytest.mark.parametrize("page", PAGES)
def test_a_link_of_the_site_leads_somewhere(page: str) -> None:
    folder = (DOCS / page).parent
    for link, anchor in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]+)?\)", PAGES[page]):
        target = (folder / link).resolve()
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor[1:] in set(map(slug, titles)), link + anchor


def test_ten_first_questions_are_answered_one_click_from_home() -> None:
    """Every answer is a section of its own, with something in it."""
    questions = PAGES["index.md"].partition("## Ten first questions\n")[2].partition("\n## ")[0]
    links = re.findall(r"^\d+\. \[([^\]]+\?)\]\(([\w/-]+\.md)#([\w-]+)\)$", questions, re.MULTILINE)
    assert len(links) == len(set(links)) == 10
    for question, page, anchor in links:
        parts = re.split(r"^#+ (.*)$", PAGES[page], flags=re.MULTILINE)
        sections = dict(zip(map(slug, parts[1::2]), parts[2::2], strict=True))
        assert len(sections[anchor].split()) > 9, question


def test_the_site_has_the_explorer() -> None:
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    assert PAGES["explore.md"].count(hooks["EXPLORER"]) == 1
    shown = hooks["on_page_markdown"](PAGES["explore.md"])
    assert f"({hooks['EXPLORER_PAGE']})" in shown
    config = pytest.importorskip("mkdocs.config").load_config(str(DOCS.parent / "mkdocs.yml"), plugins=[])
    files = pytest.importorskip("mkdocs.structure.files").Files([])
    (added,) = config.plugins.on_files(files, config=config)
    assert added.src_uri == hooks["EXPLORER_PAGE"]
    assert added.content_string == render(shipped_results())


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))])
def test_commands_of_a_page_are_understood(page: str) -> None:
    load_commands()
    group: Any = typer.main.get_command(app)
    for words in commands(page):
        group.commands[words[0]].make_context(words[0], list(words[1:]))


def fields(rules: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and descriptions of all fields of a schema."""
    for name, rule in rules.get("properties", {}).items():
        yield name, rule["description"]
        yield from fields(rule.get("items", rule))


def test_every_command_has_a_schema_and_a_field_means_the_same_in_all() -> None:
    names = {path.stem for path in schemas.FOLDER.glob("*.json")}
    commands = {name for names in SECTIONS.values() for name in names}
    assert names == commands | {"error", "file-plan", "file-strategy", "file-record", "file-budget"}
    assert ambiguous(names) == set()


def ambiguous(names: set[str]) -> set[str]:
    """Fields that do not mean the same in all of these schemas."""
    meanings: dict[str, set[str]] = {}
    for name in names:
        for field, words in fields(schemas.schema(name)):
            meanings.setdefault(field, set()).add(words)
    return {field for field, words in meanings.items() if len(words) > 1}


def test_a_schema_has_the_version_of_the_package() -> None:
    minor = ".".join(galton.__version__.split(".")[:2])
    for path in schemas.FOLDER.glob("*.json"):
        assert schemas.schema(path.stem)["$id"] == f"urn:galton:{minor}:{path.stem}"


def test_a_schema_refuses_what_it_does_not_describe() -> None:
    good: dict[str, Any] = {"path": "x", "record": {}}
    schemas.check(good, "release")
    for bad in ({"path": "x"}, good | {"more": 1}, good | {"record": 1}, [good]):
        assert schemas.problems(bad, schemas.schema("release"))


def test_files_keep_to_their_schemas(small_plan: Plan, tmp_path: Path) -> None:
    save_plan(small_plan, tmp_path / "plan")
    params = {"weights": np.zeros(2, np.float32)}
    with galton.TrainingRun(small_plan, tmp_path / "run", params, examples=64, clip_norm=1.0):
        pass
    for name, path in (("plan", "plan/plan.json"), ("strategy", "plan/strategy.json"), ("record", "run/record.json")):
        schemas.check(json.loads((tmp_path / path).read_text()), f"file-{name}")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", RUNNABLE)
def test_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and Python in the order of the page, in an empty folder."""
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_first_plan_has_the_errors_that_its_page_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = json.loads(run_galton(*next(commands("start.md")), "--json").out)
    errors = {other["name"]: f"{other['rmse']:.1f}" for other in made["alternatives"]}
    number = r"(\d+\.\d)\."
    words = rf"error is about {number} With DP-SGD .* be {number} With correlated .* be {number}\n"
    told = re.search(words, PAGES["start.md"], re.DOTALL)
    assert told is not None
    assert told.groups() == (f"{made['rmse']:.1f}", errors["dpsgd-poisson"], errors["memf-unamplified"])


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, package in EXTRAS.items():
        if any(f"import {word}" in code or f"from {word}" in code for _, code in blocks(page)):
            pytest.importorskip(package)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GALTON_CACHE", str(folder / "cache"))
    names: dict[str, Any] = {"__name__": "page"}
    for language, code in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, page, "exec"), names)
            continue
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["galton"] and not any(part in line for part in NOT_RUN):
                result = run_galton(*words[1 : words.index(">") if ">" in words else None])
                assert result.code == 0, (line, result.err)
