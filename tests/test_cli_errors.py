"""What the command line says about a wrong option: its name as typed, in one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from galton.cli.app import app
from galton.cli.naming import Command, as_typed
from galton.errors import InvalidArgument
from galton.plan import Plan, save_plan
from galton.strategies import ColumnBanded, save_strategy
from tests.test_cli import galton

SIZE = ["--bins", "4", "--epochs", "3"]
TARGET = ["--epsilon", "1", "--delta", "1e-2"]
MULTIPLIER = ["--noise-multiplier", "1.5"]
COMMANDS: dict[str, list[str]] = {
    "delta": ["delta", "sqrt", *SIZE, *MULTIPLIER, "--epsilon", "1"],
    "epsilon": ["epsilon", "sqrt", *SIZE, *MULTIPLIER, "--delta", "1e-2"],
    "profile": ["profile", "sqrt", *SIZE, *MULTIPLIER],
    "points of a list": ["profile", "sqrt", *SIZE, *MULTIPLIER, "--epsilons", "1,2"],
    "calibrate": ["calibrate", "sqrt", *SIZE, *TARGET],
    "certify": ["certify", "sqrt", *SIZE, *MULTIPLIER, *TARGET],
    "optimize": ["optimize", "blt:1", *SIZE, *TARGET],
    "classical": ["optimize", "blt:1", *SIZE, *TARGET, "--participation", "fixed-order"],
    "compare": ["compare", *SIZE, *TARGET, "--mechanisms", "dpsgd-unamplified", "--baseline", "dpsgd-unamplified"],
    "plan": [
        *("plan", "--examples", "64", "--batch-size", "8", "--epochs", "4", "--epsilon", "4", "--delta", "1e-3"),
        *("--strategy", "sqrt:8", "--batching", "balls-in-bins", "--output", "{new}"),
    ],
    "verify": ["verify", "{plan}"],
    "sign": ["sign", "{plan}", "--key", "{small}"],
    "report": ["report", "{plan}"],
    "audit": ["audit", "{plan}"],
}
"""A good call of every command; `classical` is optimize without amplification, `points of a list` is profile."""

ANALYSING = ("delta", "epsilon", "profile", "calibrate", "certify")
SAMPLING = ("delta", "epsilon", "profile", "calibrate", "certify", "optimize", "plan", "verify", "report")
Case = tuple[str, str, str, str]


def rows(commands: tuple[str, ...], *cases: tuple[str, str, str]) -> list[Case]:
    return [(command, *case) for command in commands for case in cases]


CASES: list[Case] = [
    *rows(
        (*ANALYSING, "optimize", "compare"),
        ("--bins", "0", "--bins = 0: must be at least 1"),
        ("--bins", "1000001", "--bins = 1000001: must be at most"),
        ("--bins", "x", "--bins = 'x': must be a whole number\n"),
        ("-b", "5e4", "--bins = '5e4': must be a whole number, written out: 50000\n"),
        ("--bins", "1e400", "--bins = '1e400': must be a whole number\n"),
        ("--epochs", "0", "--epochs = 0: must be at least 1"),
    ),
    *rows(
        (*ANALYSING, "optimize"),
        ("--rounds", "13", "--rounds = 13: must be from 9 to 12, in the last epoch"),
    ),
    *rows(
        ("epsilon",),
        ("--rounds-done", "13", "--rounds-done = 13: must be from 1 to the rounds of the run, 12"),
        ("--rounds-done", "x", "--rounds-done = 'x': must be a whole number\n"),
    ),
    *rows(
        ("plan",),
        ("--unit", "x", "--unit = 'x': must be one of example, user"),
        ("--rounds", "33", "--rounds = 33: must be from 25 to 32, in the last of 4 epochs"),
        ("--clipping", "x", "--clipping = 'x': must be one of flat, per-group, normalized"),
        ("--per-user", "0", "--per-user = 0: is for unit user"),
    ),
    *rows(ANALYSING, ("--merge", "3", "--merge = 3: must divide the number of bins, 4")),
    *rows(
        SAMPLING,
        ("--seed", "-1", "--seed = -1: must be at least 0"),
        ("--workers", "0", "--workers = 0: must be at least 1"),
        ("--cluster", "x", "--cluster = 'x': must be the address of a Dask scheduler"),
    ),
    *rows(
        (*ANALYSING, "optimize", "classical", "plan"),
        ("--adjacency", "x", "--adjacency = 'x': must be one of add-or-remove"),
    ),
    *rows(
        ANALYSING,
        ("--sampler", "x", "--sampler = 'x': must be one of auto"),
        ("--samples", "0", "--samples = 0: must be at least 1"),
    ),
    *rows(("delta", "epsilon", "profile", "certify"), ("--bound", "x", "--bound = 'x': must be one of sequence")),
    *rows(
        ("delta", "epsilon", "profile"),
        ("--sampler", "maximum", "--sampler = 'maximum': needs orthogonal modes"),
        ("--rel-width", "0", "--rel-width = 0.0: must be greater than 0"),
    ),
    *rows(
        ("delta", "epsilon", "profile", "calibrate", "optimize"),
        ("--confidence", "1", "--confidence = 1.0: must lie strictly between 0 and 1"),
    ),
    *rows(
        ("delta", "epsilon", "profile", "certify"),
        ("--noise-multiplier", "0", "--noise-multiplier = 0.0: must be greater than 0"),
        ("--noise-multiplier", "nan", "--noise-multiplier = nan: must be finite"),
        ("-s", "1e200", "--noise-multiplier = 1e+200: must lie between"),
    ),
    *rows(
        ("delta", "calibrate", "certify", "optimize", "classical", "plan"),
        ("--epsilon", "-1", "--epsilon = -1.0: must be "),
        ("--epsilon", "inf", "--epsilon = inf: must be finite"),
    ),
    *rows(
        ("calibrate", "certify", "optimize", "classical", "compare", "plan"),
        ("--epsilon", "1e300", "--epsilon = 1e+300: must be at most 10000"),
    ),
    *rows(
        ("plan",),
        ("--delta", "1e-300", "--delta = 1e-300: is too small to be confirmed in floating point; take 1e-200 or mo"),
    ),
    *rows(
        ("epsilon", "calibrate", "certify", "optimize", "classical", "compare", "plan"),
        ("--delta", "0", "--delta = 0.0: must lie strictly between 0 and 1"),
    ),
    *rows(
        ANALYSING,
        ("--participation", "x", "--participation = 'x': must be one of bins, redrawn"),
    ),
    *rows(
        ("calibrate", "certify", "optimize"),
        ("--tau", "1", "--tau = 1.0: must lie between 1.001 and 1000"),
    ),
    *rows(
        ("calibrate", "optimize", "compare", "plan"),
        ("--workload", "x", "--workload = 'x': must be prefix"),
        ("--workload", "momentum:x", "--workload = 'momentum:x': momentum must be a number"),
        ("--workload", "momentum:2", "--workload = 'momentum:2': momentum must be at least 0 and below 1"),
        ("--workload", "{small}", "--workload = '{small}': is for 5 rounds, not for the "),
        ("--workload", "{upper}", "{upper}: workload = (12, 12): must be lower-triangular; a workload file holds"),
        ("--workload", "{negative}", "{negative}: workload = (2,): must be a square matrix (this is its shape); a w"),
    ),
    *rows(
        ("profile",),
        ("--epsilons", "one", "--epsilons = 'one': must be numbers separated by commas"),
        ("--epsilons", "1,nan", "--epsilons[1] = nan: must be finite"),
        ("--epsilons", "1,-1", "--epsilons = '1,-1': must not be negative"),
        ("--points", "1", "--points = 1: must be at least 2"),
    ),
    ("points of a list", "--points", "-3", "--points = -3: is for the default grid: leave out --epsilons or --points"),
    *rows(
        ("certify",),
        ("--failure", "0", "--failure = 0.0: must lie strictly between 0 and 1"),
        ("--output", "{folder}", "--output = '{folder}': is a folder"),
    ),
    *rows(
        ("optimize", "classical"),
        ("--output", "c.txt", "--output = 'c.txt': must be the name of a .json file"),
        ("--objective", "x", "--objective = 'x': must be one of rmse, max"),
        (
            *("--participation", "x"),
            "--participation = 'x': must be one of bins, redrawn, min-separation:S, fixed-order, min-separation",
        ),
        ("--plot", "c.txt", "--plot = 'c.txt': must end in .png"),
    ),
    *rows(
        ("optimize",),
        ("--plot", "{folder}/none/c.png", "--plot = '{folder}/none/c.png': must be a file in a folder that exists"),
        ("--method", "x", "--method = 'x': must be one of lbfgs, paper"),
        ("--estimator", "x", "--estimator = 'x': must be one of mixture"),
        ("--samples", "0", "--samples = 0: must be at least 1"),
        ("--iterations", "-1", "--iterations = -1: must be at least 0"),
    ),
    ("delta", "--nonsense", "1", "No such option: --nonsense"),
    ("delta", "extra", "1", "Got unexpected extra argument"),
    *rows(
        ("classical",),
        ("--plot", "c.png", "--plot = 'c.png': is for bins"),
        ("--tau", "3", "--tau = 3.0: is for bins"),
        ("--samples", "4096", "--samples = 4096: is for bins"),  # as many as are the default
        ("--confidence", "0.3", "--confidence = 0.3: is for bins"),
        ("--workers", "7", "--workers = 7: is for bins"),
        ("--seed", "0", "--seed = 0: is for bins"),
        ("--cluster", "x", "--cluster = 'x': is for bins"),
        ("--method", "paper", "--method = 'paper': is for bins"),
        ("--estimator", "plain", "--estimator = 'plain': is for bins"),
        ("--iterations", "5", "--iterations = 5: is for bins"),
    ),
    *rows(
        ("compare",),
        ("--epsilons", "one", "--epsilons = 'one': must be numbers separated by commas"),
        ("--epsilon", "1,0", "--epsilon[1] = 0.0: must be greater than 0"),
        ("--epsilon", "0", "--epsilon = 0.0: must be greater than 0"),
        ("--epsilons", "0", "--epsilons = 0.0: must be greater than 0"),
        ("--epsilons=1,0", "--fresh", "--epsilons[1] = 0.0: must be greater than 0"),
        ("--mechanisms", "sgd", "--mechanisms = 'sgd': must be one of dpsgd-balls-in-bins"),
        ("--baseline", "sgd", "--baseline = 'sgd': must be one of dpsgd-balls-in-bins"),
        ("--plot", "c.txt", "--plot = 'c.txt': must end in .png"),
    ),
    *rows(
        ("verify",),
        ("--key", "{folder}/none", "{folder}/none: cannot be read"),
        ("--key", "{small}", "{small}: is not a public Ed25519 key"),
    ),
    *rows(
        ("sign",),
        ("--key", "{folder}/none", "{folder}/none: cannot be read"),
        ("--output", "{small}", "{small}: is there already"),
    ),
    *rows(
        ("plan",),
        ("--examples", "0", "--examples = 0: must be at least 1"),
        ("--batch-size", "0", "--batch-size = 0.0: must be greater than 0"),
        ("--batch-size", "200", "--batch-size = 200.0: must be at most the number of examples"),
        ("--batch-size", "65", "--batch-size = 65.0: must be at most the number of examples, 64"),
        ("--epochs", "0", "--epochs = 0: must be at least 1"),
        ("--output", "{plan}", "{plan}: is there already"),
        ("--strategy", "x", "--strategy = 'x': must be identity, sqrt[:W]"),
        ("--strategy", "blt:11", "--strategy = 'blt:11': the number of buffers must be a whole number from 1 to 10"),
        ("--strategy", "{negative}", "{negative}: C has negative entries; only the commands that analyse"),
        ("--strategy", "{small}", "{small}: C is for 5 rounds, not for the 32 of this run"),
        ("--batching", "x", "--batching = 'x': must be one of balls-in-bins"),
        ("--batching", "shuffle-once", "--adjacency = 'add-or-remove': must be replace or zero-out for shuffle-once b"),
        ("--micro-batch-size", "x", "--micro-batch-size = 'x': must be a whole number\n"),
        ("--batch-size", "x", "--batch-size = 'x': must be a number\n"),
        ("--batching", "poisson", "--strategy = 'sqrt:8': has 8 bands"),
        ("--accountant", "x", "--accountant = 'x': must be one of"),
        ("--clip-norm", "0", "--clip-norm = 0.0: must be greater than 0"),
        ("--padded-batch-size", "3", "--padded-batch-size = 3: truncation would cost"),
        ("--micro-batch-size", "0", "--micro-batch-size = 0: must be at least 1"),
    ),
    *rows(("report",), ("--output", "{folder}", "--output = '{folder}': is a folder")),
    *rows(("certify", "report"), ("--output", "{long}", "{long}: cannot be written (File name too long)")),
    *rows(
        ("optimize", "classical"), ("--output", "{long}.json", "{long}.json: cannot be written (File name too long)")
    ),
    *rows(("optimize", "compare"), ("--plot", "{long}.png", "{long}.png: cannot be written (File name too long)")),
    *rows(
        ("plan",),
        ("--output", "{long}", "{long}: cannot be written (File name too long)"),
        ("--padded-batch-size", "1000000000000000000", "--padded-batch-size = 1000000000000000000: must be at most 65"),
        ("--micro-batch-size", "65", "--micro-batch-size = 65: must be at most the number of examples, 64"),
        ("--with", "x", "--with = 'x': must be a plan's folder, gaussian:sigma=S"),
        ("--with", "gaussian:sigma=0.01", "--with = 'gaussian:sigma=0.01': leave nothing: by themselves they are"),
        ("--tuning-runs", "20", "--tuning-runs = '20': must be poisson:mean=M, geometric:mean=M"),
    ),
    *rows(
        ("audit",),
        ("--seconds", "0", "--seconds = 0.0: must be greater than 0"),
        ("--trials", "0", "--trials = 0: must be at least 1"),
        ("--seed", "-1", "--seed = -1: must be at least 0"),
    ),
]

POSITIONAL: list[tuple[list[str], str]] = [
    *(
        ([command, strategy], message)
        for command in ANALYSING
        for strategy, message in (
            ("blt:4", "STRATEGY = 'blt:4': has to be optimised first: galton optimize blt:4 --bins"),
            ("", "STRATEGY = '': must be identity, sqrt[:W], bisr:W, tree, bandmf:W, FILE.json or FILE.npy"),
            ("bandmf", "STRATEGY = 'bandmf': must be bandmf:W"),
            ("bandmf:13", "STRATEGY = 'bandmf:13': the number of bands must be a whole number from 1 to 12"),
            ("sqrt:" + "9" * 5000, "STRATEGY = 'sqrt:999"),
            ("sqrt:13", "STRATEGY = 'sqrt:13': the number of bands must be a whole number from 1 to 12"),
            ("{tiny}", "STRATEGY = '{tiny}': its entries are too large or too small"),
            ("{negative}", "{negative}: C has negative entries"),
            ("{text}.txt", "STRATEGY = '{text}.txt': a strategy file ends in .json or .npy; allowed here: identity"),
            ("{text}.npy", "{text}.npy: is not a .npy file of numbers, as numpy.save writes it\n"),
            ("{text}.json", "{text}.json: is not valid JSON (Expecting value: line 1 column 1 (char 0)); a strategy f"),
        )
    ),
    (
        ["calibrate", "{singular}"],
        "STRATEGY = '{singular}': its inverse is too large for float64: C is nearly singular",
    ),
    (
        ["calibrate", "{vanishing}"],
        "STRATEGY = '{vanishing}': its inverse is too large for float64: C is nearly singular",
    ),
    (["optimize", "sqrt:64"], "FAMILY = 'sqrt:64': needs no optimising: galton calibrate sqrt:64"),
    (
        ["optimize", "dense", "--bins", "1025", "--epochs", "1"],
        "FAMILY = 'dense': is for at most 1024 rounds, and this run has 1025; families to optimise: blt:D[+scale], "
        "toeplitz[:W][+scale], inverse:W[+scale], bifr:W or banded:W\n",
    ),
    (
        ["optimize", "bandmf:3"],
        "FAMILY = 'bandmf:3': is optimised by the commands that analyse: galton calibrate bandmf:3 --bins .. --epochs "
        ".. --epsilon .. --delta ..; families to optimise",
    ),
    (
        ["optimize", "nonsense"],
        "FAMILY = 'nonsense': must be blt:D[+scale], toeplitz[:W][+scale], inverse:W[+scale], bifr:W, banded:W or ",
    ),
    (["optimize", "blt:11"], "FAMILY = 'blt:11': the number of buffers must be a whole number from 1 to 10"),
    *(([command, "{folder}"], "{folder}: is not a plan") for command in ("verify", "sign", "report", "audit")),
]


@pytest.fixture(scope="module")
def places(small_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    arrays = {
        "small": np.eye(5),
        "upper": np.triu(np.ones((12, 12))),
        "tiny": 1e-160 * np.eye(12),
        "negative": np.array([1.0, -0.5]),
        "singular": np.array([1e-310, 1.0]),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    for suffix in ("txt", "npy", "json"):
        (folder / f"text.{suffix}").write_text("notes")
    save_plan(small_plan, folder / "plan")
    save_strategy(ColumnBanded([[1e-310] * 12, [0.5] * 11 + [0.0]]), folder / "vanishing.json")
    paths = {name: str(folder / f"{name}.npy") for name in arrays}
    paths |= {"text": str(folder / "text"), "long": str(folder / ("x" * 300))}
    paths["vanishing"] = str(folder / "vanishing.json")
    return paths | {"folder": str(folder), "plan": str(folder / "plan"), "new": str(folder / "new")}


def check_refused(words: list[str], message: str, places: dict[str, str]) -> None:
    result = galton(*(word.format(**places) for word in words))
    assert result.err.startswith(f"galton: {message.format(**places)}")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert not Path(places["new"]).exists()


@pytest.mark.parametrize(("command", "option", "value", "message"), CASES)
def test_a_wrong_option_is_named_as_typed(
    command: str, option: str, value: str, message: str, places: dict[str, str]
) -> None:
    check_refused([*COMMANDS[command], option, value], message, places)


NOT_TYPED: list[tuple[list[str], str]] = [
    (
        ["--examples", "2000000", "--batch-size", "1", "--strategy", "blt:4"],
        "--strategy = 'blt:4': needs 131 GB of memory for 8000000 rounds",
    ),
    (
        ["--examples", "3000000", "--batch-size", "1", "--strategy", "blt:4"],
        "--batch-size = 1.0: makes 12000000 batches in 4 epochs, a number that must be at most 10000000",
    ),
    (
        ["--batching", "cyclic-poisson", "--strategy", "tree"],
        "--strategy = 'tree': has no bands, for C is not square; take a strategy with bands, such as sqrt:4",
    ),
    (
        ["--batching", "cyclic-poisson", "--strategy", "sqrt"],
        "--strategy = 'sqrt': has 32 bands, too many for cyclic-poisson batches with 8 batches per epoch; "
        "take at most 8",
    ),
    (
        ["--batching", "min-separation", "--strategy", "sqrt"],
        "--strategy = 'sqrt': has 32 bands, too many for min-separation batches with 8 batches per epoch; "
        "take at most 8",
    ),
    (
        ["--batching", "min-separation", "--accountant", "poisson"],
        "--accountant = 'poisson': does not cover min-separation batches; covered by: min-separation",
    ),
    (
        ["--batching", "balls-in-bins-redrawn", "--accountant", "balls-in-bins"],
        "--accountant = 'balls-in-bins': does not cover balls-in-bins-redrawn batches; covered by: redrawn",
    ),
    (
        ["--batching", "cyclic-poisson", "--adjacency", "replace"],
        "--adjacency = 'replace': is not covered by the accountant cyclic-poisson; take add-or-remove or",
    ),
    (
        ["--batching", "balls-in-bins-redrawn", "--strategy", "tree"],
        "--strategy = 'tree': must be a square matrix for bins redrawn in every epoch",
    ),
]
"""Options of a plan that are wrong together: the error names one that was typed, not what follows from it."""


@pytest.mark.parametrize(("words", "message"), NOT_TYPED, ids=[" ".join(words)[:60] for words, _ in NOT_TYPED])
def test_a_plan_blames_what_was_typed(words: list[str], message: str, places: dict[str, str]) -> None:
    check_refused([*COMMANDS["plan"], *words], message, places)


REDRAWN: list[tuple[str, list[str], str]] = [
    *(
        (command, ["--merge", "2"], "--merge = 2: is for bins that are drawn once, not redrawn")
        for command in ANALYSING
    ),
    ("delta", ["--sampler", "maximum"], "--sampler = 'maximum': must be auto, plain or tilted"),
    ("optimize", ["--estimator", "mixture"], "--estimator = 'mixture': must be one of tilted"),
]


@pytest.mark.parametrize(("command", "words", "message"), REDRAWN)
def test_what_redrawn_bins_do_not_allow_is_named(
    command: str, words: list[str], message: str, places: dict[str, str]
) -> None:
    check_refused([*COMMANDS[command], "--participation", "redrawn", *words], message, places)


@pytest.mark.parametrize(("words", "message"), POSITIONAL, ids=lambda value: " ".join(value)[:30])
def test_a_wrong_positional_argument_is_named_as_in_the_usage_line(
    words: list[str], message: str, places: dict[str, str]
) -> None:
    check_refused([*words[:2], *COMMANDS[words[0]][2:], *words[2:]], message, places)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--bins", "10000", "--epochs", "10000"],
            "--epochs = 10000: must make at most 10 million rounds, and 10000 bins",
        ),
        (["--bins", "20000", "--epochs", "1", "--merge", "1"], "--merge = 1: needs 12 GB of memory, more than 3.5"),
    ],
)
@pytest.mark.parametrize("command", ANALYSING)
def test_what_takes_too_much_memory_is_refused_beforehand(
    command: str, words: list[str], message: str, places: dict[str, str]
) -> None:
    check_refused([*COMMANDS[command], *words], message, places)


@pytest.mark.parametrize(
    ("words", "missing"),
    [([], "--bins, --epochs, --epsilons and --delta are"), ([*SIZE, "--delta", "1e-5"], "--epsilons is")],
)
def test_a_comparison_says_what_it_lacks_and_how_that_is_written(
    words: list[str], missing: str, places: dict[str, str]
) -> None:
    example = "galton compare --bins 100 --epochs 10 --epsilons 1,4 --delta 1e-5"
    check_refused(["compare", *words], f"{missing} required, unless --list is given; for example {example}\n", places)


def test_an_audit_names_the_folder_of_the_plan(tmp_path: Path) -> None:
    folder = str(tmp_path / "plan")
    words = [word.format(new=folder) for word in COMMANDS["plan"]]
    made = galton(*words, "--batching", "poisson", "--accountant", "mmcc", "--epochs", "1", "--strategy", "sqrt:2")
    assert made.code == 0
    result = galton("audit", folder)
    assert result.err.startswith(f"galton: DIR = '{folder[:10]}")
    assert "the accountant mmcc has no exact attack on poisson batches" in result.err
    assert result.code == 2


NOT_WRONG = {
    *("allow_negative", "as_json", "list_", "fresh", "folder", "help"),  # flags, and paths, which name themselves
    *("strategy", "family"),  # positional: above
}


def registered() -> dict[str, Any]:
    """All commands by name."""
    galton("--help")  # imports them
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_every_option_has_its_row() -> None:
    tried = {(command, option) for command, option, _, _ in CASES}
    missing = [
        (name, parameter.name)
        for name, entry in registered().items()
        for parameter in entry.params
        if name in COMMANDS and parameter.name not in NOT_WRONG
        if not tried & {(name, option) for option in parameter.opts}
    ]
    assert missing == []
    assert set(COMMANDS) - set(registered()) == {"classical", "points of a list"}


def test_only_the_parameters_of_the_command_are_renamed() -> None:
    parameters = registered()["profile"].params

    def renamed(argument: str, **values: object) -> str:
        return str(as_typed(InvalidArgument(argument, 3, "must be 4"), parameters, values))

    assert renamed("noise_multiplier", noise_multiplier=2.5) == "--noise-multiplier = 2.5: must be 4"
    assert renamed("epsilons[3]", epsilons="1,2") == "--epsilons[3] = 3: must be 4"
    assert renamed("strategy", strategy="sqrt:3") == "STRATEGY = 'sqrt:3': must be 4"
    for other in ("delta", "noise", "gram[0, 1]", "evidence.epsilons", "bins * epochs", "momentum"):
        assert renamed(other) == f"{other} = 3: must be 4"


def test_every_command_names_its_options() -> None:
    for name, entry in registered().items():
        assert isinstance(entry, Command), name
