"""All mechanisms side by side: the question of `galton compare`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from galton.accountants import Setting
from galton.accountants.peers import version_of
from galton.cache import Cache, default_cache
from galton.comparison.mechanism import Row
from galton.comparison.registry import DEFAULT, find_mechanism
from galton.errors import GaltonError, InvalidArgument, count
from galton.guarantee import Guarantee, check_epsilon
from galton.sampling.schedule import Progress
from galton.typechecking import typechecked
from galton.workloads import Training, Workload

BASELINE = "bandmf-cyclic-poisson"


@typechecked
@dataclass(frozen=True)
class Comparison:
    """Rows of all mechanisms at all epsilons.

    Attributes:
      bins, epochs: of the run.
      delta: the guarantee's delta.
      epsilons: increasing.
      workload: what the errors are of.
      rows: by mechanism in the order asked for, then by epsilon.
      baseline: mechanism that errors are relative to.
      skipped: mechanisms of the default set left out in part or whole, with the reason (a missing package, say).
      seconds: time this comparison took, cached rows included.

    Example:
      >>> from pathlib import Path
      >>> from tempfile import TemporaryDirectory
      >>> names = ("dpsgd-poisson", "dpsgd-unamplified")
      >>> with TemporaryDirectory() as folder:
      ...     comparison = compare(8, 2, (2.0,), 1e-3, names, baseline=names[0], cache=Cache(Path(folder)))
      >>> comparison.relative(comparison.row("dpsgd-unamplified", 2.0)) > 1  # times the error of the baseline
      True
    """

    bins: int
    epochs: int
    delta: float
    epsilons: tuple[float, ...]
    workload: str
    rows: tuple[Row, ...]
    baseline: str
    skipped: dict[str, str]
    seconds: float

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Names of the mechanisms that have rows."""
        return tuple(dict.fromkeys(row.mechanism for row in self.rows))

    def row(self, name: str, epsilon: float) -> Row | None:
        """Returns the row of a mechanism at an epsilon, if there is one.

        Args:
          name: of the mechanism.
          epsilon: one of the epsilons compared.

        Returns:
          The row, or None.
        """
        return next((row for row in self.rows if row.mechanism == name and row.epsilon == epsilon), None)

    def relative(self, row: Row) -> float | None:
        """Returns a row's error relative to the baseline's at the same epsilon.

        Args:
          row: one of `rows`.

        Returns:
          The ratio of the errors; None if the baseline has no row at that epsilon.
        """
        base = self.row(self.baseline, row.epsilon)
        return None if base is None else row.rmse / base.rmse

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "bins": self.bins,
            "epochs": self.epochs,
            "rounds": self.bins * self.epochs,
            "delta": self.delta,
            "epsilons": list(self.epsilons),
            "workload": self.workload,
            "baseline": self.baseline,
            "rows": [_told(row) | {"relative_rmse": self.relative(row)} for row in self.rows],
            "skipped": self.skipped,
            "seconds": self.seconds,
        }


def _told(row: Row) -> dict[str, Any]:
    """A row in the names of all outputs, where `strategy` is a name and `statement` is a sentence."""
    names = {"strategy": "strategy_hash", "statement": "worth"}
    return {names.get(name, name): value for name, value in row.to_json().items()}


