"""The pictures of the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from galton.accountants import Curve
from galton.errors import FloatArray
from galton.gaussian import gaussian_delta
from galton.plan import Plan
from galton.plan.leak import leaked_mu
from galton.report.correlation import Correlation
from galton.report.curves import relies_on_secrecy
from galton.report.numbers import MINUS, power, short
from galton.report.svg import FIRST, GRID, INK, MUTED, SECOND, THIRD, canvas, inline
from galton.strategies import Strategy

_POSITIVE, _NEGATIVE = (45, 108, 223), (226, 104, 24)
_LEGEND_ABOVE = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "handlelength": 1.5}
_COLUMNS = 64
"""Columns of a rectangular C that are drawn."""
_NAME = 44
"""Letters of a name that fit above its bar."""


def profile_picture(plan: Plan, curve: Curve) -> str:
    """delta(epsilon) with its upper limits, the plan's point, and what is left if batches leak."""
    claim = plan.guarantee
    epsilons, uppers = np.array(curve.epsilons), np.array(curve.uppers)
    with canvas(285) as figure:
        axes = figure.add_subplot()
        axes.set_yscale("log")
        if relies_on_secrecy(plan):
            fine = np.linspace(0, epsilons[-1], 200)
            known = [gaussian_delta(float(epsilon), leaked_mu(plan)) for epsilon in fine]
            axes.plot(fine, known, color=SECOND, linestyle="--", label="if the batches leak")
        if curve.estimates:
            axes.plot(epsilons, uppers, color=FIRST, linewidth=1, label="upper limit")
            axes.fill_between(epsilons, curve.estimates, uppers, color=FIRST, alpha=0.25, linewidth=0)
            axes.plot(epsilons, curve.estimates, color=FIRST, label="δ(ε), estimate")
        else:
            axes.plot(epsilons, uppers, color=FIRST, label="δ(ε)")
        axes.plot(
            [claim.epsilon],
            [claim.delta],
            "o",
            color=THIRD,
            markersize=7,
            label="this plan",
            zorder=5,
        )
        axes.set_ylim(max(claim.delta * 1e-4, 1e-300), 2.0)
        axes.set_xlim(0, epsilons[-1])
        _label_powers_of_ten(axes)
        axes.set_xlabel("ε")
        axes.set_ylabel("δ")
        axes.legend(ncols=2, **_LEGEND_ABOVE)
        text = (
            f"Delta falls from {short(uppers[0], 3)} at epsilon {short(epsilons[0], 3)} to {short(uppers[-1], 3)} at "
            f"epsilon {short(epsilons[-1], 3)}; the plan claims {short(claim.delta)} at {short(claim.epsilon)}."
        )
        return inline(figure, "profile", "Privacy curve: delta against epsilon", text)


def trade_off_picture(plan: Plan, curve: Curve) -> str:
    """False-negative against false-positive rate: what no test can do."""
    from scipy.special import ndtr, ndtri

    rates, misses = curve.rates()
    with canvas(285) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [1, 0], color=MUTED, linewidth=1, linestyle=":", label="guessing")
        axes.fill_between(rates, 0, misses, color=FIRST, alpha=0.18, linewidth=0)
        axes.plot(rates, misses, color=FIRST, label="best test, at most")
        if relies_on_secrecy(plan):
            known = ndtr(ndtri(1 - rates) - leaked_mu(plan))
            axes.plot(rates, known, color=SECOND, linestyle="--", label="if the batches leak")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("false alarms")
        axes.set_ylabel("misses")
        axes.legend(ncols=2, **_LEGEND_ABOVE)
        text = (
            "Every test that tells neighbours apart lies on or above the curve. "
            f"With one percent false alarms, a test misses at least {short(1 - curve.hits(0.01), 3)} of the cases."
        )
        return inline(figure, "trade-off", "Trade-off curve: misses against false alarms", text)


