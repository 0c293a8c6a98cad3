"""The strategy of a plan: by name, optimised for the sampling at hand, or the best of several."""

from __future__ import annotations

from dataclasses import dataclass, replace

from galton.accounting import Options
from galton.baselines import MECHANISMS, Mechanism, Setting
from galton.baselines.mechanism import Solved
from galton.errors import InvalidArgument
from galton.optimization import optimize, unamplified_optimum
from galton.optimization.spec import resolve_strategy
from galton.plan.accountants import TAU, room_for
from galton.plan.plan import Alternative
from galton.strategies import Strategy
from galton.strategies.grammar import PLAN, Source, parse_spec

DEFAULTS = {
    "balls-in-bins": "blt:4+scale",
    "unamplified": "toeplitz",
    "poisson": "identity",
    "allocation": "identity",
    "cyclic-poisson": "bandmf",
    "mmcc": "bandmf",
}
"""Strategy by accountant, unless the user names one."""

_BANDED = {
    "balls-in-bins": "bandmf-balls-in-bins",
    "unamplified": "bandmf-unamplified",
    "cyclic-poisson": "bandmf-cyclic-poisson",
    "mmcc": "bandmf-mmcc",
}
_CANDIDATES = {
    "balls-in-bins": (
        *("dpsgd-balls-in-bins", "bandmf-balls-in-bins", "memf-balls-in-bins"),
        *("optimized-blt:4", "optimized-toeplitz", "optimized-blt:4+scale", "optimized-toeplitz+scale"),
    ),
    "unamplified": ("dpsgd-unamplified", "bandmf-unamplified", "memf-unamplified", "tree-unamplified"),
    "cyclic-poisson": ("bandmf-cyclic-poisson", "banded-cyclic-poisson"),
}
_REFERENCES = ("dpsgd-unamplified", "dpsgd-poisson", "memf-unamplified")
"""What a plan is compared with in passing: mechanisms that take seconds."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A strategy, a multiplier if one was found on the way, and what else was looked at."""

    strategy: Strategy
    multiplier: float | None
    alternatives: tuple[Alternative, ...]


def choose(spec: str, accountant: str, setting: Setting, options: Options) -> Chosen:
    """Returns the strategy that `spec` names.

    Args:
      spec: a family such as blt:4+scale, optimised for the sampling; bandmf for the best number of bands; best; or a
        strategy as elsewhere (`strategies.grammar.PLAN` has all of them).
      accountant: the analysis of the sampling.
      setting: bins, epochs, guarantee and workload.
      options: adjacency, seed, workers and progress of the accountant.
    """
    parsed = parse_spec(spec, setting.rounds, PLAN)
    if parsed.source is Source.COMPARISON:
        if parsed.name == "best":
            return _best(accountant, setting, options)
        if accountant not in _BANDED:
            raise InvalidArgument("strategy", spec, f"needs batches other than those of the accountant {accountant}")
        return Chosen(MECHANISMS[_BANDED[accountant]].solver(setting, None).strategy, None, ())
    if parsed.source is not Source.FAMILY:
        return Chosen(resolve_strategy(spec, setting.bins, setting.rounds), None, ())
    if accountant == "unamplified":
        return Chosen(unamplified_optimum(spec, setting.bins, setting.rounds, setting.workload), None, ())
    if accountant != "balls-in-bins":
        remedy = f"can be optimised for balls-in-bins and unamplified runs only, not for {accountant}; take bandmf"
        raise InvalidArgument("strategy", spec, remedy)
    found = optimize(
        spec,
        setting.bins,
        setting.rounds,
        setting.epsilon,
        room_for(setting.delta),
        workload=setting.workload,
        options=options,
        tau=TAU,
        watch=lambda stage, index, value: options.tell(f"optimising {stage} | {value:.5g}", index, index + 10),
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return Chosen(found.strategy, found.noise_multiplier, ())


def references(setting: Setting, options: Options) -> tuple[Alternative, ...]:
    """Returns what well-known mechanisms would cost; for replace adjacency, those without amplification."""
    replaced = options.adjacency == "replace"
    names = [name for name in _REFERENCES if not replaced or name.endswith("unamplified")]
    found = []
    for index, name in enumerate(names):
        options.tell(f"alternatives | {name}", index, len(names))
        one = _alternative(MECHANISMS[name], setting, MECHANISMS[name].solver(setting, None))
        found.append(replace(one, rmse=2 * one.rmse) if replaced else one)
    return tuple(found)


def _best(accountant: str, setting: Setting, options: Options) -> Chosen:
    """The candidate with the least error; each candidate's figure is kept."""
    if options.adjacency == "replace":
        raise InvalidArgument("strategy", "best", "is not there for replace adjacency: name a strategy")
    names = _CANDIDATES.get(accountant, (_BANDED[accountant],) if accountant in _BANDED else ())
    if not names:
        raise InvalidArgument("strategy", "best", f"there is only the identity for the accountant {accountant}")
    solved: dict[str, Solved] = {}
    for name in names:
        options.tell(f"comparing strategies | {name}", len(solved), len(names))
        solved[name] = MECHANISMS[name].solver(setting, None)
    errors = {name: setting.error(one.strategy, one.figure) for name, one in solved.items()}
    best = min(errors, key=lambda name: errors[name])
    others = tuple(_alternative(MECHANISMS[name], setting, solved[name]) for name in names if name != best)
    return Chosen(solved[best].strategy, None, others)


def _alternative(mechanism: Mechanism, setting: Setting, solved: Solved) -> Alternative:
    standing = solved.figure.statement.standing.value
    return Alternative(mechanism.name, mechanism.description, setting.error(solved.strategy, solved.figure), standing)
