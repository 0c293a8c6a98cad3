from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galton import accounting, cli
from galton.accountants import ACCOUNTANTS
from galton.accounting import Certificate, Options
from galton.accounting.options import SEQUENCE
from galton.audit import audit
from galton.batching import PLANNED
from galton.bounds import BOUNDS
from galton.cli.app import app
from galton.cli.optimization import AMPLIFIED, WITHOUT_AMPLIFICATION
from galton.cli.options import listed
from galton.comparison import compare
from galton.gaussian import gaussian_epsilon, gaussian_mu
from galton.guarantee import Adjacency
from galton.optimization import optimize
from galton.optimization.amplified import METHODS
from galton.optimization.noise_level import ESTIMATORS
from galton.optimization.participation import PARTICIPATIONS as WAYS
from galton.optimization.problem import OBJECTIVES
from galton.optimization.unamplified import PARTICIPATIONS
from galton.plan import make_plan
from galton.plots import FORMATS
from galton.sampling.choice import SAMPLERS
from galton.strategies import Blt, Dense, Scaled, Toeplitz, save_strategy, square_root
from tests import schemas
from tests.marks import SLOW, slow_after
from tests.truth import gaussian

SMALL = ["--bins", "4", "--epochs", "3"]
QUICK = ["--samples", "3000", "--seed", "1"]
COMMANDS: dict[str, list[str]] = {
    "delta": ["--noise-multiplier", "1.5", "--epsilon", "1"],
    "epsilon": ["--noise-multiplier", "1.5", "--delta", "1e-3"],
    "profile": ["--noise-multiplier", "1.5", "--points", "3"],
    "calibrate": ["--epsilon", "1", "--delta", "1e-2", "--tau", "1.5"],
    "certify": ["--noise-multiplier", "3", "--epsilon", "1", "--delta", "1e-2"],
}


class Result(NamedTuple):
    code: int
    out: str
    err: str


def galton(*words: str) -> Result:
    """Runs the command line; what --json prints has to keep to its schema, in whatever test."""
    result = run(cli.main, "galton", *words)
    if "--json" in words and result.code in (0, 2, 3):
        answer = json.loads(result.out)
        schemas.check(answer, "error" if "error" in answer else words[0])
    return result


