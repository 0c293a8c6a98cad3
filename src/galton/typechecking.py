"""Arguments of the wrong type, refused in one way: `typechecked` reads what a function takes from its annotations.

What a value may be (range, shape, one of some names) is checked where it is used, by the functions of `errors`.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import inspect
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np

from galton.errors import InvalidArgument

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Kind(NamedTuple):
    """What an argument may be: a test, and words for it; None where anything is allowed, or is checked elsewhere."""

    test: Callable[[Any], bool]
    words: str


def typechecked(subject: Decorated) -> Decorated:
    """Makes a function, or a class on construction, refuse arguments of the wrong type with `InvalidArgument`.

    >>> @typechecked
    ... def double(number: float) -> float:
    ...     return 2 * number
    >>> double("4")
    Traceback (most recent call last):
    galton.errors.InvalidArgument: number = '4': must be a number
    """
    if inspect.isclass(subject):
        subject.__init__ = _checking(subject.__init__, sys.modules[subject.__module__].__dict__)  # type: ignore[method-assign]
        return subject
    return typing.cast(Decorated, _checking(subject, subject.__globals__))


def _checking(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [part.name for part in parameters if part.kind is not inspect.Parameter.KEYWORD_ONLY]

    @functools.cache
    def kinds() -> dict[str, _Kind]:
        """Looked up on the first call, when all modules are there."""
        annotated = [part for part in parameters if part.annotation is not inspect.Parameter.empty]
        known = {part.name: _kind_of(_evaluated(part.annotation, names)) for part in annotated}
        return {name: kind for name, kind in known.items() if kind is not None}

    @functools.wraps(function)
    def wrapper(*args: Any, **more: Any) -> Any:
        wanted = kinds()
        for name, value in (*zip(positional, args, strict=False), *more.items()):
            kind = wanted.get(name)
            if kind is not None and not kind.test(value):
                raise InvalidArgument(name, value, f"must be {kind.words}")
        return function(*args, **more)

    return wrapper


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation stands for; Any if it is known to type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)  # of galton's own source
    except NameError:
        return Any


def _kind_of(annotation: Any) -> _Kind | None:
    if annotation is Any:
        return None
    if annotation is None or annotation is type(None):
        return _Kind(lambda value: value is None, "None")
    if isinstance(annotation, type) and annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType) and Path in get_args(annotation):
        others = [_kind_of(part) for part in get_args(annotation) if part not in (str, Path)]
        return _either([*others, _Kind(_is_file_name, "the name of a file or folder")])
    if origin in (Union, types.UnionType):
        return _either([_kind_of(part) for part in get_args(annotation)])
    if origin is collections.abc.Callable:
        return _Kind(callable, "a function")
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return _Kind(lambda value: isinstance(value, collections.abc.Mapping), "a dictionary")
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and origin.__module__ != "numpy":
        return _Kind(_is_list_of_texts, "a list of texts") if str in get_args(annotation) else _Kind(_is_list, "a list")
    if not isinstance(annotation, type) or origin is not None or getattr(annotation, "_is_protocol", False):
        return None
    if issubclass(annotation, enum.Enum):
        names = ", ".join(str(member.value) for member in annotation)
        return _Kind(functools.partial(_is_member, annotation), f"one of {names}")
    article = "an" if annotation.__name__[0] in "AEIOU" else "a"
    return _Kind(lambda value: isinstance(value, annotation), f"{article} {annotation.__name__}")


def _either(kinds: list[_Kind | None]) -> _Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    words = dict.fromkeys(kind.words for kind in known if kind.words != "None" or len(known) == 1)
    return _Kind(lambda value: any(kind.test(value) for kind in known), " or ".join(words))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str | bytes | bytearray | complex | type) or getattr(value, "ndim", 0) != 0:
        return False
    return isinstance(value, int) or hasattr(value, "__float__")


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and "\0" not in str(value)


def _is_list(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | collections.abc.Mapping) or getattr(value, "ndim", 1) == 0:
        return False
    return isinstance(value, collections.abc.Iterable)


def _is_list_of_texts(value: Any) -> bool:
    if not _is_list(value):
        return False
    return not isinstance(value, Sequence | np.ndarray) or all(isinstance(part, str) for part in value)


def _is_member(kind: type[enum.Enum], value: Any) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


_PLAIN: dict[type, _Kind] = {
    float: _Kind(_is_number, "a number"),
    int: _Kind(_is_whole, "a whole number"),
    bool: _Kind(_is_truth, "true or false"),
    str: _Kind(_is_text, "text"),
    Path: _Kind(_is_file_name, "the name of a file or folder"),
    dict: _Kind(lambda value: isinstance(value, dict), "a dictionary"),
}
