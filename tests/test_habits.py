"""Habits of the command line that people expect of any: version, help, completion, pipes, progress, errors as JSON."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from galton import __version__, cli
from galton.cli import show
from galton.cli.app import SECTIONS, app
from galton.progress import counted, progress_bar
from tests.schemas import problems, schema
from tests.test_cli import COMMANDS, QUICK, SMALL, galton, read

NAMES = [name for names in SECTIONS.values() for name in names]
REQUIRED = {
    "plan": ["--examples", "--batch-size", "--epochs", "--epsilon", "--delta", "--output"],
    "delta": ["STRATEGY", "--bins", "--epochs", "--noise-multiplier", "--epsilon"],
    "verify": ["DIR"],
    "sign": ["DIR", "--key"],
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def commands() -> dict[str, Any]:
    galton("--help")
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_version_is_told() -> None:
    assert galton("--version") == (0, f"galton {__version__}\n", "")


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "galton", "verify"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "galton: Missing argument 'DIR'.\n")


@pytest.mark.parametrize("words", [[], ["plan"], ["keygen"]], ids=str)
def test_h_is_help(words: list[str]) -> None:
    short, long = galton(*words, "-h"), galton(*words, "--help")
    assert short == long
    assert short.out.startswith(" ".join(["Usage: galton", *words]))
    assert "-h, --help" in short.out


def test_the_list_of_commands_has_whole_summaries() -> None:
    told = galton("--help").out
    assert "..." not in told.replace("[ARGS]...", "")
    words = " ".join(told.split())
    for name, command in commands().items():
        assert f"{name} {' '.join(command.help.partition(chr(10) + chr(10))[0].split())}" in words


def test_every_command_stands_in_a_section() -> None:
    assert sorted(NAMES) == sorted(commands())
    told = galton("--help").out
    places = [told.index(f"\n  {name} ") for name in NAMES]
    assert places == sorted(places)


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_help_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, galton("plan", "-h").out.splitlines()))
    assert columns - 15 < longest <= columns


@pytest.mark.parametrize("name", REQUIRED)
def test_the_usage_line_shows_what_is_required(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    usage = galton(name, "-h").out.partition("\n\n")[0]
    assert re.findall(r"--[a-z-]+|\bDIR\b|\bSTRATEGY\b", usage) == REQUIRED[name]
    assert usage.endswith(" [OPTIONS]")


def test_options_that_must_be_given_say_so() -> None:
    for name, command in commands().items():
        told = " ".join(galton(name, "-h").out.split())
        for option in command.params:
            if option.required and option.param_type_name == "option":
                assert f"{' '.join(option.help.split())} [required]" in told


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("galton ver", ["verify"]),
        ("galton plan --padd", ["--padded-batch-size"]),
        ("galton plan --batching balls-in-bins-r", ["balls-in-bins-redrawn", "balls-in-bins-redrawn-streaming"]),
    ],
)
def test_a_shell_can_complete_commands_options_and_values(
    words: str, completions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bash asks for it."""
    shell = {"_GALTON_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    result = galton()
    assert (result.code, result.out.split()) == (0, completions)


def test_help_says_how_completion_is_installed() -> None:
    assert "--install-completion" in galton("--help").out


ERRORS = [
    (["delta", "sqrt", "--bins", "0", *SMALL[2:], *COMMANDS["delta"]], "--bins", "must be at least 1"),
    (["delta", "sqrt", "--bins", "x", *SMALL[2:], *COMMANDS["delta"]], "--bins", "must be a whole number"),
    (["delta", "sqrtt", *SMALL, *COMMANDS["delta"]], "STRATEGY", "must be identity"),
]


@pytest.mark.parametrize(("words", "argument", "remedy"), ERRORS, ids=["value", "type", "spec"])
def test_an_error_is_json_if_the_answer_would_be(words: list[str], argument: str, remedy: str) -> None:
    result = galton(*words, "--json")
    error = read(result)["error"]
    assert result.code == error["exit_code"] == 2
    assert (error["type"], error["argument"]) == ("InvalidArgument", argument)
    assert error["remedy"].startswith(remedy)
    assert result.err == f"galton: {error['message']}\n"
    assert galton(*words)[::2] == (2, result.err)
    assert galton(*words).out == ""


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["delta", "--json"], "MissingParameter"),
        (["nosuch", "--json"], "UsageError"),
        (["verify", "no/such/plan", "--json"], "InvalidFile"),
    ],
)
def test_other_errors_are_json_too(words: list[str], kind: str) -> None:
    error = read(galton(*words))["error"]
    assert error["exit_code"] == 2
    assert error["type"] in (kind, "NoSuchCommand", "BadParameter")  # the parser's names change between versions


