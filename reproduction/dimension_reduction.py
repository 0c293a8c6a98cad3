"""dimension-reduction: with a negative entry in C, the same contribution in every round is not the worst.

For non-negative C the worst contributions are all the same unit vector, and the analysis needs one dimension only. Take

    C = (1 0; -1 1),   two rounds, two bins, one epoch:

an example gives x_0 in round 0 or x_1 in round 1, unit vectors of any dimension. All that matters is the Gram matrix of
C's columns with them, (2 -a; -a 1) / sigma^2 with a = <x_0, x_1>. delta rises with its entries (docs/math.md, section
5), so a = 1, the constant input, is the most private of all and a = -1 the worst. The pair of |C|, which is what galton
analyses if it is asked to allow negative entries, has +1 there: it covers every input, and a = -1 reaches it.

delta of two bins is an integral over one variable here (the other is done in closed form), good to about 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr

from galton.accounting import delta as certified_delta
from galton.pair import dominating_pair
from galton.strategies import Dense
from reproduction import drawing
from reproduction.points import DELTA, Maker
from reproduction.result import Recipe, Row, Rows, number

MATRIX = ((1.0, 0.0), (-1.0, 1.0))
SIGMA, EPSILONS, ANGLES = 2.0, (0.25, 0.5, 1.0), (0, 30, 60, 90, 120, 150, 180)
EXACT, GALTON = "exact", "galton, |C|"
COLUMNS = ("epsilon", "series", "angle", "gram_entry", "mixture_first", "noise_first", "delta", "lower", "upper")
_FAR = 38.0


def two_bin_deltas(first: float, second: float, common: float, epsilon: float) -> tuple[float, float]:
    """Returns delta of two bins in both directions, mixture-first and noise-first, by numerical integration.

    Args:
      first, second: squared norms of the modes over sigma^2.
      common: their inner product over sigma^2, of either sign.
      epsilon: privacy parameter.

    With y_1 = sqrt(second) u and y_0 = slope u + rest v the mixture's likelihood ratio rises in v, so that the integral
    over v is a difference of normal distribution functions.
    """
    slope, rest = common / math.sqrt(second), math.sqrt(first - common**2 / second)

    def parts(u: float, level: float) -> tuple[float, float, float]:
        """The ratio's second half at u, the first half's mean over v, and the v at which the whole is e^level."""
        half = 0.5 * math.exp(math.sqrt(second) * u - second / 2)
        mean = 0.5 * math.exp(slope * u + (rest**2 - first) / 2)
        gap = 2 * (math.exp(level) - half)
        return half, mean, -math.inf if gap <= 0 else (math.log(gap) + first / 2 - slope * u) / rest

    def mixture_first(u: float) -> float:
        half, mean, least = parts(u, epsilon)
        return mean * ndtr(rest - least) + (half - math.exp(epsilon)) * ndtr(-least)

    def noise_first(u: float) -> float:
        half, mean, most = parts(u, -epsilon)
        return (1 - math.exp(epsilon) * half) * ndtr(most) - math.exp(epsilon) * mean * ndtr(most - rest)

    def kink(level: float) -> float:
        return (level + math.log(2) + second / 2) / math.sqrt(second)

    return _normal_mean(mixture_first, kink(epsilon)), _normal_mean(noise_first, kink(-epsilon))


def _normal_mean(function: Callable[[float], float], kink: float) -> float:
    """The mean over a standard normal; the integrand is smooth on either side of `kink`."""

    def weighted(u: float) -> float:
        return float(function(u)) * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

    edges = sorted({-_FAR, -6.0, 0.0, 6.0, min(max(kink, -_FAR), _FAR), _FAR})
    pieces = [quad(weighted, *span, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for span in pairwise(edges)]
    return float(sum(pieces))


def reduction_rows(
    maker: Maker, epsilons: Sequence[float] = EPSILONS, angles: Sequence[int] = ANGLES, sigma: float = SIGMA
) -> list[Row]:
    """Exact deltas by the angle between the two contributions, and galton's certified interval for the pair of |C|."""
    strategy = Dense(MATRIX, allow_negative=True)
    columns = np.asarray(MATRIX)
    gram = columns.T @ columns / sigma**2
    pair = dominating_pair(strategy, 2, sigma / strategy.sensitivity(2))
    rows: list[Row] = []
    for epsilon in maker.tracked("dimension-reduction", epsilons):
        for angle in angles:
            entry = float(gram[0, 1]) * math.cos(math.radians(angle))
            mixture, noise = two_bin_deltas(float(gram[0, 0]), float(gram[1, 1]), entry, epsilon)
            row: Row = {"epsilon": epsilon, "series": EXACT, "angle": angle, "gram_entry": entry}
            rows.append(row | {"mixture_first": mixture, "noise_first": noise, "delta": max(mixture, noise)})
        estimate = certified_delta(pair, epsilon, options=replace(maker.options(DELTA), rel_width=0.01))
        row = {"epsilon": epsilon, "series": GALTON, "gram_entry": float(pair.gram[0, 1])}
        by_direction = {bounds.direction.value.replace("-", "_"): bounds.delta for bounds in estimate.by_direction}
        rows.append(row | by_direction | {"delta": estimate.delta, "lower": estimate.lower, "upper": estimate.upper})
    return [{column: row.get(column) for column in COLUMNS} for row in rows]


