"""The audit: an attack on real batches and real noise, and what it proves next to what was certified."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from galton.accountants.attacks import Attack
from galton.accounting import Options
from galton.audit.bound import Limit, limit, visible_delta
from galton.audit.checks import FALSE_ALARM, Check, Finding, exact, judge, two_samples
from galton.audit.noise_checks import MOST, noise_findings
from galton.audit.system import RealSystem, System
from galton.audit.tallies import batch_tally
from galton.audit.trials import Trials, noise_sample, run_once, shape_for
from galton.errors import FloatArray, count, positive
from galton.guarantee import Direction, Guarantee
from galton.plan.plan import Plan
from galton.strategies.whitening import Whitening

FAILURE = 1e-4
"""Probability that a lower bound on epsilon exceeds the truth, in any direction and at any delta."""
MODEL_ENTRIES = 1 << 25
"""The most normals drawn for the accountant's model."""
LEAST_RUNS = 2
"""The fewest runs: noise must differ between them."""
SPARE = 0.25
"""Share of the time that is reserved for the model and the checks."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Audit:
    """The outcome of `audit`, whose example shows one; `consistent` is its verdict. docs/audit.md explains its parts.

    Attributes:
      plan: content hash of the plan.
      epsilon_lower: epsilon of what really runs is at least this, at `delta`, except with probability `failure`.
      epsilon_certified: upper bound on epsilon that the accountant proves at the same delta.
      delta: the plan's, or a larger one that this many trials can resolve.
      guarantee: what the plan claims.
      consistent: whether all checks passed and no lower bound is above what was certified.
      trials: number of trials with a canary that the bound rests on.
      runs: number of real runs.
      failure: probability that a bound is wrong.
      false_alarm: probability that a correct system fails a check.
      limits: lower bounds on epsilon in every direction, at `delta` and at the plan's delta.
      checks: checks of the batches and of the noise.
      seconds: time that it took.
    """

    plan: str
    epsilon_lower: float
    epsilon_certified: float
    delta: float
    guarantee: Guarantee
    consistent: bool
    trials: int
    runs: int
    failure: float
    false_alarm: float
    limits: tuple[Limit, ...]
    checks: tuple[Check, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        fields = {name: value for name, value in asdict(self).items() if name != "guarantee"}
        return fields | {
            "plan_epsilon": self.guarantee.epsilon,
            "plan_delta": self.guarantee.delta,
            "adjacency": self.guarantee.adjacency.value,
        }


def audit(
    plan: Plan,
    *,
    seconds: float = 60.0,
    trials: int | None = None,
    seed: int | None = None,
    system: System | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audits a plan: runs its real batches and real noise many times, attacks them and checks their distribution.

    Formal guarantee: `epsilon_lower` exceeds the epsilon (at `delta`) of the system that ran with probability at most
    FAILURE, whatever the system does, as long as its runs are independent and so are the coordinates of its noise
    and, for balls-in-bins, the bins; the checks test just that. A correct system fails a check with probability at
    most FALSE_ALARM. See docs/audit.md for what an audit cannot see.

    Args:
      plan: what should run.
      seconds: about how long it may take; there are at least two runs.
      trials: make at least this many trials with a canary, however long it takes. With a seed, the audit can then be
        repeated.
      seed: of the auditor and, through it, of the system; by default both are seeded by the operating system.
      system: what really runs; by default `plan.batches` and `plan.noise`, interrupted and resumed halfway.
      progress: called as progress(what, done, total).

    Returns:
      The lower bound on epsilon, the checks and the verdict.

    Example:
      >>> from galton import Guarantee, make_plan
      >>> guarantee = Guarantee(epsilon=4, delta=1e-3, adjacency="zero-out")
      >>> plan = make_plan(
      ...     guarantee, examples=64, batch_size=32, epochs=2, batching="fixed-order", strategy="identity"
      ... )
      >>> outcome = audit(plan, seconds=0.1, seed=1)
      >>> outcome.consistent, 0 <= outcome.epsilon_lower <= outcome.epsilon_certified <= 4
      (True, True)
    """
    start = time.perf_counter()
    positive("seconds", seconds)
    if trials is not None:
        count("trials", trials)
    system = system or RealSystem(plan)
    if not plan.accountant.covers(plan.scheme.law):
        raise plan.accountant.no_attack(plan.run)
    whitening = Whitening(plan.strategy)
    attack = plan.accountant.attack(plan.run, plan.guarantee.adjacency, whitening)
    random = np.random.default_rng(secrets.randbits(128) if seed is None else [count("seed", seed, at_least=0)])
    shape = shape_for(plan, attack, seconds, trials)
    tally, noise_starts = batch_tally(plan), set()
    runs: list[Trials] = []
    while True:
        run_start = time.perf_counter()
        sampled = 8 if runs else noise_sample(plan.rounds, MOST)
        outcome = run_once(plan, system, attack, shape, random, seed is not None, sampled)
        tally.add(outcome.participation)
        noise_starts.add(outcome.noise[0, :8].tobytes())
        if not runs:
            decoded = whitening.apply(outcome.noise.astype(np.float64)) / plan.stddev
        runs.append(outcome)
        spent, last = time.perf_counter() - start, time.perf_counter() - run_start
        share = (spent + last) / (seconds * (1 - SPARE)) if trials is None else len(runs) * shape.canaries / trials
        if progress is not None:
            made = len(runs) * shape.canaries
            progress("trials with canaries", made, max(made, round(made / share)))
        if share >= 1 and len(runs) >= LEAST_RUNS:
            break
    findings = noise_findings(decoded)
    findings.append(exact("noise fresh", len(runs) - len(noise_starts), "no two runs have the same noise"))
    findings += tally.findings()
    model = _modelled_ratios(attack, random, runs)
    findings += _ratio_findings(plan, attack, runs, model)
    checks = judge(findings)
    limits, headline, certified = _epsilon_limits(plan, runs, model, seed)
    bounded = all(proved.epsilon_lower <= certified[proved.delta] for proved in limits)
    return Audit(
        plan=plan.digest,
        epsilon_lower=max(proved.epsilon_lower for proved in limits if proved.delta == headline),
        epsilon_certified=certified[headline],
        delta=headline,
        guarantee=plan.guarantee,
        consistent=bounded and all(check.passed for check in checks),
        trials=sum(int(run.worst_inside.sum()) for run in runs),
        runs=len(runs),
        failure=FAILURE,
        false_alarm=FALSE_ALARM,
        limits=limits,
        checks=checks,
        seconds=time.perf_counter() - start,
    )


