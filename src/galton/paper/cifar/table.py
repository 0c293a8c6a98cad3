"""The table of finished trials: one row for a model, a method and an epsilon, with its mean and 95% interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from galton.errors import InvalidFile
from galton.paper import drawing
from galton.paper.cifar.experiment import ALL, Method
from galton.paper.result import Result, Row, Rows, number

LEVEL = 0.95
COLUMNS = (
    *("model", "epsilon", "series", "accuracy", "low", "high", "trials", "rate", "rates_tried"),
    *("guaranteed_epsilon", "adjacency", "strategy", "noise_multiplier", "rmse", "batching", "plan"),
)
"""accuracy, low and high in per cent of the test set; rates_tried: learning rates that `rate` was chosen from."""

Finished = Mapping[str, Any]


def rows_of(trials: Iterable[Finished], methods: Mapping[str, Method]) -> list[Row]:
    """Returns the rows of the trials of these methods."""
    cells: dict[tuple[str, float, str], list[Finished]] = {}
    order = list(methods)
    for trial in trials:
        if trial["method"] in methods:
            cells.setdefault((trial["model"], trial["epsilon"], trial["method"]), []).append(trial)
    ordered = sorted(cells, key=lambda cell: (cell[0], cell[1], order.index(cell[2])))
    return [_row(methods[cell[2]], cells[cell]) for cell in ordered]


def _row(method: Method, trials: Sequence[Finished]) -> Row:
    plans = {trial["setup"]["plan"] for trial in trials}
    if len(plans) > 1:
        raise InvalidFile(
            f"trials of {method.name} at epsilon {trials[0]['epsilon']:g} are of {len(plans)} plans, not one"
        )
    rate = best_rate(trials)
    chosen = [trial for trial in trials if trial["rate"] == rate]
    mean, low, high = interval([100 * trial["accuracy"] for trial in chosen])
    first = chosen[0]
    return {
        "model": first["model"],
        "epsilon": first["epsilon"],
        "series": method.words,
        "accuracy": mean,
        "low": low,
        "high": high,
        "trials": len(chosen),
        "rate": rate,
        "rates_tried": " ".join(f"{one:g}" for one in sorted({trial["rate"] for trial in trials})),
        "guaranteed_epsilon": first["guarantee"]["epsilon"],
        "adjacency": first["guarantee"]["adjacency"],
        "strategy": first["strategy"],
        "noise_multiplier": first["noise_multiplier"],
        "rmse": first["rmse"],
        "batching": first["batching"],
        "plan": plans.pop().removeprefix("sha256:")[:12],
    }


def best_rate(trials: Sequence[Finished]) -> float:
    """Returns the learning rate with the best accuracy on training examples, in the first trial of each."""
    first: dict[float, Finished] = {}
    for trial in sorted(trials, key=lambda trial: trial["trial"]):
        first.setdefault(trial["rate"], trial)
    return float(max(first, key=lambda rate: first[rate]["train_accuracy"]))


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Returns mean and limits of Student's 95% interval, over runs; no limits for a single run.

    >>> interval([1.0])
    (1.0, None, None)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    half = student.ppf((1 + LEVEL) / 2, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def table(name: str, title: str, rows: Rows) -> Result:
    """Returns the result of these rows."""
    return Result(name, title, COLUMNS, tuple(rows), _text(rows))


def _text(rows: Rows) -> str:
    lines = []
    for model, epsilon in dict.fromkeys((row["model"], number(row, "epsilon")) for row in rows):
        cell = [row for row in rows if (row["model"], row["epsilon"]) == (model, epsilon)]
        cell.sort(key=lambda row: -number(row, "accuracy"))
        lines.append(f"{model}, epsilon {epsilon:g}: " + "; ".join(_words(row) for row in cell) + ".")
    lines.append(
        "Per cent of the 10,000 test images; +- is half of Student's 95% interval over runs (none for one run, "
        "wide for two). Where several learning rates were tried each had one run, the best by accuracy on training "
        "images was taken, and its run counts as the first trial. A guarantee is that of one run with its rate given: "
        "neither the choice of the rate nor the other runs on the same data are covered. Fixed-size batches are "
        "for neighbours that differ by an example zeroed out, the others for one added or removed."
    )
    return "\n".join(lines)


def _words(row: Row) -> str:
    spread = "" if row["high"] is None else f" +- {number(row, 'high') - number(row, 'accuracy'):.2f}"
    trials = f"{row['trials']} run" + ("" if row["trials"] == 1 else "s")
    rates = [float(one) for one in str(row["rates_tried"]).split()]
    edge = len(rates) > 1 and number(row, "rate") in (rates[0], rates[-1])
    rate = f"rate {number(row, 'rate'):g}" + (
        f", the {'least' if row['rate'] == rates[0] else 'largest'} tried" if edge else ""
    )
    return f"{row['series']} {number(row, 'accuracy'):.2f}{spread} ({trials}, {rate})"


def draw(rows: Rows) -> Any:
    """Accuracy over epsilon, a panel for each model."""
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    figure, axes = drawing.canvas(columns=max(1, len(models)), width=6.4 * max(1, len(models)), height=4.4)
    for axis, model in zip(np.ravel(axes), models, strict=False):
        shown = [row for row in rows if row["model"] == model]
        names = [name for name in _words_of_methods() if any(row["series"] == name for row in shown)]
        for index, name in enumerate(names):
            of = [row for row in shown if row["series"] == name]
            shift = 2 ** (0.06 * (index - (len(names) - 1) / 2))  # so that bars do not hide each other
            places = [number(row, "epsilon") * shift for row in of]
            means = [number(row, "accuracy") for row in of]
            half = [0.0 if row["high"] is None else number(row, "high") - number(row, "accuracy") for row in of]
            axis.errorbar(places, means, yerr=half, label=name, capsize=2, elinewidth=0.8, **drawing.style(name, index))
        axis.set_xscale("log", base=2)
        ticks = sorted({number(row, "epsilon") for row in shown})
        axis.set_xticks(ticks, [f"{one:g}" for one in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3, linewidth=0.6)
        runs = sorted({int(number(row, "trials")) for row in shown})
        axis.set(xlabel="epsilon", ylabel="test accuracy (%)", title=f"{model}, {_runs(runs)}")
        axis.legend(fontsize="small")
    return figure


def _runs(counts: Sequence[int]) -> str:
    if counts == [1]:
        return "one run each"
    return f"{counts[0]} runs each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs each"


def _words_of_methods() -> list[str]:
    return [method.words for method in ALL.values()]
