"""The claim as values: what every adjacency answers, and what is no guarantee at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields

import jax
import numpy as np
import pytest

from galton import files
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Direction, Guarantee, as_guarantee
from galton.sampling.base import chunk_key, wide_jax

NAMES = ("add-or-remove", "add", "remove", "replace", "zero-out")
BOTH = (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)


# Directions.


@dataclass(frozen=True)
class Seeded:
    """What a direction does to seeds, and which of the two runs it puts first.

    Attributes:
      stream: its number.
      keys: of chunk 0 with seed 1, and of chunk 3 with seed 2^40 + 5.
    """

    stream: int
    keys: tuple[tuple[int, int], tuple[int, int]]
    sides: int
    with_first: bool
    without_first: bool


DIRECTIONS = {
    "mixture-first": Seeded(0, ((3704974950, 1863054868), (461577586, 1459510860)), 1, True, False),
    "noise-first": Seeded(1, ((3276925600, 2751771740), (2496811653, 3962867398)), 1, False, True),
    "replace": Seeded(2, ((4161243239, 1993177247), (3256851221, 1177467373)), 2, True, True),
}
"""By name: a certificate with a seed is repeated with the same samples whatever becomes of the order of the members."""


def test_every_direction_is_in_the_table() -> None:
    assert {direction.value for direction in Direction} == set(DIRECTIONS)
    assert len({direction.stream for direction in Direction}) == len(Direction)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_directions_answer(name: str) -> None:
    direction, expected = Direction(name), DIRECTIONS[name]
    assert (direction.sides, direction.with_first, direction.without_first) == (
        expected.sides,
        expected.with_first,
        expected.without_first,
    )


@pytest.mark.parametrize("name", DIRECTIONS)
def test_the_random_numbers_of_a_direction_never_change(name: str) -> None:
    direction, expected = Direction(name), DIRECTIONS[name]
    assert direction.stream == expected.stream
    with wide_jax():
        keys = [chunk_key(seed, direction, index) for seed, index in ((1, 0), (2**40 + 5, 3))]
        assert [tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys] == list(expected.keys)


# Adjacencies.


@dataclass(frozen=True)
class Answers:
    """What an adjacency has to say; `growth`: what truncation costs at epsilon = 2, over the displacement."""

    directions: tuple[Direction, ...]
    sides: int
    equal_sizes: bool
    growth: float


ADJACENCIES = {
    "add-or-remove": Answers(BOTH, 1, False, math.exp(2.0)),
    "add": Answers((Direction.NOISE_FIRST,), 1, False, math.exp(2.0)),
    "remove": Answers((Direction.MIXTURE_FIRST,), 1, False, 1.0),
    "replace": Answers((Direction.REPLACE,), 2, True, 0.0),
    "zero-out": Answers(BOTH, 1, True, 0.0),
}


def test_every_adjacency_is_in_the_table_and_is_made_from_its_name() -> None:
    assert Adjacency.names() == tuple(ADJACENCIES) == NAMES
    for member in Adjacency:
        assert Adjacency(member.value) is Adjacency(member) is member
        assert str(member) == f"{member}" == member.value


@pytest.mark.parametrize("name", NAMES)
def test_adjacencies_answer(name: str) -> None:
    adjacency, expected = Adjacency(name), ADJACENCIES[name]
    assert adjacency.directions == expected.directions
    assert adjacency.sides == expected.sides
    assert adjacency.equal_sizes is expected.equal_sizes


@pytest.mark.parametrize("name", NAMES)
def test_what_truncation_costs(name: str) -> None:
    """exp(epsilon) times the displacement where an example may be added; never above 1, however large epsilon is."""
    adjacency, growth = Adjacency(name), ADJACENCIES[name].growth
    assert adjacency.truncation_delta(1e-6, 2.0) == pytest.approx(1e-6 * growth, rel=1e-12)
    assert adjacency.truncation_delta(1e-6, 0.0) == (1e-6 if growth else 0.0)
    assert adjacency.truncation_delta(0.0, 1e300) == 0.0
    assert adjacency.truncation_delta(0.5, 1e300) == {0.0: 0.0, 1.0: 0.5}.get(growth, 1.0)
    for epsilon in (-1.0, math.nan, math.inf, "1"):
        with pytest.raises(InvalidArgument, match=r"^epsilon = "):
            adjacency.truncation_delta(1e-6, epsilon)  # type: ignore[arg-type]


def test_every_adjacency_is_explained_in_words_of_its_own() -> None:
    for member in Adjacency:
        for field in fields(member.wording):
            assert getattr(member.wording, field.name).strip(), (member, field.name)
    explained = [member.wording.neighbours for member in Adjacency]
    assert len(set(explained)) == len(explained)
    for member in Adjacency:  # one-sided guarantees must say so, and no others may
        one_sided = len(member.directions) == 1 and member.sides == 1
        assert ("NOT claimed" in member.wording.neighbours) == one_sided
        assert (member.wording.more_likely != "in one as in the other") == one_sided


@pytest.mark.parametrize("name", ["swap", "", "ADD", "add_or_remove", None, 1, Direction.REPLACE])
def test_an_unknown_adjacency_is_refused_and_all_names_are_listed(name: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Adjacency(name)
    assert (refused.value.argument, refused.value.value) == ("adjacency", name)
    assert refused.value.remedy == "must be one of " + ", ".join(NAMES)


# Guarantees.

BAD: list[tuple[str, tuple[object, ...]]] = [
    *(("epsilon", (value, 1e-5)) for value in (0, 0.0, -1.0, math.nan, math.inf, -math.inf, "1", b"1", True, None, 1j)),
    *(
        ("delta", (1.0, value))
        for value in (0, 0.0, 1, 1.0, -1e-5, 2.0, math.nan, math.inf, "1e-5", False, None, [1e-5])
    ),
    *(("adjacency", (1.0, 1e-5, value)) for value in ("swap", "", None, 1, Direction.REPLACE)),
]


@pytest.mark.parametrize(("argument", "values"), BAD, ids=str)
def test_what_is_no_guarantee_is_refused_by_name(argument: str, values: tuple[object, ...]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Guarantee(*values)  # type: ignore[arg-type]
    assert refused.value.argument == argument
    body = dict(zip(("epsilon", "delta", "adjacency"), (*values, "add-or-remove")[:3], strict=True))
    with pytest.raises(InvalidArgument) as refused:
        Guarantee.from_json(body)
    assert refused.value.argument.removeprefix("guarantee.") == argument


def test_a_guarantee_is_a_value() -> None:
    guarantee = Guarantee(2, 1e-5, "replace")  # type: ignore[arg-type]
    assert guarantee == Guarantee(2.0, 1e-5, Adjacency.REPLACE)
    assert hash(guarantee) == hash(Guarantee(2.0, 1e-5, Adjacency.REPLACE))
    assert isinstance(guarantee.epsilon, float)
    assert guarantee.adjacency is Adjacency.REPLACE
    assert (guarantee.directions, guarantee.sides) == ((Direction.REPLACE,), 2)
    assert Guarantee(2.0, 1e-5).adjacency is Adjacency.ADD_OR_REMOVE
    assert guarantee.with_delta(1e-6) == Guarantee(2.0, 1e-6, Adjacency.REPLACE)
    assert guarantee.delta == 1e-5
    with pytest.raises(InvalidArgument, match=r"^delta = 0"):
        guarantee.with_delta(0.0)
    with pytest.raises(FrozenInstanceError):
        guarantee.delta = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (Guarantee(2.0, 1e-5), "(2, 1e-05)-DP under add-or-remove adjacency"),
        (Guarantee(0.5, 0.25, Adjacency.REPLACE), "(0.5, 0.25)-DP under replace adjacency"),
        (Guarantee(1 / 3, 1e-9, Adjacency.ZERO_OUT), "(0.333334, 1e-09)-DP under zero-out adjacency"),
    ],
)
def test_a_guarantee_in_words(guarantee: Guarantee, words: str) -> None:
    assert str(guarantee) == words


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
def test_guarantees_survive_json(adjacency: Adjacency) -> None:
    guarantee = Guarantee(1 / 3, 1e-5 / 3, adjacency)
    body = guarantee.to_json()
    assert body == {"epsilon": 1 / 3, "delta": 1e-5 / 3, "adjacency": adjacency.value}
    text = files.canonical(body)
    again = Guarantee.from_json(json.loads(text))
    assert again == guarantee
    assert files.canonical(again.to_json()) == text
    assert Guarantee.from_json(body | {"more": 1}) == guarantee


def test_what_callers_give_is_a_guarantee_or_epsilon_and_delta() -> None:
    guarantee = Guarantee(1.0, 1e-5, Adjacency.REPLACE)
    assert as_guarantee(guarantee, None) is guarantee
    assert as_guarantee(1.0, 1e-5) == Guarantee(1.0, 1e-5, Adjacency.ADD_OR_REMOVE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_guarantee(Guarantee(1.0, 1e-5), 1e-5), "delta = 1e-05: must be left out"),
        (lambda: as_guarantee(Guarantee(1.0, 1e-5), 0.0), "delta = 0.0: must be left out"),
        (lambda: as_guarantee(1.0, None), "delta = None: must be a number, or give one Guarantee"),
        (lambda: as_guarantee(0.0, 1e-5), "epsilon = 0.0: must be greater than 0"),
        (lambda: as_guarantee(math.nan, 1e-5), "epsilon = nan: must be finite"),
        (lambda: as_guarantee(1.0, 1.0), "delta = 1.0: must lie strictly between 0 and 1"),
        (lambda: as_guarantee("1", 1e-5), "epsilon = '1': must be a number"),  # type: ignore[arg-type]
    ],
)
def test_other_things_that_callers_give_are_refused(call: Callable[[], Guarantee], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        call()
    assert str(refused.value).startswith(message)
