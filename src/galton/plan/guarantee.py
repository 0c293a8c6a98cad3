"""Why a plan's guarantee holds: a certificate of the balls-in-bins accountant, or the figure of another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from galton.baselines.figure import bands_of
from galton.baselines.statement import Statement, statement_from_json
from galton.batching import CyclicPoisson, truncation
from galton.errors import InvalidArgument
from galton.strategies import Strategy

if TYPE_CHECKING:
    from galton.plan.plan import Plan


class Evidence(Protocol):
    """What proves a plan's guarantee, by one accountant."""

    @property
    def accountant(self) -> str:
        """Name among `batching.ACCOUNTANTS`."""

    @property
    def words(self) -> str:
        """How sure the guarantee is, in words."""

    def check(self, plan: Plan) -> None:
        """Refuses evidence for something else than the plan claims."""

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""


@dataclass(frozen=True, eq=False)
class Certified:
    """An accepted certificate for balls-in-bins batches (`Certificate.to_json()`)."""

    accountant: ClassVar[str] = "balls-in-bins"
    certificate: dict[str, Any]

    @property
    def stated_delta(self) -> float:
        """The delta that the certificate lets one state: what was proved, with the failures of attempts before it."""
        proved, failure = float(self.certificate["delta"]), float(self.certificate["failure_probability"])
        return max(proved, failure) if self.certificate["attempts"] == 1 else proved + failure

    @property
    def words(self) -> str:
        failure = float(self.certificate["failure_probability"])
        words = (
            f"Certified with {self.certificate['samples']:,} samples: had the claim been false, this plan would have "
            f"been refused except with probability {failure:.2g}, which delta covers."
        )
        if self.certificate["seed_chosen_by_user"]:
            words += " The seed of the certificate was chosen by the user: this holds if not chosen for its outcome."
        return words

    def check(self, plan: Plan) -> None:
        found = self.certificate
        _agree(plan, "adjacency", found["adjacency"], plan.adjacency)
        _agree(plan, "strategy", found["strategy"], plan.strategy.digest)
        _agree(plan, "bins", found["bins"], plan.bins)
        _agree(plan, "rounds", found["rounds"], plan.rounds)
        _agree(plan, "accepted", found["accepted"], True)
        _common(plan, self, found["noise_multiplier"], found["epsilon"], self.stated_delta)

    def to_json(self) -> dict[str, Any]:
        return {"accountant": self.accountant, "certificate": self.certificate}


@dataclass(frozen=True, eq=False)
class Calculated:
    """A noise multiplier that a deterministic accountant gave (`baselines.Figure`)."""

    accountant: str
    noise_multiplier: float
    epsilon: float
    delta: float
    statement: Statement

    @property
    def words(self) -> str:
        return f"By {self.statement.source}: {self.statement.standing.value}."

    def check(self, plan: Plan) -> None:
        if not self.statement.is_guarantee:
            raise InvalidArgument("evidence", self.statement.standing.value, "is no guarantee")
        if isinstance(plan.scheme, CyclicPoisson):
            check_groups(plan.strategy, plan.scheme, plan.bins, self.accountant)
        _common(plan, self, self.noise_multiplier, self.epsilon, self.delta)

    def to_json(self) -> dict[str, Any]:
        return {
            "accountant": self.accountant,
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "statement": self.statement.to_json(),
        }


def check_groups(strategy: Strategy, scheme: CyclicPoisson, bins: int, accountant: str) -> None:
    """Refuses groups other than those analysed: one for each band of C, or one for all by conditional composition."""
    bands = 1 if accountant == "mmcc" else bands_of(strategy)
    if scheme.cycle != bands:
        remedy = f"has {bands} bands, but there are {scheme.cycle} groups of examples; take cyclic-poisson batches"
        raise InvalidArgument("strategy", strategy.kind, remedy)
    if scheme.sampling_probability > bands / bins * (1 + 1e-12):
        raise InvalidArgument("batch_size", scheme.batch_size, f"must be at most examples / bins for {bins} bins")


def evidence_from_json(value: dict[str, Any]) -> Evidence:
    """Rebuilds evidence from `Evidence.to_json()`."""
    if value["accountant"] == Certified.accountant:
        return Certified(value["certificate"])
    numbers = {name: float(value[name]) for name in ("noise_multiplier", "epsilon", "delta")}
    return Calculated(value["accountant"], statement=statement_from_json(value["statement"]), **numbers)


def _agree(plan: Plan, name: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise InvalidArgument(f"evidence.{name}", found, f"must be that of the plan, {wanted}")


def _common(plan: Plan, evidence: Evidence, multiplier: float, epsilon: float, delta: float) -> None:
    """Enough noise, for the claim, for these batches."""
    plan.scheme.check_covered(evidence.accountant)
    plan.scheme.check_adjacency(plan.adjacency)
    bins = getattr(plan.scheme, "bins", plan.bins)
    if bins != plan.bins:
        raise InvalidArgument("bins", bins, f"must be the batches per epoch that were analysed, {plan.bins}")
    if not multiplier <= plan.noise_multiplier:
        raise InvalidArgument(
            "noise_multiplier", plan.noise_multiplier, f"must be at least the proved one, {multiplier}"
        )
    if not epsilon <= plan.epsilon:
        raise InvalidArgument("epsilon", plan.epsilon, f"must be at least the proved one, {epsilon}")
    lost = truncation(plan.scheme, plan.physical).delta(plan.epsilon, plan.adjacency)
    if not delta + lost <= plan.delta * (1 + 1e-12):
        raise InvalidArgument("delta", plan.delta, f"must be at least what was proved, {delta}, and truncation, {lost}")
    sensitivity = plan.strategy.sensitivity(plan.bins)
    if not math.isclose(sensitivity, plan.sensitivity, rel_tol=1e-9):
        raise InvalidArgument("sensitivity", plan.sensitivity, f"must be that of the strategy, {sensitivity}")
