"""What the README and the examples show runs: every command line, every block of code, every example."""

from __future__ import annotations

import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import galton
from galton.cli import load_commands
from galton.cli.app import app
from tests.marks import SLOW

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    (galton .*|python -m reproduction .*)$", README, re.MULTILINE)
]
PAGES = [
    *(ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "reproduction").glob("*.md")),
]
SHOWN = re.compile(r"^    (galton [^\[\n]*)$|`(galton [a-z]+ [^`]* --[^`]*)`", re.MULTILINE)
DOCUMENTED = [
    shlex.split(block or inline, comments=True)
    for page in PAGES
    for block, inline in SHOWN.findall(page.read_text())
    if "..." not in block + inline
]
"""Commands of the other pages, those that are shown in full."""
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TARGETS = re.findall(r"^    make (\S+)", README, re.MULTILINE)
LINKS = re.findall(r"\]\(([^)#]+)", README)
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "data.py")


def run(words: list[str], folder: Path) -> str:
    """Runs Python with these arguments in a folder, to a good end."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def galton_words(command: list[str]) -> list[str]:
    """A command of the README as arguments of Python."""
    return ["-c", "from galton.cli import main; main()", *command[1:]]


def test_there_is_something_to_run() -> None:
    assert {command[1] for command in COMMANDS if command[0] == "galton"} >= {"plan", "verify", "report", "audit"}
    assert len(BLOCKS) >= 2
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("command", [*COMMANDS, *DOCUMENTED], ids=" ".join)
def test_a_command_of_the_readme_is_understood(command: list[str]) -> None:
    """Every option and argument is one that the command has, of the right type."""
    if command[0] != "galton":
        assert command[:3] == ["python", "-m", "reproduction"]
        return
    load_commands()
    group: Any = typer.main.get_command(app)
    group.commands[command[1]].make_context(command[1], list(command[2:]))


def test_the_page_of_certificates_names_every_field() -> None:
    page = (ROOT / "docs" / "certificates.md").read_text().partition("## Fields")[2]
    tables = [
        {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        for table in page.split("|---|---|")[1:]
    ]
    pair = galton.dominating_pair(galton.square_root(8), 4, 3.0)
    certificate = galton.certify(pair, 1.0, 1e-2, options=galton.Options(seed=1)).to_json()
    assert tables == [set(certificate), set(certificate["by_direction"][0])]


OLD_WORDS = ("galton.baselines", "galton paper", "nominal_size", "micro_batch,", "micro_batch)")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_name_that_is_gone(page: Path) -> None:
    text = page.read_text()
    assert not [word for word in OLD_WORDS if word in text]
    names = set(re.findall(r"`(galton(?:\.\w+)+)\b", text))
    assert not [name for name in names if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" in link or (page.parent / link).exists(), link


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_of_the_readme_is_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("link", [link for link in LINKS if "://" not in link])
def test_a_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.slow
def test_the_block_that_trains_runs_as_pasted(tmp_path: Path) -> None:
    """With a shorter plan for as many examples in the folder `plan`."""
    made = galton.make_plan(4.0, 1e-5, examples=50_000, batch_size=1_000, epochs=1, strategy="sqrt")
    galton.save_plan(made, tmp_path / "plan")
    (tmp_path / "block.py").write_text(next(block for block in BLOCKS if "train(" in block))
    assert '"completed": true' in run(["block.py"], tmp_path).lower().replace("'", '"')


@SLOW
def test_the_block_that_certifies_runs_as_pasted(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(next(block for block in BLOCKS if "certify(" in block))
    assert "(1, 1e-05)-DP" in run(["block.py"], tmp_path)


@SLOW
def test_all_of_the_readme_runs_in_its_order(tmp_path: Path) -> None:
    for command in COMMANDS:
        if command[0] == "galton":
            run(galton_words(command), tmp_path)
    for number, block in enumerate(BLOCKS):
        path = tmp_path / f"block{number}.py"
        path.write_text(block)
        run([path.name], tmp_path)
    assert (tmp_path / "run" / "record.json").exists()


@SLOW
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    run([str(ROOT / "examples" / name)], tmp_path)
