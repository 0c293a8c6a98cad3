"""All mechanisms of a comparison: kinds of strategies, each under the accountants that want to be compared with it.

A new accountant's rows come by themselves, from its `Compared`; a new kind of strategy is one entry in `KINDS`
(docs/mechanisms.md says when to choose which).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from galton.accountants import ACCOUNTANTS, Accountant, Setting
from galton.comparison import shuffling
from galton.comparison.mechanism import Mechanism, Solver, banded, classical, classical_bands, fixed, optimized
from galton.errors import InvalidArgument
from galton.strategies import Strategy, Tree, banded_inverse_root, identity


def _identity(setting: Setting) -> Strategy:
    return identity(setting.rounds)


def _memf(setting: Setting) -> Strategy:
    return classical("toeplitz", setting.bins, setting.rounds, setting.workload)


def _lambda_cgd(setting: Setting) -> Strategy:
    return classical("inverse:2", setting.bins, setting.rounds, setting.workload)


def _bisr(setting: Setting, bands: int) -> Strategy:
    return banded_inverse_root(setting.rounds, bands)


def _tree(setting: Setting) -> Strategy:
    return Tree(setting.rounds)


_INVERSE_BANDS = 4
"""Bands of the inverse at which the search for the best number begins."""


@dataclass(frozen=True)
class Kind:
    """A way to choose C that makes sense under several accountants.

    Attributes:
      name: the first part of the mechanism's name; the accountant's is the second.
      words: one line.
      solver: solver(accountant) finds strategy and noise.
      slow: whether it is left out unless asked for by name.
      beside: mechanisms with the same C that no accountant covers; listed after those that one does.
    """

    name: str
    words: str
    solver: Callable[[Accountant], Solver]
    slow: bool = False
    beside: tuple[Mechanism, ...] = ()


_SHUFFLING = Mechanism(
    "dpsgd-shuffling",
    "independent noise, shuffled batches: LOWER bound on the noise, not a guarantee",
    shuffling.STATEMENT,
    fixed(_identity, shuffling.calibrate_shuffling),
)

KINDS = (
    Kind(
        "dpsgd",
        "independent noise",
        lambda accountant: fixed(_identity, accountant.calibrate),
        beside=(_SHUFFLING,),
    ),
    Kind(
        "bandmf",
        "banded Toeplitz C with the best number of bands",
        lambda accountant: banded(classical_bands("toeplitz"), accountant),
    ),
    Kind(
        "banded",
        "column-normalised banded C with the best number of bands",
        lambda accountant: banded(classical_bands("banded"), accountant, start=min(16, accountant.typical_bands)),
        slow=True,
    ),
    Kind(
        "memf",
        "full Toeplitz C optimised for several epochs",
        lambda accountant: fixed(_memf, accountant.calibrate),
    ),
    Kind(
        "tree",
        "binary tree (DP-FTRL) with Honaker's online decoder",
        lambda accountant: fixed(_tree, accountant.calibrate),
    ),
    Kind(
        "cgd",
        "lambda-CGD: each round takes a share of the noise before it back, the best share",
        lambda accountant: fixed(_lambda_cgd, accountant.calibrate),
        slow=True,
    ),
    Kind(
        "bisr",
        "banded inverse square root with the best number of bands",
        lambda accountant: banded(_bisr, accountant, start=_INVERSE_BANDS),
        slow=True,
    ),
    Kind(
        "bifr",
        "banded inverse root with the best power and number of bands",
        lambda accountant: banded(classical_bands("bifr"), accountant, start=_INVERSE_BANDS),
        slow=True,
    ),
    Kind(
        "bandinv",
        "any banded inverse with the best number of bands",
        lambda accountant: banded(classical_bands("inverse"), accountant, start=_INVERSE_BANDS),
        slow=True,
    ),
)


def _all() -> Iterator[Mechanism]:
    for kind in KINDS:
        for accountant in ACCOUNTANTS.values():
            compared = accountant.compared
            if kind.name in compared.kinds:
                yield Mechanism(
                    f"{kind.name}-{accountant.name}",
                    f"{kind.words}, {compared.batches}",
                    accountant.statement,
                    kind.solver(accountant),
                    accountant,
                    slow=kind.slow or compared.slow,
                    candidate=kind.name in compared.candidates,
                    reference=kind.name in compared.references,
                )
        yield from kind.beside
    for accountant in ACCOUNTANTS.values():
        for index, (family, words) in enumerate(accountant.compared.optimised.items()):
            yield Mechanism(
                f"optimized-{family}" + accountant.compared.suffix,
                f"{words}, optimised under amplification, {accountant.compared.batches}",
                replace(accountant.statement, source="galton, C optimised at this epsilon"),
                optimized(family, accountant),
                accountant,
                slow=index > 0 or accountant.compared.slow_optima,
                candidate=True,
            )


MECHANISMS: dict[str, Mechanism] = {mechanism.name: mechanism for mechanism in _all()}
"""All mechanisms of `compare` by name.

Example:
  >>> from galton import MECHANISMS
  >>> [name for name, mechanism in MECHANISMS.items() if mechanism.reference]
  ['dpsgd-poisson', 'dpsgd-unamplified', 'memf-unamplified']
"""
DEFAULT = tuple(mechanism.name for mechanism in MECHANISMS.values() if not mechanism.slow)


def find_mechanism(name: str, argument: str = "mechanism") -> Mechanism:
    """Returns the mechanism of this name; `argument` is where it was given.

    Args:
      name: of the mechanism, as `galton compare` shows it.
      argument: name of the argument that held it, for errors.

    Returns:
      The mechanism; another name is refused.
    """
    if name not in MECHANISMS:
        raise InvalidArgument(argument, name, "must be one of " + ", ".join(MECHANISMS))
    return MECHANISMS[name]