@typechecked
def compare(
    bins: int,
    epochs: int,
    epsilons: Sequence[float],
    delta: float,
    mechanisms: Sequence[str] | None = None,
    workload: Workload | None = None,
    baseline: str = BASELINE,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Returns every mechanism's error at every epsilon, with noise, cost and what each figure is worth.

    Rows are cached by content: a repeat is instant. Certified figures are figures to compare, not certificates.

    Args:
      bins: batches per epoch.
      epochs: epochs.
      epsilons: one or more.
      delta: the guarantee's delta.
      mechanisms: names (`registry.MECHANISMS`); default all but the slow ones, and of these the ones that can run.
      workload: what the error is of; default prefix sums.
      baseline: mechanism that errors are relative to; computed too if it is not among `mechanisms`.
      cache: where rows are kept; default the user's.
      progress: called as progress(what, done, total).

    Returns:
      The rows, with what was left out and why.

    Example:
      >>> from pathlib import Path
      >>> from tempfile import TemporaryDirectory
      >>> names = ("dpsgd-poisson", "dpsgd-unamplified")
      >>> with TemporaryDirectory() as folder:
      ...     comparison = compare(8, 2, (2.0,), 1e-3, names, baseline=names[0], cache=Cache(Path(folder)))
      >>> [row.mechanism for row in comparison.rows]
      ['dpsgd-poisson', 'dpsgd-unamplified']
      >>> comparison.rows[0].rmse < comparison.rows[1].rmse
      True
    """
    start = time.perf_counter()
    levels = _levels(epsilons)
    bins, epochs = count("bins", bins), count("epochs", epochs)
    names = DEFAULT if mechanisms is None else tuple(mechanisms)
    if not names:
        raise InvalidArgument("mechanisms", [], "must name at least one mechanism")
    requested = [find_mechanism(name, "mechanisms") for name in names]
    chosen = list(dict.fromkeys((*requested, find_mechanism(baseline, "baseline"))))
    store = cache or default_cache()
    described = _described(workload)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    total = len(chosen) * len(levels)
    for place, mechanism in enumerate(chosen):
        hint: int | None = None
        for index, epsilon in enumerate(levels):
            if progress is not None:
                progress(f"{mechanism.name} at epsilon {epsilon:g}", place * len(levels) + index, total)
            setting = Setting(bins, epochs, Guarantee(epsilon, delta), workload)
            inputs = _inputs(mechanism.name, setting, described)
            known = store.get(inputs, __name__)
            try:
                row = _row(known) or mechanism.row(setting, hint)
            except GaltonError as error:
                if mechanisms is not None or isinstance(error, InvalidArgument):
                    raise
                skipped[mechanism.name] = str(error)
                break
            if known is None or row.to_json() != known:
                store.put(inputs, row.to_json(), __name__)
            rows.append(row)
            hint = row.bands
    if progress is not None:
        progress("done", total, total)
    return Comparison(
        bins=bins,
        epochs=epochs,
        delta=float(delta),
        epsilons=levels,
        workload=described["name"],
        rows=tuple(rows),
        baseline=baseline,
        skipped=skipped,
        seconds=time.perf_counter() - start,
    )


def _levels(epsilons: Sequence[float]) -> tuple[float, ...]:
    if not len(epsilons):
        raise InvalidArgument("epsilons", [], "must hold at least one epsilon")
    return tuple(sorted({check_epsilon(f"epsilons[{index}]", epsilon) for index, epsilon in enumerate(epsilons)}))


def _row(value: dict[str, Any] | None) -> Row | None:
    """The row of a cache entry; None if it has not the fields of this version."""
    if value is None:
        return None
    try:
        return Row.from_json(value)
    except (KeyError, TypeError, ValueError):
        return None


def _inputs(name: str, setting: Setting, workload: dict[str, Any]) -> dict[str, Any]:
    """Everything that determines a row."""
    return {
        "what": "comparison row",
        "mechanism": name,
        "bins": setting.bins,
        "epochs": setting.epochs,
        **setting.guarantee.to_json(),
        "workload": workload,
        "versions": {package: version_of(package) for package in ("PLD_accounting", "jax")},
    }


def _described(workload: Workload | None) -> dict[str, Any]:
    """A workload as JSON, exact: its parameters, or a hash of its matrix."""
    if workload is None:
        return {"name": "prefix"}
    if isinstance(workload, Training):
        rates = None if workload.learning_rates is None else workload.learning_rates.tolist()
        if not workload.momentum and rates is None:
            return {"name": "prefix"}
        return {"name": f"momentum:{workload.momentum:g}", "momentum": workload.momentum, "learning_rates": rates}
    content = hashlib.sha256(workload.matrix().tobytes()).hexdigest()
    return {"name": "matrix", "content": content}
