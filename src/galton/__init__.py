"""galton plans, certifies and runs differentially private training with correlated noise and balls-in-bins batches.

The public surface is what this page names, once: type checkers read the imports below as they stand, and at run time
they are the table from which a name is loaded on its first use, so that `import galton` is quick.

    strategy = galton.square_root(rounds=2048, bands=64)
    pair = galton.dominating_pair(strategy, bins=128)
    guarantee = galton.Guarantee(epsilon=1.0, delta=1e-5)
    calibration = galton.calibrate(pair, guarantee)
    certificate = galton.certify(pair.at(calibration.noise_multiplier), guarantee)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from galton.accountants import ACCOUNTANTS as ACCOUNTANTS
    from galton.accountants import Accountant as Accountant
    from galton.accountants import Evidence as Evidence
    from galton.accountants import Standing as Standing
    from galton.accountants import Statement as Statement
    from galton.accounting import Calibration as Calibration
    from galton.accounting import Certificate as Certificate
    from galton.accounting import DeltaEstimate as DeltaEstimate
    from galton.accounting import EpsilonEstimate as EpsilonEstimate
    from galton.accounting import Ledger as Ledger
    from galton.accounting import Options as Options
    from galton.accounting import Profile as Profile
    from galton.accounting import calibrate as calibrate
    from galton.accounting import certify as certify
    from galton.accounting import default_ledger as default_ledger
    from galton.accounting import delta as delta
    from galton.accounting import delta_upper_bound as delta_upper_bound
    from galton.accounting import epsilon as epsilon
    from galton.accounting import epsilon_upper_bound as epsilon_upper_bound
    from galton.accounting import multiplier_upper_bound as multiplier_upper_bound
    from galton.accounting import profile as profile
    from galton.batching import BallsInBins as BallsInBins
    from galton.batching import Batch as Batch
    from galton.batching import Batches as Batches
    from galton.batching import CyclicPoisson as CyclicPoisson
    from galton.batching import FixedOrder as FixedOrder
    from galton.batching import MinSeparation as MinSeparation
    from galton.batching import Poisson as Poisson
    from galton.batching import RedrawnBallsInBins as RedrawnBallsInBins
    from galton.batching import Scheme as Scheme
    from galton.batching import Shuffle as Shuffle
    from galton.batching import StreamingBallsInBins as StreamingBallsInBins
    from galton.batching import StreamingRedrawnBallsInBins as StreamingRedrawnBallsInBins
    from galton.batching import Truncation as Truncation
    from galton.batching import Users as Users
    from galton.batching import group_by_user as group_by_user
    from galton.batching import open_records as open_records
    from galton.batching import scheme_from_json as scheme_from_json
    from galton.batching import shuffle_records as shuffle_records
    from galton.batching import smallest_padded_batch_size as smallest_padded_batch_size
    from galton.batching import truncation as truncation
    from galton.batching import truncation_probability as truncation_probability
    from galton.bounds import BOUNDS as BOUNDS
    from galton.bounds import BettingTest as BettingTest
    from galton.bounds import EmpiricalBernstein as EmpiricalBernstein
    from galton.budget import Budget as Budget
    from galton.budget import Composed as Composed
    from galton.budget import Event as Event
    from galton.budget import GaussianEvent as GaussianEvent
    from galton.budget import KnownEvent as KnownEvent
    from galton.budget import LaplaceEvent as LaplaceEvent
    from galton.budget import Overspent as Overspent
    from galton.budget import Tuning as Tuning
    from galton.budget import compose as compose
    from galton.budget import make_plan_within as make_plan_within
    from galton.budget import privacy_loss_distribution as privacy_loss_distribution
    from galton.comparison import MECHANISMS as MECHANISMS
    from galton.comparison import Comparison as Comparison
    from galton.comparison import Mechanism as Mechanism
    from galton.comparison import compare as compare
    from galton.comparison import plot_comparison as plot_comparison
    from galton.errors import GaltonError as GaltonError
    from galton.errors import InvalidArgument as InvalidArgument
    from galton.errors import InvalidFile as InvalidFile
    from galton.gaussian import gaussian_delta as gaussian_delta
    from galton.gaussian import gaussian_epsilon as gaussian_epsilon
    from galton.gaussian import gaussian_mu as gaussian_mu
    from galton.guarantee import Adjacency as Adjacency
    from galton.guarantee import Direction as Direction
    from galton.guarantee import Guarantee as Guarantee
    from galton.many_bins import ManyBinsPair as ManyBinsPair
    from galton.many_bins import many_bins_pair as many_bins_pair
    from galton.noise import CorrelatedNoise as CorrelatedNoise
    from galton.noise import Journal as Journal
    from galton.noise import NoiseReused as NoiseReused
    from galton.noise import NoiseRun as NoiseRun
    from galton.noise import NoiseState as NoiseState
    from galton.noise import fresh_key as fresh_key
    from galton.noise import key_from_seed as key_from_seed
    from galton.noise import load_state as load_state
    from galton.noise import save_state as save_state
    from galton.optimization import Optimized as Optimized
    from galton.optimization import optimize as optimize
    from galton.optimization import unamplified_optimum as unamplified_optimum
    from galton.pair import DominatingPair as DominatingPair
    from galton.pair import Pair as Pair
    from galton.pair import dominating_pair as dominating_pair
    from galton.plan import Plan as Plan
    from galton.plan import PlanNotTrusted as PlanNotTrusted
    from galton.plan import Prefix as Prefix
    from galton.plan import Verification as Verification
    from galton.plan import load_plan as load_plan
    from galton.plan import make_plan as make_plan
    from galton.plan import new_key_pair as new_key_pair
    from galton.plan import prefix_guarantee as prefix_guarantee
    from galton.plan import save_plan as save_plan
    from galton.plan import sign_plan as sign_plan
    from galton.plan import verify_plan as verify_plan
    from galton.redrawn import RedrawnPair as RedrawnPair
    from galton.redrawn import redrawn_pair as redrawn_pair
    from galton.separated import SeparatedPair as SeparatedPair
    from galton.separated import separated_pair as separated_pair
    from galton.strategies import BandedInverse as BandedInverse
    from galton.strategies import Blt as Blt
    from galton.strategies import ColumnBanded as ColumnBanded
    from galton.strategies import Dense as Dense
    from galton.strategies import Scaled as Scaled
    from galton.strategies import Strategy as Strategy
    from galton.strategies import Toeplitz as Toeplitz
    from galton.strategies import Tree as Tree
    from galton.strategies import banded_inverse_root as banded_inverse_root
    from galton.strategies import column_banded as column_banded
    from galton.strategies import identity as identity
    from galton.strategies import lambda_cgd as lambda_cgd
    from galton.strategies import load_strategy as load_strategy
    from galton.strategies import parse_strategy as parse_strategy
    from galton.strategies import save_strategy as save_strategy
    from galton.strategies import square_root as square_root
    from galton.strategies.sensitivity import min_separation_sensitivity as min_separation_sensitivity
    from galton.strategies.sensitivity import redrawn_sensitivity as redrawn_sensitivity
    from galton.training import LostRounds as LostRounds
    from galton.training import PlanViolated as PlanViolated
    from galton.training import RoundsSkipped as RoundsSkipped
    from galton.training import TrainingRun as TrainingRun
    from galton.training import check_record as check_record
    from galton.training import fork_run as fork_run
    from galton.training import release_run as release_run
    from galton.training import stop_run as stop_run
    from galton.workloads import MatrixWorkload as MatrixWorkload
    from galton.workloads import Training as Training
    from galton.workloads import Workload as Workload
    from galton.workloads import cooldown as cooldown
    from galton.workloads import momentum as momentum
    from galton.workloads import prefix_sums as prefix_sums

    __version__: str
else:  # out of sight of type checkers, for which a module with __getattr__ has every name

    def _read_surface() -> dict[str, str]:
        """Returns the module of every public name, by the imports above."""
        import ast

        tree = ast.parse(__loader__.get_source(__name__))
        block = next(node for node in tree.body if isinstance(node, ast.If))
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module for node in imports for alias in node.names}

    _MODULES = _read_surface()
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            value = version("galton")
        elif name in _MODULES:
            from importlib import import_module

            value = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module 'galton' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