def run(main: Callable[[], Any], *words: str) -> Result:
    """Runs a command line with these words as its arguments, the program first."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", list(words)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as exit_,
    ):
        main()
    return Result(int(exit_.value.code or 0), out.getvalue(), err.getvalue())


def no_nan(name: str) -> float:
    raise AssertionError(f"{name} in the output")


def read(result: Result) -> dict[str, Any]:
    assert result.out.count("\n") == 1
    answer: dict[str, Any] = json.loads(result.out, parse_constant=no_nan)
    return answer


# What commands print


def test_delta_of_one_bin() -> None:
    result = galton(
        "delta", "sqrt", "--bins", "1", "--epochs", "3", "-s", "2", "--epsilon", "1", "--json", "--seed", "1"
    )
    answer = read(result)
    assert result.code == 0
    assert answer["lower"] <= gaussian(1.0, 0.5) <= answer["upper"]
    wanted = {"delta", "lower", "upper", "confidence", "samples", "sampler", "range", "by_direction", "seconds"}
    assert wanted <= set(answer)


def test_epsilon_of_one_bin() -> None:
    answer = read(
        galton("epsilon", "sqrt", "-b", "1", "-e", "3", "-s", "2", "--delta", "1e-5", "--json", "--seed", "1")
    )
    assert answer["lower"] <= gaussian_epsilon(1e-5, 0.5) <= answer["upper"]
    assert {"epsilon", "lower", "upper", "confidence", "samples"} <= set(answer)


def test_profile_holds_the_curve() -> None:
    words = ["profile", "sqrt", *SMALL, "-s", "1.5", "--epsilons", "0.5,1,2", "--json", *QUICK]
    curve = read(galton(*words))
    assert curve["epsilons"] == [0.0, 0.5, 1.0, 2.0]
    assert sorted(curve["uppers"], reverse=True) == curve["uppers"]
    assert {"deltas", "advantage", "false_positive_rates", "false_negative_rates"} <= set(curve)


def test_calibrate_tells_both_conventions_and_the_error() -> None:
    answer = read(galton("calibrate", "identity", "-b", "1", "-e", "9", "--epsilon", "1", "--delta", "1e-5", "--json"))
    multiplier = 1 / gaussian_mu(1.0, 1e-5 / 1.05)
    assert answer["noise_multiplier"] == pytest.approx(multiplier, rel=5e-3)
    assert answer["noise_multiplier_per_participation"] == pytest.approx(3 * answer["noise_multiplier"])
    assert answer["sigma"] == pytest.approx(3 * answer["noise_multiplier"])
    assert answer["rmse"] == pytest.approx(answer["sigma"] * np.sqrt(5))  # prefix sums of 1..9 noises: mean variance 5


@pytest.mark.parametrize("multiplier", ["3", "0.5"])
def test_certify_ends_with_0_or_3_and_writes_the_certificate(multiplier: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    words = ["certify", "sqrt", *SMALL, "-s", multiplier, "--epsilon", "1", "--delta", "1e-2", "-o", str(path)]
    result = galton(*words, "--json")
    certificate = read(result)
    assert result.code == (0 if multiplier == "3" else 3)
    assert certificate["accepted"] == (result.code == 0)
    written = Certificate.from_json(json.loads(path.read_text()))
    assert written.to_json() == json.loads(path.read_text())
    assert (written.accepted, written.strategy) == (certificate["accepted"], certificate["strategy_hash"])
    wanted = {"accepted", "delta_upper", "failure_probability", "samples", "attempts", "seed", "seconds", "strategy"}
    assert wanted <= set(certificate)
    assert certificate["strategy"] == "sqrt"
    again = read(galton(*words, "--json"))
    assert again["attempts"] == (1 if result.code == 0 else 2)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_people_get_a_table_and_nothing_on_stderr(command: str) -> None:
    result = galton(command, "sqrt:2", *SMALL, *COMMANDS[command], *QUICK)
    assert result.code == 0
    assert "4 batches" in result.out
    assert result.err == ""


@pytest.mark.parametrize("command", slow_after(1, COMMANDS))
def test_redrawn_bins_are_accounted_for_and_named(command: str) -> None:
    redrawn = ["--participation", "redrawn"]
    answer = read(galton(command, "sqrt:2", *SMALL, *COMMANDS[command], *QUICK, *redrawn, "--json"))
    assert answer["participation"] == "redrawn"
    assert read(galton(command, "sqrt:2", *SMALL, *COMMANDS[command], *QUICK, "--json"))["participation"] == "bins"
    table = galton(command, "sqrt:2", *SMALL, *COMMANDS[command], *QUICK, *redrawn).out
    assert "3 epochs of 4 batches, participation redrawn" in " ".join(table.split())


@SLOW
def test_calibrate_and_optimize_tell_the_error_of_redrawn_bins() -> None:
    words = [*SMALL, *COMMANDS["calibrate"], "--participation", "redrawn", "--seed", "1", "--json"]
    square = read(galton("calibrate", "sqrt:2", *words))
    best = read(galton("optimize", "toeplitz:2", *words, "--samples", "256", "--iterations", "4"))
    assert best["participation"] == "redrawn"
    assert 0.9 * square["rmse"] < best["rmse"] < 1.02 * square["rmse"]


def test_help_needs_neither_jax_nor_scipy() -> None:
    code = (
        "import sys; from galton import cli; sys.argv = ['galton', '--help']\n"
        "try: cli.main()\n"
        "except SystemExit as e: assert not e.code\n"
        "assert not {'jax', 'scipy', 'numpy.random', 'matplotlib'} & set(sys.modules), 'too much imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


def test_importing_galton_changes_nothing_and_needs_no_optional_package() -> None:
    code = """
import sys, threading, random, numpy
import jax
before = (jax.config.jax_enable_x64, random.getstate(), str(numpy.random.get_state()), threading.active_count())
import galton
for name in galton.__all__:
    getattr(galton, name)