def test_an_interruption_and_a_bug_are_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GALTON_DEBUG", raising=False)
    for error, code in ((KeyboardInterrupt(), 130), (ZeroDivisionError("x"), 1)):

        def fail(error: BaseException = error) -> int | None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(cli, "_main", fail)
            result = galton("delta", "--json")
        assert result.code == read(result)["error"]["exit_code"] == code


def test_tables_in_a_pipe_have_tabs_and_no_padding(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_grid("a title", ("epsilon", "delta"), [("0.5", "1e-05"), ("10", "2")])
    show.print_table("", [("time", "0.1 s")])
    assert capsys.readouterr().out == "a title\nepsilon\tdelta\n0.5\t1e-05\n10\t2\ntime\t0.1 s\n"


def test_a_long_value_stays_in_its_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table("title", [("  name", "word " * 100)])
    assert capsys.readouterr().out == "title\nname\t" + " ".join(["word"] * 100) + "\n"


def test_tables_on_a_terminal_keep_to_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show.print_table("title", [("name", "word " * 100)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert len(lines) > 9
    assert max(len(line.rstrip()) for line in lines) <= 60


def progress_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Runs a command at a terminal; returns what its progress showed."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "argv", ["galton", *words])
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_progress_says_what_goes_on_before_the_first_bar_and_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = progress_of(monkeypatch, "delta", "sqrt:2", *SMALL, *COMMANDS["delta"], *QUICK, "--bound", "kl")
    assert text.lstrip().startswith("getting ready: loading JAX")
    assert "3,000 of 3,000 samples" in text


def test_progress_says_nothing_in_a_pipe() -> None:
    assert galton("delta", "sqrt:2", *SMALL, *COMMANDS["delta"], *QUICK).err == ""


TELLING = re.compile(r"""(?:progress|\.tell)\(\s*f?"([^"]+)\"""")
RENAMED = ("{mechanism.name} at epsilon {epsilon:g}", "done")
"""Those of a comparison, which the command shows as notes on `comparing`."""


def test_all_work_has_its_unit() -> None:
    """Whatever the package tells of its progress, the bar knows what it counts."""
    package = Path(cli.__file__).parents[1]
    told = {what for path in sorted(package.rglob("*.py")) for what in TELLING.findall(path.read_text())}
    assert {"calibrating", "points of the curve", *RENAMED} < told
    for what in told - set(RENAMED):
        assert counted(what, 1, 2) not in ("1", "1 of 2"), what


def test_a_bar_replaces_the_line_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar() as progress:
        progress("trials with canaries", 10, 40)
        terminal.truncate(0)
        progress("trials with canaries | half", 20, 40)
    text = terminal.getvalue()
    assert "20 of 40 trials" in text
    assert "getting ready" not in text


def test_the_shape_of_an_error_is_as_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "environment.md").read_text()
    block = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert block is not None
    documented = json.loads(block[1])
    assert problems(documented, schema("error")) == []
    told = json.loads(galton("delta", "sqrt", "--bins", "0", *SMALL[2:], *COMMANDS["delta"], "--json").out)
    assert told == documented
    error = json.loads(galton("delta", "--json").out)
    assert set(error) == {"error"}
    assert set(error["error"]) == {"type", "message", "exit_code"}
