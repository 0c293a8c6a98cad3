"""The page: page.html with its style, its script and the figures in it; it loads nothing and sends nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template

from galton.accounting.certificate import FAILURE_SHARE
from galton.explorer.results import LONG, MOST_WORK, Axes, Results, Series
from galton.report.numbers import short
from galton.report.style import CSS


@dataclass(frozen=True)
class _Look:
    """How a mechanism appears.

    Attributes:
      label: what it does.
      note: how it is known.
      colour: a variable of the style.
      dashed: whether its batches are known.
    """

    label: str
    note: str
    colour: str
    dashed: bool = False


_LOOKS = {
    "dpsgd-unamplified": _Look("Independent noise, batches known", "DP-SGD without amplification", "muted", True),
    "dpsgd-poisson": _Look("Independent noise, Poisson batches", "DP-SGD as in Opacus", "muted"),
    "memf-unamplified": _Look("Correlated noise, batches known", "matrix mechanism, as in DP-FTRL", "second", True),
    "bandmf-cyclic-poisson": _Look("Correlated noise, cyclic Poisson", "BandMF as in jax-privacy", "second"),
    "bandmf-balls-in-bins": _Look("Correlated noise, balls-in-bins", "galton, bins drawn once", "first"),
    "bandmf-redrawn": _Look("Correlated noise, bins redrawn", "galton, bins drawn anew in every epoch", "third"),
}
_LABELS = {
    "epsilons": ("Epsilon", "the budget: smaller is more private"),
    "deltas": ("Delta", "how likely epsilon may fail"),
    "bins": ("Batches per epoch", ""),
    "epochs": ("Epochs", "passes over the data"),
}
_USUAL = {"epsilons": 4.0, "deltas": 1e-5, "bins": 16, "epochs": 4}
"""Where the sliders of a page start, or as near to it as its grid has."""


def render(results: Results) -> str:
    """Returns the explorer as one HTML page.

    Args:
      results: the figures that it shows.

    Returns:
      The page.
    """
    script = _part("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    axes = vars(results.axes)
    grid = (
        f"{label.lower()} {', '.join(short(value) for value in axes[name])}" for name, (label, _) in _LABELS.items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return Template(_part("page.html")).substitute(
        policy=escape(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"),
        style=CSS + _part("style.css"),
        controls="\n".join(_control(name, values) for name, values in _ordered(results.axes)),
        curves="\n".join(_curve(name) for name, values in _ordered(results.axes) if len(values) > 1),
        failure=short(FAILURE_SHARE),
        grid=escape("; ".join(grid)),
        unfinished=_unfinished(results.series),
        statements="\n".join(_statement(series) for series in results.series),
        examples=results.examples,
        created=escape(results.created.partition("T")[0]),
        versions=escape(versions),
        results=embedded(results),
        script=script,
    )


def embedded(results: Results) -> str:
    """Returns the figures as the page holds them: JSON, with the looks of the mechanisms and where sliders start.

    Args:
      results: the figures.

    Returns:
      Text that may stand inside a <script> element.
    """
    value = results.to_json()
    value["series"] = [part | vars(_LOOKS[part["mechanism"]]) for part in value["series"]]
    value["start"] = {name: _nearest(axis, _USUAL[name]) for name, axis in value["axes"].items()}
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _nearest(axis: Sequence[float], usual: float) -> int:
    """The place of the value of an axis that is nearest to another."""
    return min(range(len(axis)), key=lambda place: abs(axis[place] - usual))


def _part(name: str) -> str:
    """A file of the page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _ordered(axes: Axes) -> list[tuple[str, Sequence[float]]]:
    """The axes in the order of the page."""
    return [(name, getattr(axes, name)) for name in _LABELS]


def _control(name: str, values: Sequence[float]) -> str:
    """A slider; of a single value only that."""
    label, words = _LABELS[name]
    value = f'<output id="{name}-value">{short(values[0])}</output>'
    hint = f'<span class="small" id="{name}-hint">{words}</span>'
    if len(values) == 1:
        return f'<div><span class="label">{label} {value}</span>{hint}</div>'
    slider = f'<input type="range" id="{name}" min="0" max="{len(values) - 1}" step="1" aria-describedby="{name}-hint">'
    return f'<div><label for="{name}">{label} {value}</label>{slider}{hint}</div>'


def _curve(name: str) -> str:
    title = f"Against {_LABELS[name][0].lower()}"
    svg = f'<svg class="plot" id="curve-{name}" role="img" aria-label="{title}"></svg>'
    return f"<div><figure><h3>{title}</h3>{svg}</figure></div>"


def _statement(series: Series) -> str:
    """What the figures of a mechanism are worth."""
    label, name = escape(_LOOKS[series.mechanism].label), escape(series.mechanism)
    return (
        f'<tr><th scope="row">{label}<small><code>{name}</code></small></th>'
        f"<td>{escape(series.standing)}<small>{escape(series.sampling)}</small></td></tr>"
    )


def _unfinished(series: Sequence[Series]) -> str:
    """What is not on the page, in words."""
    if all(None not in part.rmse for part in series):
        return ""
    words = f"“{_LOOKS[LONG].label}” takes long to compute, and is shown for more than one epoch,"
    return f"{words} up to {MOST_WORK:,} rounds times batches per epoch."
