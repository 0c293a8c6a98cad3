"""The best attack on one canary: its log likelihood ratio, from a few linear statistics of the noisy sums.

The canary contributes the clip norm, always in the same direction, to every batch that it is in: the worst case of
docs/math.md, section 1, for C without negative entries. Sums are in units of the clip norm, r = clip norm / stddev.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from galton.accountants.setting import Run
from galton.batching import Scheme
from galton.errors import FloatArray, InvalidArgument
from galton.guarantee import Adjacency
from galton.strategies.whitening import Whitening

_BLOCK = 256
"""Columns of C handled at a time."""
NEARLY_WORST = 0.9
"""Known bins whose |m_i|^2 is at least this share of the largest count as worst-case places."""


class Attack(Protocol):
    """An observer who knows C, the noise and all other examples.

    Attributes:
      weights: (rounds, width); the statistics are weights^T g for noisy sums g.
      gram: the products that the ratio rests on, as `Accountant.gram` has them; None if there is nothing to compare.
      mirrored: whether the other data set has the opposite canary, instead of none.
      silent: whether trials without canary need no batches.
    """

    @property
    def weights(self) -> Any: ...
    @property
    def gram(self) -> FloatArray | None: ...
    @property
    def mirrored(self) -> bool: ...
    @property
    def silent(self) -> bool: ...

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        """Returns the log likelihood ratio of every column; `own`: its bin or group, if the observer knows it."""

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which canaries are in a worst-case place."""

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """Draws the ratio by the accountant's model, with and without canary; one draw per entry of `own`."""


@dataclass(frozen=True, eq=False)
class Bins:
    """An observer who does not know the bin: L = log (1/b) sum_k exp(y_k - G_kk / 2), y = M^T C g r^2 (section 1.2)."""

    weights: NDArray[np.float32]
    gram: FloatArray
    mirrored: bool

    @property
    def silent(self) -> bool:
        return not self.mirrored

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        half = (self.gram.diagonal() / 2).astype(statistics.dtype)[:, None]
        ratio = _log_mean_exp(statistics - half)
        return ratio - _log_mean_exp(-statistics - half) if self.mirrored else ratio

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        values, vectors = np.linalg.eigh(self.gram)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = [root @ random.standard_normal((root.shape[1], own.size)) for _ in range(2)]
        shifts = [self.gram[:, random.integers(root.shape[0], size=own.size)] for _ in range(2)]
        without = drawn[1] - shifts[1] if self.mirrored else drawn[1]
        return self.ratio(drawn[0] + shifts[0], own), self.ratio(without, own)


@dataclass(frozen=True, eq=False)
class Known:
    """An observer who knows the bin i: L = y_i - G_ii / 2, Gaussian."""

    weights: NDArray[np.float32]
    gram: FloatArray
    mirrored: bool
    silent: bool = False

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        seen = statistics[own, np.arange(own.size)].astype(np.float64)
        return 2 * seen if self.mirrored else seen - self.gram.diagonal()[own] / 2

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        energy = self.gram.diagonal()
        return np.asarray(energy[own] >= NEARLY_WORST * energy.max())

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        energy = self.gram.diagonal()[own]
        noise = np.sqrt(energy) * random.standard_normal((2, own.size))
        if self.mirrored:
            return 2 * (noise[0] + energy), 2 * (noise[1] - energy)
        return noise[0] + energy / 2, noise[1] - energy / 2


