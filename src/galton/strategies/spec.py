"""The SPEC of a strategy on the command line: a name, or a file."""

from __future__ import annotations

import numpy as np

from galton.errors import FloatArray, InvalidArgument, InvalidFile, count
from galton.strategies.base import Strategy
from galton.strategies.codec import load_strategy
from galton.strategies.dense import Dense
from galton.strategies.toeplitz import Toeplitz, identity, square_root
from galton.strategies.tree import Tree

HELP = (
    "identity, sqrt, sqrt:W, tree, or a file: strategy .json, .npy with a 1-D (Toeplitz column) or 2-D array (dense C)"
)


def parse_strategy(spec: str, rounds: int, allow_negative: bool = False) -> Strategy:
    """Builds the strategy that `spec` names for a run of `rounds` rounds."""
    count("rounds", rounds)
    name, colon, argument = spec.partition(":")
    if spec == "identity":
        return identity(rounds)
    if spec == "sqrt":
        return square_root(rounds)
    if spec == "tree":
        return Tree(rounds)
    if name == "sqrt" and colon:
        if not argument.isascii() or not argument.isdigit():
            raise InvalidArgument("strategy", spec, "the number of bands must be a whole number, as in sqrt:64")
        bands = int(argument[:12])
        if not 1 <= bands <= rounds:
            raise InvalidArgument("strategy", spec, f"the number of bands must be between 1 and the rounds, {rounds}")
        return square_root(rounds, bands)
    if spec.endswith((".json", ".npy")):
        return _from_file(spec, rounds, allow_negative)
    raise InvalidArgument("strategy", spec, f"must be {HELP}")


def _from_file(path: str, rounds: int, allow_negative: bool) -> Strategy:
    if path.endswith(".json"):
        strategy = load_strategy(path)
    else:
        values = read_npy(path)
        if values.ndim == 1:
            strategy = Toeplitz(rounds, values, allow_negative)
        else:
            strategy = Dense(values, allow_negative)
    if strategy.has_negative and not allow_negative:
        raise InvalidFile(f"{path}: C has negative entries; accept the looser pair of |C| with --allow-negative")
    if strategy.rounds != rounds:
        raise InvalidFile(
            f"{path}: C is for {strategy.rounds} rounds, not for the {rounds} of this run; "
            "match --bins, --epochs or --rounds"
        )
    return strategy


def read_npy(path: str) -> FloatArray:
    """Reads a .npy file with a real 1-D or 2-D array; never unpickles."""
    try:
        with open(path, "rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # the header of a .npy file is Python source, and can fail in every way that source can
        raise InvalidFile(f"{path}: is not a .npy file of numbers") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
        raise InvalidFile(f"{path}: must hold a real array with one or two axes")
    return np.asarray(values, dtype=np.float64)
