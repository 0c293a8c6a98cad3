"""Strategies: how the noise is correlated. `base.Strategy` is the interface that they share."""

from galton.strategies.banded import ColumnBanded, column_banded
from galton.strategies.banded_inverse import BandedInverse, banded_inverse_root, lambda_cgd
from galton.strategies.base import Strategy
from galton.strategies.blt import Blt
from galton.strategies.codec import load_strategy, save_strategy, strategy_from_json
from galton.strategies.dense import Dense
from galton.strategies.scaled import Scaled
from galton.strategies.spec import parse_strategy
from galton.strategies.toeplitz import Toeplitz, identity, square_root
from galton.strategies.tree import Tree

__all__ = [
    "BandedInverse",
    "Blt",
    "ColumnBanded",
    "Dense",
    "Scaled",
    "Strategy",
    "Toeplitz",
    "Tree",
    "banded_inverse_root",
    "column_banded",
    "identity",
    "lambda_cgd",
    "load_strategy",
    "parse_strategy",
    "save_strategy",
    "square_root",
    "strategy_from_json",
]
