"""Why a guarantee holds, as a plan keeps it: a certificate, or the figure of a deterministic accountant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from galton.accountants.setting import Run
from galton.accountants.statement import Standing, Statement
from galton.accounting import Certificate
from galton.batching.laws import Law, RandomBin, RedrawnBins, Renewal
from galton.errors import InvalidArgument, positive
from galton.fields import Fields
from galton.guarantee import Guarantee
from galton.pair import ONE_DRAW, REDRAWN
from galton.separated import named_separation

CERTIFIED_LAWS: dict[str, type[Law]] = {ONE_DRAW: RandomBin, REDRAWN: RedrawnBins}
"""The law of the examples that a certificate is about, by the name that it has there; see `certifies`."""


def certifies(participation: str, law: Law) -> bool:
    """Returns whether a certificate for this participation is about examples of this law."""
    separation = named_separation(participation)
    if separation is not None:
        return isinstance(law, Renewal) and law.separation == separation
    kind = CERTIFIED_LAWS.get(participation)
    return kind is not None and isinstance(law, kind)


class Evidence(ABC):
    """What proves a guarantee, by one accountant.

    Formal guarantee: if `check(run, claim)` returns, and the evidence is what the accountant gave, the claim holds for
    the run as surely as `standing` says. It cannot tell evidence that somebody made up: `verify_plan` proves anew.

    Attributes:
      accountant: name of the accountant that gave it.

    Example:
      >>> from galton import ACCOUNTANTS, Options, identity
      >>> guarantee = Guarantee(epsilon=2.0, delta=1e-5)
      >>> evidence = ACCOUNTANTS["unamplified"].prove(identity(8), 4, guarantee, Options())
      >>> isinstance(evidence, Evidence), evidence.standing.value, evidence.proved == guarantee
      (True, 'exact', True)
    """

    accountant: str

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """Noise for which the guarantee was proved."""

    @property
    @abstractmethod
    def proved(self) -> Guarantee:
        """What may be stated."""

    @property
    @abstractmethod
    def standing(self) -> Standing:
        """How sure it is."""

    @property
    @abstractmethod
    def words(self) -> str:
        """How sure it is, in words."""

    @property
    def first_words(self) -> str:
        """How sure it is, in the words of galton 0.1, which plans made by it hold."""
        return self.words

    @property
    def proviso(self) -> str:
        """What the guarantee asks of a run besides following the plan, in words after a comma; or nothing."""
        return ""

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, where samples proved the guarantee."""
        return None

    @property
    def details(self) -> list[tuple[str, str]]:
        """Names and values that a report shows of it, where there is no certificate."""
        return []

    def check(self, run: Run, claim: Guarantee) -> None:
        """Refuses evidence for less than is claimed, or for another run.

        Args:
          run: the run that the evidence has to be about.
          claim: the guarantee that it has to cover.
        """
        proved = self.proved
        agree("adjacency", proved.adjacency.value, claim.adjacency.value)
        if not self.noise_multiplier <= run.noise_multiplier:
            raise InvalidArgument(
                "noise_multiplier", run.noise_multiplier, f"must be at least the proved one, {self.noise_multiplier}"
            )
        if not proved.epsilon <= claim.epsilon:
            raise InvalidArgument("epsilon", claim.epsilon, f"must be at least the proved one, {proved.epsilon}")
        if not proved.delta <= claim.delta * (1 + 1e-12):
            raise InvalidArgument(
                "delta", claim.delta, f"must be at least what was proved, {proved.delta} (what truncation costs aside)"
            )

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary; `Accountant.evidence_from_json` reads it."""


@dataclass(frozen=True, eq=False)
class Certified(Evidence):
    """An accepted certificate."""

    accountant: str
    verified: Certificate

    @property
    def certificate(self) -> Certificate:
        return self.verified

    @property
    def noise_multiplier(self) -> float:
        return self.verified.noise_multiplier

    @property
    def proved(self) -> Guarantee:
        return self.verified.guarantee.with_delta(self.verified.stated_delta)

    @property
    def standing(self) -> Standing:
        return Standing.CERTIFIED

    @property
    def first_words(self) -> str:
        return (
            f"Certified with {self.verified.samples:,} samples: had the claim been false, this plan would have been "
            f"refused except with probability {self.verified.failure_probability:.2g}, which delta covers.{self._seed}"
        )

    @property
    def words(self) -> str:
        return self.verified.how_sure + (self._seed if self.verified.samples else "")

    @property
    def proviso(self) -> str:
        return ", released only because its verification accepted," if self.verified.samples else ""

    @property
    def _seed(self) -> str:
        if not self.verified.seed_chosen_by_user:
            return ""
        return " The seed of the certificate was chosen by the user: this holds if not chosen for its outcome."

    def check(self, run: Run, claim: Guarantee) -> None:
        if not certifies(self.verified.participation, run.scheme.law):
            remedy = f"does not describe {run.scheme.kind} batches: the certificate is for a run of another kind"
            raise InvalidArgument("evidence.participation", self.verified.participation, remedy)
        agree("strategy", self.verified.strategy, run.strategy.digest)
        agree("bins", self.verified.bins, run.bins)
        agree("rounds", self.verified.rounds, run.strategy.rounds)
        agree("accepted", self.verified.accepted, True)
        super().check(run, claim)

    def to_json(self) -> dict[str, Any]:
        return {"accountant": self.accountant, "certificate": self.verified.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Certified:
        """Rebuilds evidence from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The evidence; its certificate is checked field by field.
        """
        body = Fields("evidence", value, cls, {"verified": ("certificate",)})
        return cls(body.text("accountant"), Certificate.from_json(body.mapping("certificate")))


@dataclass(frozen=True, eq=False)
class Calculated(Evidence):
    """A noise multiplier that a deterministic accountant gave."""

    accountant: str
    multiplier: float
    guarantee: Guarantee
    statement: Statement

    @property
    def noise_multiplier(self) -> float:
        return self.multiplier

    @property
    def proved(self) -> Guarantee:
        return self.guarantee

    @property
    def standing(self) -> Standing:
        return self.statement.standing

    @property
    def details(self) -> list[tuple[str, str]]:
        return [
            ("standing", self.statement.standing.value),
            ("source", self.statement.source),
            ("batches assumed", self.statement.sampling),
        ]

    @property
    def words(self) -> str:
        return f"By {self.statement.source}: {self.statement.standing.value}."

    def check(self, run: Run, claim: Guarantee) -> None:
        if not self.statement.is_guarantee:
            raise InvalidArgument("evidence", self.statement.standing.value, "is no guarantee")
        if self.statement.standing is Standing.CERTIFIED:
            raise InvalidArgument("evidence", self.statement.standing.value, "needs a certificate")
        super().check(run, claim)

    def to_json(self) -> dict[str, Any]:
        return {
            "accountant": self.accountant,
            "noise_multiplier": self.multiplier,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "statement": self.statement.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Calculated:
        """Rebuilds evidence from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The evidence.
        """
        flattened = {"multiplier": ("noise_multiplier",), "guarantee": ("epsilon", "delta")}
        body = Fields("evidence", value, cls, flattened)
        statement = Statement.from_json(body.mapping("statement"))
        multiplier = positive("noise_multiplier", body.real("noise_multiplier"))
        guarantee = Guarantee(body.real("epsilon"), body.real("delta"), statement.adjacency)
        return cls(body.text("accountant"), multiplier, guarantee, statement)


def agree(name: str, given: object, wanted: object) -> None:
    """Refuses evidence about something else."""
    if given != wanted:
        raise InvalidArgument(f"evidence.{name}", given, f"must be that of the plan, {wanted}")
