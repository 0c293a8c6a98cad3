"""How far apart the rounds of an example are, where min-separation batches leave it open."""

from __future__ import annotations

from dataclasses import replace

from galton.accounting import Options
from galton.accounting.quick import quick_multiplier
from galton.errors import InvalidArgument
from galton.guarantee import Guarantee
from galton.optimization.bands import best_bands
from galton.optimization.families import parse_family
from galton.separated import SeparatedPair, separated_pair
from galton.strategies import square_root
from galton.strategies.grammar import OPTIMIZATION, parse_spec
from galton.workloads import Workload

OPEN_SEPARATION = f"{SeparatedPair.kind}:auto"
"""The participation whose separation is chosen."""
_ANY_NUMBER_OF_BANDS = "toeplitz"


def settle_separation(
    family: str, bins: int, rounds: int, guarantee: Guarantee, workload: Workload | None, options: Options, seed: int
) -> tuple[str, str]:
    """Returns a family and a participation with as many bands as rounds from one participation to the next at least.

    A family of Toeplitz matrices with any number of bands gets the power of two at which the square root of prefix
    sums, cut to so many bands, has the least error by a quick estimate: tuning C moves the error by percents, and the
    best number of bands hardly. A family with a number of bands of its own keeps it.

    Args:
      family: as for `optimize`.
      bins: rounds between two participations on average.
      rounds: rounds of the run.
      guarantee: what the noise is calibrated to.
      workload: whose error counts; None for prefix sums.
      options: progress of the estimates.
      seed: of the estimates.
    """
    spec = parse_spec(family, rounds, OPTIMIZATION)
    if spec.name != _ANY_NUMBER_OF_BANDS or spec.number is not None:
        bands = parse_family(family, rounds).most_bands
        if bands > bins:
            remedy = f"must be toeplitz, toeplitz+scale or a family with at most {bins} bands for {OPEN_SEPARATION}"
            raise InvalidArgument("family", family, remedy)
        return family, f"{SeparatedPair.kind}:{bands}"

    def error(bands: int) -> float:
        strategy = square_root(rounds, bands)
        pair = separated_pair(strategy, bins, bands)
        multiplier = quick_multiplier(pair, guarantee, options, seed, blocks=1).value
        return multiplier * strategy.sensitivity(bins) * strategy.rmse(workload)

    bands = best_bands(error, min(bins, rounds))
    return str(replace(spec, number=bands)), f"{SeparatedPair.kind}:{bands}"
