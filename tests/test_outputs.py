"""What a command writes is checked before its work, and not lost after it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from galton import files, load_plan, load_strategy
from galton.errors import InvalidFile
from tests.marks import slow_after
from tests.test_cli import Result, galton

MECHANISM = ("--bins", "4", "--epochs", "2")
COMMANDS: dict[str, tuple[str, ...]] = {
    "certify": ("certify", "sqrt", *MECHANISM, "-s", "3", "--epsilon", "1", "--delta", "1e-2", "--seed", "1", "-o"),
    "optimize": (
        *("optimize", "blt:1", *MECHANISM, "--epsilon", "2", "--delta", "1e-2", "--seed", "1"),
        *("--samples", "256", "--iterations", "2", "-o"),
    ),
    "plan": (
        *("plan", "--examples", "40", "--batch-size", "10", "--epochs", "2", "--epsilon", "2", "--delta", "1e-2"),
        *("--strategy", "sqrt", "--batching", "balls-in-bins", "--seed", "1", "-o"),
    ),
    "compare": (
        *("compare", *MECHANISM, "--epsilon", "2", "--delta", "1e-2", "--mechanisms", "dpsgd-unamplified"),
        *("--baseline", "dpsgd-unamplified", "--plot"),
    ),
}
NAMES = {"certify": "c.json", "optimize": "c.json", "plan": "plan", "compare": "c.png"}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "state"


def run(name: str, target: Path) -> Result:
    return galton(*COMMANDS[name], str(target))


# Before the work.


def untouched(*_: Any, **__: Any) -> Any:
    raise AssertionError("the work began")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("place", ["/proc/galton", "file/below", "link", "x" * 300])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in ("galton.accounting.certify", "galton.optimization.optimize", "galton.plan.make_plan"):
        monkeypatch.setattr(work, untouched)
    monkeypatch.setattr("galton.comparison.compare", untouched)
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    ending = Path(NAMES[name]).suffix
    link = tmp_path / f"link{ending}"
    link.symlink_to(tmp_path / "elsewhere" / "target")
    target = tmp_path / f"{place}{ending}" if not place.startswith("/") else Path(f"{place}{ending}")
    before = sorted(os.listdir(tmp_path))
    result = run(name, target)
    assert result.code == 2
    assert "work began" not in result.err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    files.check_target(tmp_path / "new" / "a.json")
    assert not list(tmp_path.iterdir())
    near = tmp_path / "near.json"
    near.symlink_to(tmp_path / "a.json")
    files.check_target(near)  # a link within its folder stays a link when it is written
    with pytest.raises(InvalidFile, match="cannot be written"):
        files.check_target(Path("/proc/1/galton.json"))


# After the work.


def breaking(monkeypatch: pytest.MonkeyPatch, where: str, target: Path) -> None:
    """Makes the target's folder a file while the work is under way."""
    module, name = where.rsplit(".", 1)
    work: Callable[..., Any] = getattr(__import__(module, fromlist=[name]), name)

    def then_break(*args: Any, **kwargs: Any) -> Any:
        result = work(*args, **kwargs)
        target.parent.rmdir()
        target.parent.write_text("in the way")
        return result

    monkeypatch.setattr(where, then_break)


WORK = {
    "certify": "galton.accounting.certify",
    "optimize": "galton.optimization.optimize",
    "plan": "galton.plan.make_plan",
    "compare": "galton.comparison.compare",
}


@pytest.mark.parametrize("name", slow_after(2, ("certify", "compare", "optimize", "plan")))
def test_a_result_that_cannot_be_written_is_kept(
    name: str, tmp_path: Path, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "folder" / NAMES[name]
    target.parent.mkdir()
    breaking(monkeypatch, WORK[name], target)
    result = run(name, target)
    assert result.code == (0 if name == "certify" else 2), result.err  # a verdict keeps its exit code
    (kept,) = (own_state / "kept").glob(f"*/{NAMES[name]}")
    assert str(kept) in result.err
    if name == "certify":
        assert json.loads(kept.read_text())["accepted"]
        assert "ACCEPTED" in result.out
    elif name == "optimize":
        assert load_strategy(kept).rounds == 8
    elif name == "plan":
        assert load_plan(kept).epochs == 2
    else:
        assert kept.stat().st_size > 1000


def test_a_rejection_keeps_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "c.json"
    target.parent.mkdir()
    breaking(monkeypatch, "galton.accounting.certify", target)
    arguments = list(COMMANDS["certify"])
    arguments[arguments.index("-s") + 1] = "0.3"
    result = galton(*arguments, str(target))
    assert result.code == 3
    assert "REJECTED" in result.out


def test_what_can_be_kept_nowhere_is_at_least_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "c.json"
    target.parent.mkdir()
    breaking(monkeypatch, "galton.accounting.certify", target)
    monkeypatch.setattr("galton.cli.outputs._elsewhere", lambda: (Path("/proc/a"), Path("/proc/b")))
    result = run("certify", target)
    assert result.code == 0
    assert "only on the screen" in result.err
    assert "ACCEPTED" in result.out
