"""From a matplotlib figure to SVG that lives inside a page: colours of the page, ids of its own, a title."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

from galton.plots import pyplot

INK, MUTED, GRID, FIRST, SECOND, THIRD = (f"#0a0b0{digit}" for digit in range(1, 7))
"""Stand-ins for the colours of the page, which differ between light and dark mode."""
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
}
WIDTH = 360
"""Width in units that are CSS pixels on a phone: text keeps its size there."""
_FONT = re.compile(r"font: (?:(\w+) )?([\d.]+)px [^;]*")
_FAMILY = re.compile(r"font-family: [^;]*;? *")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 2,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "figure.facecolor": "none",
}


@contextmanager
def canvas(height: int) -> Iterator[Any]:
    """Gives a figure WIDTH wide, in the style of the page."""
    pyplot()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that matplotlib's font has not: the browser's has them
        yield Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")


def inline(figure: Any, name: str, title: str, description: str) -> str:
    """Returns the figure as an <svg> element; call within `canvas`.

    Args:
      figure: what was drawn.
      name: starts every id in it, so that no two figures of a page clash.
      title: for those who cannot see the figure.
      description: of what it shows, for the same readers.
    """
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if _without_namespace(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _without_namespace(element.tag)
        element.attrib = {
            _without_namespace(key): _attribute(_without_namespace(key), text, name)
            for key, text in element.attrib.items()
        }
        element.tail = None
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"class": "plot", "role": "img", "aria-labelledby": f"{name}-title {name}-description"}
    for index, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{name}-{'description' if index else 'title'}"})
        element.text = text
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")


def _without_namespace(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(key: str, text: str, name: str) -> str:
    """An attribute as the page wants it."""
    if key == "id":
        return f"{name}-{text}"
    if key == "href" and text.startswith("#"):
        return f"#{name}-{text[1:]}"
    text = text.replace("url(#", f"url(#{name}-")
    if key == "style":
        for stand_in, variable in _VARIABLES.items():
            text = text.replace(stand_in, variable)
        text = _FONT.sub(lambda match: f"font-size: {match[2]}px; font-weight: {match[1] or 'normal'}", text)
        text = _FAMILY.sub("", text)
    return text
