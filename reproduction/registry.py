"""All results that can be regenerated, in the order in which `all` makes them. A new one is one recipe here."""

from __future__ import annotations

from galton.errors import InvalidArgument
from reproduction.appendix import APPENDIX
from reproduction.banded import BANDMF, BANDMF64, BEST_BANDS, DPSGD
from reproduction.batching_picture import BATCHING_PICTURE
from reproduction.dimension_reduction import DIMENSION_REDUCTION
from reproduction.optimized import OPTIMIZED_RECIPE
from reproduction.result import Recipe
from reproduction.sample_counts import SAMPLES
from reproduction.sampling_probability import SAMPLING_PROBABILITY
from reproduction.tables import BANDS_TABLE, SIGMA_TABLE
from reproduction.timings import TIMING

ALL = "all"
_RECIPES = (
    *(BATCHING_PICTURE, DIMENSION_REDUCTION, DPSGD, BANDMF64, BANDMF, BEST_BANDS, SAMPLING_PROBABILITY),
    *(SIGMA_TABLE, BANDS_TABLE, OPTIMIZED_RECIPE, SAMPLES, TIMING, APPENDIX),
)
RESULTS: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


def find_results(name: str, besides: tuple[str, ...] = ()) -> list[Recipe]:
    """Returns the recipe of this name, or all of them; `besides` are names that an error should mention too."""
    if name == ALL:
        return list(_RECIPES)
    if name not in RESULTS:
        names = ", ".join((*RESULTS, *besides, ALL))
        raise InvalidArgument("name", name, f"must be one of {names} (python -m reproduction --list)")
    return [RESULTS[name]]
