"""All results that can be regenerated. A new one is one recipe here."""

from __future__ import annotations

from galton.errors import InvalidArgument
from galton.paper.result import Recipe
from galton.paper.tables import BANDS_TABLE, SIGMA_TABLE

RESULTS: dict[str, Recipe] = {recipe.name: recipe for recipe in (SIGMA_TABLE, BANDS_TABLE)}


def find_result(name: str) -> Recipe:
    """Returns the recipe of this name."""
    if name not in RESULTS:
        raise InvalidArgument("name", name, "must be one of " + ", ".join(RESULTS) + " (galton paper --list)")
    return RESULTS[name]
