"""From what a user wrote to a strategy that is given by a formula or in a file."""

from __future__ import annotations

from galton.errors import FloatArray, InvalidArgument, InvalidFile, count_rounds
from galton.files import read_npy
from galton.strategies.base import Strategy
from galton.strategies.codec import load_strategy
from galton.strategies.dense import Dense
from galton.strategies.grammar import READY_MADE, Spec, parse_spec
from galton.strategies.toeplitz import Toeplitz
from galton.typechecking import typechecked


@typechecked
def parse_strategy(spec: str, rounds: int, allow_negative: bool = False) -> Strategy:
    """Builds the ready-made strategy that `spec` names, for a run of `rounds` rounds.

    Args:
      spec: identity, sqrt, sqrt:W or tree; or the path of a .json file (`save_strategy`) or of a .npy file with the
        first column of a Toeplitz C or all of C.
      rounds: rounds of the run.
      allow_negative: whether a file may hold a C with negative entries.

    Returns:
      The strategy.

    Example:
      >>> parse_strategy("sqrt:4", rounds=16).bands
      4
    """
    return build_strategy(parse_spec(spec, count_rounds(rounds), READY_MADE), rounds, allow_negative)


def build_strategy(spec: Spec, rounds: int, allow_negative: bool = False) -> Strategy:
    """Builds a ready-made strategy."""
    if spec.path:
        return _from_file(spec.path, rounds, allow_negative)
    if spec.notation.build is None:
        raise TypeError(f"{spec} is not ready-made")
    return spec.notation.build(rounds, spec.number)


def _from_file(path: str, rounds: int, allow_negative: bool) -> Strategy:
    try:
        strategy = (
            load_strategy(path) if path.endswith(".json") else _from_array(read_npy(path), rounds, allow_negative)
        )
    except InvalidArgument as error:
        raise InvalidFile(f"{path}: {error}") from None
    if strategy.has_negative and not allow_negative:
        raise InvalidFile(
            f"{path}: C has negative entries; only the commands that analyse (calibrate, certify, delta, epsilon, "
            "profile) accept that, with allow_negative (--allow-negative): they analyse |C|, a valid but looser bound"
        )
    if strategy.rounds != rounds:
        raise InvalidFile(
            f"{path}: C is for {strategy.rounds} rounds, not for the {rounds} of this run (batches per epoch x epochs)"
        )
    return strategy


def _from_array(values: FloatArray, rounds: int, allow_negative: bool) -> Strategy:
    tolerant = allow_negative or bool((values < 0).any())  # negative entries are refused with those of other files
    return Toeplitz(rounds, values, tolerant) if values.ndim == 1 else Dense(values, tolerant)
