"""Strategies as JSON, with a content hash that notices any change. New kinds are registered here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from galton import files
from galton.errors import GaltonError, InvalidArgument, InvalidFile, count_rounds
from galton.strategies.banded import ColumnBanded
from galton.strategies.banded_inverse import BandedInverse
from galton.strategies.base import Strategy
from galton.strategies.blt import Blt
from galton.strategies.dense import Dense
from galton.strategies.scaled import Scaled
from galton.strategies.toeplitz import Toeplitz
from galton.strategies.tree import Tree
from galton.typechecking import typechecked

KINDS: dict[str, type[Strategy]] = {
    cls.kind: cls for cls in (Toeplitz, Blt, BandedInverse, Scaled, ColumnBanded, Dense, Tree)
}
FORMAT = "galton-strategy"
VERSION = 1


def strategy_from_json(value: dict[str, Any]) -> Strategy:
    """Rebuilds a strategy from `Strategy.to_json()`.

    Args:
      value: a dictionary as `to_json` returns it.

    Returns:
      The strategy, every field checked.
    """
    parameters = dict(value)
    kind, rounds = parameters.pop("kind", None), parameters.pop("rounds", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidArgument("kind", kind, "must be one of " + ", ".join(KINDS))
    if not isinstance(parameters.get("allow_negative"), bool):
        raise InvalidArgument("allow_negative", parameters.get("allow_negative"), "must be true or false")
    size = count_rounds(rounds)
    try:
        parts = {name: _rebuild_nested(parameter) for name, parameter in parameters.items()}
        strategy = KINDS[kind].from_parameters(size, parts)
    except GaltonError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError):
        raise InvalidArgument("parameters", sorted(parameters), f"are not those of a {kind} strategy") from None
    if set(strategy.parameters()) | {"allow_negative"} != set(parameters):
        raise InvalidArgument("parameters", sorted(parameters), f"are not those of a {kind} strategy")
    return strategy


def _rebuild_nested(parameter: Any) -> Any:
    """Returns a parameter; if it is itself a strategy, it is rebuilt."""
    return strategy_from_json(parameter) if isinstance(parameter, dict) else parameter


def strategy_text(strategy: Strategy) -> str:
    """Returns the content of a strategy's file, byte for byte."""
    body = {"format": FORMAT, "version": VERSION, **strategy.to_json(), "hash": strategy.digest}
    return files.canonical(body) + "\n"


@typechecked
def save_strategy(strategy: Strategy, path: str | Path) -> None:
    """Writes a strategy to a JSON file with a content hash, which `load_strategy` reads.

    Args:
      strategy: the strategy.
      path: the file; an existing file is replaced, whole or not at all.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> from galton import square_root
      >>> strategy = square_root(16, bands=4)
      >>> with TemporaryDirectory() as folder:
      ...     save_strategy(strategy, f"{folder}/strategy.json")
      ...     load_strategy(f"{folder}/strategy.json").digest == strategy.digest
      True
    """
    files.write_text(Path(path), strategy_text(strategy))


@typechecked
def load_strategy(path: str | Path) -> Strategy:
    """Reads a strategy file that `save_strategy` wrote; a file that was changed since is refused.

    Args:
      path: the file.

    Returns:
      The strategy, the same bit for bit.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> from galton import identity
      >>> with TemporaryDirectory() as folder:
      ...     save_strategy(identity(8), f"{folder}/strategy.json")
      ...     load_strategy(f"{folder}/strategy.json").rounds
      8
    """
    try:
        body = files.read_json(Path(path))
    except InvalidFile as error:
        raise InvalidFile(f"{error}; a strategy file is what galton optimize -o (save_strategy) wrote") from None
    form, version, claimed = body.pop("format", None), body.pop("version", None), body.pop("hash", None)
    if form != FORMAT:
        raise InvalidFile(f"{path}: is not a strategy file (format is {form!r}, should be {FORMAT!r})")
    if version != VERSION:
        raise InvalidFile(f"{path}: has version {version!r}; this galton reads version {VERSION}")
    if claimed != files.digest(body):
        raise InvalidFile(f"{path}: does not match its hash: it was changed after it was written; create it again")
    try:
        return strategy_from_json(body)
    except InvalidArgument as error:
        raise InvalidFile(f"{path}: {error}") from None
