"""Command lines: calls that work, and what their words are changed to."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

SIZE = ["--bins", "4", "--epochs", "3"]
REDRAWN = [*SIZE, "--participation", "redrawn"]
TARGET = ["--epsilon", "1", "--delta", "1e-2"]
QUICK = ["--samples", "2000", "--seed", "1"]
PLAN = ["--examples", "64", "--batch-size", "8", "--epochs", "2", *TARGET, "--seed", "1", "--output", "{new}"]
FIXED = ["--batching", "fixed-order", "--adjacency", "replace", "--strategy", "sqrt:4"]
UNAMPLIFIED = ["--mechanisms", "dpsgd-unamplified,tree-unamplified", "--baseline", "dpsgd-unamplified"]
COMMANDS: tuple[tuple[str, ...], ...] = tuple(
    map(
        tuple,
        (
            ["delta", "sqrt", *SIZE, "--noise-multiplier", "1.5", "--epsilon", "1", *QUICK],
            ["delta", "sqrt:3", *REDRAWN, "--noise-multiplier", "1.5", "--epsilon", "1", *QUICK],
            ["epsilon", "sqrt:4", *SIZE, "--noise-multiplier", "1.5", "--delta", "1e-2", *QUICK],
            ["profile", "identity", *SIZE, "--noise-multiplier", "1.5", "--points", "3", *QUICK],
            ["calibrate", "sqrt", *SIZE, *TARGET, *QUICK, "--tau", "1.5"],
            ["certify", "sqrt", *SIZE, "--noise-multiplier", "3", *TARGET, *QUICK, "--output", "{new}"],
            ["optimize", "toeplitz:2", *SIZE, *TARGET, "--participation", "fixed-order", "--output", "{new}.json"],
            ["compare", *SIZE, "--epsilons", "1,4", "--delta", "1e-5", *UNAMPLIFIED, "--plot", "{new}.png"],
            ["plan", *PLAN, *FIXED],
            ["plan", *PLAN, "--batching", "cyclic-poisson", "--strategy", "sqrt:2", "--clipping", "normalized"],
            ["plan", *PLAN, *FIXED, "--unit", "user", "--per-user", "3"],
            ["compose", "{exact}", "gaussian:sigma=5", "--delta", "1e-2"],
            ["budget", "{new}.json", "gaussian:sigma=5", "--epsilon", "1", "--delta", "1e-5"],
            ["verify", "{exact}"],
            ["sign", "{exact}", "--key", "{key}", "--output", "{new}"],
            ["keygen", "{new}.pem"],
            ["report", "{exact}", "--output", "{new}"],
            ["disclose", "{exact}", "--output", "{new}"],
            ["explore", "--output", "{new}"],
            ["audit", "{exact}", "--seconds", "1", "--trials", "50"],
            ["release", "{exact}", "--output", "{new}"],
            ["fork", "{exact}", "{new}"],
            ["stop", "{exact}", "--plan", "{exact}", "--independent"],
        ),
    )
)
NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "2",
        "3",
        "4",
        "7",
        "12",
        "1.5",
        "0.5",
        "0.999",
        "1e-3",
        "-1",
        "-1.5",
        "+2",
        " 3",
        "3 ",
        "1_0",
        "0x10",
    ),
    *("1e-9", "1e-100", "1e-300", "5e-324", "1e300", "1e308", "1e400", "-1e400", "inf", "-inf", "nan", "-nan", "NaN"),
    *(
        "2147483647",
        "2147483648",
        "9223372036854775808",
        "1" + "0" * 30,
        "1" + "0" * 400,
        "5e4",
        "1,2",
        "1,",
        ",",
        "1e",
    ),
    *("", " ", "x", "None", "True", "1j", "१२", "½", "--bins", "-", "\x00", "a\nb", "\udcff", "'", "1;2", "x" * 300),
)
PATHS = (
    *("{good}", "{toeplitz}", "{workload}", "{negative}", "{tiny}", "{subnormal}", "{huge}", "{nan}", "{text}.txt"),
    *(
        "{text}.npy",
        "{text}.json",
        "{short}.npy",
        "{short}.json",
        "{forged}",
        "{kind}",
        "{numbers}",
        "{pickle}",
        "{empty}.npy",
    ),
    *(
        "{empty}.json",
        "{exact}",
        "{certified}",
        "{changed}",
        "{rewritten}",
        "{folder}",
        "{missing}.npy",
        "{missing}.json",
    ),
    *("{missing}", "{new}", "{new}.json", "{new}.png", "{file}/below", "{long}", "{long}.json", "{long}.png", "/", "."),
    *("/dev/null", "/dev/full", "/proc/self/mem", "~", "{exact}/plan.json", "{exact}/strategy.json", "{banded}"),
)
WORDS = {
    "strategy": (
        "identity",
        "sqrt",
        "sqrt:2",
        "sqrt:12",
        "sqrt:13",
        "sqrt:0",
        "sqrt:-1",
        "sqrt:1.5",
        "tree",
        "bandmf:2",
    ),
    "family": (
        "blt:1",
        "blt:2+scale",
        "toeplitz",
        "toeplitz:3",
        "banded:2",
        "dense",
        "blt:11",
        "blt",
        "dense:2",
        "sqrt",
    ),
    "workload": ("prefix", "momentum:0.9", "momentum:0.9+cooldown", "momentum:1", "momentum:nan", "momentum:", "x"),
    "adjacency": ("add-or-remove", "add", "remove", "replace", "zero-out", "ADD", ""),
    "sampler": ("auto", "plain", "tilted", "maximum", "order-statistics", "list", "halfspace"),
    "bound": ("sequence", "kl", "one-sided", "bernstein", "hoeffding"),
    "batching": (
        "fixed-order",
        "shuffle-once",
        "poisson",
        "cyclic-poisson",
        "balls-in-bins",
        "balls-in-bins-streaming",
        "balls-in-bins-redrawn",
        "balls-in-bins-redrawn-streaming",
        "min-separation",
        "x",
    ),
    "accountant": (
        "unamplified",
        "poisson",
        "cyclic-poisson",
        "mmcc",
        "balls-in-bins",
        "redrawn",
        "allocation",
        "list",
    ),
    "participation": (
        *(
            "bins",
            "redrawn",
            "fixed-order",
            "min-separation",
            "min-separation:2",
            "min-separation:auto",
            "balls-in-bins",
        ),
        "x",
    ),
    "objective": ("rmse", "max", "x"),
    "method": ("lbfgs", "paper", "x"),
    "estimator": ("mixture", "tilted", "plain", "x"),
    "mechanisms": (
        "dpsgd-unamplified",
        "dpsgd-poisson",
        "tree-unamplified",
        "bandmf-unamplified",
        "x",
        "dpsgd-unamplified,",
    ),
    "baseline": ("dpsgd-unamplified", "dpsgd-poisson", "x"),
    "epsilons": ("1", "1,2", "1,1", "0,1", "1,nan", "1,-1", "1,1e5", "1e-9,100", "1, 2"),
    "cluster": ("x", "tcp://127.0.0.1:1", "tcp://", ""),
    "samples": ("1", "2", "100", "2000", "20000"),
    "bins": ("1", "2", "3", "6", "12", "13", "20001", "1000001"),
    "epochs": ("1", "2", "3000000", "1000001"),
    "epsilon": ("1e-3", "0.1", "8", "30", "120", "1000", "9999", "10001"),
    "delta": ("0.5", "0.999", "1e-5", "1e-12", "1e-40", "1"),
    "noise_multiplier": ("0.01", "0.3", "10", "1e4", "1e-6"),
    "padded_batch_size": ("16", "32", "64", "65", "1000000000000000000"),
    "micro_batch_size": ("1", "7", "64", "1000000000000000000"),
    "examples": ("64", "65", "63", "100000", "2147483648"),
    "batch_size": ("1", "8", "7.5", "64", "65", "1e-3"),
    "merge": ("1", "2", "3", "4"),
    "rounds": ("9", "12", "8", "13"),
    "rounds_done": ("4", "3", "12", "13"),
}
"""Good and borderline values of options, beside numbers and paths."""
LONG = {"cluster", "seconds", "trials", "iterations", "workers"}
"""Options for which only malformed numbers are drawn: others rightly ask for time, threads or another machine."""
MALFORMED = ("", "x", "nan", "-1", "1e400", "None", "0", "1.5", "-inf")


@cache
def options_of_commands() -> dict[str, list[tuple[str, list[str], bool]]]:
    """Names, spellings and whether they are flags, of the options of every command."""
    import typer

    from galton.cli import load_commands
    from galton.cli.app import app

    load_commands()
    group: Any = typer.main.get_command(app)
    return {
        name: [(part.name, list(part.opts), bool(getattr(part, "is_flag", False))) for part in entry.params]
        for name, entry in group.commands.items()
    }


def draw_words(random_numbers: random.Random) -> list[str]:
    """Returns the words of a call that works, with up to three changes."""
    words = list(random_numbers.choice(COMMANDS))
    for _ in range(random_numbers.choice((0, 1, 1, 2, 2, 3, 3))):
        words = _changed(words, random_numbers)
    return words


def _changed(words: list[str], random_numbers: random.Random) -> list[str]:
    """Words with one thing changed: an option's value, an option less, one more, a word out of place."""
    kind = random_numbers.random()
    if not words or kind < 0.03:
        return [random_numbers.choice(("", "--help", "--version", "nonsense", "--", "\x00", "delta", "plan"))]
    known = options_of_commands().get(words[0], [])
    if kind < 0.80 and known:
        name, spellings, flag = random_numbers.choice(known)
        spelling = random_numbers.choice(spellings)
        if name == "help":
            return words
        if not spelling.startswith("-"):  # positional
            return [words[0], _value(name, random_numbers), *words[2:]]
        if flag:
            return [*words, spelling]
        value = _value(name, random_numbers)
        for other in spellings:  # in place, where the command has it
            if other in words and words.index(other) + 1 < len(words):
                place = words.index(other)
                return [*words[: place + 1], value, *words[place + 2 :]]
        return [*words, f"{spelling}={value}"] if random_numbers.random() < 0.2 else [*words, spelling, value]
    if kind < 0.90 and len(words) > 1:
        place = random_numbers.randrange(1, len(words))
        return words[:place] + words[place + random_numbers.choice((1, 2)) :]
    return [*words, random_numbers.choice(("--nonsense", "extra", "--json", "--json=1", "--", "-x", "--output", "-"))]


def _value(name: str, random_numbers: random.Random) -> str:
    if name in LONG:
        return random_numbers.choice(MALFORMED)
    pools: list[tuple[str, ...]] = [NUMBERS]
    if name in WORDS:
        pools += [WORDS[name]] * 2
    if name in ("strategy", "workload", "output", "plot", "folder", "path", "key"):
        pools += [PATHS] * 2
    if name == "samples":  # numbers of samples that take hours are no wrong input
        pools = [MALFORMED, WORDS[name]]
    return random_numbers.choice(random_numbers.choice(pools))
