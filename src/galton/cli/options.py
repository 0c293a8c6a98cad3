"""The options that commands share, and what they build."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galton.errors import MOST_ROUNDS, InvalidArgument, count
from galton.guarantee import Adjacency
from galton.progress import progress_bar
from galton.strategies.grammar import ANALYSIS

if TYPE_CHECKING:
    from galton.accounting import Options
    from galton.pair import DominatingPair
    from galton.sampling import Pool
    from galton.strategies import Strategy


def starting(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Returns the completion of a shell for an option with these values."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def listed(names: Iterable[str], word: str = "or") -> str:
    """Returns names as words.

    >>> listed(("plain", "tilted", "auto"))
    'plain, tilted or auto'
    """
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


# Where the values allowed are in a module that takes seconds to import, they are written out here, and
# tests/test_cli.py checks that they are the same.

StrategyName = Annotated[str, typer.Argument(metavar="STRATEGY", help=f"The correlation matrix C: {ANALYSIS.help}")]
Bins = Annotated[int, typer.Option("--bins", "-b", help="Number of batches per epoch.")]
Epochs = Annotated[int, typer.Option("--epochs", "-e", help="Number of passes over the data.")]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Number of rounds (training steps) of the whole run; give it if the last epoch is partial.",
        show_default="bins * epochs",
    ),
]
Multiplier = Annotated[
    float,
    typer.Option(
        "--noise-multiplier",
        "-s",
        help="Noise multiplier: standard deviation of the noise when C is scaled to sensitivity 1 over the whole run.",
    ),
]
Epsilon = Annotated[float, typer.Option(help="Epsilon of the privacy guarantee.")]
Delta = Annotated[float, typer.Option(help="Delta of the privacy guarantee.")]
ADJACENCY = Adjacency.ADD_OR_REMOVE.value
AdjacencyName = Annotated[
    str,
    typer.Option(
        "--adjacency",
        help=f"Which data sets count as neighbours: {listed(Adjacency.names())}.",
        autocompletion=starting(Adjacency.names()),
    ),
]
SamplerName = Annotated[
    str,
    typer.Option(
        "--sampler",
        help="Sampler of the Monte Carlo accountant: auto chooses, plain or tilted force one; `--sampler list` names "
        "all.",
    ),
]
BoundName = Annotated[
    str,
    typer.Option(
        "--bound",
        help="Confidence bound: sequence, kl, one-sided or bernstein. A sequence stops by itself; the others take a "
        "fixed number of samples.",
    ),
]
_SAMPLES = "Samples per direction: at most this many for --bound sequence, exactly this many for another bound."
Samples = Annotated[int | None, typer.Option(help=_SAMPLES, show_default="4194304, fewer where a sample costs more")]
SamplesToCertify = Annotated[int | None, typer.Option(help=_SAMPLES, show_default="as many as --tau asks for")]
SamplesToCalibrate = Annotated[
    int | None,
    typer.Option(
        help="Most samples per direction that check the noise.", show_default="4194304, fewer where a sample costs more"
    ),
]
SamplesOfProfile = Annotated[int | None, typer.Option(help=_SAMPLES)]
CalibrationTau = Annotated[
    float, typer.Option(help="Calibrate the noise to delta / tau, so that a certificate for delta has room.")
]
RelWidth = Annotated[
    float, typer.Option(help="Width of the confidence interval, relative to the estimate, at which a sequence stops.")
]
Confidence = Annotated[float, typer.Option(help="Probability that all limits hold at once.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the random numbers.", show_default="from the operating system")]
Workers = Annotated[int, typer.Option(help="Number of threads that draw samples.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Draw samples on the Dask cluster with this scheduler, for example tcp://host:8786.",
        show_default="on this machine",
    ),
]
Merge = Annotated[
    int | None,
    typer.Option(
        help="Merge this many neighbouring bins into one mode: faster, and still an upper bound.",
        show_default="1, but for short memory, tree and dense C above 2048 bins",
    ),
]
AllowNegative = Annotated[
    bool, typer.Option("--allow-negative", help="Accept a C with negative entries, at the price of a looser bound.")
]
ParticipationName = Annotated[
    str,
    typer.Option(
        "--participation",
        help="How examples take part: bins, redrawn or min-separation:S. Every example is in one batch of every epoch: "
        "in the same one in all epochs, or in one that is drawn anew; or after taking part it rests, so that its "
        "rounds are at least S apart (C has at most S bands) and one in --bins on average.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object on stdout instead of a table.")]
WorkloadName = Annotated[
    str,
    typer.Option(
        "--workload",
        help="Workload whose error is reported or minimised: prefix, momentum:BETA, momentum:BETA+cooldown or FILE.npy "
        "(a lower-triangular matrix).",
    ),
]


def total_rounds(bins: int, epochs: int, rounds: int | None) -> int:
    """Returns the rounds of a run, the last epoch being partial if `rounds` says so."""
    count("bins", bins, at_most=10**6)
    count("epochs", epochs, at_most=10**6)
    total = bins * epochs if rounds is None else count("rounds", rounds)
    if not bins * (epochs - 1) < total <= bins * epochs:
        raise InvalidArgument(
            "rounds", total, f"must be from {bins * (epochs - 1) + 1} to {bins * epochs}, in the last epoch"
        )
    if total > MOST_ROUNDS:
        remedy = f"must make at most {MOST_ROUNDS // 10**6} million rounds, and {bins} bins make {total}"
        raise InvalidArgument("epochs", epochs, remedy)
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
    participation: ParticipationName = "bins"
    merge: Merge = None
    allow_negative: AllowNegative = False

    def build(self, noise_multiplier: float = 1.0) -> tuple[Strategy, DominatingPair]:
        """Returns strategy and pair."""
        from galton.optimization import resolve_strategy
        from galton.optimization.participation import ONE_DRAW, find_participation

        way = find_participation(self.participation, count("bins", self.bins))
        if self.merge is not None and way is not ONE_DRAW:
            raise InvalidArgument("merge", self.merge, f"is for bins that are drawn once, not {way.name}")
        rounds = total_rounds(self.bins, self.epochs, self.rounds)
        strategy = resolve_strategy(self.strategy, self.bins, rounds, self.allow_negative)
        if strategy.has_negative:
            warn(
                "C has negative entries: the pair of |C| is analysed, a valid but looser bound; "
                "the noise uses C as it is"
            )
        return strategy, self._pair(strategy, noise_multiplier)

    def first_rounds(self, strategy: Strategy, noise_multiplier: float, rounds_done: int) -> DominatingPair:
        """Returns the pair of the first rounds alone, with the noise of the whole run (docs/math.md, section 15)."""
        if not 1 <= count("rounds_done", rounds_done) <= strategy.rounds:
            remedy = f"must be from 1 to the rounds of the run, {strategy.rounds}"
            raise InvalidArgument("rounds_done", rounds_done, remedy)
        counted = max(rounds_done, self.bins)  # a begun first epoch counts as a whole one
        leading = strategy.prefix(counted)
        larger = strategy.sensitivity(self.bins) / leading.sensitivity(self.bins) * (1 - 1e-9)
        return self._pair(leading, noise_multiplier * (larger if counted < strategy.rounds else 1.0))

    def _pair(self, strategy: Strategy, noise_multiplier: float) -> DominatingPair:
        from galton.optimization.participation import find_participation
        from galton.pair import dominating_pair

        if self.merge is not None:
            return dominating_pair(strategy, self.bins, noise_multiplier, count("merge", self.merge))
        return find_participation(self.participation, self.bins).pair(strategy, self.bins).at(noise_multiplier)


@dataclass(frozen=True)
class CalibrationOptions:
    """How noise is calibrated."""

    sampler: SamplerName = "auto"
    samples: SamplesToCalibrate = None
    confidence: Confidence = 0.999


@dataclass(frozen=True)
class CertificationOptions:
    """How a claim is put to the test."""

    sampler: SamplerName = "auto"
    bound: BoundName = "sequence"
    samples: SamplesToCertify = None


@dataclass(frozen=True)
class EstimationOptions(CertificationOptions):
    """How a number is estimated."""

    samples: Samples = None
    rel_width: RelWidth = 0.02
    confidence: Confidence = 0.999


@dataclass(frozen=True)
class ProfileOptions(EstimationOptions):
    """How a curve is estimated: more roughly."""

    samples: SamplesOfProfile = 1 << 20
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
        with progress_bar() as progress:
            from galton.accounting import Options

            options = Options(seed=self.seed, workers=self.workers, **settings)
            with self._pool() as pool:
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
