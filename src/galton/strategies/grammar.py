"""How strategies and families are written: one grammar for the command line, for plans and for Python.

A new name is a new entry of `NOTATIONS`. The entry of a ready-made strategy says how it is built; a family has a class
of that name in `optimization.families`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from galton.errors import InvalidArgument
from galton.strategies.banded_inverse import banded_inverse_root
from galton.strategies.base import Strategy
from galton.strategies.toeplitz import identity, square_root
from galton.strategies.tree import Tree

SCALE = "+scale"
_MOST_DIGITS = 12


class Source(Enum):
    """Where C comes from."""

    FORMULA = auto()
    FILE = auto()
    CLASSICAL = auto()
    """Optimised without amplification, for the bins of the run."""
    FAMILY = auto()
    """Optimised under amplification, for a target (epsilon, delta)."""
    COMPARISON = auto()
    """The best of several, for a target (epsilon, delta)."""


@dataclass(frozen=True)
class Number:
    """The number after a name's colon: from 1 to the rounds of the run, or to `most` if that is less.

    Attributes:
      letter: the letter that stands for it in help texts.
      meaning: what it counts.
      most: the largest number allowed, if less than the rounds.
      optional: whether it may be left out.
    """

    letter: str
    meaning: str
    most: int | None = None
    optional: bool = False

    def allowed(self, rounds: int) -> str:
        """Says which numbers are allowed, in words."""
        return f"the number of {self.meaning} must be a whole number from 1 to {self.largest(rounds)}"

    def largest(self, rounds: int) -> int:
        """Returns the largest number allowed."""
        return rounds if self.most is None else min(self.most, rounds)


@dataclass(frozen=True)
class Notation:
    """One way to write a strategy or a family.

    Attributes:
      name: the word; for files, the suffix.
      source: where C comes from.
      description: one line of help.
      number: what follows the name after a colon, if anything.
      scalable: whether +scale may follow.
      most_rounds: the longest run that it is allowed for.
      build: build(rounds, number) returns C; for formulas.
    """

    name: str
    source: Source
    description: str
    number: Number | None = None
    scalable: bool = False
    most_rounds: int | None = None
    build: Callable[[int, int | None], Strategy] | None = None

    @property
    def usage(self) -> str:
        """How it is written, with letters for numbers and brackets around what may be left out."""
        if self.source is Source.FILE:
            return f"FILE{self.name}"
        number = "" if self.number is None else f":{self.number.letter}"
        if self.number is not None and self.number.optional:
            number = f"[{number}]"
        return self.name + number + (f"[{SCALE}]" if self.scalable else "")

    @property
    def summary(self) -> str:
        """The description, with the limits."""
        number = f", {self.number.letter} at most {self.number.most}" if self.number and self.number.most else ""
        return self.description + number + (f", at most {self.most_rounds} rounds" if self.most_rounds else "")

    def fits(self, has_number: bool) -> bool:
        """Whether it can be written with, or without, a number."""
        return self.number is not None if has_number else self.number is None or self.number.optional


NOTATIONS = (
    Notation("identity", Source.FORMULA, "independent noise: DP-SGD", build=lambda rounds, _: identity(rounds)),
    Notation(
        "sqrt",
        Source.FORMULA,
        "Toeplitz square root of the prefix sums, or its first W bands",
        Number("W", "bands", optional=True),
        build=square_root,
    ),
    Notation(
        "bisr",
        Source.FORMULA,
        "banded inverse square root: W bands of the inverse of sqrt",
        Number("W", "bands of the inverse"),
        build=lambda rounds, bands: banded_inverse_root(rounds, bands or 1),
    ),
    Notation("tree", Source.FORMULA, "binary tree: DP-FTRL", build=lambda rounds, _: Tree(rounds)),
    Notation("bandmf", Source.CLASSICAL, "W Toeplitz bands, optimised without amplification", Number("W", "bands")),
    Notation("bandmf", Source.COMPARISON, "the same with the best number of bands"),
    Notation("best", Source.COMPARISON, "the one with the least error of several"),
    Notation(".json", Source.FILE, "strategy that galton optimize wrote"),
    Notation(".npy", Source.FILE, "NumPy array: 1-D a Toeplitz column, 2-D all of C"),
    Notation("blt", Source.FAMILY, "BLT with D buffers", Number("D", "buffers", 10), scalable=True),
    Notation(
        "toeplitz",
        Source.FAMILY,
        "any Toeplitz C, or W bands of one",
        Number("W", "bands", optional=True),
        scalable=True,
    ),
    Notation(
        "inverse",
        Source.FAMILY,
        "any Toeplitz C whose inverse has W bands (W = 2: lambda-CGD)",
        Number("W", "bands of the inverse"),
        scalable=True,
    ),
    Notation(
        "bifr",
        Source.FAMILY,
        "banded inverse root of the best power, W bands of the inverse",
        Number("W", "bands of the inverse"),
    ),
    Notation("banded", Source.FAMILY, "W bands that change from column to column", Number("W", "bands")),
    Notation("dense", Source.FAMILY, "any lower-triangular C", most_rounds=1024),
)
"""Every way to write a strategy or a family."""

_ALTERNATIVES = {
    Source.FORMULA: "needs no optimising: galton calibrate {text} --bins .. --epochs .. --epsilon .. --delta ..",
    Source.FILE: "is a strategy already: galton calibrate {text} --bins .. --epochs .. --epsilon .. --delta ..",
    Source.CLASSICAL: (
        "is optimised by the commands that analyse: galton calibrate {text} --bins .. --epochs .. --epsilon .. "
        "--delta .."
    ),
    Source.FAMILY: (
        "has to be optimised first: galton optimize {text} --bins .. --epochs .. --epsilon .. --delta .. "
        "-o strategy.json, then use strategy.json"
    ),
    Source.COMPARISON: "is for plans: galton plan --strategy {text} ..",
}
"""What to run instead, where C may not come from this source."""


@dataclass(frozen=True)
class Context:
    """A place where a strategy or a family is expected.

    Attributes:
      argument: name of the argument, for errors.
      introduction: words before the list of what is allowed.
      sources: where C may come from.
    """

    argument: str
    introduction: str
    sources: frozenset[Source]

    @property
    def notations(self) -> tuple[Notation, ...]:
        """What may be written."""
        return tuple(notation for notation in NOTATIONS if notation.source in self.sources)

    def usages(self, rounds: int) -> str:
        """What may be written for a run of so many rounds, as a list."""
        return _join_with_or(
            notation.usage for notation in self.notations if rounds <= (notation.most_rounds or rounds)
        )

    @property
    def help(self) -> str:
        """What may be written and what it means: the help of a command."""
        families = [notation for notation in self.notations if notation.source is Source.FAMILY]
        others = [notation for notation in self.notations if notation.source is not Source.FAMILY]
        lists = [
            _join_with_or(f"{entry.usage} ({entry.summary})" for entry in group)
            for group in (others, families)
            if group
        ]
        scalable = any(notation.scalable for notation in self.notations)
        return "; or the best of a family: ".join(lists) + (f"; {SCALE} adds a weight per round." if scalable else ".")


READY_MADE = Context("strategy", "allowed here", frozenset({Source.FORMULA, Source.FILE}))
"""`parse_strategy`."""
ANALYSIS = Context("strategy", "allowed here", READY_MADE.sources | {Source.CLASSICAL})
"""The commands delta, epsilon, profile, calibrate and certify."""
OPTIMIZATION = Context("family", "families to optimise", frozenset({Source.FAMILY}))
"""The command optimize."""
PLAN = Context("strategy", "allowed here", frozenset(Source))
"""The command plan."""


@dataclass(frozen=True)
class Spec:
    """A strategy or a family as it was written.

    Attributes:
      notation: which of `NOTATIONS` it is.
      number: what followed the colon.
      scaled: whether +scale followed.
      path: of a file.
    """

    notation: Notation
    number: int | None = None
    scaled: bool = False
    path: str = ""

    @property
    def name(self) -> str:
        """The word that it begins with; for a file, the suffix."""
        return self.notation.name

    @property
    def source(self) -> Source:
        """Where C comes from."""
        return self.notation.source

    def __str__(self) -> str:
        number = "" if self.number is None else f":{self.number}"
        return self.path or self.name + number + (SCALE if self.scaled else "")


def parse_spec(text: str, rounds: int, context: Context) -> Spec:
    """Reads what a user wrote for a run of `rounds` rounds.

    Example:
      >>> spec = parse_spec("blt:4+scale", 100, OPTIMIZATION)
      >>> spec.name, spec.number, spec.scaled, str(spec)
      ('blt', 4, True, 'blt:4+scale')
      >>> parse_spec("strategy.json", 100, ANALYSIS).path
      'strategy.json'
    """

    def refusal(remedy: str) -> InvalidArgument:
        return InvalidArgument(context.argument, text, remedy)

    base, plus, suffix = text.partition("+")
    name, colon, digits = base.partition(":")
    notation = _matching_notation(text, name, bool(colon), context)
    usages = context.usages(rounds)
    others = f"{context.introduction}: {usages}"
    if notation is None:
        if Source.FILE in context.sources and ("/" in text or "." in text):
            raise refusal(f"a strategy file ends in .json or .npy; {others}")
        raise refusal(f"must be {usages}")
    if notation.source not in context.sources:
        raise refusal(f"{_explain_alternative(notation, text)}; {others}")
    if notation.source is Source.FILE:
        return Spec(notation, path=text)
    if plus and not (notation.scalable and plus + suffix == SCALE):
        scalable = _join_with_or(other.usage for other in context.notations if other.scalable)
        raise refusal(f"the only suffix is {SCALE}, on {scalable}" if scalable else "takes no suffix")
    if not notation.fits(bool(colon)):
        raise refusal(_explain_number(notation, rounds, text))
    if notation.most_rounds is not None and rounds > notation.most_rounds:
        raise refusal(f"is for at most {notation.most_rounds} rounds, and this run has {rounds}; {others}")
    number = _parse_number(digits) if colon else None
    if notation.number is not None and number is not None and not 1 <= number <= notation.number.largest(rounds):
        raise refusal(notation.number.allowed(rounds))
    return Spec(notation, number, bool(plus))


def _matching_notation(text: str, name: str, has_number: bool, context: Context) -> Notation | None:
    """The notation that a text begins (a file: ends) with; one that is allowed here and fits is preferred."""
    files = [notation for notation in NOTATIONS if notation.source is Source.FILE and text.endswith(notation.name)]
    named = [notation for notation in NOTATIONS if notation.source is not Source.FILE and notation.name == name]
    candidates = files or named
    return min(
        candidates,
        key=lambda notation: (notation.source not in context.sources, not notation.fits(has_number)),
        default=None,
    )


def _parse_number(digits: str) -> int:
    """The number that the digits stand for; 0, which is never allowed, for anything else."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else 0


def _explain_number(notation: Notation, rounds: int, text: str) -> str:
    """What is wrong where a number is missing or should not be there."""
    if notation.number is None:
        return f"takes no number: {notation.usage}"
    bare = next((other for other in NOTATIONS if other.name == notation.name and other.fits(False)), None)
    otherwise = "" if bare is None else f"; without a number it {_explain_alternative(bare, text)}"
    return f"must be {notation.usage}: {notation.number.allowed(rounds)}{otherwise}"


def _explain_alternative(notation: Notation, text: str) -> str:
    """What to run instead."""
    return _ALTERNATIVES[notation.source].format(text=shlex.quote(text) if len(text) <= 60 else notation.usage)


def _join_with_or(items: Iterable[str]) -> str:
    *others, last = tuple(items) or ("",)
    return f"{', '.join(others)} or {last}" if others else last
