"""One grammar for strategies and families: what is read, where it is taken, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galton.errors import InvalidArgument, InvalidFile
from galton.optimization import parse_family, resolve_strategy, unamplified_optimum
from galton.optimization.families import FAMILIES
from galton.strategies import Strategy, Tree, identity, parse_strategy, square_root
from galton.strategies.grammar import ANALYSIS, NOTATIONS, OPTIMIZATION, PLAN, READY_MADE, Context, Source, parse_spec

ROUNDS = 12
CONTEXTS = {"ready-made": READY_MADE, "analysis": ANALYSIS, "optimization": OPTIMIZATION, "plan": PLAN}

READ = [
    ("identity", "identity", None, False, Source.FORMULA),
    ("sqrt", "sqrt", None, False, Source.FORMULA),
    ("sqrt:1", "sqrt", 1, False, Source.FORMULA),
    ("sqrt:12", "sqrt", 12, False, Source.FORMULA),
    ("tree", "tree", None, False, Source.FORMULA),
    ("bandmf:3", "bandmf", 3, False, Source.CLASSICAL),
    ("bandmf", "bandmf", None, False, Source.COMPARISON),
    ("best", "best", None, False, Source.COMPARISON),
    ("blt:10", "blt", 10, False, Source.FAMILY),
    ("blt:4+scale", "blt", 4, True, Source.FAMILY),
    ("toeplitz", "toeplitz", None, False, Source.FAMILY),
    ("toeplitz+scale", "toeplitz", None, True, Source.FAMILY),
    ("toeplitz:2+scale", "toeplitz", 2, True, Source.FAMILY),
    ("banded:12", "banded", 12, False, Source.FAMILY),
    ("dense", "dense", None, False, Source.FAMILY),
    ("strategy.json", ".json", None, False, Source.FILE),
    ("a+b/c:3/blt:4.npy", ".npy", None, False, Source.FILE),
]


@pytest.mark.parametrize(("text", "name", "number", "scaled", "source"), READ, ids=[row[0] for row in READ])
def test_what_is_written_is_read_and_can_be_written_again(
    text: str, name: str, number: int | None, scaled: bool, source: Source
) -> None:
    spec = parse_spec(text, ROUNDS, PLAN)
    assert (spec.name, spec.number, spec.scaled, spec.source) == (name, number, scaled, source)
    assert spec.path == (text if source is Source.FILE else "")
    assert str(spec) == text


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("text", [row[0] for row in READ])
def test_a_name_is_taken_where_its_source_is_and_nowhere_else(text: str, context: str) -> None:
    source = parse_spec(text, ROUNDS, PLAN).source
    if source in CONTEXTS[context].sources:
        assert str(parse_spec(text, ROUNDS, CONTEXTS[context])) == text
    else:
        with pytest.raises(InvalidArgument) as refused:
            parse_spec(text, ROUNDS, CONTEXTS[context])
        assert refused.value.argument == CONTEXTS[context].argument
        assert refused.value.value == text


STEPS = "--bins .. --epochs .. --epsilon .. --delta .."
FAMILY_USAGES = "blt:D[+scale], toeplitz[:W][+scale], inverse:W[+scale], bifr:W, banded:W or dense"
WRONG = [
    # The wrong command: what to run instead, and what is allowed here.
    (ANALYSIS, "blt:4", f"has to be optimised first: galton optimize blt:4 {STEPS} -o strategy.json, then use"),
    (ANALYSIS, "blt", "has to be optimised first"),
    (ANALYSIS, "dense", "allowed here: identity, sqrt[:W], bisr:W, tree, bandmf:W, FILE.json or FILE.npy"),
    (ANALYSIS, "best", "is for plans: galton plan --strategy best"),
    (ANALYSIS, "bandmf", "must be bandmf:W: the number of bands must be a whole number from 1 to 12; without a number"),
    (ANALYSIS, "bandmf", "galton plan --strategy bandmf"),
    (READY_MADE, "bandmf:3", "galton calibrate bandmf:3 --bins"),
    (OPTIMIZATION, "sqrt:64", f"needs no optimising: galton calibrate sqrt:64 {STEPS}"),
    (
        OPTIMIZATION,
        "sqrt:64",
        f"families to optimise: {FAMILY_USAGES}",
    ),
    (OPTIMIZATION, "my c.json", "is a strategy already: galton calibrate 'my c.json'"),
    (OPTIMIZATION, "bandmf:3", "is optimised by the commands that analyse: galton calibrate bandmf:3"),
    (OPTIMIZATION, "best", "is for plans"),
    # No such name.
    (ANALYSIS, "squirt", "must be identity, sqrt[:W], bisr:W, tree, bandmf:W, FILE.json or FILE.npy"),
    (ANALYSIS, "", "must be identity"),
    (ANALYSIS, "Identity", "must be identity"),
    (ANALYSIS, " sqrt", "must be identity"),
    (
        OPTIMIZATION,
        "bltt:4",
        f"must be {FAMILY_USAGES}",
    ),
    (
        PLAN,
        "nonsense",
        "must be identity, sqrt[:W], bisr:W, tree, bandmf:W, bandmf, best, FILE.json, FILE.npy, blt:D[+scale], ",
    ),
    # Files.
    (ANALYSIS, "strategy.txt", "a strategy file ends in .json or .npy"),
    (ANALYSIS, "folder/strategy", "a strategy file ends in .json or .npy"),
    (PLAN, "c.JSON", "a strategy file ends in .json or .npy"),
    (OPTIMIZATION, "families.txt", "must be blt:D"),
    # Numbers.
    *((ANALYSIS, f"sqrt:{number}", "from 1 to 12") for number in ("", "0", "13", "-1", "2.0", "x", "²", "9" * 5000)),
    *((ANALYSIS, f"bandmf:{number}", "from 1 to 12") for number in ("", "0", "13")),
    *(
        (OPTIMIZATION, f"blt:{number}", "buffers must be a whole number from 1 to 10")
        for number in ("0", "11", "٣", "")
    ),
    (OPTIMIZATION, "blt", "must be blt:D[+scale]: the number of buffers must be a whole number from 1 to 10"),
    (OPTIMIZATION, "banded", "must be banded:W: the number of bands"),
    (PLAN, "toeplitz:13", "from 1 to 12"),
    (ANALYSIS, "tree:2", "takes no number: tree"),
    (OPTIMIZATION, "dense:3", "takes no number: dense"),
    (PLAN, "best:3", "takes no number: best"),
    # Suffixes.
    (
        OPTIMIZATION,
        "dense+scale",
        "the only suffix is +scale, on blt:D[+scale], toeplitz[:W][+scale] or inverse:W[+scale]",
    ),
    (OPTIMIZATION, "blt:2+", "the only suffix is +scale"),
    (OPTIMIZATION, "blt:2+scale+x", "the only suffix is +scale"),
    (PLAN, "sqrt+scale", "the only suffix is +scale"),
    (ANALYSIS, "sqrt:3+scale", "takes no suffix"),
]


@pytest.mark.parametrize(
    ("context", "text", "message"), WRONG, ids=[f"{text[:20]}-{row}" for row, (_, text, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_told_with_what_would_be_right(context: Context, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_spec(text, ROUNDS, context)
    assert message in refused.value.remedy
    assert refused.value.argument == context.argument
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)


def test_limits_follow_the_rounds_of_the_run() -> None:
    assert parse_spec("blt:3", 3, OPTIMIZATION).number == 3
    for text, rounds, message in [
        ("blt:4", 3, "from 1 to 3"),
        ("sqrt:4", 3, "from 1 to 3"),
        ("dense", 1025, "is for at most 1024 rounds, and this run has 1025"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            parse_spec(text, rounds, PLAN)
    assert parse_spec("dense", 1024, PLAN).name == "dense"


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(
    st.one_of(
        st.text(max_size=20),
        st.lists(
            st.sampled_from(
                [*(notation.name for notation in NOTATIONS), ":", "+", "+scale", "1", "12", "0", "{}", "%s"]
            ),
            max_size=5,
        ).map("".join),
    ),
    st.sampled_from(list(CONTEXTS)),
)
def test_any_text_is_read_or_refused(text: str, context: str) -> None:
    try:
        spec = parse_spec(text, ROUNDS, CONTEXTS[context])
    except InvalidArgument:
        return
    assert spec.source in CONTEXTS[context].sources
    if "0" not in text:  # zeros in front of a number are dropped
        assert str(spec) == text


@pytest.mark.parametrize("context", CONTEXTS)
def test_help_has_a_line_for_every_name_that_is_taken(context: str) -> None:
    text = CONTEXTS[context].help
    for notation in NOTATIONS:
        entry = f"{notation.usage} ({notation.description}"
        assert (entry in text) == (notation.source in CONTEXTS[context].sources)
    assert ("+scale adds" in text) == (Source.FAMILY in CONTEXTS[context].sources)


def test_the_table_is_whole() -> None:
    """A formula says how it is built, a family has its class, and no two entries can be taken for each other."""
    for notation in NOTATIONS:
        assert (notation.build is not None) == (notation.source is Source.FORMULA)
        assert (notation.name in FAMILIES) == (notation.source is Source.FAMILY)
        assert not notation.scalable or notation.source is Source.FAMILY
    for has_number in (True, False):
        names = [notation.name for notation in NOTATIONS if notation.fits(has_number)]
        assert len(names) == len(set(names))


def test_the_readme_names_them_all() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for notation in NOTATIONS:
        assert f"`{notation.name}" in text, notation.name


BUILT = {"identity": identity(6), "sqrt": square_root(6), "sqrt:3": square_root(6, 3), "tree": Tree(6)}


@pytest.mark.parametrize("text", BUILT)
def test_ready_made_strategies_are_the_same_with_and_without_the_optimiser(text: str) -> None:
    strategy: Strategy = BUILT[text]
    assert parse_strategy(text, 6).digest == resolve_strategy(text, 2, 6).digest == strategy.digest


def test_bandmf_is_the_classical_optimum() -> None:
    assert resolve_strategy("bandmf:2", 2, 6).digest == unamplified_optimum("toeplitz:2", 2, 6).digest


@pytest.mark.parametrize("text", [row[0] for row in READ if row[4] is Source.FAMILY])
def test_a_family_has_the_name_it_was_asked_for_by(text: str) -> None:
    full = {"toeplitz:12": "toeplitz"}
    assert parse_family(text, ROUNDS).name == full.get(text, text)


@pytest.mark.parametrize("name", ["c.json", "c.npy"])
def test_a_text_file_is_no_strategy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("1 0\n0.5 1\n")
    with pytest.raises(InvalidFile, match=rf"{name}: is not (valid JSON|a .npy file of numbers)"):
        parse_strategy(str(tmp_path / name), 2)
