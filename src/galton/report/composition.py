"""What a reviewer asks for of several releases together: the same table and numbers as of a plan."""

from __future__ import annotations

import numpy as np

from galton.accountants import Curve
from galton.budget.composed import DIRECT, Composed
from galton.budget.whole import Whole
from galton.errors import InvalidArgument
from galton.plan.plan import USER
from galton.report.curves import DELTAS
from galton.report.disclosure import SETTING, Disclosure
from galton.report.risk import Risk, risk_of_curve, smaller
from galton.typechecking import typechecked

_POINTS, _STEPS, _FARTHER = 33, 24, 1.25
_PLATEAU = 0.5
"""Deltas above this may be rounded to 1 for a while, as those of a search are, and fall later."""
_INTERVAL, _ROUGH, _FINE = 1e-3, 1e-2, 1 << 13
"""Intervals of losses: the least for a curve, and where its end is looked for; and how many there are up to its end."""


@typechecked
def disclose_composition(composed: Composed) -> Disclosure:
    """Returns what is to be disclosed of several releases together.

    Formal guarantee: the numbers hold if the losses of the releases dominate them, which fails with the probability
    that `limits` names (docs/math.md, sections 13 and 14).

    Args:
      composed: what `compose` returned.

    Returns:
      The table, and the numbers for secret and for known batches.

    Example:
      >>> from galton import compose
      >>> disclosure = disclose_composition(compose(["gaussian:sigma=3", "laplace:scale=50"], delta=1e-5))
      >>> dict(disclosure.rows)["what is covered"]
      'gaussian:sigma=3; laplace:scale=50.'
    """
    if composed.whole is None or not composed.releases:
        raise InvalidArgument("composed", composed.statement, "must be what compose returned, of at least one release")
    left_out = composed.whole.displacement if composed.truncation_delta else 0.0
    words = _words(composed)
    secret = _risk(composed.whole, composed, words, left_out)
    unamplified = composed.if_known()
    known = None if unamplified is None else _risk(unamplified, composed, words, left_out)
    same = [event.if_known(composed.adjacency) == event for event in composed.releases]
    return Disclosure(
        plan="",
        statement=composed.statement,
        rows=tuple(_rows(composed, known is not None and not all(same))),
        secret=secret if known is None else smaller(secret, known),
        known=known,
        amplified=not all(same),
        limits=words,
    )


def _risk(whole: Whole, composed: Composed, words: str, left_out: float) -> Risk:
    return risk_of_curve(_curve(whole, composed, words), composed.rho(), left_out)


def _curve(whole: Whole, composed: Composed, words: str) -> Curve:
    """Upper limits from epsilon 0 to where delta is below all that are disclosed, or falls no further."""
    rough, last = whole.coarser(_ROUGH), max(composed.epsilon, 0.1)
    delta = rough.delta(last)
    for _ in range(_STEPS):
        if delta <= DELTAS[-1] / 10:
            break
        before, last = delta, _FARTHER * last
        delta = rough.delta(last)
        if before < _PLATEAU and delta > 0.999 * before:
            break
    epsilons = np.union1d(np.linspace(0.0, last, _POINTS), [composed.epsilon])
    fine = whole.coarser(max(_INTERVAL, last / _FINE))
    uppers = np.minimum.accumulate([fine.delta(epsilon) for epsilon in epsilons.tolist()])
    return Curve(tuple(epsilons.tolist()), tuple(uppers.tolist()), (), words, composed.adjacency)


def _words(composed: Composed) -> str:
    if not composed.analysis_failure:
        return "Losses of all releases added up, with certainty."
    return (
        f"Losses of all releases added up, some of them from samples ({composed.samples:,}, seed {composed.seed}): all "
        f"limits hold at once except with probability {composed.analysis_failure:.2g}."
    )


def _rows(composed: Composed, leaks: bool) -> list[tuple[str, str]]:
    adjacency = composed.adjacency
    users = any(event.unit == USER for event in composed.releases)
    unit = "one user with all examples." if users else "one example. A person with several is protected less."
    neighbours = adjacency.wording.neighbours
    searches = [words for words in composed.events if words.startswith("the best of")]
    tuning = "; ".join(searches) + "." if searches else "not covered, unless it is one of the releases."
    if_leaked = (
        "The numbers for known batches hold, which are those without amplification."
        if leaks
        else "Nothing changes, or it is not known."
    )
    method = "samples of a run beside the others" if composed.composed_by == DIRECT else "losses added up"
    return [
        ("guarantee", composed.statement),
        ("setting", SETTING),
        ("unit of privacy", unit),
        ("adjacency", f"{adjacency}. {neighbours.replace('example', 'user') if users else neighbours}"),
        ("what is covered", "; ".join(composed.events) + "."),
        ("sampling assumption", "That of every plan: who is in which batch stays secret where its guarantee needs it."),
        ("if the batches leak", if_leaked),
        ("accountant", f"galton compose ({method}). {_words(composed)}"),
        ("hyperparameter tuning", tuning),
        ("not covered", "all other releases about the same data; noise that was chosen in view of earlier outcomes."),
    ]
