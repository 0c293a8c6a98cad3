"""All results that can be regenerated, in the order in which `all` makes them. A new one is one recipe here."""

from __future__ import annotations

from galton.errors import InvalidArgument
from galton.paper.appendix import APPENDIX
from galton.paper.banded import BANDMF, BANDMF64, BEST_BANDS, DPSGD
from galton.paper.batching_picture import BATCHING_PICTURE
from galton.paper.dimension_reduction import DIMENSION_REDUCTION
from galton.paper.optimized import OPTIMIZED_RECIPE
from galton.paper.result import Recipe
from galton.paper.sample_counts import SAMPLES
from galton.paper.sampling_probability import SAMPLING_PROBABILITY
from galton.paper.tables import BANDS_TABLE, SIGMA_TABLE
from galton.paper.timings import TIMING

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
        raise InvalidArgument("name", name, f"must be one of {names} (galton paper --list)")
    return [RESULTS[name]]