def summary(rows: Rows) -> list[dict[str, float]]:
    """Returns for every epsilon delta of the constant and of the opposite input, and galton's limits."""
    deltas = []
    for epsilon in dict.fromkeys(number(row, "epsilon") for row in rows):
        at_epsilon = [row for row in rows if row["epsilon"] == epsilon]
        exact = {number(row, "angle"): number(row, "delta") for row in at_epsilon if row["series"] == EXACT}
        (limits,) = (row for row in at_epsilon if row["series"] == GALTON)
        deltas.append(
            {
                "epsilon": epsilon,
                "constant": exact[min(exact)],
                "opposite": exact[max(exact)],
                "lower": number(limits, "lower"),
                "upper": number(limits, "upper"),
            }
        )
    return deltas


def _text(rows: Rows) -> str:
    parts = [
        f"at epsilon {row['epsilon']:g} delta is {row['constant']:.5g} for the constant and {row['opposite']:.5g} for "
        f"the opposite input; galton certifies {row['lower']:.5g} to {row['upper']:.5g} for the pair of |C|"
        for row in summary(rows)
    ]
    return (
        f"C = (1 0; -1 1), two bins, one epoch, sigma = {SIGMA:g}: {'; '.join(parts)}. So a single negative entry is "
        "enough for the constant input not to be the worst: an analysis that assumed so would promise too small a "
        "delta. galton refuses negative entries unless asked, and then analyses |C|, which covers all inputs and is "
        "reached here."
    )


def _draw(rows: Rows) -> Any:
    figure, axis = drawing.canvas()
    markers = (("o", "-", "0.0"), ("s", "--", "0.3"), ("^", ":", "0.45"), ("D", "-.", "0.55"))
    epsilons = list(dict.fromkeys(number(row, "epsilon") for row in rows))
    for (marker, line, shade), epsilon in zip(markers, epsilons, strict=False):
        at_epsilon = [row for row in rows if row["epsilon"] == epsilon]
        exact = [row for row in at_epsilon if row["series"] == EXACT]
        angles, deltas = [number(row, "angle") for row in exact], [number(row, "delta") for row in exact]
        axis.plot(angles, deltas, marker=marker, linestyle=line, color=shade, label=f"epsilon {epsilon:g}")
        (limits,) = (row for row in at_epsilon if row["series"] == GALTON)
        axis.axhspan(number(limits, "lower"), number(limits, "upper"), color="0.85", zorder=0)
    axis.axhspan(math.nan, math.nan, color="0.85", label="galton's certified interval, |C|")
    axis.set_xticks(ANGLES)
    axis.set_yscale("log")
    axis.grid(alpha=0.3, linewidth=0.6)
    axis.set(xlabel="angle between the two contributions in degrees (0: constant input)", ylabel="delta")
    axis.legend(fontsize=8)
    return figure


DIMENSION_REDUCTION = Recipe(
    "dimension-reduction",
    "A negative entry in C: the constant input is not the worst",
    0.2,
    COLUMNS,
    reduction_rows,
    _text,
    _draw,
)
