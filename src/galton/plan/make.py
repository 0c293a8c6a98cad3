"""From what a user asks for to a plan: strategy, noise and certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from galton import files
from galton.accountants import Setting
from galton.accounting import Options
from galton.batching import PLANNED, truncation
from galton.batching.base import check_examples
from galton.errors import MOST_ROUNDS, InvalidArgument, choice, count, positive
from galton.guarantee import Guarantee, as_guarantee
from galton.plan.choose import references
from galton.plan.conventions import CLIPPINGS, FLAT
from galton.plan.draft import Request, choose_draft, naming_batch_size, shortened
from galton.plan.leak import Leak, leaked
from galton.plan.marks import Mark, leave_mark
from galton.plan.plan import EXAMPLE, USER, Plan
from galton.plan.tuning import Tuning
from galton.provenance import now, versions
from galton.typechecking import typechecked
from galton.workloads import parse_workload


@typechecked
def make_plan(
    epsilon: float | Guarantee,
    delta: float | None = None,
    *,
    examples: int,
    batch_size: float,
    epochs: int,
    rounds: int | None = None,
    strategy: str = "",
    batching: str = "",
    accountant: str = "",
    clip_norm: float = 1.0,
    padded_batch_size: int | None = None,
    micro_batch_size: int = 1,
    workload: str = "prefix",
    unit: str = EXAMPLE,
    per_user: int | None = None,
    clipping: str = FLAT,
    options: Options | None = None,
    notes: Callable[[str], None] | None = None,
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
      rounds: number of rounds (training steps) of the whole run, if the last epoch is partial.
      strategy: how noise is correlated: a family such as `blt:4+scale`, optimised for these batches; `bandmf`, with
        the best number of bands; `best`; or a fixed strategy such as `sqrt:4`. By default what the accountant
        recommends: for balls-in-bins a scaled BLT with four buffers (fewer in a run of fewer rounds), optimised
        under amplification.
      batching: how batches are drawn: `balls-in-bins`, `balls-in-bins-streaming`, `balls-in-bins-redrawn`,
        `balls-in-bins-redrawn-streaming`, `poisson`, `cyclic-poisson`, `min-separation` (an example rests for as many
        rounds as C has bands, less one), `shuffle-once` or `fixed-order`. By default `balls-in-bins` or
        `balls-in-bins-redrawn`, whichever has the lesser error for these numbers; the other's error is then among the
        plan's alternatives. Where redrawn bins cannot help or take long to compare, `balls-in-bins`.
      accountant: name of the analysis; by default the one made for the batching. `unamplified` does not rely on the
        batches being secret.
      clip_norm: l2 norm that the gradient of every example will be clipped to.
      padded_batch_size: size that every batch is padded to; larger batches are truncated. By default truncation
        costs at most a thousandth of delta. What a smaller size costs under add-or-remove adjacency is taken off delta
        (docs/math.md, section 9).
      micro_batch_size: the default padded batch size is a multiple of this.
      workload: what the error is measured on: `prefix`, `momentum:B`, `momentum:B+cooldown` or a .npy matrix.
      unit: what neighbouring data sets differ in: an `example`, or a `user` with all examples; `examples` is then the
        number of users, and batches are of users.
      per_user: the most examples of a user in a round, which are clipped together; for `unit="user"`.
      clipping: how gradients will be brought to the clip norm: `flat` (as a whole), `per-group` (groups of parameters
        each to a norm of their own) or `normalized` (all to the clip norm); see `galton.training.clipping`. The
        guarantee is the same.
      options: seed, workers and progress of the accountant.
      notes: called with words on how the batching was chosen, if it was not given.

    Returns:
      The plan; `save_plan` writes it to a folder. A mark is left by which this user's runs trust it (docs/plans.md).

    Example:
      >>> plan = make_plan(epsilon=4, delta=1e-3, examples=64, batch_size=8, epochs=2, strategy="sqrt:4",
      ...                  batching="balls-in-bins")
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
    choice("unit", unit, (EXAMPLE, USER))
    choice("clipping", clipping, tuple(CLIPPINGS))
    if (per_user is None) != (unit == EXAMPLE):
        remedy = "must be the most examples of a user in a round" if unit == USER else f"is for unit {USER}"
        raise InvalidArgument("per_user", per_user, remedy)
    if per_user is not None:
        count("per_user", per_user)
    if batching.partition(":")[0] in PLANNED and ":" in batching:
        remedy = (
            "takes no weights: samplers draw bins, and bounds average over them, as equally likely; for rounds that "
            "count differently give a noise schedule as the strategy"
        )
        raise InvalidArgument("batching", batching, remedy)
    if batching:
        choice("batching", batching, tuple(PLANNED))
    if unit == USER and "streaming" in batching:
        raise InvalidArgument("batching", batching, "reads examples as they come: for users take balls-in-bins")
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
    whole = bins * epochs
    if whole > MOST_ROUNDS:
        remedy = f"makes {whole} batches in {epochs} epochs, a number that must be at most {MOST_ROUNDS}"
        raise InvalidArgument("batch_size", batch_size, remedy)
    rounds = whole if rounds is None else count("rounds", rounds)
    least = max(bins, whole - bins + 1)
    if not least <= rounds <= whole:
        raise InvalidArgument("rounds", rounds, f"must be from {least} to {whole}, in the last of {epochs} epochs")
    target = None if workload == "prefix" else parse_workload(workload, rounds)
    request = Request(
        guarantee=guarantee,
        examples=examples,
        batch_size=batch_size,
        bins=bins,
        epochs=epochs,
        strategy=strategy,
        accountant=accountant,
        padded_batch_size=padded_batch_size,
        micro_batch_size=micro_batch_size,
        workload=target if rounds == whole or target is None else parse_workload(workload, whole),
    )
    selected = choose_draft(request, batching, options)
    if notes is not None and selected.words:
        notes(selected.words)
    draft = shortened(selected.draft, rounds)
    chosen, scheme, setting = draft.chosen, draft.scheme, draft.setting
    prediction = truncation(scheme, draft.padded_batch_size)
    claim = guarantee.with_delta(guarantee.delta - prediction.delta(guarantee.epsilon, guarantee.adjacency))
    with naming_batch_size(batch_size):
        # Another strategy after a rejection is another attempt at the same thing.
        counted_for = (_setting_digest(examples, bins, rounds, guarantee),)
        evidence = draft.analysis.prove(chosen.strategy, bins, claim, options, chosen.multiplier, counted_for)
    multiplier = evidence.noise_multiplier
    sensitivity = chosen.strategy.sensitivity(bins)
    plan = Plan(
        guarantee=guarantee,
        scheme=scheme,
        bins=bins,
        padded_batch_size=draft.padded_batch_size,
        truncation=prediction,
        clip_norm=float(clip_norm),
        strategy=chosen.strategy,
        spec=draft.spec,
        noise_multiplier=multiplier,
        sensitivity=sensitivity,
        evidence=evidence,
        leak=Leak(None, 1.0),
        workload=workload,
        rmse=multiplier * sensitivity * chosen.strategy.rmse(target),
        alternatives=(*selected.others, *chosen.alternatives, *references(setting, options)) if rounds == whole else (),
        created=now(),
        versions=versions(),
        per_user=per_user,
        clipping=clipping,
    )
    return _finished(plan)


def replan(plan: Plan, guarantee: Guarantee, options: Options) -> Plan:
    """Returns the same plan for another guarantee: the noise is calibrated and proved anew, the rest stays.

    Args:
      plan: the plan.
      guarantee: what the new one has to give, under the same adjacency.
      options: seed, workers and progress of the accountant.

    Returns:
      The new plan, to be trusted like one of `make_plan`.
    """
    claim = guarantee.with_delta(guarantee.delta - plan.truncation.delta(guarantee.epsilon, guarantee.adjacency))
    counted_for = (_setting_digest(plan.examples, plan.bins, plan.rounds, guarantee),)
    evidence = plan.accountant.prove(plan.strategy, plan.bins, claim, options, None, counted_for)
    target = None if plan.workload == "prefix" else parse_workload(plan.workload, plan.rounds)
    again = replace(
        plan,
        guarantee=guarantee,
        noise_multiplier=evidence.noise_multiplier,
        evidence=evidence,
        rmse=evidence.noise_multiplier * plan.sensitivity * plan.strategy.rmse(target),
        alternatives=references(Setting(plan.bins, plan.epochs, claim, target), options),
        created=now(),
        versions=versions(),
        signature=None,
    )
    return _finished(again)


def for_search(plan: Plan, tuning: Tuning) -> Plan:
    """Returns the same plan, as one of which the best of several runs is released.

    Args:
      plan: the plan; its guarantee is that of a single run.
      tuning: how many runs there are.

    Returns:
      The plan, to be trusted like one of `make_plan`.
    """
    return _finished(replace(plan, tuning=tuning))


def _finished(plan: Plan) -> Plan:
    plan.check()
    plan = replace(plan, leak=leaked(plan))
    leave_mark(plan.digest, Mark.MADE)
    return plan


def _setting_digest(examples: int, bins: int, rounds: int, guarantee: Guarantee) -> str:
    """The name under which attempts at a plan are counted, whatever its strategy; claims to six digits."""
    claim = {"epsilon": f"{guarantee.epsilon:.6g}", "delta": f"{guarantee.delta:.6g}"}
    sizes = {"what": "plan", "examples": examples, "bins": bins, "rounds": rounds}
    return files.digest(sizes | claim | {"adjacency": guarantee.adjacency.value})
