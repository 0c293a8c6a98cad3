"""Examples in docstrings, outside of their own section, as code: Markdown would take >>> for a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ ]*(?:>>>|\.\.\.).*\n(?:^[ ]*(?!>>>|\.\.\.)\S.*\n)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts the examples of every docstring into code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every function, class and attribute.

        Args:
          obj: it.
        """
        if obj.docstring is None or ">>>" not in obj.docstring.value:
            return

        def fenced(example: re.Match[str]) -> str:
            lines = example[0].rstrip("\n").split("\n")
            margin = " " * min(len(line) - len(line.lstrip()) for line in lines if line.strip())
            return "\n".join([f"{margin}```pycon", *lines, f"{margin}```", ""])

        obj.docstring.value = _EXAMPLE.sub(fenced, obj.docstring.value + "\n").rstrip("\n")
