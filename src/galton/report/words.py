"""The text of the page, without markup."""

from __future__ import annotations

import math

from galton.plan import Plan
from galton.plan.leak import epsilon_if_known
from galton.report.curves import relies_on_secrecy
from galton.report.numbers import DIGITS, at_most, percent_at_most, short
from galton.report.risk import Risk


def question(plan: Plan) -> str:
    """What a test wants to know."""
    return plan.worded(plan.guarantee.adjacency.wording.question)


def meaning(plan: Plan, risk: Risk, sampled: bool) -> list[str]:
    """What the guarantee means for somebody whose example is used."""
    guarantee = plan.guarantee
    wording = guarantee.adjacency.wording
    factor = short(math.exp(min(guarantee.epsilon, 700.0)), 3)
    basis = ", by the curve below" if sampled else ""
    return [
        f"Imagine two training runs: one {plan.worded(wording.world)}, one {plan.worded(wording.other_world)}. "
        "Whatever comes out (every noisy gradient, every checkpoint, "
        f"the final model, and all that is ever computed from them), no event is more than {factor} times as likely "
        f"{wording.more_likely} (exp(ε), with ε = {short(guarantee.epsilon)}), plus at "
        f"most δ = {short(guarantee.delta)}. This holds against anybody, with any computer and any "
        f"other knowledge, even all other {plan.unit}s.",
        f"Put as a game{basis}: somebody to whom both runs are equally likely beforehand, and who sees all that "
        f"comes out, tells them apart correctly at most {percent_at_most((1 + risk.advantage) / 2)} of the time. "
        "Tossing a coin gives 50%.",
        (
            "The guarantee protects one example. Somebody who contributed several is protected less: for k of them ε "
            "is k times as large, and δ grows, too. "
            if plan.per_user is None
            else "The guarantee protects one user with all examples. "
        )
        + "Nor does it mean that nothing is learned about you: what follows from "
        "the data of others (say, that smoking is harmful) follows without you, too.",
    ]


def leak(plan: Plan) -> str:
    """What is left if batches become known."""
    if relies_on_secrecy(plan):
        epsilon = plan.leak.epsilon_at_delta or epsilon_if_known(plan, plan.guarantee.delta)
        left = f"δ = {short(plan.leak.delta_at_epsilon, 3)} at ε = {short(plan.guarantee.epsilon)}"
        if epsilon is not None:
            left = f"ε = {at_most(epsilon)} at δ = {short(plan.guarantee.delta)} (or {left})"
        return plan.worded(
            "The guarantee relies on nobody knowing which examples were in which batch. If that leaks, the same noise "
            f"still gives {left}."
        )
    return "Nothing changes: the guarantee does not rely on the batches being secret."


def conditions(plan: Plan) -> list[str]:
    """What must be true of the training run."""
    secret = " Who is in which batch, and the seed behind it, stay secret." if relies_on_secrecy(plan) else ""
    return [
        plan.worded(f"Batches are made as analysed: {plan.scheme.description}.") + secret,
        (
            f"The gradient of every example is clipped to norm {short(plan.clip_norm)} before anything is summed, and "
            "depends on that example and on what was released before, on nothing else. "
            if plan.per_user is None
            else f"The gradients of a user's examples, at most {plan.per_user} a round, are summed and clipped as a "
            f"whole to norm {short(plan.clip_norm)}. They depend on the user's examples and on what was released "
            "before, on nothing else. "
        )
        + "(Batch normalisation mixes examples: it is not covered.)",
        f"Noise C⁻¹z with a standard deviation of z of {short(plan.stddev, DIGITS)} is added to the sum of every "
        "round, from fresh randomness that nobody knows. The result is divided by the expected batch size "
        f"{short(plan.expected_batch_size)}, whatever the number of {plan.unit}s in the batch.",
        f"There are at most {plan.rounds:,} rounds. A run that is resumed continues its noise; a round that was "
        "released is never run again with other noise.",
        f"A batch with more than {plan.padded_batch_size:,} {plan.unit}s is cut to that many without looking at them.",
        "Only the noisy sums leave the training. Losses, accuracies or gradient norms of the training data are "
        "releases of their own, and so is every other run on the same data, the search for hyperparameters included."
        + (f" {plan.search}" if plan.tuning is not None else ""),
        f"The settings below, the number of {plan.unit}s ({plan.examples:,}) among them, were chosen without looking "
        "at the data. They are public.",
        "The guarantee assumes noise that is exactly Gaussian. In training it is rounded to a few digits, and what the "
        "last digits of noisy sums may tell is not part of the guarantee. (Rounding in the analysis is.)",
    ]


def noise(plan: Plan, independent: bool) -> str:
    """How the noise is correlated, and to what end."""
    words = (
        f"The strategy {plan.spec} is a matrix C; training sees its sums plus C⁻¹z, where z is independent noise of "
        f"standard deviation {short(plan.stddev, DIGITS)}."
    )
    if independent:
        return (
            words + " C is diagonal here: the noise of every round is independent of that of all others, as in DP-SGD."
        )
    return words + (
        " Noise of one round is partly taken back in later ones, so that sums over many rounds, which are what a model "
        "is made of, carry less of it."
    )


def batches(plan: Plan) -> str:
    """How large batches are, and what is cut."""
    if plan.scheme.inclusion is None:
        return (
            f"Batches have a fixed size: {short(plan.expected_batch_size)} examples on average, at most "
            f"{plan.scheme.largest:,}, padded to {plan.padded_batch_size:,}. Nothing is truncated."
        )
    cost = plan.truncation.delta(plan.guarantee.epsilon, plan.guarantee.adjacency)
    price = f"costs {short(cost, 3)} of δ, which is included" if cost else "costs nothing under this adjacency"
    return (
        f"Batches have {short(plan.expected_batch_size)} examples on average and are padded to "
        f"{plan.padded_batch_size:,}. The probability "
        f"that any batch of the run is truncated is at most {short(plan.truncation.probability, 3)}; "
        f"{short(plan.truncation.expected, 3)} examples are expected to be left out in the whole run. In privacy, "
        f"truncation {price}."
    )


def error(plan: Plan) -> str:
    """What the error is of."""
    what = "prefix sums of the gradients" if plan.workload == "prefix" else f"the workload {plan.workload}"
    return (
        f"Root-mean-square error of {what}, for clip norm 1 and sums (not means) over batches: less is better. Every "
        "mechanism is calibrated to the same ε and δ, and “standing” says how sure its figure is."
    )
