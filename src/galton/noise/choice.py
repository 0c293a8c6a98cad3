"""The form of the noise where memory is scarce: buffers if they fit, else none, with normals drawn again."""

from __future__ import annotations

import re
import warnings

import numpy as np

from galton.errors import InvalidArgument
from galton.noise.forms import FORMS, Recomputed
from galton.noise.layout import Tree, layout_of
from galton.strategies import Strategy

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_MANY_DRAWS = 64
"""More draws in a round than this are warned of: a banded inverse and a short banded C take fewer."""


def chosen_form(form: str, strategy: Strategy, params: Tree) -> str:
    """Returns `buffers` or `recompute` for what a user wrote, which may be a limit such as `auto:2GB`.

    The answer depends on strategy, parameters and limit only, not on the machine, so that a run that is taken up again
    elsewhere has the same form.

    Args:
      form: the name of a form, or `auto:` and how much memory the buffers may take.
      strategy: C.
      params: the model's parameters, for their shapes.

    Returns:
      The name of a form; `buffers`, which take less time, if they fit. A warning says so if the other form takes very
      long with this C, as it does for a BLT.

    Example:
      >>> from galton import banded_inverse_root
      >>> strategy, params = banded_inverse_root(rounds=8, bands=4), np.zeros(1_000_000, np.float32)
      >>> chosen_form("auto:12MB", strategy, params), chosen_form("auto:11MB", strategy, params)
      ('buffers', 'recompute')
    """
    if form in FORMS or not form.startswith("auto"):
        return form
    limit, needed = _bytes(form), buffer_bytes(strategy, params)
    if needed <= limit:
        return "buffers"
    if strategy.rows != strategy.rounds:
        raise InvalidArgument("form", form, f"buffers need {needed / 1e6:,.0f} MB, and this C has no other form")
    dtypes = (np.dtype(dtype) for _, dtype in layout_of(params).groups)
    draws = Recomputed(strategy).reach(max(dtypes, key=lambda dtype: dtype.itemsize))
    if draws > _MANY_DRAWS:
        warnings.warn(
            f"form = {form!r}: buffers need {needed / 1e6:,.0f} MB, so a round draws up to {draws} vectors of normals "
            "again; with bisr:W, whose inverse has W bands, it would be W",
            stacklevel=4,
        )
    return "recompute"


def buffer_bytes(strategy: Strategy, params: Tree) -> int:
    """Returns the bytes that the noise of a model keeps between rounds in the form `buffers`."""
    return strategy.stream().memory * sum(size * np.dtype(dtype).itemsize for size, dtype in layout_of(params).groups)


def _bytes(form: str) -> float:
    match = re.fullmatch(r"auto:([0-9]+(?:\.[0-9]+)?) ?(MB|GB|TB)", form)
    if match is None:
        remedy = "must be buffers, recompute, or auto: with a limit for the buffers, such as auto:2GB"
        raise InvalidArgument("form", form, remedy)
    return float(match[1]) * _UNITS[match[2]]
