"""Errors that name what the user typed: the option or argument of the command, not the parameter in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from galton.errors import InvalidArgument

_NAME = re.compile(r"(\w+)(\[.*\])?")
_BUILT_FROM = {"plan": "folder"}
"""Arguments in Python that commands make from a parameter of another name."""
_LONGEST_NUMBER = 40


class Command(TyperCommand):
    """A command with errors that name options as they are typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words; one that is no number where a number is wanted is refused like any other wrong value."""
        words = list(args)
        ctx.meta[__name__] = words
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            parameter: Any = error.param
            values, _, _ = self.make_parser(ctx).parse_args(args=list(words))
            if parameter is None or parameter.name not in values:  # a missing one
                raise
            text = values[parameter.name]
            remedy = _whole_number(text) if "integer" in error.message else "must be a number"
            raise InvalidArgument(_typed(parameter, words), text, remedy) from None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except InvalidArgument as error:
            raise as_typed(error, self.params, ctx.params, ctx.meta.get(__name__, ())) from None


def as_typed(
    error: InvalidArgument, parameters: Sequence[Any], values: Mapping[str, Any], words: Sequence[str] = ()
) -> InvalidArgument:
    """Returns the error in the words of the command line, if its argument is a parameter of the command.

    `noise_multiplier` becomes `--noise-multiplier`, `epsilons[3]` becomes `--epsilons[3]`, and a positional argument is
    named as in the usage line. The value is the one that was typed, not what follows from it: sqrt:2, not `toeplitz`.

    Args:
      error: about an argument in Python.
      parameters: those of the command.
      values: what they were.
      words: the words of the command line, which tell how an option with several names was written.
    """
    match = _NAME.fullmatch(error.argument)
    if match is None:
        return error
    names = (match[1], _BUILT_FROM.get(match[1]))
    named = [parameter for parameter in parameters if parameter.name in names]
    if not named:
        return error
    given = values.get(named[0].name)
    index = match[2] or ""
    if isinstance(given, str) and "," not in given:  # a list of one
        index = ""
    value = error.value if match[2] or given in (None, "") else str(given) if isinstance(given, Path) else given
    return InvalidArgument(_typed(named[0], words) + index, value, error.remedy)


def _typed(parameter: Any, words: Sequence[str]) -> str:
    """The long form of an option, the one that was typed last if it has several; the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    long = [name for name in parameter.opts if name.startswith("--")]
    typed = [word.partition("=")[0] for word in words]
    return next((word for word in reversed(typed) if word in long), (long or parameter.opts)[0])


def _whole_number(text: str) -> str:
    """What is right where a whole number is wanted; 5e4 is written out."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    written = f"{number:.0f}" if number.is_integer() else ""
    return "must be a whole number" + (f", written out: {written}" if 0 < len(written) <= _LONGEST_NUMBER else "")
