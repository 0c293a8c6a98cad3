"""The SPEC of a strategy with the one name that needs an optimiser: bandmf:W."""

from __future__ import annotations

from galton.errors import InvalidArgument
from galton.strategies import Strategy, parse_strategy


def resolve_strategy(spec: str, bins: int, rounds: int, allow_negative: bool = False) -> Strategy:
    """Builds the strategy that `spec` names: bandmf:W (Toeplitz, optimised without amplification), or as elsewhere."""
    name, colon, argument = spec.partition(":")
    if name != "bandmf":
        return parse_strategy(spec, rounds, allow_negative)
    if not colon or not (argument.isascii() and argument.isdigit()) or not 1 <= int(argument[:12]) <= rounds:
        raise InvalidArgument("strategy", spec, f"the number of bands must be between 1 and the rounds, {rounds}")
    from galton.optimization.unamplified import unamplified_optimum

    return unamplified_optimum(f"toeplitz:{int(argument)}", bins, rounds)
