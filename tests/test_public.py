"""The public surface: every name loads on its first use, and type checkers know it."""

from __future__ import annotations

import ast
import doctest
import enum
import inspect
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import galton

NAMES: list[str] = vars(galton)["__all__"]
CHECKED = """
import galton
from galton import *
from galton import nothing_of_the_kind  # line 4
galton.no_such_name  # line 5
reveal_type(galton.dominating_pair(galton.identity(4), 2))
reveal_type(Pair)
reveal_type(galton.__version__)
"""
QUICKLY = """
[mypy]
strict = true
follow_imports = silent
[mypy-numpy.*,jax.*,scipy.*,optax.*,torch.*,opacus.*,distributed.*,dp_accounting.*,threadpoolctl.*,matplotlib.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""Other packages are not looked at: that would take minutes."""


def test_every_name_is_there_and_stands_in_the_list_once() -> None:
    assert len(set(NAMES)) == len(NAMES) > 50
    for name in NAMES:
        value = getattr(galton, name)
        assert value is not None
        assert not inspect.ismodule(value)
    assert dir(galton) == NAMES == sorted(NAMES)
    with pytest.raises(AttributeError, match="module 'galton' has no attribute 'no_such_name'"):
        _ = galton.no_such_name  # type: ignore[attr-defined]


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, Any] = {}
    exec("from galton import *", names)
    assert names.keys() - {"__builtins__"} == set(NAMES)
    assert names["Pair"] is galton.Pair


def test_the_version_is_that_of_the_package() -> None:
    assert galton.__version__ == version("galton")


