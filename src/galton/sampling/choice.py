"""Which sampler to use for a direction: the one whose certificate is predicted to be cheapest."""

from __future__ import annotations

from dataclasses import dataclass

from galton.errors import choice
from galton.guarantee import Direction
from galton.pair import DominatingPair
from galton.sampling.base import Sampler
from galton.sampling.toolkits import ORTHOGONAL, toolkit_for

SAMPLERS = ("auto", "plain", "tilted", *ORTHOGONAL)

_COST_PER_ORDER = 0.3
"""Time of drawing one more mode, relative to a plain sample (benchmarks/certificates.py)."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A sampler and, in words, why it was chosen."""

    sampler: Sampler
    reason: str


def choose_sampler(pair: DominatingPair, direction: Direction, epsilon: float, requested: str = "auto") -> Choice:
    """Returns the sampler for this direction and epsilon.

    A certificate needs samples in proportion to the range R, which is known before sampling; `auto` takes the sampler
    with the smallest R times cost per sample. `tilted` stands for the sharp sampler of the direction: tilted for
    mixture-first and replace (chained, levelled or arcs where few bands make their range far smaller), half-space for
    noise-first (spaced where few bands make its range far smaller).
    `maximum` and `order-statistics` are for C = I.

    Args:
      pair: the mechanism with its noise multiplier.
      direction: which divergence.
      epsilon: where delta is wanted.
      requested: auto, plain, tilted, maximum or order-statistics.

    Returns:
      The sampler, and why.
    """
    choice("sampler", requested, SAMPLERS)
    toolkit = toolkit_for(pair)
    if requested in ORTHOGONAL:
        sampler = toolkit.special(requested, pair, direction, epsilon)
        return Choice(sampler, f"asked for: {requested}, range {sampler.value_range(epsilon):.3g}")
    if requested == "plain":
        return Choice(toolkit.plain(pair, direction), "asked for")
    if requested == "auto" and not toolkit.resolvable(pair, direction):
        words = "plain: the energies of modes differ too much for tilted samples"
        return Choice(toolkit.plain(pair, direction), words)
    sharp = toolkit.sharp(pair, direction, epsilon)
    cost = 1.1 + _COST_PER_ORDER * sharp.order
    words = f"{sharp.name}, order {sharp.order}" if sharp.order else sharp.name
    value_range = sharp.value_range(epsilon)
    if requested == "tilted":
        return Choice(sharp, f"asked for: {words}, range {value_range:.3g}")
    if sharp.narrows:
        return Choice(sharp, f"{words}: range {value_range:.3g}, before it is narrowed by samples that are not rare")
    if value_range * cost < 1.0:
        return Choice(
            sharp, f"{words}: range {value_range:.3g} against 1 for plain, at {cost:.1f} times the cost a sample"
        )
    return Choice(toolkit.plain(pair, direction), f"plain: the range of {words} is {value_range:.3g}, no gain over 1")
