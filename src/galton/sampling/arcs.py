"""A tilt by a product of polynomials, one factor an arc of neighbouring bins, for banded G (docs/math.md, 18.9).

As in `levels`, but a factor is a function of the sum of all X of an arc: where neighbours are up together, no more is
counted than their sum calls for. Expanded, a factor has a term for every way to spread some modes over the bins of its
arc, and with banded G only neighbouring arcs attract each other: a chain on a circle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

from galton.errors import FloatArray
from galton.sampling.arc_ranges import ArcRange
from galton.sampling.chains import IntArray, Ring, ring
from galton.sampling.factor import factor_residual
from galton.sampling.levels import cheapest_coefficients, shortfall
from galton.sampling.strata import EvenLine, even_line

_TOTALS = ((1, 2, 3, 6), (1, 2, 3, 7), (1, 2, 3, 8), (1, 2, 3, 5, 9), (1, 2, 4, 7, 12))
"""Numbers of modes in an arc that are tried beside 0: the best coefficients of all others are nearly 0."""
_WIDTHS = (1, 2, 4)
"""Bins in a part."""
_MOST_PARTS = 8
_FARTHEST = 32
_MOST_STATES, _MOST_SECTOR_STATES = 1 << 14, 400
_MOST_NUMBERS = 1 << 23
"""Numbers in the table that the chain is drawn from."""
_MOST_TUPLES, _LARGEST_POWER = 60_000, 24
_LARGEST_EXPONENT = 600.0
_FEWEST_ARCS = 3
_STARTS = ((18.0, 0.65), (24.0, 0.5), (40.0, 0.3))
"""Where the search starts: theta b exp(epsilon), and the cut as a share of b exp(epsilon)."""
_NEAR = 1.0
"""By how much the search may be expected to lower the logarithm of the range at its start."""
_ITERATIONS = 8
_MARGIN = 1e-9
"""Added to logarithms of normalisers for their rounding, which is far smaller."""


def spread_counts(places: int, totals: tuple[int, ...]) -> IntArray:
    """Returns all ways to put one of these numbers of modes into so many places, one a row."""
    rows, sums = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    for _ in range(places):
        choices = max(totals) - sums + 1
        repeated = np.repeat(np.arange(sums.size), choices)
        added = np.arange(repeated.size) - np.repeat(np.cumsum(choices) - choices, choices)
        rows, sums = np.column_stack((rows[repeated], added)), sums[repeated] + added
    return np.asarray(rows[np.isin(sums, totals)])


@dataclass(frozen=True, eq=False)
class Splits:
    """How modes that are in one place are spread over what it consists of.

    Attributes:
      ends: for every way, the number of its place plus the running sum of the probabilities of the ways there.
      rows: the ways, one a row, in order of places.
    """

    ends: FloatArray
    rows: IntArray

    @property
    def rounding(self) -> float:
        """Bounds how far the law of a draw is from what running sums say: they are stored with the place's number."""
        most = int(np.bincount(np.ceil(self.ends).astype(np.int64)).max())
        return 2.0 * (most + 1) * float(np.spacing(self.ends[-1]))


def splits(places: IntArray, log_weights: FloatArray, rows: IntArray) -> Splits:
    """Returns the table that ways are drawn from, given the number of their place; numbers begin at 0."""
    order = np.argsort(places, kind="stable")
    places, logs = places[order], log_weights[order]
    starts = np.flatnonzero(np.append(True, np.diff(places) > 0))
    peaks = np.maximum.reduceat(logs, starts)
    weights = np.exp(logs - np.repeat(peaks, np.diff(np.append(starts, places.size))))
    ends = np.empty(places.size)
    for start, end in zip(starts, np.append(starts[1:], places.size), strict=True):
        running = np.cumsum(weights[start:end])
        ends[start:end] = places[start] + running / running[-1]
    return Splits(ends, rows[order])


