"""From what a user asks for to a plan: strategy, noise and certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from galton import files
from galton.accountants import Accountant, Setting, check_covered, default_accountant, find_accountant
from galton.accounting import Options
from galton.batching import PLANNED, Scheme, smallest_padded_batch_size, truncation
from galton.batching.base import check_examples
from galton.batching.batches import DEFAULT_TRUNCATION
from galton.errors import MOST_ROUNDS, InvalidArgument, choice, count, positive
from galton.guarantee import Adjacency, Guarantee, as_guarantee
from galton.plan.choose import choose, references
from galton.plan.marks import Mark, leave_mark
from galton.plan.plan import Leak, Plan, leaked
from galton.provenance import now, versions
from galton.strategies import identity
from galton.strategies.grammar import PLAN, parse_spec
from galton.typechecking import typechecked
from galton.workloads import parse_workload

MOST_TRUNCATION = 0.5
"""Largest share of delta that truncation may take."""
_MANY_ROUNDS = 10**6


@typechecked
def make_plan(
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    examples: int,
    batch_size: float,
    epochs: int,
    strategy: str = "",
    batching: str = "balls-in-bins",
    accountant: str = "",
    clip_norm: float = 1.0,
    padded_batch_size: int | None = None,
    micro_batch_size: int = 1,
    workload: str = "prefix",
    options: Options | None = None,
) -> Plan:
    """Makes a plan: chooses a strategy, calibrates the noise to the guarantee, and proves or certifies it.

    Formal guarantee: to make the plan, and to train by it and release only if that succeeds, meets the guarantee. Where
    the accountant samples, a plan is returned only if its certificate accepts; the failure probability of the
    certificate is covered as docs/math.md, section 2.3, says.

    Args:
      epsilon: a `Guarantee`; or its epsilon, with `delta`, under add-or-remove adjacency.
      delta: of the guarantee, unless the first argument is all of it.
      examples: number of examples in the data set; public.
      batch_size: expected batch size, at most `examples`; there are round(examples / batch_size) batches per epoch.
      epochs: passes over the data.
      strategy: how noise is correlated: a family such as `blt:4+scale`, optimised for these batches; `bandmf`, with
        the best number of bands; `best`; or a fixed strategy such as `sqrt:4`. By default what the accountant
        recommends: for balls-in-bins a scaled BLT with four buffers (fewer in a run of fewer rounds), optimised
        under amplification.
      batching: how batches are drawn: `balls-in-bins`, `balls-in-bins-streaming`, `balls-in-bins-redrawn`,
        `balls-in-bins-redrawn-streaming`, `poisson`, `cyclic-poisson`, `min-separation` (an example rests for as many
        rounds as C has bands, less one), `shuffle-once` or `fixed-order`.
      accountant: name of the analysis; by default the one made for the batching. `unamplified` does not rely on the
        batches being secret.
      clip_norm: l2 norm that the gradient of every example will be clipped to.
      padded_batch_size: size that every batch is padded to; larger batches are truncated. By default truncation has
        probability below 1e-12. What a smaller size costs under add-or-remove adjacency is taken off delta
        (docs/math.md, section 9).
      micro_batch_size: the default padded batch size is a multiple of this.
      workload: what the error is measured on: `prefix`, `momentum:B`, `momentum:B+cooldown` or a .npy matrix.
      options: seed, workers and progress of the accountant.

    Returns:
      The plan; `save_plan` writes it to a folder. A mark is left by which this user's runs trust it (docs/plans.md).

    Example:
      >>> plan = make_plan(epsilon=4, delta=1e-3, examples=64, batch_size=8, epochs=2, strategy="sqrt:4")
      >>> plan.bins, plan.rounds, plan.evidence.accountant
      (8, 16, 'balls-in-bins')
    """
    options = options or Options()
    check_examples(examples)
    positive("batch_size", batch_size)
    count("epochs", epochs, at_most=10**6)
    count("micro_batch_size", micro_batch_size)
    guarantee = as_guarantee(epsilon, delta)
    positive("clip_norm", clip_norm)
    make_scheme = PLANNED[choice("batching", batching, tuple(PLANNED))]
    if micro_batch_size > examples:
        raise InvalidArgument(
            "micro_batch_size", micro_batch_size, f"must be at most the number of examples, {examples}"
        )
    if padded_batch_size is not None and padded_batch_size > examples + micro_batch_size:
        most = examples + micro_batch_size
        raise InvalidArgument("padded_batch_size", padded_batch_size, f"must be at most {most}: no batch is larger")
    if batch_size > examples:
        raise InvalidArgument("batch_size", batch_size, f"must be at most the number of examples, {examples}")
    bins = round(examples / batch_size)
    rounds = bins * epochs
    if rounds > MOST_ROUNDS:
        remedy = f"makes {rounds} batches in {epochs} epochs, a number that must be at most {MOST_ROUNDS}"
        raise InvalidArgument("batch_size", batch_size, remedy)
    target = None if workload == "prefix" else parse_workload(workload, rounds)
    # Batch sizes, coverage and adjacency are checked before the work begins, on the scheme for independent noise. Only
    # the cycle of cyclic Poisson and the rests of min-separation depend on the strategy; their batch sizes are those of
    # Poisson.
    uncorrelated = make_scheme(examples, bins, rounds, identity(rounds))
    analysis = find_accountant(accountant) if accountant else default_accountant(uncorrelated)
    check_covered(analysis, uncorrelated)
    uncorrelated.check_adjacency(guarantee.adjacency)
    analysis.check_adjacency(guarantee.adjacency)
    if padded_batch_size is None:
        padded_batch_size = _generous_padded_batch_size(uncorrelated, guarantee, micro_batch_size)
    truncation_delta = truncation(uncorrelated, padded_batch_size).delta(guarantee.epsilon, guarantee.adjacency)
    if truncation_delta > MOST_TRUNCATION * guarantee.delta:
        enough = _generous_padded_batch_size(uncorrelated, guarantee, micro_batch_size)
        cost = f"truncation would cost {truncation_delta:.3g} of delta"
        free = " or ".join(member.value for member in Adjacency if member.equal_sizes)
        remedy = f"{cost}; take {enough}, or adjacency {free}, where it is free"
        raise InvalidArgument("padded_batch_size", padded_batch_size, remedy)
    setting = Setting(bins, epochs, guarantee.with_delta(guarantee.delta - truncation_delta), target)
    spec = strategy or _default_strategy(analysis, rounds)
    with _naming_batch_size(batch_size):
        chosen = choose(spec, analysis, setting, options)
    try:
        scheme = make_scheme(examples, bins, rounds, chosen.strategy)
    except InvalidArgument:  # only C differs from `uncorrelated`
        bands = chosen.strategy.bands
        remedy = (
            f"has {bands} bands, too many for {batching} batches with {bins} batches per epoch; take at most {bins}"
        )
        raise InvalidArgument("strategy", spec, remedy) from None
    analysis.check(chosen.strategy, scheme, bins)
    unit_rmse = chosen.strategy.rmse(target)  # refuses a C that is nearly singular, before the work begins
    prediction = truncation(scheme, padded_batch_size)
    claim = guarantee.with_delta(guarantee.delta - prediction.delta(guarantee.epsilon, guarantee.adjacency))
    with _naming_batch_size(batch_size):
        # Another strategy after a rejection is another attempt at the same thing.
        counted_for = (_setting_digest(examples, bins, rounds, guarantee),)
        evidence = analysis.prove(chosen.strategy, bins, claim, options, chosen.multiplier, counted_for)
    multiplier = evidence.noise_multiplier
    sensitivity = chosen.strategy.sensitivity(bins)
    plan = Plan(
        guarantee=guarantee,
        scheme=scheme,
        bins=bins,
        padded_batch_size=padded_batch_size,
        truncation=prediction,
        clip_norm=float(clip_norm),
        strategy=chosen.strategy,
        spec=spec,
        noise_multiplier=multiplier,
        sensitivity=sensitivity,
        evidence=evidence,
        leak=Leak(None, 1.0),
        workload=workload,
        rmse=multiplier * sensitivity * unit_rmse,
        alternatives=(*chosen.alternatives, *references(setting, options)),
        created=now(),
        versions=versions(),
    )
    plan.check()
    plan = replace(plan, leak=leaked(plan))
    leave_mark(plan.digest, Mark.MADE)
    return plan


def _setting_digest(examples: int, bins: int, rounds: int, guarantee: Guarantee) -> str:
    """The name under which attempts at a plan are counted, whatever its strategy; claims to six digits."""
    claim = {"epsilon": f"{guarantee.epsilon:.6g}", "delta": f"{guarantee.delta:.6g}"}
    sizes = {"what": "plan", "examples": examples, "bins": bins, "rounds": rounds}
    return files.digest(sizes | claim | {"adjacency": guarantee.adjacency.value})


@contextmanager
def _naming_batch_size(batch_size: float) -> Iterator[None]:
    """Errors about the number of bins, which the caller did not give, are about the batch size."""
    try:
        yield
    except InvalidArgument as error:
        if error.argument != "bins":
            raise
        reason = error.remedy.partition(":")[0]
        remedy = f"makes {error.value} batches per epoch, a number that {reason}; take another batch size"
        raise InvalidArgument("batch_size", batch_size, remedy) from None


def _default_strategy(accountant: Accountant, rounds: int) -> str:
    """The strategy of a plan that names none: the accountant's, with fewer buffers for a run of fewer rounds."""
    usual = parse_spec(accountant.default_strategy, _MANY_ROUNDS, PLAN)
    if usual.number is None or usual.notation.number is None:
        return accountant.default_strategy
    return str(replace(usual, number=min(usual.number, usual.notation.number.largest(rounds))))


def _generous_padded_batch_size(scheme: Scheme, guarantee: Guarantee, multiple: int) -> int:
    """Returns a padded batch size at which truncation is improbable and takes at most a thousandth of delta.

    A neighbouring data set may have one more example: with a single bin, one more place than examples is needed.
    """
    padded_batch_size = smallest_padded_batch_size(scheme, DEFAULT_TRUNCATION, multiple)
    while truncation(scheme, padded_batch_size).delta(guarantee.epsilon, guarantee.adjacency) > 1e-3 * guarantee.delta:
        padded_batch_size += multiple
    return padded_batch_size
