"""Arguments of a wrong type are refused by name, in every public function and class."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import galton
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency
from galton.typechecking import typechecked

HUGE = 10**400
NAMES: list[str] = vars(galton)["__all__"]
BY_JAX = {"NoiseState"}
"""A pytree: JAX rebuilds it with whatever it has in place of arrays."""


def test_every_public_function_and_class_checks_what_it_is_given() -> None:
    unchecked = set()
    for name in NAMES:
        value = getattr(galton, name)
        if inspect.isclass(value):
            if inspect.isabstract(value) or issubclass(value, Exception | enum.Enum):
                continue
            value = value.__init__
        elif not inspect.isfunction(value):
            continue
        if not hasattr(value, "__wrapped__"):
            unchecked.add(name)
    assert unchecked == BY_JAX


@typechecked
def everything(
    number: float = 1.0,
    whole: int = 1,
    truth: bool = False,
    text: str = "",
    path: str | Path = "",
    maybe: int | None = None,
    function: Callable[[int], int] = abs,
    items: Sequence[float] = (),
    texts: Sequence[str] = (),
    mapping: Mapping[str, int] | None = None,
    adjacency: Adjacency = Adjacency.ADD,
    guarantee: float | galton.Guarantee = 1.0,
    anything: Any = None,
    *,
    last: int = 0,
) -> str:
    """Takes one argument of every kind."""
    return "done"


@pytest.mark.parametrize(
    "good",
    [
        {"number": 1},
        {"number": np.float32(1.0)},
        {"number": np.array(1.0)},
        {"number": math.nan},  # a number as far as types go: ranges are checked elsewhere
        {"whole": np.int64(3)},
        {"whole": HUGE},
        {"path": Path("x")},
        {"maybe": 3},
        {"items": [1.0]},
        {"items": np.ones(3)},
        {"mapping": {"a": 1}},
        {"adjacency": "replace"},
        {"guarantee": galton.Guarantee(1.0, 0.1)},
        {"anything": ...},
        {"last": 3},
    ],
    ids=str,
)
def test_what_fits_is_passed_on(good: dict[str, Any]) -> None:
    assert everything(**good) == "done"


@pytest.mark.parametrize(
    ("argument", "values", "words"),
    [
        ("number", ("1", None, [1.0], 1j, True, object(), np.ones(2), b"1", {}), "must be a number"),
        ("whole", ("1", None, 1.0, True, 1j, [1], np.float64(1)), "must be a whole number"),
        ("truth", (1, "true", None), "must be true or false"),
        ("text", (1, None, b"x", Path("x")), "must be text"),
        ("path", (1, None, b"x", [], "\0", Path("\0")), "must be the name of a file or folder"),
        ("maybe", ("1", 1.5, True), "must be a whole number"),
        ("function", (1, None, "abs"), "must be a function"),
        ("texts", ("a", [1], ["a", None], np.ones(2)), "must be a list of texts"),
        ("items", ("12", 1.0, None, {}, b"12", np.array(1.0)), "must be a list"),
        ("mapping", ([], "a", 1), "must be a dictionary"),
        ("adjacency", ("x", None, 1, []), "must be one of add-or-remove, add, remove, replace, zero-out"),
        ("guarantee", ("1", None, Adjacency.ADD), "must be a number or a Guarantee"),
        ("last", ("0", 0.5), "must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(argument: str, values: tuple[Any, ...], words: str) -> None:
    for value in values:
        with pytest.raises(InvalidArgument) as refused:
            everything(**{argument: value})
        assert (refused.value.argument, refused.value.remedy) == (argument, words), value
        assert "\n" not in str(refused.value)


def test_positional_arguments_are_named_too() -> None:
    untyped: Any = everything
    with pytest.raises(InvalidArgument, match="whole = 'x': must be a whole number"):
        untyped(1.0, "x")
    with pytest.raises(TypeError, match="nonsense"):  # a wrong name is Python's to refuse
        untyped(nonsense=1)


PAIR = galton.dominating_pair(galton.square_root(12), bins=4)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: galton.Tree(HUGE), "rounds"),
    (lambda: galton.identity(HUGE), "rounds"),
    (lambda: galton.square_root(10**8), "rounds"),
    (lambda: galton.Blt(HUGE, [0.5], [0.5]), "rounds"),
    (lambda: galton.Toeplitz("4", [1.0]), "rounds"),  # type: ignore[arg-type]
    (lambda: galton.Scaled("identity", [1.0]), "inner"),  # type: ignore[arg-type]
    (lambda: galton.prefix_sums(HUGE), "rounds"),
    (lambda: galton.cooldown(10**12), "rounds"),
    (lambda: galton.BallsInBins(64, 8, HUGE), "rounds"),
    (lambda: galton.gaussian_delta("1", 1.0), "epsilon"),  # type: ignore[arg-type]
    (lambda: galton.gaussian_delta(1.0, HUGE), "mu"),
    (lambda: galton.delta(galton.identity(4), 1.0), "pair"),  # type: ignore[arg-type]
    (lambda: galton.delta(PAIR, None), "epsilon"),  # type: ignore[arg-type]
    (lambda: galton.calibrate(PAIR, "1", 1e-5), "epsilon"),  # type: ignore[arg-type]
    (lambda: galton.dominating_pair("sqrt", 4), "strategy"),  # type: ignore[arg-type]
    (lambda: galton.profile(PAIR, 1.0), "epsilons"),  # type: ignore[arg-type]
    (lambda: galton.save_plan("plan", "x"), "plan"),  # type: ignore[arg-type]
    (lambda: galton.load_plan(3), "folder"),  # type: ignore[arg-type]
    (lambda: galton.Batches("x"), "scheme"),  # type: ignore[arg-type]
    (lambda: galton.Batches(galton.BallsInBins(64, 8, 16), 10**18), "padded_batch_size"),
    (lambda: galton.Options(sampler=["auto"]), "sampler"),  # type: ignore[arg-type]
    (lambda: galton.Guarantee(1.0, 1e-5, []), "adjacency"),  # type: ignore[arg-type]
    (lambda: galton.Statement(Adjacency.ADD, 1, galton.Standing.EXACT, "x"), "sampling"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "argument"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_public_names_refuse_wrong_types_and_sizes(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        call()
    assert refused.value.argument == argument
