"""A bound on how strongly patterns of min-separation batches can attract each other (docs/math.md, section 10.9).

Psi(l) = max over patterns s of log E_s' exp(l m_s . m_s' + offsets of s') - costs of s. The maximum is bounded by
letting s see where s' is before it chooses its next round: a dynamic programme over the rounds of s.
"""

from __future__ import annotations

from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import FloatArray
from galton.sampling.base import wide_jax
from galton.sampling.chords import Chords, Rays
from galton.sampling.renewal import Renewal, renewal, suffix_sums
from galton.separated import SeparatedPair

_LARGEST = 600.0
"""Where a bound exceeds this, or l times twice an entry of the Gram matrix does, no bound is given."""


def correlations(pair: SeparatedPair) -> tuple[FloatArray, FloatArray]:
    """Returns products of column k with columns k + a and k - a, for a < separation, each (rounds, separation)."""
    reach, width = pair.reach, pair.separation
    rows, lags = np.arange(width)[:, None], np.arange(width)
    later = np.pad(reach.overlap, ((0, 1), (0, 0), (0, 0)))
    both = np.concatenate((reach.gram, later), axis=2)
    right = both[:, rows, rows + lags].reshape(-1, width)
    left = np.zeros_like(right)
    for lag in range(width):
        left[lag:, lag] = right[: right.shape[0] - lag, lag]
    return right, left


class SeparationBound(Chords):
    """Upper bounds on Psi, which is convex, for one C and prior."""

    batch = 8

    def __init__(self, pair: SeparatedPair) -> None:
        super().__init__()
        self.pair = pair

    def at_points(self, points: FloatArray) -> FloatArray:
        return self.largest(points)

    @cached_property
    def in_field(self) -> Rays:
        """Bounds on Psi where s' is attracted by the average mode, too: by (share * l, l) in the place of l."""
        products = self.pair.mean_products.reshape(-1, 1)
        return Rays(lambda share, points: self.largest(share * points, products * points), self.batch)

    @cached_property
    def _correlations(self) -> tuple[FloatArray, FloatArray]:
        return correlations(self.pair)

    def largest(
        self, strengths: FloatArray, offsets: FloatArray | None = None, costs: FloatArray | None = None
    ) -> FloatArray:
        """Returns a bound on Psi at each of these points.

        Args:
          strengths: (points,).
          offsets: (rounds, points), what is added to the fields of rounds of s'; none if None.
          costs: (rounds, points), what each round of s costs; nothing if None.
        """
        right, left = self._correlations
        none = np.zeros((right.shape[0], strengths.size))
        offsets, costs = none if offsets is None else offsets, none if costs is None else costs
        with wide_jax():
            prior = renewal(self.pair)
            fixed = self.pair.separation == self.pair.interval
            usable = np.where(2 * strengths * right.max() + np.abs(offsets).max(axis=0) > _LARGEST, 0.0, strengths)
            arrays = (jnp.asarray(part) for part in (right, left, usable, offsets, costs))
            logs = np.asarray(_largest_sums(*arrays, prior, fixed))
        bounds = logs + 1e-9 + 1e-12 * right.shape[0] * (1 + np.abs(logs))
        return np.where((strengths == usable) & (bounds < _LARGEST), bounds, np.inf)


