"""The plan: one value with everything that was analysed, from which the batches and the noise of a run are made."""

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
from galton.errors import InvalidArgument, choice, count, positive
from galton.fields import Fields
from galton.guarantee import Guarantee
from galton.plan.conventions import CLIPPINGS, FLAT, convention
from galton.plan.leak import Leak, leaked
from galton.plan.signature import Signature
from galton.plan.tuning import Tuning
from galton.plan.versions import FIRST_VERSION, FORMAT, VERSION, VERSIONS, as_before, as_now
from galton.strategies import Strategy
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from galton.noise import CorrelatedNoise

EXAMPLE, USER = "example", "user"


@dataclass(frozen=True)
class Alternative:
    """The error of another mechanism, on the same workload and for the same guarantee.

    Attributes:
      name: of the mechanism.
      description: of it, in words.
      rmse: root-mean-square error, by the same convention as the plan's.
      standing: how well founded the figure is, a value of `Standing`.
    """

    name: str
    description: str
    rmse: float
    standing: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Alternative:
        """Rebuilds it from a plan.

        Args:
          value: an entry of `alternatives`.

        Returns:
          The alternative.
        """
        body = Fields("alternatives", value, cls)
        return cls(body.text("name"), body.text("description"), body.real("rmse", 0.0), body.text("standing"))


