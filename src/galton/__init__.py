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
    from galton.accountants import ACCOUNTANTS, Accountant, Standing, Statement
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
    from galton.batching import (
        BallsInBins,
        Batch,
        Batches,
        CyclicPoisson,
        FixedOrder,
        MinSeparation,
        Poisson,
        Scheme,
        Shuffle,
        StreamingBallsInBins,
        Truncation,
        open_records,
        physical_size,
        scheme_from_json,
        shuffle_records,
        truncation,
        truncation_probability,
    )
    from galton.bounds import BOUNDS, BettingTest, EmpiricalBernstein
    from galton.comparison import MECHANISMS, Comparison, Mechanism, compare, plot_comparison
    from galton.errors import GaltonError, InvalidArgument, InvalidFile
    from galton.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
    from galton.guarantee import Adjacency, Direction, Guarantee
    from galton.noise import (
        CorrelatedNoise,
        Journal,
        NoiseReused,
        NoiseRun,
        NoiseState,
        fresh_key,
        key_from_seed,
        load_state,
        save_state,
    )
    from galton.optimization import Optimized, optimize, unamplified_optimum
    from galton.pair import Pair, dominating_pair
    from galton.plan import Plan, Verification, load_plan, make_plan, save_plan, verify_plan
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
    from galton.strategies.sensitivity import min_separation_sensitivity
    from galton.training import PlanViolated, TrainingRun, check_record
    from galton.workloads import MatrixWorkload, Training, Workload, cooldown, momentum, prefix_sums

_ROOMS = {
    "galton.accounting": (
        "Calibration Certificate DeltaEstimate EpsilonEstimate Ledger Options Profile calibrate certify default_ledger "
        "delta delta_upper_bound epsilon epsilon_upper_bound multiplier_upper_bound profile"
    ),
    "galton.accountants": "ACCOUNTANTS Accountant Standing Statement",
    "galton.comparison": "Comparison MECHANISMS Mechanism compare plot_comparison",
    "galton.batching": (
        "BallsInBins Batch Batches CyclicPoisson FixedOrder MinSeparation Poisson Scheme Shuffle "
        "StreamingBallsInBins Truncation open_records physical_size scheme_from_json shuffle_records "
        "truncation truncation_probability"
    ),
    "galton.bounds": "BOUNDS BettingTest EmpiricalBernstein",
    "galton.errors": "GaltonError InvalidArgument InvalidFile",
    "galton.gaussian": "gaussian_delta gaussian_epsilon gaussian_mu",
    "galton.noise": (
        "CorrelatedNoise Journal NoiseReused NoiseRun NoiseState fresh_key key_from_seed load_state save_state"
    ),
    "galton.optimization": "Optimized optimize unamplified_optimum",
    "galton.guarantee": "Adjacency Direction Guarantee",
    "galton.pair": "Pair dominating_pair",
    "galton.plan": "Plan Verification load_plan make_plan save_plan verify_plan",
    "galton.strategies": (
        "Blt ColumnBanded Dense Scaled Strategy Toeplitz Tree column_banded identity load_strategy parse_strategy "
        "save_strategy square_root"
    ),
    "galton.strategies.sensitivity": "min_separation_sensitivity",
    "galton.training": "PlanViolated TrainingRun check_record",
    "galton.workloads": "MatrixWorkload Training Workload cooldown momentum prefix_sums",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "ACCOUNTANTS",
    "BOUNDS",
    "MECHANISMS",
    "Accountant",
    "Adjacency",
    "BallsInBins",
    "Batch",
    "Batches",
    "BettingTest",
    "Blt",
    "Calibration",
    "Certificate",
    "ColumnBanded",
    "Comparison",
    "CorrelatedNoise",
    "CyclicPoisson",
    "DeltaEstimate",
    "Dense",
    "Direction",
    "EmpiricalBernstein",
    "EpsilonEstimate",
    "FixedOrder",
    "GaltonError",
    "Guarantee",
    "InvalidArgument",
    "InvalidFile",
    "Journal",
    "Ledger",
    "MatrixWorkload",
    "Mechanism",
    "MinSeparation",
    "NoiseReused",
    "NoiseRun",
    "NoiseState",
    "Optimized",
    "Options",
    "Pair",
    "Plan",
    "PlanViolated",
    "Poisson",
    "Profile",
    "Scaled",
    "Scheme",
    "Shuffle",
    "Standing",
    "Statement",
    "Strategy",
    "StreamingBallsInBins",
    "Toeplitz",
    "Training",
    "TrainingRun",
    "Tree",
    "Truncation",
    "Verification",
    "Workload",
    "calibrate",
    "certify",
    "check_record",
    "column_banded",
    "compare",
    "cooldown",
    "default_ledger",
    "delta",
    "delta_upper_bound",
    "dominating_pair",
    "epsilon",
    "epsilon_upper_bound",
    "fresh_key",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "identity",
    "key_from_seed",
    "load_plan",
    "load_state",
    "load_strategy",
    "make_plan",
    "min_separation_sensitivity",
    "momentum",
    "multiplier_upper_bound",
    "open_records",
    "optimize",
    "parse_strategy",
    "physical_size",
    "plot_comparison",
    "prefix_sums",
    "profile",
    "save_plan",
    "save_state",
    "save_strategy",
    "scheme_from_json",
    "shuffle_records",
    "square_root",
    "truncation",
    "truncation_probability",
    "unamplified_optimum",
    "verify_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'galton' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