def test_importing_galton_imports_nothing_large() -> None:
    code = """
import sys
import galton
dir(galton), galton.__version__
assert not {"jax", "numpy", "scipy"} & set(sys.modules), "too much imported"
galton.InvalidFile
assert not {"jax", "scipy"} & set(sys.modules), "too much imported for one name"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_type_checkers_know_the_names_and_report_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "mypy.ini").write_text(QUICKLY)
    (tmp_path / "script.py").write_text(CHECKED)
    monkeypatch.setenv("MYPYPATH", str(Path(galton.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    words = ["--config-file", "mypy.ini", "--cache-dir", str(tmp_path / "cache"), "--no-error-summary", "script.py"]
    told, problems, code = api.run(words)
    assert (problems, code) == ("", 1)
    expected = {
        4: ("error", '"nothing_of_the_kind"'),
        5: ("error", '"no_such_name"'),
        6: ("note", '"galton.pair.Pair"'),
        7: ("note", "-> galton.pair.Pair"),
        8: ("note", '"str"'),
    }
    assert len(told.splitlines()) == len(expected)
    for line, (number, (kind, fragment)) in zip(told.splitlines(), expected.items(), strict=True):
        assert line.startswith(f"script.py:{number}: {kind}: ")
        assert fragment in line


WRITES = {"save_strategy", "save_state"}
"""Functions that return nothing."""
FUNCTIONS = sorted(name for name in NAMES if inspect.isfunction(getattr(galton, name)))
CLASSES = sorted(name for name in NAMES if inspect.isclass(getattr(galton, name)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_and_returns(name: str) -> None:
    function = getattr(galton, name)
    words = function.__doc__ or ""
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^ +(\w+, )*{parameter}(, \w+)*: ", words, re.MULTILINE), parameter
    assert "Returns:" in words or name in WRITES


def below(name: str) -> str:
    """What is written below a public table, in the module that defines it: Python does not keep it."""
    package = ast.parse(inspect.getsource(import_module(vars(galton)["_MODULES"][name])))
    imports = [node for node in package.body if isinstance(node, ast.ImportFrom)]
    origin = next(str(node.module) for node in imports for alias in node.names if alias.name == name)
    for statement, after in pairwise(ast.parse(inspect.getsource(import_module(origin))).body):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            return str(ast.literal_eval(after.value)) if isinstance(after, ast.Expr) else ""
    return ""


TABLES = sorted(set(NAMES) - set(FUNCTIONS) - set(CLASSES))
"""Names that are neither: their examples are not run with those of their modules, but here."""


REFERENCE = sorted(
    name
    for page in (Path(__file__).parents[1] / "docs/reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
)
"""Every public name, those of the submodules included, in full."""
SHOWN_BY = {"Audit": "audit", "Optimized": "optimize", "PlanWithin": "make_plan_within", "SharedRun": "share_run"}
"""Values that are made by one function only, whose example shows them."""


@pytest.mark.parametrize("name", REFERENCE)
def test_a_public_name_has_an_example(name: str) -> None:
    module, _, last = name.rpartition(".")
    words = below(last) if last in TABLES else getattr(import_module(module), SHOWN_BY.get(last, last)).__doc__ or ""
    assert doctest.DocTestParser().get_examples(words)


@pytest.mark.parametrize("name", TABLES)
def test_the_example_of_a_public_table_runs(name: str) -> None:
    words = below(name)
    assert name in words
    example = doctest.DocTestParser().get_doctest(words, {}, name, None, None)
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_says_what_it_holds(name: str) -> None:
    kind = getattr(galton, name)
    words = kind.__doc__ or ""
    if issubclass(kind, Exception | enum.Enum):
        assert words
        return
    assert "Args:" in words or "Attributes:" in words
    if is_dataclass(kind):
        for field in fields(kind):
            assert field.name.startswith("_") or re.search(rf"\b{field.name}\b", words), field.name


PACKAGES = (
    "galton",
    *(
        "galton.accountants",
        "galton.accounting",
        "galton.audit",
        "galton.batching",
        "galton.bounds",
        "galton.comparison",
    ),
    *("galton.noise", "galton.optimization", "galton.plan", "galton.report", "galton.sampling", "galton.strategies"),
    *("galton.cluster", "galton.workloads", "galton.training.run", "galton.training.jax", "galton.training.torch"),
    *("galton.training.torch_batches", "galton.training.opacus", "galton.training.opacus_batches"),
)
"""Where public classes are: those in __all__, or without it those that are defined there and have no underscore."""


def public_classes() -> dict[str, type]:
    """Public classes by their full names."""
    classes: dict[str, type] = {}
    for package in PACKAGES:
        module = pytest.importorskip(package)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == package]
        for name in vars(module).get("__all__", [name for name in own if not name.startswith("_")]):
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__.startswith("galton."):
                classes[f"{value.__module__}.{name}"] = value
    return classes


def documentation(kind: type, name: str) -> str:
    """What is said about a member, here or by the first class above that says something."""
    members = [vars(above)[name] for above in kind.__mro__ if name in vars(above)]
    return next((words for words in map(inspect.getdoc, members) if words), "")


def undocumented(kind: type, name: str) -> str:
    """What is not said about a public member of a class, or nothing."""
    owner = next(above for above in kind.__mro__ if name in vars(above))
    member = vars(owner)[name]
    member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if isinstance(member, property | cached_property):
        return "" if documentation(kind, name) else "no words"
    if not inspect.isfunction(member) or not owner.__module__.startswith("galton."):
        return ""
    words, signature = documentation(kind, name), inspect.signature(member)
    missing = [
        parameter
        for parameter in signature.parameters
        if parameter not in ("self", "cls") and not re.search(rf"^ +(\w+, )*{parameter}(, \w+)*: ", words, re.MULTILINE)
    ]
    if signature.return_annotation not in (None, "None") and missing + list(signature.parameters)[1:]:
        missing += [] if re.search(r"^(Returns|Yields)\b|^Whether ", words, re.MULTILINE) else ["what it returns"]
    return "" if words and not missing else f"{owner.__module__}.{owner.__name__}.{name}: {missing or 'no words'}"


def test_a_public_method_says_what_it_takes_and_returns() -> None:
    """Of every public class. A line is enough for properties and for methods without arguments."""
    classes = public_classes()
    assert {"galton.accountants.base.Accountant", "galton.training.run.TrainingRun"} <= set(classes)
    problems = {
        undocumented(kind, name)
        for kind in classes.values()
        for above in kind.__mro__
        if above.__module__.startswith("galton.")
        for name in vars(above)
        if not name.startswith("_")
    }
    assert sorted(problems - {""}) == []
