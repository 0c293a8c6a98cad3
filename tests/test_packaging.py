"""What is shipped: a source distribution with all of the checkout, links that work, versions that go together."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from galton.errors import GaltonError
from galton.plots import check_plot_path, pyplot

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = [Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines()]
MAKEFILE = (ROOT / "Makefile").read_text()


def requirements() -> list[Requirement]:
    """What the package and its extras ask for, without galton itself."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    wanted = [Requirement(line) for line in [*PROJECT["dependencies"], *extras]]
    return [requirement for requirement in wanted if requirement.name != "galton"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("requirement", sorted(set(map(str, requirements()))))
def test_the_lock_has_a_version_of_every_package_within_its_range(requirement: str) -> None:
    wanted = Requirement(requirement)
    locked = [line for line in LOCK if canonical(line.name) == canonical(wanted.name)]
    assert locked
    for line in locked:
        (version,) = [clause.version for clause in line.specifier]
        assert str(line.specifier).startswith("==")
        assert wanted.specifier.contains(version)


@pytest.mark.parametrize("requirement", sorted(set(map(str, requirements()))))
def test_every_range_begins_at_a_version_that_works(requirement: str) -> None:
    """Stubs alone may be of any version: they are not imported."""
    wanted = Requirement(requirement)
    assert {clause.operator for clause in wanted.specifier} == ({">="} if wanted.name != "scipy-stubs" else set())


def test_the_version_of_torch_is_said_in_one_place() -> None:
    (said,) = re.findall(r"^TORCH := (\S+)$", MAKEFILE, re.MULTILINE)
    (locked,) = [line for line in LOCK if line.name == "torch"]
    assert str(locked.specifier) == f"=={said}"
    assert MAKEFILE.count(said) == 1
    assert said not in (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / ".ci" / "run").read_text()


def test_the_lock_names_no_place_and_nothing_for_gpus() -> None:
    assert not [line for line in LOCK if line.url or re.match("nvidia|cuda|triton", line.name)]


README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?!\w+:|#)[^)]+\)")
DESCRIPTION = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["description"]


@pytest.mark.parametrize("source", [None, "https://code.example/galton"])
def test_the_readme_on_pypi_has_no_link_into_a_checkout(source: str | None) -> None:
    assert RELATIVE.search(README)
    text = DESCRIPTION(README, source)
    assert not RELATIVE.search(text)
    assert "docs/plans.md" in text
    assert ("no public repository yet" in text[:800]) == (source is None), "says where the files named are"


def test_links_of_the_readme_on_pypi_lead_into_the_repository() -> None:
    words = "See [plans](docs/plans.md), [this](#start), [the paper](https://paper.example)![, a plot](docs/plot.png)."
    assert DESCRIPTION(words, "https://code.example/galton/") == (
        "See [plans](https://code.example/galton/blob/main/docs/plans.md), [this](#start), "
        "[the paper](https://paper.example)![, a plot](https://code.example/galton/raw/main/docs/plot.png)."
    )
    assert DESCRIPTION(words, None).startswith(
        "See plans (`docs/plans.md`), [this](#start), [the paper](https://paper.example).\n\n"
    )


def test_the_source_distribution_holds_the_whole_checkout(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not in a checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    words = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packed = set((tmp_path / "galton.egg-info" / "SOURCES.txt").read_text().splitlines())
    assert sorted(tracked - packed) == []
    assert not [name for name in packed if name.endswith((".pyc", ".sig")) or name.startswith((".venv", "build/"))]


def test_citation_and_package_tell_the_same() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    (paper,) = set(re.findall(r"arxiv.org/abs/(\S+)", citation))
    assert f"arxiv.org/abs/{paper}" in PROJECT["urls"]["Paper"]
    assert f"eprint = {{{paper}}}" in README
    title = "Near Exact Privacy Amplification for Matrix Mechanisms"
    assert title in citation
    assert title in re.sub(r"[{}]", "", README.partition("@inproceedings")[2])


@pytest.mark.parametrize(("name", "package"), [("jax", "optax"), ("torch", "torch"), ("opacus", "opacus")])
def test_an_adapter_without_its_framework_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"galton.training.{name}"
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=f"{module} needs the package {package}: pip install 'galton.{name}.'"):
        import_module(module)


def test_ci_checks_package_and_documentation_too() -> None:
    called = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    recipes = dict(re.findall(r"^(\w+):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))
    assert called == ["lint", "docs", "package", "test"]
    assert set(called) <= set(recipes)
    assert "twine check --strict" in recipes["package"]
    assert "pip check" in recipes["package"]


def test_pythons_that_are_named_are_those_that_were_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    tried = re.findall(r"\b3\.\d+(?=\.\d| |\.)", (ROOT / "CONTRIBUTING.md").read_text().partition("All tests run")[2])
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    assert set(named) <= set(tried)
    assert f"Python {named[0]} to {named[-1]}" in (ROOT / "docs" / "start.md").read_text()
    assert set(named) == set(re.findall(r"python(3\.\d+)", re.findall(r"^PYTHONS .*$", MAKEFILE, re.MULTILINE)[0]))


def test_a_plot_without_matplotlib_says_what_to_install_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for refused in (lambda: check_plot_path(tmp_path / "plot.png"), pyplot):
        with pytest.raises(GaltonError, match=r"plot: needs matplotlib: pip install 'galton\[plot\]'"):
            refused()
