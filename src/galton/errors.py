"""Errors that name the argument, the value received and what would be right."""

from __future__ import annotations

import math
import operator
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
MOST_ROUNDS = 10**7
"""The longest run."""
_GIGABYTE = 10**9
_MOST_GIGABYTES = 3.5


class GaltonError(Exception):
    """Base of every error galton raises on purpose; the message is one line.

    Example:
      >>> from galton import identity
      >>> try:
      ...     identity(rounds=0)
      ... except GaltonError as error:
      ...     print(error)
      rounds = 0: must be at least 1
    """


class Absent(Enum):
    """The value of an argument that was not given, or of an option that takes none: an error does not show it."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class InvalidArgument(GaltonError, ValueError):
    """An argument that the mathematics does not allow.

    Attributes:
      argument: name of the offending argument.
      value: the value received.
      remedy: what would be right.

    Example:
      >>> from galton import Guarantee
      >>> try:
      ...     Guarantee(epsilon=-1.0, delta=1e-5)
      ... except InvalidArgument as error:
      ...     error.argument, error.value, error.remedy
      ('epsilon', -1.0, 'must be greater than 0')
    """

    def __init__(self, argument: str, value: Any, remedy: str) -> None:
        self.argument, self.value, self.remedy = argument, value, remedy
        received = "" if value is ABSENT else f" = {_brief(value)}"
        super().__init__(f"{argument}{received}: {remedy}")

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, Any, str]]:
        return type(self), (self.argument, self.value, self.remedy)


class InvalidFile(GaltonError, ValueError):
    """A file that cannot be read, or whose content is not what it claims to be.

    Example:
      >>> from galton import load_plan
      >>> try:
      ...     load_plan("no-such-folder")
      ... except InvalidFile as error:
      ...     print(error)
      no-such-folder: is not a plan (No such file or directory); galton plan makes one
    """


class MissingExtra(GaltonError, ImportError):
    """A package that only an extra of galton brings is not installed.

    Example:
      >>> raise MissingExtra("galton.training.torch", "torch", "torch")
      Traceback (most recent call last):
      galton.errors.MissingExtra: galton.training.torch needs the package torch: pip install 'galton[torch]'
    """

    def __init__(self, module: str, package: str, extra: str) -> None:
        super().__init__(f"{module} needs the package {package}: pip install 'galton[{extra}]'")


def _brief(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:  # an integer with too many digits to print
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def positive(argument: str, value: float) -> float:
    """Returns `value` as a float if it is finite and above zero."""
    number = real(argument, value)
    if not number > 0:
        raise InvalidArgument(argument, value, "must be greater than 0")
    return number


def non_negative(argument: str, value: float) -> float:
    """Returns `value` as a float if it is finite and not below zero."""
    number = real(argument, value)
    if number < 0:
        raise InvalidArgument(argument, value, "must be at least 0")
    return number


def probability(argument: str, value: float) -> float:
    """Returns `value` as a float if it lies strictly between 0 and 1."""
    number = real(argument, value)
    if not 0 < number < 1:
        raise InvalidArgument(argument, value, "must lie strictly between 0 and 1")
    return number


def real(argument: str, value: float) -> float:
    """Returns `value` as a finite float."""
    number = extended(argument, value)
    if math.isinf(number):
        raise InvalidArgument(argument, value, "must be finite")
    return number


def extended(argument: str, value: float) -> float:
    """Returns `value` as a float that may be infinite."""
    try:
        if isinstance(value, bool | str | bytes | complex):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(argument, value, "must be a number") from None
    if math.isnan(number):
        raise InvalidArgument(argument, value, "must be finite")
    return number


def count(argument: str, value: int, at_least: int = 1, at_most: int | None = None) -> int:
    """Returns `value` as an int if it is a whole number in the allowed range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(argument, value, "must be a whole number") from None
    if isinstance(value, bool):
        raise InvalidArgument(argument, value, "must be a whole number")
    if number < at_least:
        raise InvalidArgument(argument, value, f"must be at least {at_least}")
    if at_most is not None and number > at_most:
        raise InvalidArgument(argument, value, f"must be at most {at_most}")
    return number


def count_rounds(value: int, at_least: int = 1) -> int:
    """Returns the number of rounds of a run."""
    return count("rounds", value, at_least, MOST_ROUNDS)


def check_memory(argument: str, value: Any, numbers: int, purpose: str = "") -> None:
    """Refuses what takes more memory than galton allows itself: so many float64 numbers at once."""
    if 8 * numbers > _MOST_GIGABYTES * _GIGABYTE:
        needed = 8 * numbers // _GIGABYTE
        raise InvalidArgument(argument, value, f"needs {needed} GB of memory{purpose}, more than {_MOST_GIGABYTES:g}")


def choice(argument: str, value: str, allowed: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgument(argument, value, "must be one of " + ", ".join(allowed))
    return value


def array(argument: str, value: ArrayLike, ndim: int | None = None) -> FloatArray:
    """Returns a read-only float64 copy of a finite array with `ndim` axes; None allows any number of them."""
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "fiu":
            raise TypeError
        result = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(argument, value, "must be an array of real numbers") from None
    if ndim is not None and result.ndim != ndim:
        axes = "one axis" if ndim == 1 else f"{ndim} axes"
        raise InvalidArgument(argument, result.shape, f"must have {axes} (this is its shape)")
    if result.size == 0:
        raise InvalidArgument(argument, result.shape, "must not be empty (this is its shape)")
    bad = ~np.isfinite(result)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InvalidArgument(f"{argument}{list(where)}", float(result[where]), "must be finite")
    result.setflags(write=False)
    return result


def sign_allowed(argument: str, values: FloatArray, allow_negative: bool) -> None:
    """Refuses negative entries of C unless the caller asked for them."""
    if allow_negative or not (values < 0).any():
        return
    where = tuple(int(i) for i in np.argwhere(values < 0)[0])
    raise InvalidArgument(
        f"{argument}{list(where)}",
        float(values[where]),
        "must not be negative; allow_negative (--allow-negative) has the pair of |C| analysed: valid, looser",
    )
