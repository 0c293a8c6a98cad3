"""Commands that name things as users type them: in their usage line, in their list, and in errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from galton.errors import ABSENT, InvalidArgument

_NAME = re.compile(r"(\w+)(\[.*\])?")
_BUILT_FROM = {"plan": "folder"}
"""Arguments in Python that commands make from a parameter of another name."""
_LONGEST_NUMBER = 40

_SINGLE = {
    "batch_size": "must be one number: the analysis needs the same bins in every epoch; make one plan per phase and "
    "compose them, or give a noise schedule as C (docs/howto.md)"
}
"""Why a parameter does not take a list, where people try one."""


class Command(TyperCommand):
    """A command whose usage line shows what it requires, with errors that name options as they are typed."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the words of the usage line: arguments, required options, then the others as [OPTIONS]."""
        pieces = []
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = _typed(parameter, ())
                pieces.append(name if parameter.required else f"[{name}]")
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "option" and parameter.required:
                long = next(name for name in parameter.opts if name.startswith("--"))
                pieces.append(f"{long} {parameter.metavar or long.removeprefix('--').replace('-', '_').upper()}")
        return [*pieces, "[OPTIONS]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words; one that is no number where a number is wanted is refused like any other wrong value."""
        words = list(args)
        ctx.meta[__name__] = words
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            parameter: Any = error.param
            if parameter is None or type(error).__name__ == "MissingParameter":
                raise
            values, _, _ = self.make_parser(ctx).parse_args(args=list(words))
            text = values[parameter.name]
            remedy = _whole_number(text) if "integer" in error.message else "must be a number"
            if "," in str(text):
                remedy = _SINGLE.get(parameter.name, remedy)
            raise InvalidArgument(_typed(parameter, words), text, remedy) from None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except InvalidArgument as error:
            raise as_typed(error, self.params, ctx.params, ctx.meta.get(__name__, ())) from None


class Sections(TyperGroup):
    """A group that lists its commands in sections, each with its whole summary."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of commands by section, in the order of the help; those that no section names come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands, in order."""
        named = [name for names in self.sections.values() for name in names if name in self.commands]
        return [*named, *(name for name in self.commands if name not in named)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands into the help."""
        titles = {name: title for title, names in self.sections.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            summary = (self.commands[name].help or "").partition("\n\n")[0]
            rows.setdefault(titles.get(name, "Commands"), []).append((name, " ".join(summary.split())))
        width = max(len(name) for name in self.commands)
        for title, lines in rows.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in lines])


def as_typed(
    error: InvalidArgument, parameters: Sequence[Any], values: Mapping[str, Any], words: Sequence[str] = ()
) -> InvalidArgument:
    """Returns the error in the words of the command line, if its argument is a parameter of the command.

    `noise_multiplier` becomes `--noise-multiplier`, `epsilons[3]` becomes `--epsilons[3]`, and a positional argument is
    named as in the usage line. The value is the one that was typed, not what follows from it: sqrt:2, not `toeplitz`;
    none if nothing was typed. Of several words it is the one to blame, or all of them.

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
    value = error.value if match[2] or given in (None, "") else _shown(given, error.value)
    return InvalidArgument(_typed(named[0], words) + index, ABSENT if value is None else value, error.remedy)


def _shown(given: Any, blamed: Any) -> Any:
    """What was typed, as an error shows it; a flag has no value."""
    if isinstance(given, bool):
        return None
    if isinstance(given, list | tuple):
        return blamed if blamed in given else " ".join(map(str, given))
    return str(given) if isinstance(given, Path) else given


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