after = (jax.config.jax_enable_x64, random.getstate(), str(numpy.random.get_state()), threading.active_count())
assert before == after
pair = galton.dominating_pair(galton.square_root(8), 4)
galton.delta(pair, 1.0, options=galton.Options(samples=100))
assert jax.config.jax_enable_x64 is False
assert jax.numpy.ones(1).dtype == "float32"
optional = {"torch", "opacus", "dask", "matplotlib", "dp_accounting", "PLD_accounting", "jax_privacy", "optax"}
assert not optional & set(sys.modules), optional & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


INTERRUPTED = """
import functools, pkgutil, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs tests in the background has it ignored
owner, _, name = sys.argv.pop(1).rpartition(".")
owner = pkgutil.resolve_name(owner)
original = getattr(owner, name)

@functools.wraps(original)
def reached(*words, **more):
    setattr(owner, name, original)
    print("reached", flush=True)
    return original(*words, **more)

setattr(owner, name, reached)
from galton import cli
cli.main()
"""


def interrupted_in(function: str, words: list[str], state: Path) -> tuple[int, str, str]:
    """Presses Ctrl-C once a command has come to a function; returns exit code, stderr and stdout."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, function, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GALTON_STATE": str(state)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reached\n"  # the end of its output if it never comes there
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    return process.returncode, err, out


def test_ctrl_c_ends_cleanly(tmp_path: Path) -> None:
    words = [
        "delta",
        "sqrt:8",
        "-b",
        "64",
        "-e",
        "4",
        "-s",
        "1",
        "--epsilon",
        "1",
        "--bound",
        "kl",
        "--samples",
        "100000000",
    ]
    code, err, _ = interrupted_in("galton.sampling.base.Sampler.values", words, tmp_path)
    assert (code, err) == (130, "galton: interrupted\n")


# Files as strategies


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    random = np.random.default_rng(0)
    dense = np.tril(random.uniform(0.1, 1, (12, 12)))
    np.save(folder / "column.npy", [1.0, 0.5, 0.25])
    np.save(folder / "dense.npy", dense)
    np.save(folder / "float32.npy", dense.astype(np.float32))
    save_strategy(Scaled(Blt(12, [0.9, 0.5], [0.2, 0.1]), random.uniform(0.5, 2, 12)), folder / "scaled.json")
    np.save(folder / "negative.npy", [1.0, -0.5])
    save_strategy(Toeplitz(12, [1.0, -0.5], allow_negative=True), folder / "negative.json")
    np.save(folder / "upper.npy", dense.T)
    np.save(folder / "nan.npy", [1.0, np.nan])
    np.save(folder / "inf.npy", np.where(dense > 0, np.inf, 0.0))
    np.save(folder / "zero-diagonal.npy", dense * (1 - np.eye(12)))
    np.save(folder / "zero-first.npy", [0.0, 1.0])
    np.save(folder / "too-long.npy", np.ones(13))
    np.save(folder / "too-large.npy", np.eye(13))
    np.save(folder / "oblong.npy", np.ones((12, 3)))
    np.save(folder / "three.npy", np.ones((2, 2, 2)))
    np.save(folder / "complex.npy", np.ones(3, complex))
    np.save(folder / "text.npy", np.array(["a"]))
    np.save(folder / "empty.npy", np.ones(0))
    np.save(folder / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(folder / "subnormal.npy", dense * 1e-160)
    (folder / "truncated.npy").write_bytes((folder / "dense.npy").read_bytes()[:200])
    (folder / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((")
    (folder / "garbage.npy").write_bytes(b"PK\x03\x04garbage")
    (folder / "garbage.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    (folder / "other.json").write_text('{"format": "something else"}')
    text = (folder / "scaled.json").read_text()
    (folder / "tampered.json").write_text(text.replace("0.9", "0.91", 1))
    (folder / "infinite.json").write_text(text.replace("0.9", "1e999", 1))
    (folder / "folder.json").mkdir()
    return folder


GOOD = ["column.npy", "dense.npy", "float32.npy", "scaled.json"]
BAD = {
    "negative.npy": "--allow-negative",
    "negative.json": "--allow-negative",
    "upper.npy": "lower-triangular",
    "nan.npy": "must be finite",
    "inf.npy": "must be finite",
    "zero-diagonal.npy": "the diagonal must be positive",
    "zero-first.npy": "the diagonal must be positive",
    "too-long.npy": "at most one per round, 12",
    "too-large.npy": "13 rounds, not for the 12",
    "oblong.npy": "must be square",
    "three.npy": "one or two axes",
    "complex.npy": "real array",
    "text.npy": "real array",
    "empty.npy": "must not be empty",
    "object.npy": "is not a .npy file of numbers",
    "subnormal.npy": "too large or too small",
    "truncated.npy": "is not a .npy file of numbers",
    "header.npy": "is not a .npy file of numbers",
    "garbage.npy": "is not a .npy file of numbers",
    "garbage.json": "is not valid JSON",
    "list.json": "must hold a JSON object",
    "other.json": "is not a strategy file",
    "tampered.json": "was changed after it was written",
    "infinite.json": "is not valid JSON",
    "folder.json": "cannot be read",
    "absent.json": "cannot be read",
    "absent.npy": "cannot be read",
}


def delta_of(folder: Path, name: str, *words: str) -> Result:
    return galton("delta", str(folder / name), *SMALL, *COMMANDS["delta"], *QUICK, "--json", *words)


@pytest.mark.parametrize("name", GOOD)
def test_strategies_from_files(strategies: Path, name: str) -> None:
    result = delta_of(strategies, name)
    assert result.code == 0, result.err
    assert 0 < read(result)["delta"] < 1


@pytest.mark.parametrize("name", BAD)
def test_bad_strategy_files_get_one_line_and_exit_code_2(strategies: Path, name: str) -> None:
    result = delta_of(strategies, name)
    assert result.code == 2
    assert read(result)["error"]["type"] in ("InvalidFile", "InvalidArgument")
    assert result.err.count("\n") == 1
    assert BAD[name] in result.err


@pytest.mark.parametrize("name", ["negative.npy", "negative.json"])
def test_negative_entries_are_accepted_on_request_with_a_warning(strategies: Path, name: str) -> None:
    result = delta_of(strategies, name, "--allow-negative")
    assert result.code == 0
    assert "looser" in result.err
    np.save(strategies / "absolute.npy", [1.0, 0.5])
    assert read(result)["delta"] == read(delta_of(strategies, "absolute.npy"))["delta"]


def test_a_partial_last_epoch() -> None:
    words = ["delta", "sqrt", "--bins", "4", "--epochs", "3", *COMMANDS["delta"], *QUICK, "--json"]
    assert read(galton(*words, "--rounds", "10"))["rounds"] == 10
    assert galton(*words, "--rounds", "8").code == 2


# Bad input: tests/test_cli_errors.py goes through the options


def test_a_failed_command_leaves_files_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text("precious")
    assert galton("certify", "sqrt", *SMALL, "-s", "0", "--epsilon", "1", "--delta", "0.1", "-o", str(path)).code == 2
    assert path.read_text() == "precious"
    assert galton("certify", "sqrt", *SMALL, *COMMANDS["certify"], "-o", str(tmp_path)).code == 2


number = st.one_of(
    st.sampled_from(
        ["0", "-1", "nan", "inf", "1e308", "1e-308", "x", "", "1e5", "0.5", "1", "2", "1e-9", "500", "3.7"]
    ),
    st.floats(1e-3, 1e3).map(str),
)
whole = st.sampled_from(["0", "-1", "1", "2", "3", "4", "5", "x", "", "1.5", "99999999999999999999", "7"])
garbage = st.fixed_dictionaries(
    {"--bins": st.sampled_from(["1", "2", "3", "0", "x"]), "--epochs": st.sampled_from(["1", "2", "-1"])},
    optional={
        "--rounds": whole,
        "--seed": whole,
        "--workers": st.sampled_from(["1", "0", "x"]),
        "--merge": whole,
        "--adjacency": st.sampled_from(["add", "remove", "replace", "", "x"]),
        "--sampler": st.sampled_from(["plain", "tilted", "x"]),
        "--confidence": number,
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(list(COMMANDS)),
    st.sampled_from(["identity", "sqrt", "sqrt:2", "tree", "x", "", "sqrt:", ".npy", "[red]a[/blue].npy", "\0.json"]),
    garbage,
    st.lists(number, min_size=3, max_size=3),
)
def test_garbage_never_ends_in_a_traceback_or_nan(
    command: str, spec: str, options: dict[str, str], numbers: list[str]
) -> None:
    words = [command, spec, "--json", "--samples", "500"]
    wanted = {
        "delta": ("--noise-multiplier", "--epsilon"),
        "epsilon": ("--noise-multiplier", "--delta"),
        "profile": ("--noise-multiplier", "--epsilons"),
        "calibrate": ("--epsilon", "--delta", "--tau"),
        "certify": ("--noise-multiplier", "--epsilon", "--delta"),
    }[command]
    if command in ("calibrate", "certify"):
        options = {key: value for key, value in options.items() if key != "--confidence" or command == "calibrate"}
    for name, value in [*options.items(), *zip(wanted, numbers, strict=False)]:
        words += [name, value]
    result = galton(*words)
    assert result.code in (0, 2, 3), result.err
    assert "Traceback" not in result.err
    answer = read(result)
    assert ("error" in answer) == (result.code == 2)
    if result.code == 2:
        assert result.err == f"galton: {answer['error']['message']}\n"


def test_square_root_is_what_the_spec_says(tmp_path: Path) -> None:
    """The same mechanism by name, as a Toeplitz column and as a dense matrix has the same pair up to rounding."""
    np.save(tmp_path / "column.npy", square_root(12, 5).coefficients)
    np.save(tmp_path / "dense.npy", Dense(square_root(12, 5).matrix()).entries)
    deltas = [
        read(galton("delta", spec, *SMALL, *COMMANDS["delta"], *QUICK, "--json"))["delta"]
        for spec in ("sqrt:5", str(tmp_path / "column.npy"), str(tmp_path / "dense.npy"))
    ]
    assert deltas[0] == deltas[1] == pytest.approx(deltas[2], rel=1e-4)


SHORT_PLAN = ["plan", "--epochs", "1", "--epsilon", "4", "--delta", "1e-3", "--seed", "1"]


@SLOW
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_plan_of_few_rounds_has_fewer_buffers_by_default(rounds: int, tmp_path: Path) -> None:
    words = ["--examples", "60", "--batch-size", str(60 / rounds), "--output", str(tmp_path / "plan")]
    result = galton(*SHORT_PLAN, *words, "--json")
    assert result.code == 0, result.err
    assert read(result)["strategy"] == f"blt:{rounds}+scale"


@SLOW
def test_a_plan_says_which_batch_size_it_uses(tmp_path: Path) -> None:
    words = [*SHORT_PLAN, "--examples", "2000", "--strategy", "sqrt:2"]
    rounded = galton(*words, "--batch-size", "300", "--output", str(tmp_path / "rounded"))
    assert "285.714 on average, not 300: 2000 examples make 7 batches per epoch" in " ".join(rounded.out.split())
    whole = galton(*words, "--batch-size", "250", "--output", str(tmp_path / "whole"))
    assert whole.code == 0
    assert "on average" not in whole.out


def test_a_plan_says_that_the_examples_do_not_fill_its_batches(tmp_path: Path) -> None:
    words = [*SHORT_PLAN, "--batching", "fixed-order", "--adjacency", "replace", "--strategy", "identity"]
    for examples, note in ((2000, "285.714 on average: 2000 examples make 7 batches per epoch"), (2002, "")):
        size = ["--examples", str(examples), "--batch-size", str(examples / 7)]
        result = galton(*words, *size, "--output", str(tmp_path / str(examples)))
        assert result.code == 0, result.err
        assert note in " ".join(result.out.split())
        assert ("on average" in result.out) == bool(note)


def parameters(command: str) -> dict[str, Any]:
    """The options and arguments of a command, by their names in Python."""
    galton("--help")  # imports the commands
    group: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in group.commands[command].params}


ALLOWED = {
    ("plan", "batching"): tuple(PLANNED),
    ("plan", "adjacency"): Adjacency.names(),
    ("delta", "bound"): (SEQUENCE, *BOUNDS),
    ("optimize", "objective"): OBJECTIVES,
    ("optimize", "method"): METHODS,
    ("optimize", "estimator"): ESTIMATORS,
    ("optimize", "participation"): (*AMPLIFIED, "min-separation:S", *PARTICIPATIONS),
    **{
        (command, "participation"): (*WAYS, "min-separation:S")
        for command in ("delta", "epsilon", "profile", "calibrate", "certify")
    },
    ("optimize", "plot"): FORMATS,
}


def test_the_ways_to_take_part_under_amplification_are_those_of_python() -> None:
    assert tuple(WAYS) == AMPLIFIED
    assert tuple(PARTICIPATIONS) == WITHOUT_AMPLIFICATION


@pytest.mark.parametrize(("command", "option"), ALLOWED)
def test_help_lists_the_values_that_are_allowed(command: str, option: str) -> None:
    assert listed(ALLOWED[command, option]) in parameters(command)[option].help


def test_what_help_does_not_list_the_error_does() -> None:
    error = galton(
        "plan",
        "-n",
        "64",
        "--batch-size",
        "8",
        "-e",
        "2",
        "--epsilon",
        "1",
        "--delta",
        "1e-3",
        "-o",
        "x",
        "--accountant",
        "list",
    ).err
    assert ", ".join(ACCOUNTANTS) in error
    assert ", ".join(SAMPLERS) in galton("delta", "sqrt", *SMALL, *COMMANDS["delta"], "--sampler", "list").err


def python_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "calibrate": accounting.calibrate,
    "certify": accounting.certify,
    "optimize": optimize,
    "compare": compare,
    "plan": make_plan,
    "audit": audit,
}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_defaults_are_those_of_python(command: str) -> None:
    known = python_defaults(Options) | python_defaults(FUNCTIONS[command]) | {"workload": "prefix"}
    options = {name: option.default for name, option in parameters(command).items() if not option.required}
    shared = [name for name in options if known.get(name, inspect.Parameter.empty) is not inspect.Parameter.empty]
    assert len(shared) > 2
    assert {name: options[name] for name in shared} == {name: known[name] for name in shared}


def test_a_profile_has_as_many_points_as_in_python() -> None:
    option = parameters("profile")["points"]
    assert option.default is None
    assert option.show_default == str(python_defaults(accounting.profile)["points"])


def test_every_option_says_what_its_default_is() -> None:
    """Flags are off, compare needs some options unless it lists, and the others show a value or say it in words."""
    galton("--help")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for option in command.params:
            assert option.help.endswith("."), (name, option.name)
            if option.required or getattr(option, "is_flag", False) or "unless --list" in option.help:
                continue
            assert option.show_default, (name, option.name)
            assert isinstance(option.show_default, str) or option.default not in (None, ""), (name, option.name)


COMPARED = ["compare", "--bins", "8", "--epochs", "2", "--epsilon", "1,4", "--delta", "1e-5"]


def _computed_anew(*_: object) -> None:
    raise AssertionError("a figure that the cache has was computed again")


def test_compare_prints_every_row_and_takes_all_from_the_cache_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    names = "dpsgd-unamplified,dpsgd-poisson,dpsgd-shuffling"
    arguments = [*COMPARED, "--mechanisms", names, "--baseline", "dpsgd-poisson"]
    first = read(galton(*arguments, "--json", "--plot", str(tmp_path / "plot.png")))
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    assert [(row["mechanism"], row["epsilon"]) for row in first["rows"]] == [
        (name, epsilon) for name in names.split(",") for epsilon in (1.0, 4.0)
    ]
    for row in first["rows"]:
        assert row["worth"]["is_guarantee"] == (row["mechanism"] != "dpsgd-shuffling")
    assert first["rows"][0]["noise_multiplier"] == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=1e-6)
    with monkeypatch.context() as patch:
        patch.setattr("galton.cache.Cache.put", _computed_anew)
        again = read(galton(*arguments, "--json"))
    assert again["rows"] == first["rows"]
    table = galton(*arguments).out
    assert "NOT a guarantee" in table
    assert "(1.00)" in table  # the baseline relative to itself
    lone = read(galton(*COMPARED, "--mechanisms", "dpsgd-unamplified", "--baseline", "dpsgd-poisson", "--json"))
    assert lone["rows"][0]["relative_rmse"] == pytest.approx(first["rows"][0]["rmse"] / first["rows"][2]["rmse"])
    assert "dpsgd-shuffling" in galton("compare", "--list").out
    monkeypatch.setattr("galton.cache.Cache.put", _computed_anew)
    assert "computed again" in galton(*arguments, "--json", "--fresh").err
