"""Compiled programs: kept where only this user can write, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from jax import monitoring

import galton
from galton import Guarantee, Options, dominating_pair, programs, square_root
from galton.accounting import calibration
from galton.programs import compile_quickly, keep_programs
from galton.sampling.base import placed, wide_jax
from tests.marks import SLOW, slow_after

VARIABLE = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had chosen a folder yet; what a test chooses is forgotten after it."""
    for name in (VARIABLE, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"):
        monkeypatch.setenv(name, "-")
        monkeypatch.delenv(name)


SCRIPT = """
import sys; from pathlib import Path; from galton.programs import keep_programs
keep_programs(Path(sys.argv[1]))
import jax, jax.numpy as jnp, jax.monitoring as monitoring
hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
print(float(jax.jit(lambda x: jnp.sin(x) + 2)(1.0)), len(hits))
"""


def compile_in(folder: Path) -> tuple[float, int]:
    """Runs a small program in a process of its own, and tells its result and how many programs it did not compile."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)]
    value, hits = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(value), int(hits)


def test_a_second_process_has_what_the_first_compiled(tmp_path: Path) -> None:
    value, hits = compile_in(tmp_path)
    assert hits == 0
    again, hits = compile_in(tmp_path)
    assert again == value
    assert hits > 0


@pytest.mark.parametrize("share", slow_after(1, [0.5, 0.0, 0.99]))
def test_a_program_that_was_cut_is_compiled_again(tmp_path: Path, share: float) -> None:
    value, _ = compile_in(tmp_path)
    for entry in tmp_path.glob("*/*"):
        content = entry.read_bytes()
        entry.write_bytes(content[: int(share * len(content))])
    assert compile_in(tmp_path) == (value, 0)


def test_a_choice_of_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere/else")
    keep_programs(tmp_path)
    assert os.environ[VARIABLE] == "/somewhere/else"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    keep_programs(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ.pop(VARIABLE) == str(folder)
    folder.chmod(mode)
    keep_programs(tmp_path)
    assert VARIABLE not in os.environ


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    keep_programs(tmp_path)
    assert VARIABLE not in os.environ


def test_a_folder_that_cannot_be_made_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    keep_programs(tmp_path / "file")
    assert VARIABLE not in os.environ


def test_the_oldest_programs_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_MOST_BYTES", 400)
    keep_programs(tmp_path)
    (folder,) = tmp_path.iterdir()
    for age in range(5):
        entry = folder / f"program-{age}"
        entry.write_bytes(bytes(100))
        os.utime(entry, (1000 - age, 1000 - age))
    monkeypatch.delenv(VARIABLE)
    keep_programs(tmp_path)
    assert sorted(entry.name for entry in folder.iterdir()) == ["program-0", "program-1"]


@SLOW
def test_commands_keep_their_programs_in_galtons_cache(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", "from galton.cli import main; main()", "calibrate", "sqrt:2", "--bins", "2"]
    subprocess.run(
        [*command, "--epochs", "1", "--epsilon", "4", "--delta", "1e-2"],
        env=environment | {"GALTON_CACHE": str(tmp_path), "GALTON_STATE": str(tmp_path / "state")},
        capture_output=True,
        check=True,
    )
    assert list((tmp_path / "programs").glob("*/*-cache"))


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """What JAX compiles, as long as the test runs."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **more: str | int) -> None:
        if "backend_compile" in event:
            seen.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    yield seen
    monitoring.unregister_event_duration_listener(listen)


def test_arrays_are_placed_without_a_program(compilations: list[str]) -> None:
    values = np.random.default_rng(1).normal(size=(3, 11))
    with wide_jax():
        array = placed(values)
        single = placed(values, "float32")
    assert np.array_equal(np.asarray(array), values)
    assert array.dtype == "float64"
    assert np.array_equal(np.asarray(single), values.astype(np.float32))
    assert compilations == []


def test_checks_find_their_programs_compiled(compilations: list[str]) -> None:
    """They are compiled beside the fit: 19 modes are a shape that no other test has."""
    pair, guarantee, options = dominating_pair(square_root(38), 19), Guarantee(1.0, 1e-3), Options(seed=1)
    calibration._compile_ahead(pair, guarantee, options, 1, 2.0)
    assert len(compilations) >= 2
    compilations.clear()
    galton.delta(pair.at(2.0), 1.0, options=options)
    assert compilations == []


def test_slow_chunks_are_not_drawn_ahead(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_QUICK_WORK", 17**2 - 1)
    calibration._compile_ahead(dominating_pair(square_root(34), 17), Guarantee(1.0, 1e-3), Options(seed=1), 1, 2.0)
    assert compilations == []


def test_compiles_quickly_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    compile_quickly()
    assert os.environ["XLA_FLAGS"] == "--xla_of_the_user=1"
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(programs, "version", lambda _: "999.0")  # may not know the option, which would end the process
    compile_quickly()
    assert "XLA_FLAGS" not in os.environ
    monkeypatch.setattr(programs, "version", version)
    compile_quickly()
    if version("jaxlib").startswith("0.10."):
        assert "fusion_emitters=false" in os.environ["XLA_FLAGS"]
