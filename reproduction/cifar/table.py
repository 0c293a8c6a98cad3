"""The table of finished trials: one row for a model, a method and an epsilon, with its mean and 95% interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from galton import files
from galton.errors import InvalidFile
from reproduction import drawing
from reproduction.cifar.experiment import ALL, Method
from reproduction.result import Result, Row, Rows, number

LEVEL = 0.95
BESIDE = 0.04
"""How far from its mean a run is drawn."""
LEAST_ROOM = 3.0
"""Points of accuracy that are kept free below the runs where there is one epsilon; a quarter of it above."""
COLUMNS = (
    *("model", "epsilon", "series", "accuracy", "low", "high", "trials", "accuracies", "rate", "rates_tried"),
    *("guaranteed_epsilon", "adjacency", "strategy", "noise_multiplier", "rmse", "batching", "plan"),
)
"""accuracy, low, high, and accuracies of the single runs in per cent of the test set; rates_tried: learning rates that
`rate` was chosen from."""

DIFFERENCES = ("model", "epsilon", "series", "against", "difference", "low", "high", "pairs", "differences")
"""difference, low, high, and single differences in points of accuracy."""

Finished = Mapping[str, Any]
Cell = tuple[str, float, str]
"""Model, epsilon and name of the method."""


def rows_of(trials: Iterable[Finished], methods: Mapping[str, Method]) -> list[Row]:
    """Returns the rows of these methods; trials of others help to tell the spread of runs.

    Rows are of the trials with the best learning rate, of the method itself or of the one whose rate it takes.
    """
    cells = _cells(trials)
    chosen = {cell: _at_best_rate(cell, cells) for cell in cells}
    spreads = {
        place: pooled([_accuracies(runs) for cell, runs in chosen.items() if cell[:2] == place])
        for place in {cell[:2] for cell in cells}
    }
    ours = _ordered((cell for cell, runs in chosen.items() if runs), methods)
    return [_row(methods[cell[2]], _tuned(cell, cells), chosen[cell], spreads[cell[:2]]) for cell in ours]


def differences_of(trials: Iterable[Finished], methods: Mapping[str, Method], base: str) -> list[Row]:
    """Returns by how much trials of method `base` are ahead of trials of the others with the same number.

    Trials with the same number start from the same weights. Methods without such a trial have no row.
    """
    cells = _cells(trials)
    rows: list[Row] = []
    for cell in _ordered(cells, methods):
        ahead = {trial["trial"]: trial for trial in _at_best_rate((*cell[:2], base), cells)}
        behind = {trial["trial"]: trial for trial in _at_best_rate(cell, cells)}
        numbers = sorted(ahead.keys() & behind.keys())
        if cell[2] == base or not numbers:
            continue
        apart = [100 * (ahead[which]["accuracy"] - behind[which]["accuracy"]) for which in numbers]
        mean, low, high = interval(apart, pooled([apart]))
        rows.append(
            {
                "model": cell[0],
                "epsilon": cell[1],
                "series": methods[base].words,
                "against": methods[cell[2]].words,
                "difference": mean,
                "low": low,
                "high": high,
                "pairs": len(numbers),
                "differences": " ".join(f"{points:.2f}" for points in apart),
            }
        )
    return rows


def _cells(trials: Iterable[Finished]) -> dict[Cell, list[Finished]]:
    """Trials by model, epsilon and method."""
    trials = list(trials)
    _check_alike(trials)
    cells: dict[Cell, list[Finished]] = {}
    for trial in trials:
        cells.setdefault((trial["model"], trial["epsilon"], trial["method"]), []).append(trial)
    return cells


def _ordered(cells: Iterable[Cell], methods: Mapping[str, Method]) -> list[Cell]:
    """Those of these methods, in their order."""
    order = list(methods)
    ours = [cell for cell in cells if cell[2] in methods]
    return sorted(ours, key=lambda cell: (*cell[:2], order.index(cell[2])))


def _tuned(cell: Cell, cells: Mapping[Cell, list[Finished]]) -> list[Finished]:
    """The trials that the learning rate of a cell is chosen by."""
    return cells.get((*cell[:2], ALL[cell[2]].rate_of), cells[cell])


def _at_best_rate(cell: Cell, cells: Mapping[Cell, list[Finished]]) -> list[Finished]:
    """The trials of a cell with the best learning rate; none if they are still to come."""
    trials = cells.get(cell, [])
    plans = {trial["setup"]["plan"] for trial in trials}
    if len(plans) > 1:
        raise InvalidFile(f"trials of {cell[2]} at epsilon {cell[1]:g} are of {len(plans)} plans, not one")
    rate = best_rate(_tuned(cell, cells)) if trials else None
    return [trial for trial in trials if trial["rate"] == rate]


def _check_alike(trials: Iterable[Finished]) -> None:
    """Refuses to compare trials of one model with other layers or settings."""
    known: dict[str, str] = {}
    for trial in trials:
        alike = files.canonical({name: trial["setup"][name] for name in ("network", "setting")})
        if known.setdefault(trial["model"], alike) != alike:
            raise InvalidFile(f"trials of {trial['model']} are of several networks or settings, not one")


def _accuracies(trials: Sequence[Finished]) -> list[float]:
    return [100 * trial["accuracy"] for trial in trials]


def _row(method: Method, tuned: Sequence[Finished], chosen: Sequence[Finished], spread: Spread | None) -> Row:
    accuracies = _accuracies(chosen)
    mean, low, high = interval(accuracies, spread)
    first = chosen[0]
    return {
        "model": first["model"],
        "epsilon": first["epsilon"],
        "series": method.words,
        "accuracy": mean,
        "low": low,
        "high": high,
        "trials": len(chosen),
        "accuracies": " ".join(f"{accuracy:.2f}" for accuracy in accuracies),
        "rate": first["rate"],
        "rates_tried": " ".join(f"{rate:g}" for rate in sorted({trial["rate"] for trial in tuned})),
        "guaranteed_epsilon": first["guarantee"]["epsilon"],
        "adjacency": first["guarantee"]["adjacency"],
        "strategy": first["strategy"],
        "noise_multiplier": first["noise_multiplier"],
        "rmse": first["rmse"],
        "batching": first["batching"],
        "plan": first["setup"]["plan"].removeprefix("sha256:")[:12],
    }


def best_rate(trials: Sequence[Finished]) -> float:
    """Returns the learning rate with the best accuracy on training examples in its first trial, the lower of equals."""
    first: dict[float, Finished] = {}
    for trial in sorted(trials, key=lambda trial: trial["trial"]):
        first.setdefault(trial["rate"], trial)
    return float(max(first, key=lambda rate: (first[rate]["train_accuracy"], -rate)))


class Spread(NamedTuple):
    """How far runs of one cell lie apart.

    Attributes:
      deviation: standard deviation of a run.
      freedom: degrees of freedom of that estimate.
    """

    deviation: float
    freedom: int


def pooled(cells: Iterable[Sequence[float]]) -> Spread | None:
    """Returns the spread of runs around the mean of their cell, taken to be that of all cells; None if no cell has two.

    >>> pooled([[1.0, 3.0], [7.0, 9.0], [5.0]]) == Spread(2**0.5, 2)
    True
    """
    several = [cell for cell in cells if len(cell) > 1]
    freedom = sum(len(cell) - 1 for cell in several)
    if not freedom:
        return None
    return Spread(math.sqrt(sum(float(np.var(cell)) * len(cell) for cell in several) / freedom), freedom)


def interval(values: Sequence[float], spread: Spread | None) -> tuple[float, float | None, float | None]:
    """Returns the mean of runs and the limits of its 95% interval by Student's distribution, if the spread is known.

    >>> interval([1.0], None)
    (1.0, None, None)
    """
    mean = float(np.mean(values))
    if spread is None:
        return mean, None, None
    half = student.ppf((1 + LEVEL) / 2, spread.freedom) * spread.deviation / math.sqrt(len(values))
    return mean, mean - half, mean + half


def table(name: str, title: str, rows: Rows) -> Result:
    """Returns the result of these rows."""
    return Result(name, title, COLUMNS, tuple(rows), _text(rows))


def difference_table(name: str, title: str, rows: Rows) -> Result:
    """Returns the result of rows of differences."""
    lines = []
    for model, epsilon in dict.fromkeys((row["model"], number(row, "epsilon")) for row in rows):
        cell = [row for row in rows if (row["model"], row["epsilon"]) == (model, epsilon)]
        words = "; ".join(f"{row['against']} {_difference(row)}" for row in cell)
        lines.append(f"{model}, epsilon {epsilon:g}: {cell[0]['series']} less {words}.")
    lines.append(
        "Points of accuracy; +- is half of Student's 95% interval over pairs of trials with the same number, which "
        "start from the same weights (none where there is one pair). Each method has the best of the learning "
        "rates that it was tried with."
    )
    return Result(name, title, DIFFERENCES, tuple(rows), "\n".join(lines))


def _difference(row: Row) -> str:
    spread = "" if row["high"] is None else f" +- {number(row, 'high') - number(row, 'difference'):.2f}"
    return f"{number(row, 'difference'):+.2f}{spread} ({row['pairs']} pair{'' if row['pairs'] == 1 else 's'})"


def _text(rows: Rows) -> str:
    lines = []
    for model, epsilon in dict.fromkeys((row["model"], number(row, "epsilon")) for row in rows):
        cell = [row for row in rows if (row["model"], row["epsilon"]) == (model, epsilon)]
        cell.sort(key=lambda row: -number(row, "accuracy"))
        tried = {str(row["rates_tried"]) for row in cell}
        same = f" (rates tried: {', '.join(tried.pop().split())})" if len(tried) == 1 else ""
        lines.append(f"{model}, epsilon {epsilon:g}{same}: " + "; ".join(_words(row, not same) for row in cell) + ".")
    lines.append(
        "Per cent of the 10,000 test images; +- is half of Student's 95% interval over runs, whose spread is taken to "
        "be the same for all methods with one model and epsilon (none where nothing was run twice). Where several "
        "learning rates were tried each had one run, the best by accuracy on training images was taken, and its run "
        "counts as the first trial. A guarantee is that of one run with its rate given: neither the choice of the "
        "rate nor the other runs on the same data are covered. Fixed-size batches are for neighbours that differ by "
        "an example zeroed out, the others for one added or removed."
    )
    return "\n".join(lines)


def _words(row: Row, with_rates: bool) -> str:
    spread = "" if row["high"] is None else f" +- {number(row, 'high') - number(row, 'accuracy'):.2f}"
    trials = f"{row['trials']} run" + ("" if row["trials"] == 1 else "s")
    rates = [float(rate) for rate in str(row["rates_tried"]).split()]
    edge = len(rates) > 1 and number(row, "rate") in (rates[0], rates[-1])
    rate = f"rate {number(row, 'rate'):g}" + (" of " + " ".join(f"{tried:g}" for tried in rates) if with_rates else "")
    rate += f", the {'least' if row['rate'] == rates[0] else 'largest'} tried" if edge else ""
    guaranteed = number(row, "guaranteed_epsilon")
    only = f", guaranteed epsilon {guaranteed:.3g} only" if guaranteed > number(row, "epsilon") else ""
    return f"{row['series']} {number(row, 'accuracy'):.2f}{spread} ({trials}, {rate}{only})"


def draw(rows: Rows) -> Any:
    """Accuracy of the methods side by side at every epsilon, with each run as a dot; a panel for each model."""
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    figure, axes = drawing.canvas(columns=max(1, len(models)), width=6.4 * max(1, len(models)), height=4.4)
    for axis, model in zip(np.ravel(axes), models, strict=False):
        shown = [row for row in rows if row["model"] == model]
        names = [name for name in _words_of_methods() if any(row["series"] == name for row in shown)]
        epsilons = sorted({number(row, "epsilon") for row in shown})
        for index, name in enumerate(names):
            of = [row for row in shown if row["series"] == name]
            shift = 0.8 * ((index + 0.5) / len(names) - 0.5)
            places = [epsilons.index(number(row, "epsilon")) + shift for row in of]
            means = [number(row, "accuracy") for row in of]
            half = [math.nan if row["high"] is None else number(row, "high") - number(row, "accuracy") for row in of]
            look = drawing.style(name, index) | {"linestyle": "none"}
            axis.errorbar(places, means, yerr=half, label=name, capsize=2, elinewidth=0.8, **look)
            for place, row in zip(places, of, strict=True):
                runs = [float(accuracy) for accuracy in str(row["accuracies"]).split()]
                axis.plot([place + BESIDE] * len(runs), runs, ".", color=look["color"], markersize=2.5, alpha=0.6)
        axis.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axis.set_xlim(-0.5, len(epsilons) - 0.5)
        for border in range(1, len(epsilons)):
            axis.axvline(border - 0.5, color="0.8", linewidth=0.6)
        axis.grid(axis="y", alpha=0.3, linewidth=0.6)
        counts = sorted({int(number(row, "trials")) for row in shown})
        axis.set(xlabel="epsilon", ylabel="test accuracy (%)", title=f"{model}, {_runs(counts)}")
        if len(epsilons) == 1:  # nothing rises to the right: the legend needs room below
            low, high = axis.get_ylim()
            axis.set_ylim(low - max(high - low, LEAST_ROOM), high + LEAST_ROOM / 4)
        axis.legend(fontsize="small", loc="lower right")
    return figure


def _runs(counts: Sequence[int]) -> str:
    if counts == [1]:
        return "one run each"
    return f"{counts[0]} runs each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs each"


def _words_of_methods() -> list[str]:
    return [method.words for method in ALL.values()]
