"""The plan: one value that holds all that was analysed, and hands out the batches and the noise that belong to it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from galton import files
from galton.accountants import Accountant, Evidence, Run, check_covered, find_accountant
from galton.batching import Batches, Scheme, Truncation, scheme_from_json
from galton.batching import truncation as exact_truncation
from galton.errors import InvalidArgument, count, positive
from galton.fields import Fields
from galton.gaussian import gaussian_delta, gaussian_epsilon
from galton.guarantee import Guarantee
from galton.strategies import Strategy

if TYPE_CHECKING:
    from galton.noise import CorrelatedNoise

FORMAT = "galton-plan"
VERSION = 1
CONVENTION = (  # part of every plan's file, in which nominal_size is the expected batch size
    "The gradient of every example is clipped to l2 norm clip_norm; those of a batch (padding counts nothing) are "
    "summed; noise of standard deviation stddev * C^-1 z is added to the sum; the result is divided by nominal_size, "
    "whatever the number of examples in the batch."
)


@dataclass(frozen=True)
class Leak:
    """What remains if the batches become known: the guarantee of the same noise in a run of known order.

    Attributes:
      epsilon: at the plan's delta; None if truncation leaves nothing to claim there.
      delta: at the plan's epsilon.
    """

    epsilon: float | None
    delta: float

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Leak:
        """Rebuilds it from a plan."""
        body = Fields("if_batches_leak", value, cls, derived=("statement",))
        return cls(body.real_or_none("epsilon", 0.0), body.real("delta", 0.0, 1.0))


@dataclass(frozen=True)
class Alternative:
    """What another mechanism would cost, on the same workload and for the same guarantee."""

    name: str
    description: str
    rmse: float
    standing: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Alternative:
        """Rebuilds it from a plan."""
        body = Fields("alternatives", value, cls)
        return cls(body.text("name"), body.text("description"), body.real("rmse", 0.0), body.text("standing"))


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained, with which noise, and what may be claimed for it. `make_plan` makes one, `load_plan` reads one.

    Attributes:
      guarantee: what may be claimed.
      scheme: how batches are drawn.
      bins: batches per epoch, which the noise multiplier's convention refers to.
      padded_batch_size: size that every batch is padded to; larger ones are truncated.
      truncation: how often that happens, and what it costs.
      clip_norm: l2 norm that every example's gradient is clipped to.
      strategy: C.
      spec: the words by which the strategy was asked for.
      noise_multiplier: for C scaled to sensitivity 1 over the whole run.
      sensitivity: of C over a run of fixed order.
      evidence: why the guarantee holds.
      leak: what remains of it if the batches become known.
      workload: what the error is of.
      rmse: root-mean-square error on it, for clip norm 1 and a sum of gradients.
      alternatives: errors of other mechanisms.
      created: when, in UTC.
      versions: of the packages that the analysis rests on.
    """

    guarantee: Guarantee
    scheme: Scheme
    bins: int
    padded_batch_size: int
    truncation: Truncation
    clip_norm: float
    strategy: Strategy
    spec: str
    noise_multiplier: float
    sensitivity: float
    evidence: Evidence
    leak: Leak
    workload: str
    rmse: float
    alternatives: tuple[Alternative, ...]
    created: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        for name in ("bins", "padded_batch_size"):
            object.__setattr__(self, name, count(name, getattr(self, name)))
        for name in ("clip_norm", "noise_multiplier", "sensitivity", "rmse"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if self.strategy.rounds != self.scheme.rounds:
            raise InvalidArgument(
                "strategy", self.strategy.rounds, f"must have the rounds of the batches, {self.rounds}"
            )

    @property
    def accountant(self) -> Accountant:
        """Whose analysis the guarantee rests on."""
        return find_accountant(self.evidence.accountant)

    @property
    def run(self) -> Run:
        """What was analysed."""
        return Run(self.strategy, self.scheme, self.bins, self.noise_multiplier)

    @property
    def claim(self) -> Guarantee:
        """What has to be proved without truncation: the guarantee, less what truncation costs."""
        truncation_delta = self.truncation.delta(self.guarantee.epsilon, self.guarantee.adjacency)
        if not truncation_delta < self.guarantee.delta:
            raise InvalidArgument(
                "delta", self.guarantee.delta, f"must be more than truncation costs, {truncation_delta}"
            )
        return self.guarantee.with_delta(self.guarantee.delta - truncation_delta)

    def check(self) -> None:
        """Refuses a plan whose evidence is not evidence for what it claims, of the run that it describes."""
        accountant, adjacency = self.accountant, self.guarantee.adjacency
        check_covered(accountant, self.scheme)
        self.scheme.check_adjacency(adjacency)
        accountant.check_adjacency(adjacency)
        accountant.check(self.strategy, self.scheme, self.bins)
        _check_derived(
            "truncation", self.truncation.to_json(), exact_truncation(self.scheme, self.padded_batch_size).to_json()
        )
        self.evidence.check(self.run, self.claim)
        sensitivity = self.strategy.sensitivity(self.bins)
        if not math.isclose(sensitivity, self.sensitivity, rel_tol=1e-9):
            raise InvalidArgument("sensitivity", self.sensitivity, f"must be that of the strategy, {sensitivity}")

    @property
    def examples(self) -> int:
        """Number of examples; public."""
        return self.scheme.examples

    @property
    def rounds(self) -> int:
        """Batches in the whole run."""
        return self.scheme.rounds

    @property
    def epochs(self) -> int:
        """Passes over the data, the last perhaps partial."""
        return -(-self.rounds // self.bins)

    @property
    def expected_batch_size(self) -> float:
        """What noisy sums are divided by."""
        return self.scheme.expected_batch_size

    @property
    def stddev(self) -> float:
        """Standard deviation of z in the noise stddev * C^-1 z that is added to a sum of clipped gradients."""
        return self.noise_multiplier * self.sensitivity * self.clip_norm

    @property
    def statement(self) -> str:
        """What may be claimed, in words."""
        return f"A run of {self.rounds} rounds that follows this plan is {self.guarantee}. {self.evidence.words}"

    @property
    def leak_statement(self) -> str:
        """What may be claimed if the batches become known, in words."""
        if self.leak.epsilon is None:
            claim = f"({self.guarantee.epsilon:g}, {self.leak.delta:.4g})-DP"
        else:
            claim = f"({self.leak.epsilon:.4g}, {self.guarantee.delta:g})-DP"
        return f"If it becomes known which examples were in which batch, the same noise still gives {claim}."

    def batches(self, seed: str | int | None = None) -> Batches:
        """Returns the batches of a new run; the seed comes from the operating system unless given, and is a secret."""
        return Batches(self.scheme, self.padded_batch_size, seed)

    def noise(self, form: str = "buffers") -> CorrelatedNoise:
        """Returns the noise for sums of gradients clipped to `clip_norm`."""
        from galton.noise import CorrelatedNoise

        if form not in self._noises:  # compiled code belongs to it
            self._noises[form] = CorrelatedNoise(self.strategy, self.stddev, form)
        return self._noises[form]

    @cached_property
    def _noises(self) -> dict[str, CorrelatedNoise]:
        return {}

    @cached_property
    def text(self) -> str:
        """The content of plan.json, byte for byte."""
        return files.pretty(self.to_json())

    @property
    def digest(self) -> str:
        """The hash of plan.json, which has the hash of the strategy: the name of what was analysed."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Returns the content of plan.json; the strategy is in a file of its own."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "created": self.created,
            "guarantee": {
                **self.guarantee.to_json(),
                "statement": self.statement,
                "if_batches_leak": asdict(self.leak) | {"statement": self.leak_statement},
            },
            "batching": {
                "scheme": self.scheme.to_json(),
                "batches_per_epoch": self.bins,
                "epochs": self.epochs,
                "nominal_size": self.expected_batch_size,
                "truncation": self.truncation.to_json(),
            },
            "clipping": {"clip_norm": self.clip_norm, "convention": CONVENTION},
            "strategy": {"spec": self.spec, "kind": self.strategy.kind, "hash": self.strategy.digest},
            "noise": {
                "noise_multiplier": self.noise_multiplier,
                "sensitivity": self.sensitivity,
                "stddev": self.stddev,
            },
            "error": {
                "workload": self.workload,
                "rmse": self.rmse,
                "alternatives": [asdict(alternative) for alternative in self.alternatives],
            },
            "evidence": self.evidence.to_json(),
            "versions": self.versions,
        }


def plan_from_json(value: dict[str, Any], strategy: Strategy) -> Plan:
    """Rebuilds a plan from `Plan.to_json()` and its strategy.

    What a plan says twice must agree, and its evidence must be evidence for what it claims.
    """
    body = Fields("plan", value)
    batching, noise, error = body.inner("batching"), body.inner("noise"), body.inner("error")
    truncation = Truncation.from_json(batching.mapping("truncation"))
    accountant = find_accountant(body.inner("evidence").text("accountant"))
    plan = Plan(
        guarantee=Guarantee.from_json(body.mapping("guarantee")),
        scheme=scheme_from_json(batching.mapping("scheme")),
        bins=batching.count("batches_per_epoch"),
        padded_batch_size=truncation.padded_batch_size,
        truncation=truncation,
        clip_norm=body.inner("clipping").real("clip_norm"),
        strategy=strategy,
        spec=body.inner("strategy").text("spec"),
        noise_multiplier=noise.real("noise_multiplier"),
        sensitivity=noise.real("sensitivity"),
        evidence=accountant.evidence_from_json(body.mapping("evidence")),
        leak=Leak.from_json(body.inner("guarantee").mapping("if_batches_leak")),
        workload=error.text("workload"),
        rmse=error.real("rmse"),
        alternatives=tuple(Alternative.from_json(part) for part in error.sequence("alternatives")),
        created=body.text("created"),
        versions=body.texts("versions"),
    )
    plan.check()
    _check_derived("if_batches_leak", asdict(plan.leak), asdict(leaked(plan)))
    return plan


def leaked(plan: Plan) -> Leak:
    """Returns what the plan's noise guarantees if the batches are known, truncation included (docs/math.md, 9)."""
    mu, guarantee = leaked_mu(plan), plan.guarantee
    truncation_delta = plan.truncation.delta(guarantee.epsilon, guarantee.adjacency)
    delta = min(1.0, gaussian_delta(guarantee.epsilon, mu) + truncation_delta)
    epsilon = gaussian_epsilon(guarantee.delta, mu)
    for _ in range(100):  # what truncation costs grows with epsilon
        room = guarantee.delta - plan.truncation.delta(epsilon, guarantee.adjacency)
        if room <= 0:
            return Leak(None, delta)
        last, epsilon = epsilon, max(epsilon, gaussian_epsilon(room, mu))
        if epsilon <= last:
            return Leak(epsilon, delta)
    return Leak(None, delta)


def leaked_mu(plan: Plan) -> float:
    """Returns the mean shift of the Gaussian mechanism that is left if the batches are known, truncation aside."""
    shift = plan.guarantee.sides * plan.scheme.sensitivity_if_known(plan.strategy)
    return shift / (plan.noise_multiplier * plan.sensitivity) * (1 + 1e-9)


def _check_derived(name: str, stated: dict[str, Any], derived: dict[str, Any]) -> None:
    """Refuses numbers that do not follow from the rest; platforms may differ in the last digits."""
    for part, expected in derived.items():
        value = stated[part]
        if value is None or expected is None:
            same = value is expected
        else:
            same = math.isclose(value, expected, rel_tol=1e-6)
        if not same:
            raise InvalidArgument(f"{name}.{part}", value, f"must be {expected}, which follows from the rest")