@dataclass(frozen=True, eq=False)
class ArcChain:
    """The circle of bins in arcs, an arc in sectors, a sector in parts, a part in bins, and modes spread over all that.

    Two modes attract each other as their bins do if these are in one part, as the closest bins of their parts do if
    these are in one arc, as the closest bins of their sectors do if these are in neighbouring arcs: never less than by
    G, up to `ring.beyond`.

    Attributes:
      ring: the bins, in groups of one.
      width: bins in a part.
      sectors: parts in each sector of an arc.
      totals: numbers of modes that an arc may have; the first is 0.
    """

    ring: Ring
    width: int
    sectors: tuple[int, ...]
    totals: tuple[int, ...]
    _masses: dict[int, float] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        """Parts of an arc."""
        return sum(self.sectors)

    @property
    def size(self) -> int:
        """Bins of an arc."""
        return self.width * self.parts

    @property
    def arcs(self) -> int:
        """Arcs of the circle."""
        return self.ring.groups // self.size

    def _lag(self, distance: IntArray) -> FloatArray:
        """Bounds on G at these distances."""
        lags = np.append(self.ring.lags, self.ring.beyond)
        return np.asarray(lags[np.minimum(np.abs(distance), lags.size - 1)])

    @cached_property
    def part_lags(self) -> FloatArray:
        """Bounds on G between parts at distance 0, 1, ..., two arcs."""
        reach = np.arange(1 - self.width, self.width)
        distances = self.width * np.arange(2 * self.parts)[:, None] + reach
        return np.asarray(self._lag(distances).max(axis=1))

    @cached_property
    def in_part(self) -> FloatArray:
        """Bounds on G between bins of a part."""
        places = np.arange(self.width)
        return self._lag(np.subtract.outer(places, places))

    @cached_property
    def _sector_of(self) -> IntArray:
        return np.repeat(np.arange(len(self.sectors)), self.sectors)

    @cached_property
    def sector_attraction(self) -> FloatArray:
        """Bounds on G between sectors of an arc (rows) and those of the next (columns)."""
        places = np.arange(self.parts)
        parts = self.part_lags[self.parts + places - places[:, None]]
        count, sector = len(self.sectors), self._sector_of
        bounds = np.zeros((count, count))
        np.maximum.at(bounds, (sector[:, None], sector), parts)
        return bounds

    def raised(self) -> FloatArray:
        """Returns what modes attract each other by, bin by bin."""
        bins = np.arange(self.ring.groups)
        arc, part = bins // self.size, bins // self.width
        sector = arc * len(self.sectors) + self._sector_of[part % self.parts]
        here = np.where(
            np.equal.outer(part, part),
            self._lag(np.subtract.outer(bins, bins)),
            self.part_lags[np.minimum(np.abs(np.subtract.outer(part, part)), 2 * self.parts - 1)],
        )
        after = self.sector_attraction[sector[:, None] % len(self.sectors), sector % len(self.sectors)]
        apart = np.subtract.outer(arc, arc) % self.arcs
        raised = np.where(apart == 0, here, np.where(apart == self.arcs - 1, after, 0.0))
        return np.asarray(np.where(apart == 1, after.T, raised))

    def _in_part_rows(self, count: int) -> tuple[IntArray, FloatArray]:
        """All ways to spread `count` modes over the bins of a part, and logarithms of their weights."""
        rows = spread_counts(self.width, (count,))
        energies = ((rows @ self.in_part) * rows).sum(axis=1) / 2 - count * float(self.ring.lags[0]) / 2
        return rows, energies - gammaln(rows + 1.0).sum(axis=1)

    def part_splits(self, most: int) -> Splits:
        """Returns how up to so many modes of a part are spread over its bins."""
        ways = [self._in_part_rows(count) for count in range(most + 1)]
        places = np.repeat(np.arange(most + 1), [logs.size for _, logs in ways])
        return splits(places, np.concatenate([logs for _, logs in ways]), np.concatenate([rows for rows, _ in ways]))

    def log_masses(self, states: IntArray) -> FloatArray:
        """Returns the logarithm of the weight of so many modes in each part of an arc, one row a state."""
        for count in range(int(states.max()) + 1):
            if count not in self._masses:
                self._masses[count] = float(logsumexp(self._in_part_rows(count)[1]))
        alone = np.array([self._masses[count] for count in range(int(states.max()) + 1)])
        places = np.arange(self.parts)
        between = self.part_lags[np.abs(np.subtract.outer(places, places))] * (1 - np.eye(self.parts))
        energies = ((states @ between) * states).sum(axis=1) / 2
        return np.asarray(energies + alone[states].sum(axis=1) + gammaln(states.sum(axis=1) + 1.0))

    @cached_property
    def states(self) -> IntArray:
        """All numbers of modes in the parts of an arc, one a row."""
        return spread_counts(self.parts, self.totals)

    @cached_property
    def _sector_states(self) -> tuple[IntArray, IntArray]:
        """Numbers of modes in sectors, one a row, and for every state the number of its row."""
        counts = np.zeros((self.states.shape[0], len(self.sectors)), np.int64)
        np.add.at(counts.T, self._sector_of, self.states.T)
        rows, places = np.unique(counts, axis=0, return_inverse=True)
        return rows, places.ravel()

    @cached_property
    def kinds(self) -> IntArray:
        """For every state of sectors, the number of its total among `totals`."""
        return np.searchsorted(np.array(self.totals), self._sector_states[0].sum(axis=1))

    @cached_property
    def log_sector_masses(self) -> FloatArray:
        """For every state of sectors, the logarithm of the weight of all states of parts that make it up."""
        rows, places = self._sector_states
        logs = self.log_masses(self.states)
        peaks = np.full(rows.shape[0], -np.inf)
        np.maximum.at(peaks, places, logs)
        return np.asarray(peaks + np.log(np.bincount(places, np.exp(logs - peaks[places]))))

    @cached_property
    def attraction(self) -> FloatArray:
        """Factors of the weight for the states of sectors of an arc (rows) and of the next (columns)."""
        rows = self._sector_states[0]
        return np.exp(rows @ self.sector_attraction @ rows.T)

    def sector_splits(self) -> Splits:
        """Returns how modes in sectors are spread over parts."""
        return splits(self._sector_states[1], self.log_masses(self.states), self.states)

    def weights(self, log_coefficients: FloatArray) -> FloatArray:
        """Returns the weight of every state of sectors, without attraction between arcs."""
        return np.exp(log_coefficients[self.kinds] + self.log_sector_masses)

    def roughly(self, log_coefficients: FloatArray) -> tuple[float, FloatArray]:
        """Returns about the logarithm of the total weight, and its derivatives by the logarithms of coefficients."""
        if float((log_coefficients[self.kinds] + self.log_sector_masses).max()) > _LARGEST_EXPONENT / 2:
            return math.inf, np.ones(len(self.totals))
        weights, matrix = self.weights(log_coefficients), self.attraction
        after, before, scale = np.ones(weights.size), np.ones(weights.size), 1.0
        for _ in range(_ITERATIONS):
            after, before = matrix @ (weights * after), matrix.T @ (weights * before)
            scale = float(after.max())
            after, before = after / scale, before / float(before.max())
        shares = before * weights * after
        counts = np.bincount(self.kinds, shares, len(self.totals)) / shares.sum()
        return self.arcs * math.log(scale), self.arcs * counts

    def futures(self, log_coefficients: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Returns the tables to draw from, and the logarithm of the total weight of all states on the circle.

        The first table has the weight of every state of the first arc. The second has, for every arc but the first, the
        state of the first arc and that of the arc, the total weight of the arc and all after it, up to a factor.
        """
        weights, matrix = self.weights(log_coefficients), self.attraction
        following, log_scale, tables = matrix.T, 0.0, []
        for _ in range(self.arcs - 1):
            tables.append(following * weights)  # by the state of the first arc, and of this one
            following = tables[-1] @ matrix.T
            scale = float(following.max())
            following, log_scale = following / scale, log_scale + math.log(scale)
        first = weights * following.diagonal()
        return first, np.array(tables[::-1]), log_scale + math.log(float(first.sum()))

    def tuples(self, power: int) -> tuple[IntArray, FloatArray]:
        """Returns all numbers of modes of a tuple in the parts of one arc, and logarithms of the weights.

        The weight has a factor for one mode more that may be anywhere: the mean over all bins.
        """
        rows = spread_counts(self.parts, (power,))
        return rows, self.log_masses(rows) + self.log_around(rows)

    @cached_property
    def around(self) -> FloatArray:
        """Bounds on G between the parts of an arc (rows) and those of the arcs before, here, and after (columns)."""
        places = np.arange(-self.parts, 2 * self.parts)
        distances = np.abs(np.subtract.outer(np.arange(self.parts), places))
        return np.asarray(self.part_lags[np.minimum(distances, 2 * self.parts - 1)])

    def log_around(self, rows: IntArray) -> FloatArray:
        """Returns the logarithm of a bound on the mean of exp(G u) over all bins, for so many modes in parts."""
        near = self.width * np.exp(rows @ self.around).sum(axis=1)
        far = (self.ring.groups - 3 * self.size) * np.exp(rows.sum(axis=1) * self.ring.beyond)
        return np.asarray(np.log((near + far) / self.ring.groups))


@dataclass(frozen=True, eq=False)
class ArcTilt:
    """Factors for all arcs, and the cut up to which they bound exp(theta s), s the sum of X of an arc.

    Attributes:
      chain: the arcs.
      log_coefficients: logarithms of the coefficients of the factors.
      theta: of the tilt that the product stands for.
      cut: logarithm of the sum of X of an arc up to which factors are large enough.
      power: modes of a tuple, all in one arc, around which points with more are drawn.
      log_tuples: logarithm of the total weight of all tuples.
      log_normaliser: logarithm of the total weight of all states.
      log_bound: logarithm of a bound on V below the cut, but for -theta b exp(epsilon) and far modes.
      line: the line that has strata.
    """

    chain: ArcChain
    log_coefficients: FloatArray
    theta: float
    cut: float
    power: int
    log_tuples: float
    log_normaliser: float
    log_bound: float
    line: EvenLine

    def best_share(self, epsilon: float) -> float:
        """Returns about the share of samples around tuples for which the range at this epsilon is smallest."""
        return self._averages(epsilon).best_share(self._log_above, self._log_below(epsilon))

    def log_range(self, epsilon: float, share: float | None = None) -> float:
        """Returns the logarithm of the range of averages over strata at this epsilon.

        Args:
          epsilon: where delta is wanted.
          share: of samples around tuples; the best one if it is omitted.
        """
        share = self.best_share(epsilon) if share is None else share
        return self._averages(epsilon).log_range(self._log_above, self._log_below(epsilon), share)

    @property
    def _log_above(self) -> float:
        """Logarithm of a bound on V where an arc is above the cut, but for 1 / share."""
        return self.log_tuples - self.power * self.cut + self._log_beyond + _MARGIN

    @property
    def _log_beyond(self) -> float:
        """Bounds by how much less modes attract each other in the chain than by G, as far ones do not at all."""
        return self.chain.ring.beyond * (float(self.chain.totals[-1]) * self.chain.arcs) ** 2 / 2

    def _strength(self, epsilon: float) -> float:
        return self.theta * self.chain.ring.groups * math.exp(min(epsilon, 100.0))

    def _log_below(self, epsilon: float) -> float:
        """Logarithm of a bound on V where no arc is above the cut, but for 1 / (1 - share)."""
        return self.log_bound + self._log_beyond - self._strength(epsilon)

    def _averages(self, epsilon: float) -> ArcRange:
        return ArcRange(self._strength(epsilon), self.power, self.line.slope * (1 - 1e-9))


def best_arcs(gram: FloatArray, epsilon: float, log_worth: float = math.inf) -> ArcTilt | None:
    """Returns the tilt with about the smallest range at `epsilon`; None if G is not banded, or no arcs will do.

    Args:
      gram: G.
      epsilon: where delta is wanted.
      log_worth: logarithm of the range that it must be below; where it will not be, the search ends early.
    """
    bins = ring(gram, 1, _FARTHEST)
    line = None if bins is None else even_line(gram, factor_residual(gram))
    if bins is None or line is None:
        return None
    above: dict[int, dict[int, float]] = {}
    fits: list[_Fit] = []
    for chain in _chains(bins):
        if chain.width not in above:
            above[chain.width] = log_tuples(chain)
        fits.append(_Fit(chain, epsilon, above[chain.width], line))
    best = min(fits, key=lambda fit: fit.start[0], default=None)
    if best is None or best.start[0] > log_worth + _NEAR:
        return None
    tilt = best.best()
    return None if tilt is None or tilt.log_range(epsilon) >= log_worth else tilt


def _chains(bins: Ring) -> Iterator[ArcChain]:
    """The chains that are worth a try: parts of one bin if possible, else of two and of four; fine sectors or not."""
    for width in _WIDTHS:
        affordable = False
        for parts in range(2, _MOST_PARTS + 1):
            size = width * parts
            if size >= bins.memory and bins.groups % size == 0 and bins.groups // size >= _FEWEST_ARCS:
                for sectors in _sectors(parts):
                    for totals in _TOTALS:
                        chain = ArcChain(bins, width, sectors, (0, *totals))
                        if _affordable(chain):
                            affordable = True
                            yield chain
                break
        if affordable and width == 1:
            return


def _sectors(parts: int) -> list[tuple[int, ...]]:
    """Sectors of one part, of two in the middle, and of two."""
    fine, pairs = (1,) * parts, (2,) * (parts // 2) + (1,) * (parts % 2)
    if parts < 6:
        return [fine, pairs]
    return [fine, (1, 1, *((2,) * ((parts - 4) // 2)), *((1,) * (parts % 2)), 1, 1), pairs]


def _affordable(chain: ArcChain) -> bool:
    """Whether its tables are small enough, and the exponents in them."""
    most, states = chain.totals[-1], _number(len(chain.sectors), chain.totals)
    return (
        _number(chain.parts, chain.totals) <= _MOST_STATES
        and states <= _MOST_SECTOR_STATES
        and states**2 * chain.arcs <= _MOST_NUMBERS
        and most**2 * (float(chain.sector_attraction.max()) + float(chain.ring.lags[0]) / 2) <= _LARGEST_EXPONENT / 2
    )


def log_tuples(chain: ArcChain) -> dict[int, float]:
    """Returns the logarithms of the total weights of all tuples of one arc, by how many modes they have."""
    parts, powers = chain.parts, range(3, _LARGEST_POWER + 1)
    affordable = [power for power in powers if math.comb(power + parts - 1, parts - 1) <= _MOST_TUPLES]
    return {power: float(logsumexp(chain.tuples(power)[1])) + math.log(chain.arcs) for power in affordable}


def _number(places: int, totals: tuple[int, ...]) -> int:
    """How many ways there are to put one of these numbers of modes into so many places."""
    return sum(math.comb(total + places - 1, places - 1) for total in totals)


class _Fit:
    """Coefficients for a theta and a cut, and the best of both."""

    def __init__(self, chain: ArcChain, epsilon: float, tuples: dict[int, float], line: EvenLine) -> None:
        self._chain, self._tuples, self._line = chain, tuples, line
        self._mass = chain.ring.groups * math.exp(epsilon)
        self._costs = np.log(np.bincount(chain.kinds, np.exp(chain.log_sector_masses), len(chain.totals)))

    @cached_property
    def start(self) -> tuple[float, FloatArray]:
        """The logarithm of the range, roughly, at the best of a few places, and the place."""
        starts = [np.log((strength / self._mass, cut * self._mass)) for strength, cut in _STARTS]
        ranges = [self._log_range(start) for start in starts]
        best = int(np.argmin(ranges))
        return ranges[best], starts[best]

    def best(self) -> ArcTilt | None:
        """Returns the tilt with about the smallest range."""
        start = self.start[1]
        simplex = start + np.array([(0.0, 0.0), (0.2, 0.0), (0.0, 0.2)])
        optimum = minimize(
            self._log_range,
            start,
            method="Nelder-Mead",
            options={"initial_simplex": simplex, "maxfev": 24, "xatol": 0.02, "fatol": 0.05},
        )
        return self._tilt(math.exp(float(optimum.x[0])), float(optimum.x[1]))

    def _power(self, cut: float) -> int:
        return min(self._tuples, key=lambda power: self._tuples[power] - power * cut)

    def _coefficients(self, theta: float, cut: float) -> tuple[FloatArray, float]:
        levels = np.array(self._chain.totals, float)
        return cheapest_coefficients(levels, theta, cut, self._costs, self._chain.roughly)

    def _log_range(self, where: FloatArray) -> float:
        """The logarithm of the range, roughly, at the logarithms of theta and of the sum of X at the cut."""
        theta, cut = math.exp(float(where[0])), float(where[1])
        log_normaliser = self._coefficients(theta, cut)[1]
        below = log_normaliser - 1 - math.log(theta * self._chain.ring.groups) - theta * self._mass
        power = self._power(cut)
        less_below, less_above = ArcRange(theta * self._mass, power, self._line.slope).log_shapes
        return float(np.logaddexp(self._tuples[power] - power * cut + less_above, below + less_below))

    def _tilt(self, theta: float, cut: float) -> ArcTilt | None:
        """The tilt, its coefficients raised to where they are proved to be large enough; None if too large."""
        chain = self._chain
        levels = np.array(chain.totals, float)
        coefficients, _ = self._coefficients(theta, cut)
        coefficients = coefficients + shortfall(levels, coefficients, theta, cut)
        if not math.isfinite(chain.roughly(coefficients)[0]):
            return None
        log_normaliser = chain.futures(coefficients)[2]
        log_bound = log_normaliser - 1 - math.log(theta * chain.ring.groups) + _MARGIN
        power = self._power(cut)
        log_tuples = self._tuples[power]
        return ArcTilt(chain, coefficients, theta, cut, power, log_tuples, log_normaliser, log_bound, self._line)
