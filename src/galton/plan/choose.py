"""The strategy of a plan: named, optimised for the batches at hand, or the best of several."""

from __future__ import annotations

from dataclasses import dataclass

from galton.accountants import Accountant, Setting
from galton.accountants.base import PLAN_TAU
from galton.accounting import Options
from galton.comparison import MECHANISMS, Mechanism, Solved, banded, classical_bands
from galton.errors import GaltonError, InvalidArgument
from galton.optimization.noise_level import OutsideDesign
from galton.optimization.spec import resolve_strategy
from galton.plan.plan import Alternative
from galton.strategies import Strategy
from galton.strategies.grammar import PLAN, Source, parse_spec


@dataclass(frozen=True, eq=False)
class Chosen:
    """A strategy, the noise multiplier if the search for it gave one, and the strategies that it was compared with."""

    strategy: Strategy
    multiplier: float | None
    alternatives: tuple[Alternative, ...]


def choose(
    spec: str, accountant: Accountant, setting: Setting, options: Options, start: Strategy | None = None
) -> Chosen:
    """Returns the strategy that `spec` names.

    Args:
      spec: a family such as blt:4+scale, optimised for the sampling; bandmf for the best number of bands; best; or a
        strategy as elsewhere (`strategies.grammar.PLAN` has all of them).
      accountant: the analysis of the sampling.
      setting: bins, epochs, guarantee and workload.
      options: seed, workers and progress of the accountant.
      start: where a shorter search in a family begins.
    """
    parsed = parse_spec(spec, setting.rounds, PLAN)
    if parsed.source is Source.COMPARISON:
        if parsed.name == "best":
            return _best(accountant, setting, options)
        if accountant.most_bands(setting.bins) == 1 < setting.bins:
            remedy = f"has several bands, but {accountant.name} sampling is analysed for one; take identity"
            raise InvalidArgument("strategy", spec, remedy)
        return Chosen(banded(classical_bands("toeplitz"), accountant)(setting, None).strategy, None, ())
    if parsed.source is not Source.FAMILY:
        return Chosen(resolve_strategy(spec, setting.bins, setting.rounds), None, ())
    aim = setting.with_guarantee(accountant.room(setting.guarantee))
    try:
        optimum = accountant.optimum(spec, aim, options, PLAN_TAU, start)
    except OutsideDesign:
        raise GaltonError(
            f"plan: {spec} cannot be optimised for epsilon {setting.guarantee.epsilon:g} and delta "
            f"{setting.guarantee.delta:.3g}, which are out of reach of the search; take a strategy that needs none, "
            "such as --strategy sqrt:4"
        ) from None
    except InvalidArgument as error:
        if error.argument != "family":
            raise
        raise InvalidArgument("strategy", error.value, error.remedy) from None
    return Chosen(optimum.strategy, None if optimum.figure is None else optimum.figure.noise_multiplier, ())


def references(setting: Setting, options: Options) -> tuple[Alternative, ...]:
    """Returns the errors of well-known mechanisms for the same guarantee, of those that can give it.

    One whose C takes too much memory to optimise is left out: the plan does not depend on it.
    """
    adjacency = setting.guarantee.adjacency
    known = [
        mechanism
        for mechanism in MECHANISMS.values()
        if mechanism.reference and mechanism.accountant is not None and mechanism.accountant.supports(adjacency)
    ]
    alternatives = []
    for index, mechanism in enumerate(known):
        options.tell(f"alternatives | {mechanism.name}", index, len(known))
        try:
            solved = mechanism.solver(setting, None)
        except InvalidArgument as error:
            if error.argument != "family":
                raise
            continue
        alternatives.append(_alternative(mechanism, setting, solved))
    return tuple(alternatives)


def _best(accountant: Accountant, setting: Setting, options: Options) -> Chosen:
    """Returns the candidate with the smallest error, and the errors of the others."""
    candidates = [
        mechanism for mechanism in MECHANISMS.values() if mechanism.candidate and mechanism.accountant is accountant
    ]
    if not candidates:
        raise InvalidArgument("strategy", "best", f"there is only the identity for the accountant {accountant.name}")
    solved: dict[str, Solved] = {}
    for mechanism in candidates:
        options.tell(f"comparing strategies | {mechanism.name}", len(solved), len(candidates))
        solved[mechanism.name] = mechanism.solver(setting, None)
    errors = {name: setting.error(solution.strategy, solution.figure) for name, solution in solved.items()}
    best = min(errors, key=lambda name: errors[name])
    others = tuple(
        _alternative(mechanism, setting, solved[mechanism.name]) for mechanism in candidates if mechanism.name != best
    )
    return Chosen(solved[best].strategy, None, others)


def _alternative(mechanism: Mechanism, setting: Setting, solved: Solved) -> Alternative:
    standing = solved.figure.statement.standing.value
    return Alternative(mechanism.name, mechanism.description, setting.error(solved.strategy, solved.figure), standing)