def _modelled_ratios(attack: Attack, random: np.random.Generator, runs: list[Trials]) -> tuple[FloatArray, FloatArray]:
    """Draws log ratios, with and without the canary, from the accountant's model, for the groups of the trials."""
    groups = np.concatenate([run.groups for run in runs])
    size = min(2 * groups.size, max(10_000, MODEL_ENTRIES // attack.weights.shape[1]))
    step = max(1000, MODEL_ENTRIES // (16 * attack.weights.shape[1]))
    parts = [random.choice(groups, min(step, size - start)) for start in range(0, size, step)]
    draws = [attack.model(random, part) for part in parts]
    return np.concatenate([inside for inside, _ in draws]), np.concatenate([outside for _, outside in draws])


def _ratio_findings(
    plan: Plan, attack: Attack, runs: list[Trials], model: tuple[FloatArray, FloatArray]
) -> list[Finding]:
    """Tests whether the log ratios have the distribution that was analysed."""
    inside = np.concatenate([run.inside[run.whole] for run in runs])
    outside = np.concatenate([run.outside for run in runs])
    findings = [
        two_samples("ratio with canary", inside, model[0], "the log ratio is distributed as analysed"),
        two_samples("ratio without canary", outside, model[1], "the log ratio is distributed as analysed"),
    ]
    gram = plan.accountant.gram(plan.run)
    comparable = plan.strategy.rows == plan.rounds and not plan.strategy.has_negative
    if gram is not None and attack.gram is not None and comparable:
        off = np.abs(gram - attack.gram).max() / gram.max()
        findings.append(exact("pair", int(not off < 1e-6), "the attack faces the pair that the accountant analysed"))
    return findings


def _epsilon_limits(
    plan: Plan, runs: list[Trials], model: tuple[FloatArray, FloatArray], seed: int | None
) -> tuple[tuple[Limit, ...], float, dict[float, float]]:
    """Returns lower bounds on epsilon, the headline delta, and the certified epsilons by delta.

    Bounds are given at the plan's delta and at the headline delta, which is large enough for the trials to resolve.
    """
    inside = np.concatenate([run.inside[run.worst_inside] for run in runs])
    outside = np.concatenate([run.outside[run.worst_outside] for run in runs])
    sides = {
        Direction.MIXTURE_FIRST: (inside, outside, model[0]),
        Direction.NOISE_FIRST: (-outside, -inside, -model[1]),
        Direction.REPLACE: (inside, outside, model[0]),
    }
    headline = visible_delta(plan.guarantee.delta, inside.size)
    deltas, ways = sorted({plan.guarantee.delta, headline}), plan.guarantee.directions
    share = FAILURE / (len(deltas) * len(ways))
    limits = tuple(limit(way.value, *sides[way], delta, share) for delta in deltas for way in ways)
    return limits, headline, {delta: certified_epsilon(plan, delta, seed) for delta in deltas}


def certified_epsilon(plan: Plan, delta: float, seed: int | None = None) -> float:
    """Returns a certified upper bound on epsilon at a delta; at the plan's delta it is the plan's epsilon.

    What truncation costs at the plan's epsilon is taken off delta: at a larger delta it costs no more.

    Args:
      plan: the plan.
      delta: at least the plan's.
      seed: of the accountant's samples; by default from the operating system.

    Returns:
      The bound, at most the plan's epsilon.
    """
    guarantee = plan.guarantee
    if delta == guarantee.delta:
        return guarantee.epsilon
    room = delta - plan.truncation.delta(guarantee.epsilon, guarantee.adjacency)
    proved = plan.accountant.epsilon(plan.run, room, guarantee.adjacency, Options(seed=seed))
    return min(guarantee.epsilon, proved)