def strategy_picture(strategy: Strategy) -> str:
    """C: its coefficients by distance, or a heat map where rows are not rounds."""
    if strategy.rows != strategy.rounds:
        return _rectangular_picture(strategy)
    count = strategy.rounds
    starts = sorted({0, count // 4, count // 2, 3 * count // 4})
    columns = {start: strategy.columns(start, start + 1)[start:, 0] for start in starts}
    same = all(np.allclose(column, columns[0][: column.size], rtol=1e-9, atol=0) for column in columns.values())
    if same:
        columns = {0: columns[0]}
    with canvas(270) as figure:
        axes = figure.add_subplot()
        reach = 1
        for index, (start, column) in enumerate(columns.items()):
            last = int(np.flatnonzero(column)[-1]) + 2
            reach = max(reach, min(last, column.size) - 1)
            places = _indices_to_draw(min(last, column.size))
            style = {"color": FIRST, "alpha": 1 - 0.22 * index, "label": f"round {start}"}
            axes.plot(places, column[places], marker="o" if last <= 40 else None, markersize=4, **style)
        if reach > 40:
            axes.set_xscale("symlog", linthresh=1)
            axes.xaxis.set_major_formatter(lambda value, _: short(value))
        else:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0, max(reach, 1))
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel("rounds later")
        axes.set_ylabel("entry of C")
        if not same:
            axes.legend(ncols=2, title="column of", **_LEGEND_ABOVE)
        first = ", ".join(short(value, 3) for value in columns[0][:4])
        text = (
            f"Entries of the first column of C from the diagonal down: {first} and so on, up to {reach} rounds later."
        )
        return inline(figure, "strategy", "The strategy C", text)


def _rectangular_picture(strategy: Strategy) -> str:
    shown = min(_COLUMNS, strategy.rounds)
    columns = strategy.columns(0, shown)
    filled = int(np.flatnonzero(columns.any(axis=1))[-1]) + 1
    with canvas(320) as figure:
        _draw_heat_map(figure, columns[: min(filled, 2 * shown)], (0, 0), "round", "noise vector")
        text = f"Heat map of C, the first {shown} rounds: every noise vector covers a range of rounds."
        return inline(figure, "strategy", "The strategy C", text)


def heat_picture(correlation: Correlation) -> str:
    """Correlation of the noise between neighbouring rounds."""
    shown = correlation.window.shape[0]
    first = correlation.rounds - shown
    with canvas(345) as figure:
        _draw_heat_map(figure, correlation.window, (first, first), "round", "round")
        text = f"Heat map of the correlation of noise between the rounds {first} to {correlation.rounds - 1}."
        if shown > 1:
            text += f" Between the last two rounds it is {short(correlation.window[-1, -2], 3)}."
        return inline(figure, "correlation", "Correlation of the noise between rounds", text)


def lag_picture(correlation: Correlation) -> str:
    """Correlation of the last round's noise with that of rounds before it."""
    lags, values = correlation.lags[1:], correlation.with_last[1:]
    with canvas(270) as figure:
        axes = figure.add_subplot()
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.plot(lags, values, color=FIRST, marker="o", markersize=3)
        if lags.size and lags[-1] > 20:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: short(value))
        largest = max(0.05, 1.1 * float(np.abs(values).max(initial=0.0)))
        axes.set_ylim(-largest, max(0.3 * largest, 1.1 * float(values.max(initial=0.0))))
        axes.set_xlabel("rounds before")
        axes.set_ylabel("correlation")
        text = "Correlation of the last round's noise with that of earlier rounds: " + (
            f"{short(float(values[0]), 3)} with the round before, {short(float(values[-1]), 3)} with the first."
            if lags.size
            else "there is only one round."
        )
        return inline(figure, "lags", "Correlation of the noise by distance", text)


def deviation_picture(plan: Plan, correlation: Correlation) -> str:
    """How much noise there is, round by round."""
    values = plan.stddev * correlation.deviations
    with canvas(270) as figure:
        axes = figure.add_subplot()
        axes.plot(correlation.places, values, color=FIRST, marker="o" if values.size <= 20 else None, markersize=4)
        axes.set_ylim(0, 1.15 * float(values.max()))
        axes.locator_params(nbins=6)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("round")
        axes.set_ylabel("standard deviation")
        text = (
            f"Standard deviation of the noise of a round: {short(values[0])} in the first, {short(values[-1])} in the "
            f"last one shown, between {short(float(values.min()))} and {short(float(values.max()))} throughout."
        )
        return inline(figure, "deviations", "Noise by round", text)