@partial(jax.jit, static_argnames=("fixed",))
def _largest_sums(
    right: jax.Array,
    left: jax.Array,
    strengths: jax.Array,
    offsets: jax.Array,
    costs: jax.Array,
    prior: Renewal,
    fixed: bool,
) -> jax.Array:
    """The dynamic programme. Axes are (gap, round, point); a gap is that between two rounds of s.

    A *window* of round k bounds the sums over the rest of s', by the first round that s' may take, from separation - 1
    rounds before k to separation - 1 rounds after it, if s has round k and what it has before does not matter. An
    *idle* window of round j is the same, for the rounds from j on, if s has no round before j + separation - 1.
    """
    width, points = right.shape[1], strengths.size
    beyond = ((0, 2 * width), (0, 0))  # rounds without effect, so that s may stop
    right, left, offsets, costs = (jnp.pad(part, beyond) for part in (right, left, offsets, costs))
    rounds = right.shape[0]
    gaps = 1 if fixed else width
    places = jnp.arange(width)
    lags = jnp.arange(gaps)[:, None] + width - places  # from a round of s' to the next round of s: 1 to 2 width - 1
    favour = jnp.exp(jnp.pad(offsets, ((width, width), (0, 0))))  # of rounds of s'

    def extend(after: jax.Array, attracted: jax.Array) -> jax.Array:
        """Goes back from round k of s to the width - 1 rounds before it, which are under its influence alone."""

        def back(window: jax.Array, lag: jax.Array) -> tuple[jax.Array, None]:
            taken = attracted[lag] * window[2 * width - 1 - lag]
            value = prior.powers[1] * window[width - lag] + prior.chance * taken
            return window.at[width - 1 - lag].set(value), None

        window = jnp.zeros((2 * width - 1, points)).at[width - 1 :].set(after)
        return jax.lax.scan(back, window, jnp.arange(1, width))[0]

    def step(
        state: tuple[jax.Array, jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        """State: windows, attractions to the left and idle windows of the rounds k + 1 .. k + 2 width - 1."""
        windows, attractions, idles = state
        turn, rightward, leftward, cost = inputs
        candidates = slice(width - 1, width - 1 + gaps)
        reached = jnp.take_along_axis(windows[candidates], (2 * width - 1 - lags)[:, :, None], axis=1)
        pulled = jnp.take_along_axis(attractions[candidates], jnp.minimum(lags, width)[:, :, None], axis=1)
        ahead = jax.lax.dynamic_slice_in_dim(favour, turn + width, width)
        own = prior.chance * jnp.exp(rightward[:, None] * strengths) * ahead
        passed = windows[candidates][jnp.arange(gaps), width - 1 - jnp.arange(gaps)]
        weights = own * pulled * reached
        if not fixed:  # or s waits
            weights = jnp.concatenate((weights, (own * idles[-1])[None]))
            passed = jnp.concatenate((passed, idles[-1][:1]))
        sums = suffix_sums(jnp.moveaxis(weights, 1, 2), prior.powers)
        after = (sums + passed[:, :, None] * prior.powers[:0:-1]).max(axis=0).T * jnp.exp(-cost)
        attracted = jnp.concatenate((jnp.exp(leftward[:, None] * strengths), jnp.ones((1, points))))
        behind = jax.lax.dynamic_slice_in_dim(favour, turn + 1, width)[::-1]  # rounds k, k - 1, ...
        window = extend(after, attracted[:width] * behind)
        waited = prior.powers[1] * idles[0][0] + prior.chance * behind[-1] * idles[0][-1]
        idle = jnp.maximum(jnp.concatenate((waited[None], idles[0][:-1])), window[:width])
        following = (
            jnp.concatenate((window[None], windows[:-1])),
            jnp.concatenate((attracted[None], attractions[:-1])),
            jnp.concatenate((idle[None], idles[:-1])),
        )
        return following, (window, idle)

    many = 2 * width - 1
    begin = (jnp.ones((many, many, points)), jnp.ones((many, width + 1, points)), jnp.ones((many, width, points)))
    _, (windows, idles) = jax.lax.scan(step, begin, (jnp.arange(rounds), right, left, costs), reverse=True)
    first = places[:, None]
    begun = jnp.take_along_axis(windows[:width], (width - 1 - first + places)[:, :, None], axis=1)
    if not fixed:
        begun = jnp.concatenate((begun, idles[width - 1][None]))
    totals = jnp.einsum("krl,r->kl", begun, prior.start)
    return jnp.log(totals.max(axis=0))
