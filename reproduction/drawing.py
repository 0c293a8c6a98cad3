"""Curves that can be read in grey: every series has a marker and a line style of its own, the same in all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from galton.plots import pyplot
from reproduction.result import Rows, by_series

_STYLES: dict[str, tuple[str, str, str]] = {
    "unamplified": ("x", ":", "0.35"),
    "Poisson": ("s", "--", "#c8551b"),
    "balls-in-bins": ("o", "-", "#0b3c6f"),
    "BLT-3": ("^", "-", "#2a8fa8"),
    "Toeplitz": ("D", "-.", "#123a5e"),
    "BLT-4": ("v", ":", "#2a8fa8"),
    "scaled BLT-4": ("<", "-", "#8a4f9e"),
    "scaled Toeplitz": (">", "--", "#4b1d5c"),
    "column-banded": ("P", "-.", "#b08a00"),
    "redrawn bins": ("d", "-", "#b3123f"),
    "scaled BLT-4, redrawn bins": ("d", "-", "#b3123f"),
    "best of ours": ("*", "-", "black"),
    "BandMF, Poisson": ("s", "--", "#c8551b"),
    "BandMF, balls-in-bins": ("o", "-", "#0b3c6f"),
    "BLT-4, balls-in-bins": ("v", ":", "#2a8fa8"),
    "Toeplitz, balls-in-bins": ("D", "-.", "#123a5e"),
    "scaled BLT-4, balls-in-bins": ("<", "-", "#8a4f9e"),
    "DP-SGD, Poisson": ("X", ":", "0.55"),
    "balls-in-bins, cut to size": ("o", "-", "#2a8fa8"),
    "shuffling, same noise": ("^", "--", "#b08a00"),
}
_STEPS = (5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_TICKS = [[digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]]
_TICKS += [[step * count for count in range(1, 400)] for step in _STEPS]
"""Places of ticks, from few to many."""
_OTHER = (("h", "--", "0.2"), ("p", ":", "0.45"), ("X", "-.", "0.0"), ("d", "-", "0.55"))


def style(series: str, index: int = 0) -> dict[str, Any]:
    """Returns matplotlib's words for how a series looks."""
    marker, line, colour = _STYLES.get(series, _OTHER[index % len(_OTHER)])
    wide = series == "best of ours"
    return {
        "marker": marker,
        "linestyle": line,
        "color": colour,
        "markersize": 12 if wide else 5.5,
        "linewidth": 0.7 if wide else 1.4,
        "markerfacecolor": "none" if marker in "s^vD<>*" else colour,
    }


def canvas(columns: int = 1, rows: int = 1, width: float = 6.2, height: float = 4.0) -> tuple[Any, Any]:
    """Returns a figure and its axes, a grid of them unless there is one."""
    return pyplot().subplots(rows, columns, figsize=(width, height), layout="constrained")


def curves(axis: Any, rows: Rows, column: str, across: str = "epsilon", only: Sequence[str] | None = None) -> None:
    """Draws `column` of every series (or of those named, in that order) against `across`, on a logarithmic scale."""
    all_curves = by_series(rows, column, across)
    places: set[float] = set()
    for index, name in enumerate(all_curves if only is None else only):
        curve = all_curves.get(name, {})
        axis.plot(list(curve), list(curve.values()), label=name, **style(name, index))
        places |= set(curve)
    axis.set_xscale("log", base=2)
    ticks = sorted(place for place in places if _is_power_of_two(place))
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3, linewidth=0.6)


def _is_power_of_two(value: float) -> bool:
    return float(value).hex().partition("p")[0].rstrip("0") in ("0x1.", "-0x1.")


def at_one(axis: Any, words: str) -> None:
    """Marks where a ratio is 1; the legend says what that means."""
    axis.axhline(1.0, color="0.35", linewidth=0.9, label=words, zorder=1)


def logarithmic(axis: Any) -> None:
    """A logarithmic vertical axis with a handful of ticks that are plain numbers."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    fitting = [[tick for tick in ticks if low <= tick <= high] for ticks in _TICKS]
    shown = next((ticks for ticks in fitting if len(ticks) >= 4), fitting[-1])
    axis.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()
