"""All mechanisms of a comparison. A new one is one entry here (docs/mechanisms.md says when to choose which)."""

from __future__ import annotations

from dataclasses import replace

from galton.accounting.certificate import FAILURE_SHARE
from galton.baselines import allocation, mmcc, poisson, shuffling, unamplified
from galton.baselines.allocation import calibrate_allocation
from galton.baselines.balls_in_bins import SAMPLING, calibrate_balls_in_bins, estimate_balls_in_bins
from galton.baselines.mechanism import Mechanism, Setting, banded, classical, fixed, optimized
from galton.baselines.mmcc import calibrate_mmcc
from galton.baselines.poisson import calibrate_poisson
from galton.baselines.shuffling import calibrate_shuffling
from galton.baselines.statement import Standing, Statement
from galton.baselines.unamplified import calibrate_unamplified
from galton.errors import InvalidArgument
from galton.strategies import Strategy, Tree, identity

CERTIFIED = Statement(
    adjacency="add-or-remove",
    sampling=SAMPLING,
    standing=Standing.CERTIFIED,
    source="galton",
    failure_probability=FAILURE_SHARE * 1e-5,
)


def _identity(setting: Setting) -> Strategy:
    return identity(setting.rounds)


def _memf(setting: Setting) -> Strategy:
    return classical("toeplitz", setting.bins, setting.rounds, setting.workload)


def _tree(setting: Setting) -> Strategy:
    return Tree(setting.rounds)


_ALL = (
    Mechanism(
        "dpsgd-unamplified",
        "independent noise, order of the data known",
        unamplified.STATEMENT,
        fixed(_identity, calibrate_unamplified),
    ),
    Mechanism(
        "dpsgd-poisson",
        "independent noise, Poisson sampling: DP-SGD as usually accounted",
        poisson.DPSGD_STATEMENT,
        fixed(_identity, calibrate_poisson),
    ),
    Mechanism(
        "dpsgd-balls-in-bins",
        "independent noise, balls-in-bins batches",
        CERTIFIED,
        fixed(_identity, calibrate_balls_in_bins),
    ),
    Mechanism(
        "dpsgd-allocation",
        "the same by an independent exact accountant (package PLD_accounting)",
        allocation.STATEMENT,
        fixed(_identity, calibrate_allocation),
        slow=True,
    ),
    Mechanism(
        "dpsgd-shuffling",
        "independent noise, shuffled batches: LOWER bound on the noise, not a guarantee",
        shuffling.STATEMENT,
        fixed(_identity, calibrate_shuffling),
    ),
    Mechanism(
        "bandmf-unamplified",
        "banded Toeplitz C, order known, best number of bands",
        unamplified.STATEMENT,
        banded("toeplitz", calibrate_unamplified, start=64),
    ),
    Mechanism(
        "bandmf-cyclic-poisson",
        "banded Toeplitz C, cyclic Poisson sampling, best number of bands",
        poisson.STATEMENT,
        banded("toeplitz", calibrate_poisson, start=4),
    ),
    Mechanism(
        "bandmf-balls-in-bins",
        "banded Toeplitz C, balls-in-bins batches, best number of bands",
        CERTIFIED,
        banded("toeplitz", calibrate_balls_in_bins, estimate_balls_in_bins, start=16),
    ),
    Mechanism(
        "banded-unamplified",
        "column-normalised banded C, order known, best number of bands",
        unamplified.STATEMENT,
        banded("banded", calibrate_unamplified, start=16),
        slow=True,
    ),
    Mechanism(
        "banded-cyclic-poisson",
        "column-normalised banded C, cyclic Poisson sampling, best number of bands",
        poisson.STATEMENT,
        banded("banded", calibrate_poisson, start=4),
        slow=True,
    ),
    Mechanism(
        "banded-balls-in-bins",
        "column-normalised banded C, balls-in-bins batches, best number of bands",
        CERTIFIED,
        banded("banded", calibrate_balls_in_bins, estimate_balls_in_bins, start=16),
        slow=True,
    ),
    Mechanism(
        "memf-unamplified",
        "full Toeplitz C optimised for several epochs, order known",
        unamplified.STATEMENT,
        fixed(_memf, calibrate_unamplified),
    ),
    Mechanism(
        "memf-balls-in-bins",
        "full Toeplitz C optimised for several epochs, balls-in-bins batches",
        CERTIFIED,
        fixed(_memf, calibrate_balls_in_bins),
    ),
    Mechanism(
        "tree-unamplified",
        "binary tree (DP-FTRL) with Honaker's online decoder, order known",
        unamplified.STATEMENT,
        fixed(_tree, calibrate_unamplified),
    ),
    Mechanism(
        "tree-balls-in-bins",
        "binary tree (DP-FTRL) with Honaker's online decoder, balls-in-bins batches",
        CERTIFIED,
        fixed(_tree, calibrate_balls_in_bins),
    ),
    Mechanism(
        "bandmf-mmcc",
        "banded Toeplitz C, Poisson sampling by conditional composition (MMCC), best number of bands",
        mmcc.STATEMENT,
        banded("toeplitz", calibrate_mmcc, start=1),
    ),
    *(
        Mechanism(
            f"optimized-{family}",
            f"{words} optimised under balls-in-bins amplification",
            replace(CERTIFIED, source="galton, C optimised at this epsilon"),
            optimized(family),
            slow=slow,
        )
        for family, words, slow in (
            ("blt:4", "BLT with 4 buffers", False),
            ("toeplitz", "full Toeplitz C", True),
            ("blt:4+scale", "BLT with 4 buffers and a weight per round", True),
            ("toeplitz+scale", "full Toeplitz C with a weight per round", True),
        )
    ),
)

MECHANISMS: dict[str, Mechanism] = {one.name: one for one in _ALL}
DEFAULT = tuple(one.name for one in _ALL if not one.slow)


def find_mechanism(name: str, argument: str = "mechanism") -> Mechanism:
    """Returns the mechanism of this name; `argument` is where it was given."""
    if name not in MECHANISMS:
        raise InvalidArgument(argument, name, "must be one of " + ", ".join(MECHANISMS))
    return MECHANISMS[name]
