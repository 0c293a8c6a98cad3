"""The interface of a sampler: chunks of losses with weights, and values V(epsilon) with a range known beforehand."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from numpy.typing import NDArray

from galton.errors import FloatArray, InvalidArgument, count
from galton.guarantee import Direction

SEED_LIMIT = 2**128
"""Seeds are below this: no failure probability that is claimed comes near 2^-128."""
NARROW_SEED = 2**53
"""Seeds below this come from users or from files of galton 0.1; they keep the samples that they had there."""


@dataclass(frozen=True)
class Slack:
    """The price of floating point: losses are right up to `epsilon`, except with probability `lost` per sample."""

    epsilon: float
    lost: float


@dataclass(frozen=True, eq=False)
class Draw:
    """Samples of one chunk: the privacy loss of each, and the logarithm of its importance weight.

    Both have shape (samples,), or (samples, strata) where the value of a sample is the average over its strata.
    """

    loss: FloatArray
    log_weight: FloatArray

    def __len__(self) -> int:
        return self.loss.shape[0]

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """All that was computed, by name; a kind of samples may have more than losses and weights."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def room(self, slack: float, steepness: int) -> dict[str, float | FloatArray]:
        """Returns by how much each of `arrays` may differ where others round otherwise.

        Args:
          slack: by how much a loss may.
          steepness: by how many times that a logarithm of a weight may.
        """
        return {"loss": slack, "log_weight": max(1, steepness) * slack}

    def first(self, size: int) -> Draw:
        """Returns the first `size` samples.

        Args:
          size: how many.

        Returns:
          A shorter chunk; all of it if there are no more.
        """
        return Draw(self.loss[:size], self.log_weight[:size])


@dataclass(frozen=True)
class Layout:
    """How a chunk is cut: `blocks` blocks of `block` samples, one after the other, so that a block stays in cache."""

    block: int
    blocks: int

    @property
    def size(self) -> int:
        """Samples in a chunk."""
        return self.block * self.blocks


