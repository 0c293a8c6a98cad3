"""Fields of a JSON object, each checked as it is read: type, finiteness, range."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from galton.errors import InvalidArgument

EXACT_LIMIT = 2**53
"""Every reader of JSON keeps whole numbers below this exactly; others are written as text."""
_MOST_DIGITS = 100
Member = TypeVar("Member", bound=enum.Enum)


class Fields:
    """The fields of a JSON object from a file that anybody may have written.

    Args:
      name: name of the object, for errors.
      value: the parsed JSON.
      shape: the dataclass to rebuild: the object must have its fields and no others. None allows any fields.
      flattened: fields of the dataclass that the object holds as several fields, with the names of these.
      derived: further fields of the object, which follow from those of the dataclass.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        shape: type[Any] | None = None,
        flattened: Mapping[str, tuple[str, ...]] | None = None,
        derived: Iterable[str] = (),
    ) -> None:
        if not isinstance(value, dict):
            raise InvalidArgument(name, value, "must be a JSON object")
        if shape is not None:
            parts = flattened or {}
            wanted = {part for field in fields(shape) for part in parts.get(field.name, (field.name,))} | set(derived)
            if set(value) != wanted:
                differing = sorted(map(str, set(value) ^ wanted))
                raise InvalidArgument(name, differing, "are fields too many or missing: must be as galton writes them")
        self._name, self._value = name, value

    def _get(self, key: str, kinds: type | tuple[type, ...], words: str) -> Any:
        if key not in self._value:
            raise InvalidArgument(self._name, sorted(map(str, self._value)), f"must have the field {key}")
        value = self._value[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise InvalidArgument(f"{self._name}.{key}", value, f"must be {words}")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """Returns an object as a dictionary."""
        return dict(self._get(key, dict, "a JSON object"))

    def inner(self, key: str) -> Fields:
        """Returns the fields of a nested object."""
        return Fields(f"{self._name}.{key}", self.mapping(key))

    def truth(self, key: str) -> bool:
        """Returns true or false."""
        return bool(self._get(key, bool, "true or false"))

    def text(self, key: str) -> str:
        """Returns text."""
        return str(self._get(key, str, "text"))

    def text_or_none(self, key: str) -> str | None:
        """Returns text, or None for null."""
        return None if self._value.get(key, "") is None else self.text(key)

    def texts(self, key: str) -> dict[str, str]:
        """Returns texts by name."""
        value = self._get(key, dict, "an object of texts")
        if not all(isinstance(name, str) and isinstance(text, str) for name, text in value.items()):
            raise InvalidArgument(f"{self._name}.{key}", value, "must be an object of texts")
        return dict(value)

    def sequence(self, key: str) -> list[Any]:
        """Returns a list of anything."""
        return list(self._get(key, list, "a list"))

    def count(self, key: str, least: int = 0) -> int:
        """Returns a whole number that is not below `least`."""
        value = int(self._get(key, int, "a whole number"))
        if value < least:
            raise InvalidArgument(f"{self._name}.{key}", value, f"must be at least {least}")
        return value

    def whole(self, key: str) -> int:
        """Returns a whole number from 0, which is text from 2^53 on."""
        value = self._get(key, (int, str), "a whole number, as text if it is 2^53 or more")
        if not isinstance(value, str):
            return self.count(key)
        digits = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
        if not digits or int(value) < EXACT_LIMIT:
            raise InvalidArgument(f"{self._name}.{key}", value, "must be a whole number, as text if it is 2^53 or more")
        return int(value)

    def real(self, key: str, least: float = -math.inf, most: float = math.inf) -> float:
        """Returns a finite number between `least` and `most`."""
        value = self._get(key, (int, float), "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidArgument(f"{self._name}.{key}", value, "must be finite")
        if not least <= number <= most:
            raise InvalidArgument(f"{self._name}.{key}", value, f"must lie between {least:g} and {most:g}")
        return number

    def reals(self, key: str) -> list[float]:
        """Returns a list of finite numbers, not empty."""
        values = self.sequence(key)
        if not values:
            raise InvalidArgument(f"{self._name}.{key}", values, "must not be empty")
        inner = Fields(f"{self._name}.{key}", {str(index): value for index, value in enumerate(values)})
        return [inner.real(str(index)) for index in range(len(values))]

    def real_or_none(self, key: str, least: float = -math.inf, most: float = math.inf) -> float | None:
        """Returns a finite number between `least` and `most`, or None for null."""
        return None if self._value.get(key, 0) is None else self.real(key, least, most)

    def member(self, key: str, kind: type[Member]) -> Member:
        """Returns the member of an enum that a text names."""
        name = self.text(key)
        try:
            return kind(name)
        except ValueError:
            names = ", ".join(str(member.value) for member in kind)
            raise InvalidArgument(f"{self._name}.{key}", name, f"must be one of {names}") from None
