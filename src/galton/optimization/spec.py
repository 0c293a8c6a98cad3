"""From what a user wrote to a strategy, including bandmf:W, which needs the optimiser."""

from __future__ import annotations

from galton.errors import count_rounds
from galton.optimization.unamplified import unamplified_optimum
from galton.strategies import Strategy
from galton.strategies.grammar import ANALYSIS, Source, parse_spec
from galton.strategies.spec import build_strategy


def resolve_strategy(spec: str, bins: int, rounds: int, allow_negative: bool = False) -> Strategy:
    """Builds the strategy that `spec` names: ready-made, or optimised without amplification.

    Args:
      spec: as `galton.parse_strategy` takes it, or bandmf:W (`grammar.ANALYSIS`).
      bins: batches per epoch.
      rounds: rounds of the run.
      allow_negative: whether a file may hold a C with negative entries.

    Returns:
      The strategy.
    """
    parsed = parse_spec(spec, count_rounds(rounds), ANALYSIS)
    if parsed.source is Source.CLASSICAL:
        return unamplified_optimum(f"toeplitz:{parsed.number}", bins, rounds)
    return build_strategy(parsed, rounds, allow_negative)