def layout(bins: int, most_blocks: int = 32, largest_block: int = 1 << 15) -> Layout:
    """Returns blocks of about 2^17 normals, and chunks that take well under a second on a small machine.

    Sharp samplers need few samples and take small chunks, so that a run can stop soon.
    """
    block = max(1 << 8, min(largest_block, _power_of_two((1 << 17) // bins)))
    return Layout(
        block, max(1, min(most_blocks, (1 << 17) // block, _power_of_two((1 << 30) // (bins * bins * block))))
    )


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


class Sampler(ABC):
    """Independent samples whose mean is delta at every epsilon >= `least_epsilon`, and whose range is known.

    Formal guarantee: V(epsilon) = exp(log_weight) * (1 - exp(epsilon - loss))_+ lies in [0, value_range(epsilon)] and
    has mean delta(epsilon) in this `direction`; computed with rounding +1 (-1), its mean is at least (at most) delta
    up to `lost_delta(epsilon)` (docs/math.md, section 6.1). A chunk is a pure function of (sampler, seed, index). Below
    `least_epsilon`, where samples would miss a part of delta, everything that takes an epsilon refuses.

    Attributes:
      direction: which divergence is estimated.
      slack: the price of floating point.
      layout: samples per chunk, and how they are cut into blocks.
      order: log_weight falls by `order` times an increase in loss, so that the slack in loss reaches the weight too.
      least_epsilon: smallest epsilon at which the samples are valid.
      strata: how many losses a sample has; 0 for a single loss that is no average.
      narrows: whether `measured` can make the range far smaller.
      steepness: by how many times the slack in loss log_weight may be off; `order` unless a sampler says otherwise.
      tilts: whether the range at epsilon - l is e^(order * l) times that at epsilon, for every l, and log_weight is
        what `steepness` says: samples can then be valued by the curve of other releases (docs/math.md, 13.5).
    """

    name: ClassVar[str]
    direction: Direction
    slack: Slack
    layout: Layout
    order: int = 0
    least_epsilon: float = 0.0
    strata: int = 0
    narrows: bool = False
    tilts: bool = False

    def measured(self, seed: int, failure: float, claim: float | None = None) -> tuple[Sampler, float]:
        """Returns a sampler with a smaller range, from samples of its own, and what is left of a failure probability.

        Args:
          seed: of the samples that will be drawn; those here are independent of them.
          failure: probability with which all that rests on the samples may be wrong.
          claim: delta that is to be proved, if there is one.

        Returns:
          By default this sampler, and all of `failure`.
        """
        return self, failure

    @property
    def steepness(self) -> int:
        """By how many times the slack in loss the log weight may be off."""
        return self.order

    def __getstate__(self) -> dict[str, Any]:
        """Sends JAX arrays, and tuples of them, as NumPy arrays, which keep all 64 bits wherever they arrive."""
        arrays = {name: value for name, value in vars(self).items() if _holds_arrays(value)}
        others = {name: value for name, value in vars(self).items() if name not in arrays}
        return {"arrays": jax.tree.map(np.asarray, arrays), "others": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with wide_jax():
            vars(self).update(state["others"], **jax.tree.map(placed, state["arrays"]))

    def value_range(self, epsilon: float) -> float:
        """Returns R with 0 <= V(epsilon) <= R.

        Args:
          epsilon: where delta is wanted; at least `least_epsilon`.

        Returns:
          R, known before sampling.
        """
        if not epsilon >= self.least_epsilon:
            remedy = f"must be at least {self.least_epsilon}, the least that this {self.name} sampler is valid for"
            raise InvalidArgument("epsilon", epsilon, remedy)
        return self._range_at(epsilon)

    @abstractmethod
    def _range_at(self, epsilon: float) -> float:
        """The range, for an epsilon that is allowed."""

    @abstractmethod
    def draw(self, seed: int, index: int) -> Draw:
        """Returns chunk number `index`.

        Args:
          seed: of all chunks.
          index: of the chunk, from 0.

        Returns:
          `layout.size` samples, the same for the same arguments.
        """

    def values(self, draw: Draw, epsilon: float, rounding: int = 0) -> FloatArray:
        """Returns V(epsilon); rounding +1 (-1) gives values whose mean is not below (above) delta despite the slack.

        Args:
          draw: a chunk of this sampler.
          epsilon: where delta is wanted; at least `least_epsilon`.
          rounding: +1 for limits from above, -1 for limits from below, 0 for estimates.

        Returns:
          One value per sample, from 0 to `value_range(epsilon)`.
        """
        value_range = self.value_range(epsilon)
        slack = rounding * self.slack.epsilon
        log_weight = draw.log_weight + self.steepness * slack
        with np.errstate(over="ignore"):
            values = np.exp(log_weight) * -np.expm1(np.minimum(epsilon - slack - draw.loss, 0.0))
        return np.minimum(values.mean(axis=1) if self.strata else values, value_range)

    def rest(self, epsilon: float) -> float:
        """Returns an upper bound on the part of delta that samples leave out; 0 unless `measured` made them do so.

        Args:
          epsilon: where delta is wanted.

        Returns:
          What to add to an upper limit on the mean; lower limits stand as they are.
        """
        return 0.0

    def lost_delta(self, epsilon: float) -> float:
        """Returns how much of delta may hide in samples that floating point lost.

        Args:
          epsilon: where delta is wanted.

        Returns:
          What to add to an upper limit on the mean, and to take off a lower one.
        """
        return self.slack.lost * self.value_range(epsilon)


def _holds_arrays(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


def check_seed(seed: int) -> int:
    """Refuses a seed that is negative or has more than 128 bits."""
    return count("seed", seed, at_least=0, at_most=SEED_LIMIT - 1)


@contextmanager
def wide_jax() -> Iterator[None]:
    """64-bit JAX with fixed random bits, for this thread and this block only."""
    with jax.enable_x64(True), jax.threefry_partitionable(True):
        yield


def placed(values: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns an array where JAX computes; call inside `wide_jax()`.

    What `jnp.asarray` returns, which compiles a program for every new shape: a twentieth of a second each.
    """
    return jax.device_put(np.asarray(values, dtype))


def block_keys(seed: int, direction: Direction, index: int, blocks: int) -> jax.Array:
    """Returns the random keys of the blocks of one chunk; call inside `wide_jax()`.

    A key of JAX's Threefry has 64 bits. Each block has its own, made from all 128 bits of the seed by SHAKE-256, so
    that what a run draws is not a function of 64 bits.
    """
    if seed < NARROW_SEED:
        return jax.random.split(chunk_key(seed, direction, index), blocks)
    return jax.random.wrap_key_data(placed(_wide_words(seed, direction, index, blocks)), impl="threefry2x32")


def _wide_words(seed: int, direction: Direction, index: int, blocks: int) -> NDArray[np.uint32]:
    name = f"galton samples {seed} {direction.stream} {index}".encode()
    return np.frombuffer(hashlib.shake_256(name).digest(8 * blocks), "<u4").astype(np.uint32).reshape(blocks, 2)


def chunk_key(seed: int, direction: Direction, index: int) -> jax.Array:
    """Returns the random key of a chunk that has a single block; call inside `wide_jax()`."""
    if seed >= NARROW_SEED:
        return jax.random.wrap_key_data(placed(_wide_words(seed, direction, index, 1)[0]), impl="threefry2x32")
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    key = jax.random.wrap_key_data(placed(words), impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, direction.stream), index)
