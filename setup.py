"""What pyproject.toml cannot say: the readme on PyPI, where links into the checkout would lead nowhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")


NO_SOURCE = (
    "**Where the files are.** galton has no public repository yet. Files that are named here, such as `docs/start.md`,"
    " are\nin the source distribution (`galton-*.tar.gz`, under *Download files*), which holds the whole checkout:\n"
    "`make docs` in it builds the documentation as a site."
)
"""For readers of PyPI, after the first sentence."""


def description(readme: str, source: str | None) -> str:
    """Returns the text for PyPI: relative links lead into the repository, or where it has no address are plain names.

    Args:
      readme: README.md.
      source: address of the repository, under which /blob/main/PATH is a file.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if source is not None:
            return f"{picture}[{words}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"
        if picture:
            return ""
        return f"`{path}`" if words == path else f"{words} (`{path}`)"

    start, *rest = _LINK.sub(absolute, readme).split("\n\n", 2)
    return "\n\n".join([start, *rest[:1], *([] if source else [NO_SOURCE]), *rest[1:]])


if __name__ == "__main__":
    from setuptools import setup

    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), urls.get("Source")),
        long_description_content_type="text/markdown",
    )
