"""The options that commands share, and what they build."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galton.cli import show
from galton.errors import InvalidArgument, count
from galton.guarantee import Adjacency
from galton.strategies.grammar import ANALYSIS

if TYPE_CHECKING:
    from galton.accounting import Options
    from galton.pair import Pair
    from galton.sampling import Pool
    from galton.strategies import Strategy

StrategyName = Annotated[str, typer.Argument(metavar="STRATEGY", help=f"C: {ANALYSIS.help}")]
Bins = Annotated[int, typer.Option("--bins", "-b", help="Batches per epoch.")]
Epochs = Annotated[int, typer.Option("--epochs", "-e", help="Passes over the data.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of the run, if the last epoch is partial [bins * epochs].")]
Multiplier = Annotated[float, typer.Option("--noise-multiplier", "-s", help="Noise multiplier, C at sensitivity 1.")]
Epsilon = Annotated[float, typer.Option(help="epsilon.")]
Delta = Annotated[float, typer.Option(help="delta.")]
ADJACENCY = Adjacency.ADD_OR_REMOVE.value
AdjacencyName = Annotated[
    str, typer.Option("--adjacency", help="Which data sets are neighbours: " + ", ".join(Adjacency.names()) + ".")
]
SamplerName = Annotated[
    str, typer.Option("--sampler", help="auto, plain, tilted; for C = I also maximum, order-statistics.")
]
BoundName = Annotated[
    str, typer.Option("--bound", help="sequence (stops by itself), or with fixed samples kl, one-sided, bernstein.")
]
Samples = Annotated[
    int | None, typer.Option(help="Samples per direction: at most for a sequence, exactly for another bound.")
]
RelWidth = Annotated[float, typer.Option(help="Relative width of the interval at which a sequence stops.")]
Confidence = Annotated[float, typer.Option(help="Probability that all limits hold.")]
Seed = Annotated[int | None, typer.Option(help="Seed [from the operating system].")]
Workers = Annotated[int, typer.Option(help="Threads.")]
Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Sample on a Dask cluster: its scheduler, like tcp://host:8786.")
]
Merge = Annotated[
    int | None,
    typer.Option(
        help="Merge this many neighbouring bins: an upper bound with fewer modes [automatic above 2048 bins]."
    ),
]
AllowNegative = Annotated[bool, typer.Option("--allow-negative", help="Accept C with negative entries (looser bound).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
WorkloadName = Annotated[
    str,
    typer.Option("--workload", help="What the error is of: prefix, momentum:B, momentum:B+cooldown or a .npy matrix."),
]


def total_rounds(bins: int, epochs: int, rounds: int | None) -> int:
    """Returns the rounds of a run, the last epoch being partial if `rounds` says so."""
    count("bins", bins, at_most=10**6)
    count("epochs", epochs, at_most=10**6)
    total = bins * epochs if rounds is None else count("rounds", rounds)
    if not bins * (epochs - 1) < total <= bins * epochs:
        raise InvalidArgument("rounds", total, f"must lie in the last of {epochs} epochs of {bins} bins")
    if total > 10**8:
        raise InvalidArgument("epochs", epochs, f"must make at most 100 million rounds, and {bins} bins make {total}")
    return total


def numbers(name: str, text: str) -> list[float]:
    """Reads numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(name, text, "must be numbers separated by commas") from None


def warn(message: str) -> None:
    """Prints a warning on stderr."""
    typer.echo(f"galton: warning: {message}", err=True)


@dataclass(frozen=True)
class Mechanism:
    """What is analysed."""

    strategy: StrategyName
    bins: Bins
    epochs: Epochs
    rounds: Rounds = None
    merge: Merge = None
    allow_negative: AllowNegative = False

    def build(self, noise_multiplier: float = 1.0) -> tuple[Strategy, Pair]:
        """Returns strategy and pair."""
        from galton.optimization import resolve_strategy
        from galton.pair import dominating_pair, groups_for

        rounds = total_rounds(self.bins, self.epochs, self.rounds)
        strategy = resolve_strategy(self.strategy, self.bins, rounds, self.allow_negative)
        if strategy.has_negative:
            warn(
                "C has negative entries: the pair of |C| is analysed, a valid but looser bound; "
                "the noise uses C as it is"
            )
        groups = groups_for(self.bins) if self.merge is None else count("merge", self.merge)
        return strategy, dominating_pair(strategy, self.bins, noise_multiplier, groups)


@dataclass(frozen=True)
class CalibrationOptions:
    """How noise is calibrated."""

    sampler: SamplerName = "auto"
    samples: Samples = None
    confidence: Confidence = 0.999


@dataclass(frozen=True)
class CertificationOptions:
    """How a claim is put to the test."""

    sampler: SamplerName = "auto"
    bound: BoundName = "sequence"
    samples: Samples = None


@dataclass(frozen=True)
class EstimationOptions(CertificationOptions):
    """How a number is estimated."""

    rel_width: RelWidth = 0.02
    confidence: Confidence = 0.999


@dataclass(frozen=True)
class ProfileOptions(EstimationOptions):
    """How a curve is estimated: more roughly."""

    samples: Samples = 1 << 20
    rel_width: RelWidth = 0.1


@dataclass(frozen=True)
class Execution:
    """Where samples are computed, and from which seed."""

    seed: Seed = None
    workers: Workers = 2
    cluster: Cluster = None

    @contextmanager
    def options(self, **settings: Any) -> Iterator[Options]:
        """Yields the accountant's options, with progress shown and the cluster, if any, connected for as long."""
        from galton.accounting import Options

        options = Options(seed=self.seed, workers=self.workers, **settings)
        with show.progress_bar() as progress, self._pool() as pool:
            yield replace(options, progress=progress, workers=pool)

    @contextmanager
    def _pool(self) -> Iterator[int | Pool]:
        if self.cluster is None:
            yield self.workers
            return
        from galton.cluster import connect

        logging.disable()  # Dask's own words: what matters of them is in the error
        with connect(self.cluster) as pool:
            yield pool
