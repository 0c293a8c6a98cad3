"""What is kept by content, and the code that it is kept for."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

import galton
from galton.accountants import ACCOUNTANTS
from galton.cache import Cache, default_cache
from galton.closure import closure, code_digest
from galton.errors import InvalidArgument

HERE = "galton.gaussian"
"""A module with few imports, as the one that computed something."""
SOURCES = Path(galton.__file__).parent


def test_the_cache_returns_what_was_stored_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "folder")
    assert cache.get({"a": 1}, HERE) is None
    cache.put({"a": 1}, {"value": 0.1}, HERE)
    assert cache.get({"a": 1}, HERE) == {"value": 0.1}
    assert cache.get({"a": 2}, HERE) is None
    assert cache.get({"a": 1}, "galton.workloads") is None
    assert Cache(tmp_path).get({"a": 1}, HERE) is None
    assert cache.emptied().get({"a": 1}, HERE) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', '{"key": NaN}', None])
def test_damaged_entries_count_as_absent(tmp_path: Path, damage: str | None) -> None:
    cache = Cache(tmp_path)
    cache.put({"a": 1}, {"value": 1}, HERE)
    (entry,) = tmp_path.iterdir()
    entry.write_text(entry.read_text().replace('"value":1', '"value":2') if damage is None else damage)
    assert cache.get({"a": 1}, HERE) is None
    cache.put({"a": 1}, {"value": 3}, HERE)
    assert cache.get({"a": 1}, HERE) == {"value": 3}


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file")
    cache.put({"a": 1}, {"value": 1}, HERE)
    assert cache.get({"a": 1}, HERE) is None


def test_no_entry_outlives_the_code_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.put({"a": 1}, {"value": 1}, HERE)
    monkeypatch.setattr("galton.cache.code_digest", lambda *modules: "other code")
    assert cache.get({"a": 1}, HERE) is None


def test_the_default_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path))
    assert default_cache().folder == tmp_path
    monkeypatch.delenv("GALTON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache().folder == Path("/somewhere/galton")


# The code that a result rests on.

STUDY = {
    "__init__": "",
    "computed": "import sys, study.plain\nfrom study import helper\nfrom study.room import tool\n",
    "plain": "from __future__ import annotations\n",
    "helper": "def late():\n    from galton import gaussian\n    from . import late_help\n",
    "late_help": "import typing\nif typing.TYPE_CHECKING:\n    from study import hints\nelse:\n    import study.real\n",
    "real": "",
    "hints": "",
    "drawing": "from study import computed\n",
    "room/__init__": "from study.room.inner import tool\n",
    "room/inner": "from .deep import thing\n",
    "room/deep": "thing = 1\n",
    "room/beside": "",
    "lone/__init__": "raise RuntimeError\n",
}
"""A small package. Its files outside the closure of study.computed are hints, drawing, room/beside and lone."""
OUTSIDE = ("hints", "drawing", "room/beside", "lone/__init__")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package `study`."""
    folder = tmp_path / "study"
    for name, source in STUDY.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def digest() -> str:
    """The digest of what study.computed rests on, as the next process would see it."""
    code_digest.cache_clear()
    return code_digest("study.computed")


@pytest.mark.parametrize("name", STUDY)
def test_an_edit_within_the_closure_is_noticed_and_no_other(name: str, study: Path) -> None:
    before = digest()
    assert digest() == before
    with (study / f"{name}.py").open("a") as source:
        source.write("# edited\n")
    assert (digest() == before) == (name in OUTSIDE)


def test_the_closure_crosses_packages(study: Path) -> None:
    names = set(closure("study.computed", {"study": study, "galton": SOURCES}))
    assert {"galton.gaussian", "galton.errors"} <= names
    assert "galton" not in names
    assert {name for name in names if name.startswith("study")} == {
        "study" + (f".{path.removesuffix('/__init__').replace('/', '.')}" if path != "__init__" else "")
        for path in STUDY
        if path not in OUTSIDE
    }


def test_an_edit_of_galton_is_noticed(tmp_path: Path) -> None:
    """In a copy of the package: what a module rests on there is the same, and is read from there."""
    copied = shutil.copytree(SOURCES, tmp_path / "galton", ignore=shutil.ignore_patterns("__pycache__"))
    assert set(closure("galton.report.curves", {"galton": copied})) == set(
        closure("galton.report.curves", {"galton": SOURCES})
    )
    (copied / "accountants" / "curve.py").write_text("from galton import workloads, cluster\n")
    assert "galton.cluster" in closure("galton.report.curves", {"galton": copied})


def test_a_curve_rests_on_its_accountants_and_not_on_the_page() -> None:
    names = closure("galton.report.curves", {"galton": SOURCES})
    assert {
        *("galton.report.curves", "galton.batching.overflow", "galton.files", "galton.cache", "galton.guarantee"),
        *("galton.accountants.curve", *(type(accountant).__module__ for accountant in ACCOUNTANTS.values())),
        *("galton.accounting.curve", "galton.accounting.estimate", "galton.sampling.tilted", "galton.plan.plan"),
    } <= set(names)
    assert names["galton.batching.overflow"] == SOURCES / "batching" / "overflow.py"
    assert not {"galton", "galton.report", "galton.report.page", "galton.report.style", "galton.audit"} & set(names)
    assert not [name for name in names if name.startswith("galton.cli")]


@pytest.mark.parametrize("module", ["galton.nothing", "nowhere.at.all", "lonely"])
def test_a_module_without_a_source_is_refused(module: str) -> None:
    with pytest.raises(InvalidArgument, match="module"):
        code_digest(module)


def test_nothing_imports_through_the_table_of_public_names() -> None:
    """The table is not followed: a name taken from it would come from code that no digest covers."""
    modules = {path.stem for path in SOURCES.glob("*.py")} | {
        path.parent.name for path in SOURCES.glob("*/__init__.py")
    }
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                assert "galton" not in [alias.name for alias in node.names], path
            if isinstance(node, ast.ImportFrom) and node.module == "galton":
                assert {alias.name for alias in node.names} <= modules, path