@typechecked
@dataclass(frozen=True, eq=False)
class Plan:
    """A training run before it starts: its batches, its noise, and the guarantee with its proof.

    `make_plan` makes a plan, `save_plan` writes it to a folder and `load_plan` reads it.

    Attributes:
      guarantee: what may be claimed for a run that follows the plan.
      scheme: how batches are drawn.
      bins: batches per epoch, by which the sensitivity of C is taken.
      padded_batch_size: size that every batch is padded to; larger batches are truncated.
      truncation: how often that happens, and what it costs.
      clip_norm: l2 norm that the gradient of every example is clipped to.
      strategy: C.
      spec: the strategy as it was requested.
      noise_multiplier: for C scaled to sensitivity 1 over the whole run.
      sensitivity: of C, over a run of fixed order.
      evidence: why the guarantee holds.
      leak: what remains of the guarantee if the batches become known.
      workload: what the error is measured on.
      rmse: root-mean-square error on the workload, for clip norm 1 and sums of gradients.
      alternatives: errors of other mechanisms.
      created: time at which the plan was made, in UTC.
      versions: of the packages that the analysis rests on.
      signature: of the rest by somebody who vouches for it, if there is one; `check_signature` checks it.
      version: of the format of plan.json.
      per_user: the most examples of a user in a round, where users are the unit of privacy; None where examples are.
      tuning: how many runs are made by the plan, of which the best is released; None is a single run. `guarantee` is
        that of a single run in either case; `compose` states that of the search.
      clipping: how gradients are brought to the clip norm: `flat`, `per-group` or `normalized`.

    Formal guarantee: to verify the plan's claim, and to train and release only if that accepts, has the plan's
    guarantee if the run takes its batches from `batches`, clips the gradient of every example to `clip_norm`, sums
    those of a batch, adds the noise of `noise` and releases nothing else that depends on the data, save the number of
    examples, which is public. `TrainingRun` sees to the batches and the noise. The noise is taken to be Gaussian with
    all its digits: what its rounding may tell is not covered (docs/plans.md).

    Example:
      >>> from galton import make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="replace")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity"
      ... )
      >>> plan.rounds, plan.expected_batch_size, plan.evidence.standing.value
      (4, 16.0, 'exact')
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
    signature: Signature | None = None
    version: int = VERSION
    per_user: int | None = None
    tuning: Tuning | None = None
    clipping: str = FLAT

    def __post_init__(self) -> None:
        if self.per_user is not None:
            object.__setattr__(self, "per_user", count("per_user", self.per_user))
        choice("clipping", self.clipping, tuple(CLIPPINGS))
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
        """The accountant whose analysis the guarantee rests on."""
        return find_accountant(self.evidence.accountant)

    @property
    def run(self) -> Run:
        """What the accountant analysed: strategy, scheme, bins and noise multiplier."""
        return Run(self.strategy, self.scheme, self.bins, self.noise_multiplier)

    @property
    def claim(self) -> Guarantee:
        """The guarantee to be proved for the run without truncation: the plan's, less what truncation costs."""
        truncation_delta = self.truncation.delta(self.guarantee.epsilon, self.guarantee.adjacency)
        if not truncation_delta < self.guarantee.delta:
            raise InvalidArgument(
                "delta", self.guarantee.delta, f"must be more than truncation costs, {truncation_delta}"
            )
        return self.guarantee.with_delta(self.guarantee.delta - truncation_delta)

    def check(self) -> None:
        """Raises `InvalidArgument` unless the evidence is for the plan's own claim and the run that it describes."""
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
    def unit(self) -> str:
        """What neighbouring data sets differ in: an example, or a user with all examples."""
        return EXAMPLE if self.per_user is None else USER

    def worded(self, text: str) -> str:
        """Returns a text about examples in the words of the plan's unit.

        Args:
          text: words about examples.

        Returns:
          The same about users, where they are the unit.
        """
        if self.per_user is None:
            return text
        return text.replace("your example", "your data").replace("an example", "a user").replace("example", "user")

    @property
    def examples(self) -> int:
        """Number of examples in the data set, or of users where they are the unit; public."""
        return self.scheme.examples

    @property
    def rounds(self) -> int:
        """Number of batches in the whole run."""
        return self.scheme.rounds

    @property
    def epochs(self) -> int:
        """Number of passes over the data; the last may be partial."""
        return -(-self.rounds // self.bins)

    @property
    def expected_batch_size(self) -> float:
        """Expected number of examples in a batch; noisy sums are divided by it."""
        return self.scheme.expected_batch_size

    @property
    def stddev(self) -> float:
        """Standard deviation of z in the noise stddev * C^-1 z that is added to a sum of clipped gradients."""
        return self.noise_multiplier * self.sensitivity * self.clip_norm

    @property
    def statement(self) -> str:
        """The guarantee in words: of what, what is public, and the evidence."""
        if self.version == FIRST_VERSION:
            words, stated = self.evidence.first_words, self.guarantee
            claim = f"({stated.epsilon:g}, {stated.delta:g})-DP under {stated.adjacency} adjacency"
            return f"A run of {self.rounds} rounds that follows this plan is {claim}. {words}"
        run = f"A run of {self.rounds} rounds that follows this plan{self.evidence.proviso} is {self.guarantee}."
        if self.per_user is not None:
            run += " The unit is a user: neighbours differ in all examples of one user, of which at most "
            run += f"{self.per_user} take part in a round."
        if self.tuning is not None:
            run += f" {self.search}"
        public = "" if self.guarantee.adjacency.equal_sizes else f" {self.public_size}"
        return f"{run}{public} {self.evidence.words}"

    @property
    def search(self) -> str:
        """In words, what is released where the plan is for a search; empty where it is for a single run."""
        if self.tuning is None:
            return ""
        return (
            f"It is for a search: the best of {self.tuning} runs is released, and nothing of the others. That costs "
            "more than a single run: galton compose states what."
        )

    @property
    def public_size(self) -> str:
        """In words, what is public where neighbours differ in the number of examples."""
        return self.worded(
            f"The number of examples, {self.examples}, is public, and with it the number of batches and the divisor of "
            "sums: they stay as planned for the neighbour with an example more or less."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but rarely meant, in words."""
        if self.guarantee.delta * self.examples <= 1:
            return ()
        return (
            self.worded(
                f"delta = {self.guarantee.delta:g} is above 1 / examples = {1 / self.examples:.3g}: publishing an "
                "example picked at random would be allowed by it; take a delta well below"
            ),
        )

    @property
    def leak_statement(self) -> str:
        """In words, the guarantee that remains if the batches become known."""
        if self.version != VERSION:  # as it was written
            epsilon, delta = f"{self.guarantee.epsilon:g}", f"{self.leak.delta_at_epsilon:.4g}"
            if self.leak.epsilon_at_delta is not None:
                epsilon, delta = f"{self.leak.epsilon_at_delta:.4g}", f"{self.guarantee.delta:g}"
            claim = f"({epsilon}, {delta})-DP"
        else:
            claim = self.leak.claim(self.guarantee)
        return self.worded(
            f"If it becomes known which examples were in which batch, the same noise still gives {claim}."
        )

    def batches(self, seed: str | int | None = None) -> Batches:
        """Returns the batches of a new run.

        Args:
          seed: whole number or 64 hexadecimal digits; by default from the operating system. It is a secret.

        Returns:
          An iterator over the batches, at round 0.
        """
        return Batches(self.scheme, self.padded_batch_size, seed)

    def noise(self, form: str = "buffers") -> CorrelatedNoise:
        """Returns the noise to add to sums of gradients clipped to `clip_norm`.

        Args:
          form: `buffers` or `recompute`, see `CorrelatedNoise`.

        Returns:
          The noise; it has no state of its own and is compiled once.
        """
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
        """SHA-256 of plan.json, which contains the hash of the strategy: it identifies what was analysed."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Returns the content of plan.json; the strategy and the signature are in files of their own."""
        body = {
            "format": FORMAT,
            "version": self.version,
            "created": self.created,
            "guarantee": {
                **self.guarantee.to_json(),
                "statement": self.statement,
                "if_batches_leak": self.leak.to_json(self.version) | {"statement": self.leak_statement},
            },
            "batching": {
                "scheme": self.scheme.to_json(),
                "batches_per_epoch": self.bins,
                "epochs": self.epochs,
                "nominal_size": self.expected_batch_size,
                "truncation": self.truncation.to_json(),
            },
            **({} if self.per_user is None else {"unit": {"kind": USER, "per_user": self.per_user}}),
            **({} if self.tuning is None else {"tuning": self.tuning.to_json()}),
            "clipping": {
                "clip_norm": self.clip_norm,
                "convention": convention(self.clipping, self.per_user),
                **({} if self.clipping == FLAT else {"kind": self.clipping}),
            },
            "strategy": self.spec,
            "strategy_kind": self.strategy.kind,
            "strategy_hash": self.strategy.digest,
            "noise": {
                "noise_multiplier": self.noise_multiplier,
                "sensitivity": self.sensitivity,
                "stddev": self.stddev,
            },
            "workload": self.workload,
            "rmse": self.rmse,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
            "evidence": self.evidence.to_json(),
            "versions": self.versions,
        }
        return body if self.version == VERSION else as_before(body)


def plan_from_json(value: dict[str, Any], strategy: Strategy) -> Plan:
    """Rebuilds a plan from `Plan.to_json()` and its strategy.

    What a plan states twice must agree, and its evidence must be evidence for its claim.
    """
    body = Fields("plan", value)
    version = body.count("version")
    if version not in VERSIONS:
        raise InvalidArgument("plan.version", version, f"must be one of {', '.join(map(str, VERSIONS))}")
    if version != VERSION:
        body = Fields("plan", as_now(body, value))
    batching, noise = body.inner("batching"), body.inner("noise")
    clipping = body.inner("clipping")
    truncation = Truncation.from_json(batching.mapping("truncation"))
    accountant = find_accountant(body.inner("evidence").text("accountant"))
    plan = Plan(
        guarantee=Guarantee.from_json(body.mapping("guarantee")),
        scheme=scheme_from_json(batching.mapping("scheme")),
        bins=batching.count("batches_per_epoch"),
        padded_batch_size=truncation.padded_batch_size,
        truncation=truncation,
        clip_norm=clipping.real("clip_norm"),
        strategy=strategy,
        spec=body.text("strategy"),
        noise_multiplier=noise.real("noise_multiplier"),
        sensitivity=noise.real("sensitivity"),
        evidence=accountant.evidence_from_json(body.mapping("evidence")),
        leak=Leak.from_json(body.inner("guarantee").mapping("if_batches_leak"), version),
        workload=body.text("workload"),
        rmse=body.real("rmse"),
        alternatives=tuple(Alternative.from_json(part) for part in body.sequence("alternatives")),
        created=body.text("created"),
        versions=body.texts("versions"),
        version=version,
        per_user=None if "unit" not in value else body.inner("unit").count("per_user", 1),
        tuning=None if "tuning" not in value else Tuning.from_json(body.mapping("tuning")),
        clipping=clipping.text("kind") if "kind" in value["clipping"] else FLAT,
    )
    plan.check()
    leak = leaked(plan)
    if version != VERSION:  # they counted truncation e^epsilon times, and so state no less than this
        epsilon = _larger(plan.leak.epsilon_at_delta, leak.epsilon_at_delta)
        leak = Leak(epsilon, max(plan.leak.delta_at_epsilon, leak.delta_at_epsilon))
    _check_derived("if_batches_leak", plan.leak.to_json(version), leak.to_json(version))
    return plan


def _larger(stated: float | None, derived: float | None) -> float | None:
    """The larger of two epsilons, of which None is without end."""
    return None if stated is None or derived is None else max(stated, derived)


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
