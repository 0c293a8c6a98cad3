"""One real run as many independent trials: each example with a canary has a parameter, and so noise, of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galton.accountants.attacks import Attack, period_of
from galton.audit.participation import Ints, Participation, read
from galton.audit.system import System
from galton.errors import FloatArray, InvalidArgument
from galton.plan.plan import Plan

ENTRIES = 1 << 26
"""Numbers held at a time, in float32."""
MOST_COORDINATES = 1 << 19
"""Parameters of the model in one run, at most."""
BLOCK = 64
"""Rounds handled at a time."""
SPEED = 2e7
"""Coordinates times rounds that are audited in a second, roughly: it only sets how often the clock is read."""
PER_BATCH = 5e-5
"""Seconds that a batch takes, roughly."""
SILENT, MOST_SILENT = 4, 16
"""Fewest and most coordinates per canary, where coordinates without a canary need no batches: they show false
positives, which are rare."""
MOST_PARTICIPATIONS = 1 << 27
"""Entries of the lists of who took part when, at most."""
RUNS = 12
"""Number of runs into which the time is divided."""


@dataclass(frozen=True)
class Shape:
    """How large one run is.

    Attributes:
      canaries: coordinates with a canary.
      coordinates: all of them.
      realisations: of the batches.
      block: rounds handled at a time.
    """

    canaries: int
    coordinates: int
    realisations: int
    block: int


def shape_for(plan: Plan, attack: Attack, seconds: float, trials: int | None) -> Shape:
    """Returns a run that fits in memory: about a twelfth of the time, or half of the trials if a number is given."""
    entries = plan.noise().memory + 3 * attack.weights.shape[1] + BLOCK
    most = min(MOST_COORDINATES, ENTRIES // entries)
    if trials is None:
        most = max(256, min(most, int(SPEED * seconds / RUNS / plan.rounds)))
        affordable = max(1, int(seconds / RUNS / (PER_BATCH * plan.rounds))) * plan.examples
    else:
        affordable = -(-trials // 2)
    canaries = min(most // SILENT if attack.silent else most, affordable)
    participations = int(plan.rounds * plan.expected_batch_size) + 1
    if participations > MOST_PARTICIPATIONS:
        raise InvalidArgument("examples", plan.examples, "too many for an audit, which holds the batches in memory")
    least = 4 if 4 * participations <= MOST_PARTICIPATIONS else 1
    realisations = max(least, -(-canaries // plan.examples))
    coordinates = min(most, MOST_SILENT * canaries) if attack.silent else canaries
    return Shape(canaries, coordinates, realisations, min(BLOCK, plan.rounds, max(1, ENTRIES // (4 * coordinates))))


@dataclass(frozen=True, eq=False)
class Trials:
    """Log likelihood ratios of one run.

    Attributes:
      inside: with the canary.
      outside: without it (or with the opposite one).
      worst_inside, worst_outside: which of them are in a worst-case place; the bound on epsilon rests on them.
      whole: which of `inside` took part whenever they should (truncation leaves some out).
      groups: of `inside`: the bin, or the group of cyclic batches, that each canary belongs to; 0 if batches do not
        return in cycles.
      noise: (rounds, some coordinates) of the noise.
      participation: who took part when.
    """

    inside: FloatArray
    outside: FloatArray
    worst_inside: NDArray[np.bool_]
    worst_outside: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    groups: Ints
    noise: NDArray[Any]
    participation: Participation


def run_once(
    plan: Plan, system: System, attack: Attack, shape: Shape, random: np.random.Generator, seeded: bool, sampled: int
) -> Trials:
    """Drives one run to its end.

    Args:
      plan: what should run.
      system: what runs.
      attack: turns the outcome into log likelihood ratios.
      shape: how large the run is.
      random: of the auditor; chooses the examples with a canary.
      seeded: whether the system gets seeds from `random`, or takes its own.
      sampled: number of coordinates whose noise is returned.

    Returns:
      The log likelihood ratios of the run, and what else the checks need.
    """

    def seed() -> int | None:
        return int.from_bytes(random.bytes(16), "little") if seeded else None

    participation = read(
        (system.batches(seed()) for _ in range(shape.realisations)),
        plan.examples,
        plan.rounds,
        (shuffled_orders(plan, random) for _ in range(shape.realisations)),
    )
    watched = np.sort(random.choice(participation.total, shape.canaries, replace=False, shuffle=False))
    if plan.scheme.period is None:  # nothing about an example's rounds is known
        places = groups = np.zeros(watched.size, np.int64)
    else:
        places = participation.places(period_of(plan.scheme))[watched]
        groups = _guess_missing_groups(plan, places, random)
    joined = participation.matrix(watched)
    by_round = joined.tocsc()

    def members(turn: int) -> Ints:
        start, stop = by_round.indptr[turn : turn + 2]
        return np.asarray(by_round.indices[start:stop], np.int64)

    sums = np.zeros((attack.weights.shape[1], shape.coordinates), np.float32)
    noise_samples: list[NDArray[Any]] = []
    block: list[NDArray[Any]] = []
    start = 0
    for turn, noise in enumerate(system.noise(shape.coordinates, members, seed())):
        noise_samples.append(noise[:sampled].copy())
        block.append(noise)
        if len(block) == shape.block or turn + 1 == plan.rounds:
            sums += attack.weights[start : turn + 1].T @ np.stack(block)
            start, block = turn + 1, []
    sums /= np.float32(plan.clip_norm)
    moved = joined @ attack.weights
    moved = np.asarray(moved.toarray() if hasattr(moved, "toarray") else moved).T
    inside = attack.ratio(sums[:, : shape.canaries] + moved, groups)
    if attack.mirrored:
        sums[:, : shape.canaries] -= moved
    owners = np.concatenate((groups, np.zeros(shape.coordinates - shape.canaries, np.int64)))
    return Trials(
        inside,
        attack.ratio(sums, owners),
        attack.worst(groups),
        attack.worst(owners),
        _always_took_part(plan, participation, watched, places),
        groups,
        np.stack(noise_samples),
        participation,
    )


def shuffled_orders(plan: Plan, random: np.random.Generator) -> list[Ints] | None:
    """Shuffles the data as the caller of a streaming scheme must: once, or for every epoch; one order per round."""
    if not plan.scheme.shuffled_data:
        return None
    passes = plan.epochs if plan.scheme.reshuffled_data else 1
    orders = [random.permutation(plan.examples) for _ in range(passes)]
    return [orders[turn // plan.bins % passes] for turn in range(plan.rounds)]


def _guess_missing_groups(plan: Plan, places: Ints, random: np.random.Generator) -> Ints:
    """Returns bins or groups; an example that never took part gets a random one, drawn conditionally on that."""
    weights = np.ones(period_of(plan.scheme))
    if plan.scheme.sampling_probability < 1:
        returns = np.bincount(np.arange(plan.rounds) % weights.size, minlength=weights.size)
        stay = 1 - plan.scheme.sampling_probability
        weights = np.maximum(stay, 1e-300) ** (returns - returns.min())
    guessed = random.choice(weights.size, places.size, p=weights / weights.sum())
    return np.where(places >= 0, places, guessed)


def _always_took_part(plan: Plan, participation: Participation, watched: Ints, places: Ints) -> NDArray[np.bool_]:
    """Returns which watched examples took part whenever they should.

    Where examples are sampled, or redrawn, this is known only for realisations in which nothing was truncated.
    """
    if plan.scheme.sampling_probability < 1 or plan.scheme.period is None:
        return np.asarray(participation.truncated.sum(axis=1)[watched // plan.examples] == 0)
    cycle = period_of(plan.scheme)
    due = np.bincount(np.arange(plan.rounds) % cycle, minlength=cycle)
    return np.asarray((places >= 0) & (participation.counts()[watched] == due[places]))


def noise_sample(rounds: int, most: int) -> int:
    """Returns the number of coordinates whose noise is tested by itself."""
    return max(2, math.floor(most / rounds))
