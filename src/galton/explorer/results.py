"""What the explorer shows: figures of `galton compare` at every point of a grid."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from galton.batching.base import check_examples
from galton.cache import Cache
from galton.comparison import Row, compare, find_mechanism
from galton.errors import MOST_ROUNDS, InvalidArgument, count, positive, probability
from galton.fields import Fields
from galton.guarantee import check_epsilon
from galton.provenance import now, versions
from galton.sampling.schedule import Progress
from galton.typechecking import typechecked

MECHANISMS = (
    "dpsgd-unamplified",
    "dpsgd-poisson",
    "memf-unamplified",
    "bandmf-cyclic-poisson",
    "bandmf-balls-in-bins",
    "bandmf-redrawn",
)
"""What is shown, of the mechanisms of `galton compare`: noise independent or correlated, batches known or secret."""
LONG = MECHANISMS[-1]
MOST_WORK = 1 << 10
"""Rounds times bins up to which bins redrawn in every epoch are computed: half a minute a figure, or less."""
SHIPPED = "results.json"
_DIGITS = 5


@typechecked
@dataclass(frozen=True)
class Axes:
    """The grid: the values that each slider has.

    Attributes:
      deltas: of the guarantee.
      bins: batches per epoch.
      epochs: passes over the data.
      epsilons: of the guarantee.
    """

    deltas: tuple[float, ...]
    bins: tuple[int, ...]
    epochs: tuple[int, ...]
    epsilons: tuple[float, ...]

    def __post_init__(self) -> None:
        checks: dict[str, Callable[[str, Any], float]] = {
            "deltas": probability,
            "bins": count,
            "epochs": count,
            "epsilons": check_epsilon,
        }
        for name, check in checks.items():
            values = getattr(self, name)
            if not values:
                raise InvalidArgument(name, [], "must hold at least one value")
            for index, value in enumerate(values):
                check(f"{name}[{index}]", value)
            if list(values) != sorted(set(values)):
                raise InvalidArgument(name, list(values), "must increase")
        rounds = max(self.bins) * max(self.epochs)
        if rounds > MOST_ROUNDS:
            remedy = f"makes {rounds} rounds with {max(self.bins)} batches per epoch; must make at most {MOST_ROUNDS}"
            raise InvalidArgument("epochs", max(self.epochs), remedy)

    @classmethod
    def of_run(
        cls,
        examples: int,
        batch_sizes: Sequence[float],
        epochs: Sequence[int],
        epsilons: Sequence[float],
        deltas: Sequence[float],
    ) -> Axes:
        """Returns the grid for a data set; values may come in any order.

        Args:
          examples: size of the data set.
          batch_sizes: expected sizes of a batch; there are examples / batch size batches in an epoch, rounded.
          epochs: passes over the data.
          epsilons: of the guarantee.
          deltas: of the guarantee.

        Returns:
          The grid.
        """
        check_examples(examples)
        bins = []
        for index, size in enumerate(batch_sizes):
            if positive(f"batch_sizes[{index}]", size) > examples:
                raise InvalidArgument(f"batch_sizes[{index}]", size, f"must be at most the examples, {examples}")
            bins.append(round(examples / size))
        if not bins:
            raise InvalidArgument("batch_sizes", [], "must hold at least one value")
        lists: list[Sequence[float]] = [deltas, bins, epochs, epsilons]
        return cls(*(tuple(sorted(set(values))) for values in lists))  # type: ignore[arg-type]

    @property
    def points(self) -> int:
        """How many combinations of values there are."""
        return len(self.deltas) * len(self.bins) * len(self.epochs) * len(self.epsilons)

    def runs(self) -> Iterator[tuple[float, int, int]]:
        """Yields every (delta, bins, epochs), in the order of the figures of a `Series`; epsilons are innermost."""
        for delta in self.deltas:
            for bins in self.bins:
                for epochs in self.epochs:
                    yield delta, bins, epochs


@dataclass(frozen=True)
class Series:
    """One mechanism at all points of the grid. Numbers are rounded up to five digits.

    Attributes:
      mechanism: its name in `galton compare`.
      description: one line.
      standing: what its figures are worth.
      sampling: how batches must be made for the figures to hold.
      source: where the figures come from.
      rmse: root-mean-square error on prefix sums, clip norm 1, by delta, bins, epochs and epsilon (the innermost).
      noise_multiplier: for sensitivity 1 over a run of fixed order.
      epsilon_if_known: what is left of the guarantee if it becomes known who was in which batch.
      memory: model-sized buffers of the noise stream.

    Where a figure takes long, or makes no sense, all four numbers are None.
    """

    mechanism: str
    description: str
    standing: str
    sampling: str
    source: str
    rmse: tuple[float | None, ...]
    noise_multiplier: tuple[float | None, ...]
    epsilon_if_known: tuple[float | None, ...]
    memory: tuple[int | None, ...]


_NUMBERS = ("rmse", "noise_multiplier", "epsilon_if_known", "memory")


@dataclass(frozen=True)
class Results:
    """All figures of a page.

    Attributes:
      examples: size of the data set that batch sizes are shown for; no figure depends on it.
      axes: the grid.
      series: one for each mechanism.
      created: when they were computed.
      versions: of galton and what it rests on.
    """

    examples: int
    axes: Axes
    series: tuple[Series, ...]
    created: str
    versions: dict[str, str]

    def __post_init__(self) -> None:
        for series in self.series:
            for name in _NUMBERS:
                values = getattr(series, name)
                known = [value for value in values if value is not None]
                if len(values) != self.axes.points or not all(0 <= value < math.inf for value in known):
                    remedy = f"must have {self.axes.points} numbers of at least 0 for {series.mechanism}"
                    raise InvalidArgument(name, len(values), remedy)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Results:
        """Rebuilds results from `to_json`.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The results.
        """
        body = Fields("results", value, cls)
        axes = {name: tuple(values) for name, values in body.mapping("axes").items()}
        series = [Series(**part | {name: tuple(part[name]) for name in _NUMBERS}) for part in body.sequence("series")]
        return cls(body.count("examples", 1), Axes(**axes), tuple(series), body.text("created"), body.texts("versions"))


@typechecked
def compute_results(axes: Axes, examples: int, cache: Cache | None = None, progress: Progress | None = None) -> Results:
    """Returns the figures of `MECHANISMS` at every point of a grid; what was computed before comes from the cache.

    Formal guarantee: that of `compare`: figures that are certified are so one by one, each except with probability
    0.0015 times its delta.

    Args:
      axes: the grid.
      examples: size of the data set that batch sizes are shown for.
      cache: where rows are kept; default the user's.
      progress: called as progress(what, done, total).

    Returns:
      The results.
    """
    rows: dict[str, list[Row | None]] = {name: [] for name in MECHANISMS}
    total = axes.points * len(MECHANISMS)
    for place, (delta, bins, epochs) in enumerate(axes.runs()):
        before = place * len(axes.epsilons) * len(MECHANISMS)
        run = f"{epochs} epochs of {bins} batches, delta {delta:g}"

        def tell(what: str, done: int, _: int, before: int = before, run: str = run) -> None:
            if progress is not None:
                progress(f"exploring | {run}: {what}", before + done, total)

        names = [name for name in MECHANISMS if name != LONG or is_redrawn(bins, epochs)]
        comparison = compare(bins, epochs, axes.epsilons, delta, names, baseline=names[0], cache=cache, progress=tell)
        for name in MECHANISMS:
            rows[name] += [comparison.row(name, epsilon) for epsilon in axes.epsilons]
    series = tuple(_series(name, of_mechanism) for name, of_mechanism in rows.items())
    return Results(examples, axes, series, now(), versions())


def is_redrawn(bins: int, epochs: int) -> bool:
    """Whether bins redrawn in every epoch are something else than bins drawn once, and do not take long to compute."""
    return epochs > 1 and bins > 1 and bins * bins * epochs <= MOST_WORK


def shipped_results() -> Results:
    """Returns the results that come with galton, computed by `benchmarks/explorer.py`."""
    return Results.from_json(json.loads(resources.files(__package__).joinpath(SHIPPED).read_text(encoding="utf-8")))


def rounded_up(value: float) -> float:
    """Returns a number of few digits that is not below the value.

    >>> rounded_up(28.58612), rounded_up(0.5), rounded_up(12345678.0)
    (28.587, 0.5, 12346000.0)
    """
    if value == 0:
        return 0.0
    digits = _DIGITS - 1 - math.floor(math.log10(value))
    nearest = round(value, digits)
    return nearest if nearest >= value else round(nearest + 10.0**-digits, digits)


def _series(name: str, rows: Sequence[Row | None]) -> Series:
    def figures(figure: Callable[[Row], float]) -> tuple[float | None, ...]:
        return tuple(None if row is None else rounded_up(figure(row)) for row in rows)

    mechanism = find_mechanism(name)
    return Series(
        mechanism=name,
        description=mechanism.description,
        standing=mechanism.statement.standing.value,
        sampling=mechanism.statement.sampling,
        source=mechanism.statement.source,
        rmse=figures(lambda row: row.rmse),
        noise_multiplier=figures(lambda row: row.noise_multiplier),
        epsilon_if_known=figures(lambda row: row.epsilon_if_known or 0.0),
        memory=tuple(None if row is None else row.memory for row in rows),
    )
