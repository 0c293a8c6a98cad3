"""Errors that name what the user typed: the option or argument of the command, not the parameter in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

from galton.errors import InvalidArgument

_NAME = re.compile(r"(\w+)(\[.*\])?")


class Command(TyperCommand):
    """A command with errors that name options as they are typed."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except InvalidArgument as error:
            raise as_typed(error, self.params, ctx.params) from None


def as_typed(error: InvalidArgument, parameters: Sequence[Any], values: Mapping[str, Any]) -> InvalidArgument:
    """Returns the error in the words of the command line, if its argument is a parameter of the command.

    `noise_multiplier` becomes `--noise-multiplier`, `epsilons[3]` becomes `--epsilons[3]`, and a positional argument is
    named as in the usage line. A value that was typed as text is shown as it was: sqrt:2, not `toeplitz`.
    """
    match = _NAME.fullmatch(error.argument)
    named = [parameter for parameter in parameters if match and parameter.name == match[1]]
    if match is None or not named:
        return error
    index, text = match[2] or "", values.get(match[1])
    value = text if text and isinstance(text, str) and not index else error.value
    return InvalidArgument(_typed(named[0]) + index, value, error.remedy)


def _typed(parameter: Any) -> str:
    """The long form of an option, the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return next((word for word in parameter.opts if word.startswith("--")), parameter.opts[0])
