"""galton plans, certifies and runs differentially private training with correlated noise and balls-in-bins batches.

The public surface is what this page names. Names load on first use, so that `import galton` is quick.

    strategy = galton.square_root(rounds=2048, bands=64)
    pair = galton.dominating_pair(strategy, bins=128)
    found = galton.calibrate(pair, epsilon=1.0, delta=1e-5)
    certificate = galton.certify(pair.at(found.noise_multiplier), epsilon=1.0, delta=1e-5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from galton.accounting import (
        Calibration,
        Certificate,
        DeltaEstimate,
        EpsilonEstimate,
        Ledger,
        Options,
        Profile,
        calibrate,
        certify,
        default_ledger,
        delta,
        delta_upper_bound,
        epsilon,
        epsilon_upper_bound,
        multiplier_upper_bound,
        profile,
    )
    from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein
    from galton.errors import GaltonError, InvalidArgument, InvalidFile
    from galton.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
    from galton.optimization import Optimized, min_separation_sensitivity, optimize, unamplified_optimum
    from galton.pair import Direction, Pair, dominating_pair
    from galton.strategies import (
        Blt,
        ColumnBanded,
        Dense,
        Scaled,
        Strategy,
        Toeplitz,
        Tree,
        column_banded,
        identity,
        load_strategy,
        parse_strategy,
        save_strategy,
        square_root,
    )
    from galton.workloads import MatrixWorkload, Training, Workload, cooldown, momentum, prefix_sums

_ROOMS = {
    "galton.accounting": (
        "Calibration Certificate DeltaEstimate EpsilonEstimate Ledger Options Profile calibrate certify default_ledger "
        "delta delta_upper_bound epsilon epsilon_upper_bound multiplier_upper_bound profile"
    ),
    "galton.bounds": "BOUNDS BettingTest EmpiricalBernstein",
    "galton.errors": "GaltonError InvalidArgument InvalidFile",
    "galton.gaussian": "gaussian_delta gaussian_epsilon gaussian_mu",
    "galton.optimization": "Optimized min_separation_sensitivity optimize unamplified_optimum",
    "galton.pair": "Direction Pair dominating_pair",
    "galton.strategies": (
        "Blt ColumnBanded Dense Scaled Strategy Toeplitz Tree column_banded identity load_strategy parse_strategy "
        "save_strategy square_root"
    ),
    "galton.workloads": "MatrixWorkload Training Workload cooldown momentum prefix_sums",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "BOUNDS",
    "BettingTest",
    "Blt",
    "Calibration",
    "Certificate",
    "ColumnBanded",
    "DeltaEstimate",
    "Dense",
    "Direction",
    "EmpiricalBernstein",
    "EpsilonEstimate",
    "GaltonError",
    "InvalidArgument",
    "InvalidFile",
    "Ledger",
    "MatrixWorkload",
    "Optimized",
    "Options",
    "Pair",
    "Profile",
    "Scaled",
    "Strategy",
    "Toeplitz",
    "Training",
    "Tree",
    "Workload",
    "calibrate",
    "certify",
    "column_banded",
    "cooldown",
    "default_ledger",
    "delta",
    "delta_upper_bound",
    "dominating_pair",
    "epsilon",
    "epsilon_upper_bound",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "identity",
    "load_strategy",
    "min_separation_sensitivity",
    "momentum",
    "multiplier_upper_bound",
    "optimize",
    "parse_strategy",
    "prefix_sums",
    "profile",
    "save_strategy",
    "square_root",
    "unamplified_optimum",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'galton' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