def batch_picture(plan: Plan) -> str:
    """How large batches are: the binomial distribution, expected and padded batch size."""
    inclusion = plan.scheme.inclusion
    assert inclusion is not None
    sizes, chances = batch_sizes(plan.examples, inclusion, plan.padded_batch_size)
    with canvas(260) as figure:
        axes = figure.add_subplot()
        axes.fill_between(sizes, 0, chances, color=FIRST, alpha=0.25, linewidth=0)
        axes.plot(sizes, chances, color=FIRST)
        axes.axvline(
            plan.expected_batch_size, color=THIRD, linestyle="--", label=f"expected {short(plan.expected_batch_size)}"
        )
        axes.axvline(plan.padded_batch_size, color=SECOND, label=f"padded {plan.padded_batch_size:,}")
        axes.set_ylim(bottom=0)
        axes.set_xlim(sizes[0], sizes[-1])
        axes.locator_params(nbins=6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        axes.set_xlabel("examples in a batch")
        axes.legend(ncols=2, **_LEGEND_ABOVE)
        text = (
            f"Sizes are binomial around {short(plan.expected_batch_size)}; batches are padded to "
            f"{plan.padded_batch_size:,}, and a given batch has more examples than that with "
            f"probability {short(plan.truncation.per_batch, 3)}."
        )
        return inline(figure, "batches", "Distribution of the batch size", text)


def batch_sizes(
    examples: int, inclusion: float, padded_batch_size: int, most: int = 300
) -> tuple[FloatArray, FloatArray]:
    """Returns sizes that matter and their binomial probabilities, at most about `most` of them."""
    from scipy.special import gammaln, xlog1py, xlogy

    mean = examples * inclusion
    spread = math.sqrt(mean * (1 - inclusion)) + 1
    low = max(0, math.floor(mean - 5 * spread))
    high = min(max(examples, padded_batch_size), math.ceil(max(mean + 5 * spread, padded_batch_size + 0.5 * spread)))
    sizes = np.unique(np.linspace(low, high, most).astype(np.int64)).astype(np.float64)
    others = np.maximum(examples - sizes, 0)
    logs = gammaln(examples + 1) - gammaln(sizes + 1) - gammaln(others + 1)
    chances = np.exp(logs + xlogy(sizes, inclusion) + xlog1py(others, -inclusion))
    return sizes, np.where(sizes <= examples, chances, 0.0)


def error_picture(plan: Plan) -> str:
    """Error of the plan and of its alternatives, as bars."""
    bars = [("this plan", plan.rmse), *((alternative.name, alternative.rmse) for alternative in plan.alternatives)]
    bars.sort(key=lambda bar: bar[1])
    largest = bars[-1][1]
    with canvas(20 + 42 * len(bars)) as figure:
        axes = figure.add_subplot()
        axes.axis("off")
        for row, (name, error) in enumerate(bars):
            own = name == "this plan"
            axes.barh(row, error, height=0.42, color=FIRST if own else MUTED, alpha=1.0 if own else 0.55, linewidth=0)
            axes.text(0, row - 0.32, _on_one_line(name), va="bottom", fontweight="bold" if own else "normal")
            axes.text(error + 0.015 * largest, row, short(error), va="center", color=INK)
        axes.set_xlim(0, 1.2 * largest)
        axes.set_ylim(len(bars) - 0.6, -0.95)
        text = (
            "Root-mean-square error: " + "; ".join(f"{_on_one_line(name)} {short(error)}" for name, error in bars) + "."
        )
        return inline(figure, "error", "Error against the alternatives", text)


def _on_one_line(name: str) -> str:
    """A name on one line."""
    words = " ".join(name.split())
    return words if len(words) <= _NAME else words[: _NAME - 1] + "…"


def _indices_to_draw(size: int, most: int = 200) -> Any:
    """Indices up to `size`, all of them or dense near 0 and sparse far away."""
    if size <= most:
        return np.arange(size)
    return np.unique(np.concatenate(([0], np.geomspace(1, size - 1, most).astype(np.int64))))


def _label_powers_of_ten(axes: Any) -> None:
    """Powers of ten on the vertical axis, without mathematical type."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: power(round(math.log10(value))))


def _colours(values: FloatArray) -> Any:
    """Blue above 0, orange below; 0 is the page itself. By the square root, so that little is not nothing."""
    pixels = np.zeros((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where(values[..., None] < 0, _NEGATIVE, _POSITIVE)
    pixels[..., 3] = np.round(255 * np.sqrt(np.clip(np.abs(values), 0, 1)))
    return pixels


def _draw_heat_map(figure: Any, values: FloatArray, origin: tuple[int, int], across: str, down: str) -> None:
    """A heat map of entries between -1 and 1, with a scale below it."""
    scale_height = 0.045
    axes, scale = figure.subplots(2, 1, height_ratios=(1, scale_height))
    rows, columns = values.shape
    extent = (origin[1] - 0.5, origin[1] + columns - 0.5, origin[0] + rows - 0.5, origin[0] - 0.5)
    axes.imshow(_colours(values), extent=extent, interpolation="nearest", aspect="auto")
    axes.set_box_aspect(min(1.0, rows / columns) if rows > 1 else 0.2)
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True, nbins=5)
    scale.imshow(_colours(np.linspace(-1, 1, 201)[None]), extent=(-1, 1, 0, 1), aspect="auto")
    scale.set_yticks([])
    scale.set_xticks([-1, -0.5, -0.1, 0.1, 0.5, 1], [f"{MINUS}1", f"{MINUS}0.5", f"{MINUS}0.1", "0.1", "0.5", "1"])
    scale.grid(visible=False)
    for side in ("left", "right", "top"):
        scale.spines[side].set_visible(False)
    for side in axes.spines.values():
        side.set(visible=True, color=GRID)
