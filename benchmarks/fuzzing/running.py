"""Runs cases, in this process or in a child with limits, and says what is wrong with how they end."""

from __future__ import annotations

import contextlib
import enum
import io
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import time
import traceback
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import galton
from benchmarks.fuzzing.cases import Case
from benchmarks.fuzzing.inputs import Paths, forge, make_files, place_of, restore
from benchmarks.fuzzing.public_api import VALUES, good_arguments

SECONDS = 60.0
MEMORY = 4 << 30
PATIENCE = 600.0
"""Seconds of processor time for `--method paper`, which is 300 iterations of plain sampling and says so."""
CODES = {0, 2, 3, 130}
_POLL = 0.1
_GRACE = 600.0
"""A child that starts imports JAX and makes plans: not counted."""
_SPARE = 8 << 30
"""Address space beyond the memory limit: JAX reserves some that it never touches."""


@dataclass
class Outcome:
    """What became of a case: exit code (2 for an error of galton in the API), processor time, memory, what is wrong."""

    index: int
    name: str
    call: str
    code: int | None
    seconds: float
    megabytes: float
    message: str
    violation: str = ""


def run_case(case: Case, seed: int) -> Outcome:
    """Runs a case in this process."""
    place = place_of()
    for left in place.glob("new*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    restore(place)
    forge(place, random.Random(f"{seed} {case.index} forged"))
    _reset_peak()
    start = time.process_time()
    if case.words:
        code, message, violation = _run_command(case.words, place)
        call = " ".join(case.words)
    else:
        code, message, violation, call = _run_api(case)
    seconds = time.process_time() - start
    return Outcome(case.index, case.name, call[:300], code, seconds, _peak() / 2**20, message[:300], violation)


def _run_command(words: tuple[str, ...], place: Path) -> tuple[int, str, str]:
    from galton import cli

    names = Paths(place)
    typed = [re.sub(r"\{(\w+)\}", lambda match: names[match[1]], word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    violation, code = "", -1
    with (
        mock.patch.object(sys, "argv", ["galton", *typed]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except BaseException:
            violation = traceback.format_exc()
    told = out.getvalue() + err.getvalue()
    if code not in CODES and not violation:
        violation = f"exit code {code}: {err.getvalue()}"
    elif "Traceback" in told:
        violation = "traceback printed: " + told[-500:]
    elif code in (0, 3) and re.search(r"\bnan\b", _without(out.getvalue(), typed), re.IGNORECASE):
        violation = "nan printed: " + out.getvalue()[-500:]
    elif code == 2 and (err.getvalue().count("\n") != 1 or "too large for this machine" in told):
        violation = "not one line that helps: " + err.getvalue()[:500]
    return code, err.getvalue().strip(), violation


def _without(text: str, typed: list[str]) -> str:
    """The output without the words that were typed, such as the name of a file."""
    for word in sorted(filter(None, typed), key=len, reverse=True):
        text = text.replace(word, "")
    return text


def _run_api(case: Case) -> tuple[int, str, str, str]:
    arguments = good_arguments(case.name)
    for name, index in case.changes:
        arguments[name] = VALUES[index]()
    shown = ", ".join(f"{name}={_shown(arguments[name])}" for name, _ in case.changes)
    call = f"{case.name}(.., {shown})"
    function = getattr(galton, case.name)
    positional = [arguments.pop("value")] if issubclass_of_enum(function) else []
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            result = function(*positional, **arguments)
            if callable(close := getattr(result, "close", None)):
                close()
    except galton.GaltonError as error:
        return 2, str(error), "" if "\n" not in str(error) else "more than one line", call
    except ValueError as error:
        if positional:  # an enum refuses what is not a member
            return 2, str(error), "", call
        return -1, str(error), traceback.format_exc(), call
    except BaseException as error:
        return -1, str(error), traceback.format_exc(), call
    given_nan = any(has_nan(value) for value in arguments.values())
    return 0, "", "nan in the result" if has_nan(result) and not given_nan else "", call


def issubclass_of_enum(value: Any) -> bool:
    """Whether a public name is an enum."""
    return isinstance(value, type) and issubclass(value, enum.Enum)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return f"a number of {value.bit_length()} bits"


def has_nan(value: Any, depth: int = 4) -> bool:
    """Whether a result has a NaN in it."""
    if depth == 0 or isinstance(value, str | bytes):
        return False
    if isinstance(value, float | np.floating):
        return bool(math.isnan(value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    if is_dataclass(value) and not isinstance(value, type):
        return any(has_nan(getattr(value, field.name), depth - 1) for field in fields(value))
    if isinstance(value, dict):
        return any(has_nan(part, depth - 1) for part in value.values())
    return isinstance(value, list | tuple) and any(has_nan(part, depth - 1) for part in value)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024.0 * int(match[1]) if match else 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def prepare(place: Path, certified: galton.Plan | None = None) -> None:
    """Sets up a process for `run_case`.

    Args:
      place: folder for everything that cases read and write; the working directory from now on.
      certified: a plan with a certificate; made, which takes seconds, if None.
    """
    os.environ |= {
        "GALTON_FUZZ": str(place),
        "GALTON_STATE": str(place / "ledgers"),
        "GALTON_CACHE": str(place / "cache"),
        "HOME": str(place),
        "MPLBACKEND": "Agg",
    }
    os.chdir(place)
    if not (place / "changed").exists():
        make_files(place, certified)


def _child(connection: Connection, place: Path, seed: int) -> None:
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + _SPARE, MEMORY + _SPARE))
    prepare(place)
    connection.send("ready")
    while (case := connection.recv()) is not None:
        connection.send(run_case(case, seed))


class Runner:
    """Runs cases in a child that is started anew when a case exceeds a limit."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place, self._seed = place, seed
        self._process: Any = None

    def __call__(self, case: Case) -> Outcome:
        """Returns what became of a case."""
        if self._process is None:
            self._start()
        self._connection.send(case)
        start, limit = self._processor_seconds(), PATIENCE if "paper" in " ".join(case.words) else SECONDS
        while not self._connection.poll(_POLL):
            seconds, resident = self._processor_seconds() - start, self._resident()
            violation = "time" if seconds > limit else "memory" if resident > MEMORY else ""
            if violation or not self._process.is_alive():
                return self._end(case, seconds, resident, violation or "the process died")
        try:
            outcome: Outcome = self._connection.recv()
        except EOFError:
            return self._end(case, 0.0, 0, "the process died")
        if outcome.seconds > limit:
            outcome.violation = outcome.violation or "time"
        if outcome.megabytes > MEMORY >> 20:
            outcome.violation = outcome.violation or "memory"
        return outcome

    def close(self) -> None:
        """Ends the child."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_child, args=(other, self._place, self._seed), daemon=True)
        self._process.start()
        other.close()
        if not self._connection.poll(_GRACE):
            raise TimeoutError("the child did not start")
        self._connection.recv()

    def _processor_seconds(self) -> float:
        try:
            words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _resident(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _end(self, case: Case, seconds: float, resident: int, violation: str) -> Outcome:
        self.close()
        call = " ".join(case.words) or f"{case.name}({case.changes})"
        return Outcome(case.index, case.name, call[:300], None, seconds, resident / 2**20, "killed", violation)