@dataclass(frozen=True, eq=False)
class Coins:
    """An observer who knows the group, not the coins: L = sum over its rounds of log(1 - q + q exp(y_t - d_t / 2)).

    Columns of C of one group have no row in common (at most as many bands as groups), so that the rounds are
    independent: y = C^T C g r^2, d_t = |c_t|^2 r^2.
    """

    weights: Any
    energy: FloatArray
    cycle: int
    chance: float
    gram: None = None
    mirrored: bool = False
    silent: bool = False

    def _sum(self, y: NDArray[Any], energy: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            stay, take = np.log1p(-self.chance), np.log(self.chance)
        return np.asarray(np.logaddexp(stay, take + y - energy[:, None] / 2).sum(axis=0, dtype=np.float64))

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        ratios = np.zeros(own.size)
        for group in range(self.cycle):
            inside = own == group
            ratios[inside] = self._sum(statistics[group :: self.cycle, inside], self.energy[group :: self.cycle])
        return ratios

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        sides = [np.zeros(own.size), np.zeros(own.size)]
        for group in range(self.cycle):
            inside, energy = own == group, self.energy[group :: self.cycle]
            shape = (energy.size, int(inside.sum()))
            noise = np.sqrt(energy)[:, None] * random.standard_normal((2, *shape))
            coins = random.random(shape) < self.chance
            sides[0][inside] = self._sum(noise[0] + coins * energy[:, None], energy)
            sides[1][inside] = self._sum(noise[1], energy)
        return sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class Patterns:
    """An observer who knows no bin of any epoch: L = log E_s exp(s.y - s.G.s / 2) over patterns s (section 10).

    y = C^T C g r^2, G = C^T C r^2. If columns of C two epochs apart have no row in common (at most bins + 1 bands), L
    comes from a recursion over the epochs. Products of columns further apart enter by their averages: the ratio is then
    a test that is nearly as good, and what it shows is as true. A partial last epoch is filled up with zeros.

    Attributes:
      matrix: C r, sparse.
      gram: (2 epochs - 1, bins, bins), G in blocks: within each epoch, then between each epoch and the next.
      further: (epochs * bins, 1), for each column the sum of its average products with epochs further apart.
    """

    weights: Any
    matrix: Any
    gram: FloatArray
    further: FloatArray
    mirrored: bool

    @property
    def silent(self) -> bool:
        return not self.mirrored

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        ratio = self._log_mean(statistics, own)
        return ratio - self._log_mean(-statistics, own) if self.mirrored else ratio

    def _log_mean(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        within, between = np.split(self.gram, [self.gram.shape[0] // 2 + 1])
        epochs, bins, _ = within.shape
        fields = np.zeros((epochs * bins, own.size))
        fields[: statistics.shape[0]] = statistics
        fields -= np.diagonal(within, axis1=1, axis2=2).reshape(-1, 1) / 2 + self.further
        logs, reached = np.full(own.size, self.further.sum() / bins / 2), np.ones((bins, own.size))
        for epoch, field in enumerate(fields.reshape(epochs, bins, own.size)):
            peak = field.max(axis=0)
            weight = np.exp(field - peak) / bins * reached
            total = weight.sum(axis=0)
            logs += peak + np.log(total)
            if epoch + 1 < epochs:
                reached = np.exp(-between[epoch]).T @ (weight / total)
        return logs

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        rounds, (blocks, bins, _) = self.matrix.shape[1], self.gram.shape
        epochs = blocks // 2 + 1
        turns = random.integers(bins, size=(epochs, own.size)) + bins * np.arange(epochs)[:, None]
        takes_part = np.zeros((epochs * bins, own.size))
        np.put_along_axis(takes_part, turns, 1.0, axis=0)
        shift = self.matrix @ takes_part[:rounds]
        noise = random.standard_normal((2, *shift.shape))
        without = noise[1] - shift if self.mirrored else noise[1]
        return self.ratio(self.matrix.T @ (noise[0] + shift), own), self.ratio(self.matrix.T @ without, own)


@dataclass(frozen=True, eq=False)
class Rests:
    """An observer who knows no round: L = log E_s exp(sum over s of y_t - d_t / 2), s from the renewal process.

    y = C^T C g r^2, d_t = |c_t|^2 r^2 (docs/math.md, section 10.7). C has at most as many bands as the separation.

    Attributes:
      matrix: C r, sparse.
      gram: (2 blocks - 1, separation, separation), C^T C r^2 in blocks: within each block, then with the next.
      interval: rounds between two participations on average.
    """

    weights: Any
    matrix: Any
    gram: FloatArray
    interval: float
    mirrored: bool

    @property
    def silent(self) -> bool:
        return not self.mirrored

    @property
    def _chance(self) -> float:
        return min(1.0, 1 / (self.interval - self.gram.shape[1] + 1))

    def ratio(self, statistics: NDArray[Any], own: NDArray[np.int64]) -> FloatArray:
        ratio = self._log_mean(statistics)
        return ratio - self._log_mean(-statistics) if self.mirrored else ratio

    def _log_mean(self, statistics: NDArray[Any]) -> FloatArray:
        rounds, separation, chance = statistics.shape[0], self.gram.shape[1], self._chance
        within = self.gram[: self.gram.shape[0] // 2 + 1]
        half = np.diagonal(within, axis1=1, axis2=2).reshape(-1) / 2
        logs = np.zeros(
            (rounds + separation, statistics.shape[1])
        )  # of the sums over what follows, by the first round allowed
        with np.errstate(divide="ignore"):
            take, pass_by = np.log(chance), np.log1p(-chance)
        for turn in range(rounds - 1, -1, -1):
            taken = take + statistics[turn] - half[turn] + logs[turn + separation]
            logs[turn] = np.logaddexp(pass_by + logs[turn + 1], taken)
        start = np.full(separation, 1 / self.interval)
        start[0] = 1 / (chance * self.interval)
        peak = logs[:separation].max(axis=0)
        return np.asarray(peak + np.log(start @ np.exp(logs[:separation] - peak)))

    def worst(self, own: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(own.size, bool)

    def model(self, random: np.random.Generator, own: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        rounds, separation = self.matrix.shape[1], self.gram.shape[1]
        resting = np.floor(random.random(own.size) * self.interval)  # r < separation with probability 1 / interval each
        resting = np.where(resting < separation, resting, 0.0)
        takes_part = np.zeros((rounds, own.size))
        for turn in range(rounds):
            takes_part[turn] = (resting == 0) & (random.random(own.size) < self._chance)
            resting = np.where(takes_part[turn] > 0, separation - 1, np.maximum(resting - 1, 0))
        shift = self.matrix @ takes_part
        noise = random.standard_normal((2, *shift.shape))
        without = noise[1] - shift if self.mirrored else noise[1]
        return self.ratio(self.matrix.T @ (noise[0] + shift), own), self.ratio(self.matrix.T @ without, own)


def unknown_bin(run: Run, adjacency: Adjacency, whitening: Whitening) -> Bins:
    """Returns the attack of an observer who does not know the canary's bin."""
    return Bins(*_bins(run, whitening), mirrored=adjacency.sides > 1)


def known_bin(run: Run, adjacency: Adjacency, whitening: Whitening) -> Known:
    """Returns the attack of an observer who knows the canary's bin."""
    return Known(*_bins(run, whitening), mirrored=adjacency.sides > 1)


def _bins(run: Run, whitening: Whitening) -> tuple[NDArray[np.float32], FloatArray]:
    bins, scale = period_of(run.scheme), run.sigma**-2
    modes = whitening.apply(np.eye(bins)[np.arange(run.strategy.rounds) % bins])
    return (whitening.adjoint(modes) * scale).astype(np.float32), modes.T @ modes * scale


def unknown_coins(run: Run, whitening: Whitening) -> Coins:
    """Returns the attack of an observer who knows the canary's group; C must have at most as many bands as groups."""
    matrix = _sparse(run, whitening)
    square = matrix.T @ matrix
    groups = period_of(run.scheme)
    return Coins(square.astype(np.float32).tocsr(), square.diagonal(), groups, run.scheme.sampling_probability)


def unknown_pattern(run: Run, adjacency: Adjacency, whitening: Whitening) -> Patterns:
    """Returns the attack of an observer who knows no bin of any epoch."""
    matrix = _sparse(run, whitening)
    square = (matrix.T @ matrix).tocsr()
    weights = square.astype(np.float32)
    bins, epochs = run.bins, -(-run.strategy.rounds // run.bins)
    blocks = _blocks(square, bins)
    epoch = np.repeat(np.arange(epochs), bins)
    averages = square @ (epoch[:, None] == np.arange(epochs)) / bins
    further = np.where(np.abs(epoch[:, None] - np.arange(epochs)) > 1, averages, 0.0).sum(axis=1, keepdims=True)
    return Patterns(weights, matrix, blocks, further, mirrored=adjacency.sides > 1)


def unknown_rests(run: Run, adjacency: Adjacency, whitening: Whitening) -> Rests:
    """Returns the attack of an observer who knows no round; C must have as many bands as the separation."""
    matrix = _sparse(run, whitening)
    square = (matrix.T @ matrix).tocsr()
    weights = square.astype(np.float32)
    return Rests(weights, matrix, _blocks(square, run.strategy.bands), run.bins, mirrored=adjacency.sides > 1)


def _blocks(square: Any, width: int) -> FloatArray:
    """Cuts a sparse matrix, filled up with zeros in place, into blocks on the diagonal, then those right of them."""
    size = -(-square.shape[0] // width) * width
    square.resize(size, size)
    starts = range(0, size, width)
    within = [square[start : start + width, start : start + width].toarray() for start in starts]
    between = [square[start : start + width, start + width : start + 2 * width].toarray() for start in starts[:-1]]
    return np.stack(within + between)


def _sparse(run: Run, whitening: Whitening) -> Any:
    """C r, column by column."""
    rounds = run.strategy.rounds
    parts = [
        sparse.csc_array(whitening.columns(start, min(start + _BLOCK, rounds))) for start in range(0, rounds, _BLOCK)
    ]
    return sparse.hstack(parts, format="csc") / run.sigma


def period_of(scheme: Scheme) -> int:
    """Returns after how many rounds an example's turn comes again; batches without cycles cannot be audited."""
    if scheme.period is None:
        raise InvalidArgument("scheme", scheme.name, "batches that do not return in cycles cannot be audited")
    return scheme.period


def _log_mean_exp(x: NDArray[Any]) -> FloatArray:
    top = x.max(axis=0)
    return np.asarray(top + np.log(np.exp(x - top).mean(axis=0)), np.float64)
