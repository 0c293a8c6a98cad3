"""C^-1 z for a whole model: the noise of one round after the other, with explicit state.

The interface is that of optax: `init(params)` makes the state, `next(state)` returns this round's noise, a tree like
the parameters, and the state after it. Both are pure; `step` is `next` compiled, with buffers updated in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from galton import files
from galton.errors import InvalidArgument, choice, positive
from galton.noise.forms import FORMS, Draws, Form
from galton.noise.keys import check_key, fresh_key
from galton.noise.layout import Layout, Tree, layout_of
from galton.noise.normals import ERROR
from galton.strategies import Strategy
from galton.typechecking import typechecked

MARGIN = 1 + 2.0**-20
"""All noise is multiplied by this factor, which exceeds 1 + ERROR: rounding of normals never makes it too small."""
assert MARGIN > 1 + ERROR

WIDE = {"xla_cpu_prefer_vector_width": 512}
"""XLA keeps to 256 bits on processors with 512, where normals then take twice as long. Their bits are the same."""


@partial(jax.tree_util.register_dataclass, data_fields=["keys", "since", "round", "buffers"], meta_fields=["layout"])
@dataclass(frozen=True, eq=False)
class NoiseState:
    """The state of a `CorrelatedNoise` between two rounds; `CorrelatedNoise.init` makes one. Keep it secret.

    With the strategy, the standard deviation and the form it determines the noise of all rounds to come.

    Attributes:
      keys: the secret keys, shape (number, 4), uint32. There is more than one if a run was taken up again.
      since: the first round that each key is for, in order; of several for a round the last counts.
      round: the next round, counted from 0.
      buffers: an array of shape (memory, size) for every vector of the layout. Where the model is spread over several
        devices, each has the columns that belong to its parameters.
      layout: how the vectors make up the model; static under `jit`.

    Example:
      >>> from galton import square_root
      >>> state = CorrelatedNoise(square_root(8, bands=3), stddev=2.0).init({"w": jnp.zeros(5)})
      >>> int(state.round), [buffer.shape for buffer in state.buffers]
      (0, [(2, 5)])
    """

    keys: jax.Array = field(repr=False)
    since: jax.Array
    round: jax.Array
    buffers: list[jax.Array]
    layout: Layout


@typechecked
@dataclass(frozen=True, eq=False)
class CorrelatedNoise:
    """Correlated noise stddev * C^-1 z for a model, round by round, with z independent standard normals.

    z depends on (key, round, position) only. `Plan.noise` makes the noise that a plan has analysed.

    Attributes:
      strategy: C.
      stddev: standard deviation of z per coordinate. For a sum of clipped gradients it is the noise multiplier times
        the clip norm times the sensitivity of C.
      form: `buffers` keeps what the strategy's stream keeps: D models for a BLT, W-1 for W bands, n-1 for a full
        Toeplitz or dense C, one per level for a tree. `recompute` keeps no buffers and draws z_0..z_t again in round
        t: exact for every square C, at t times the cost; where the inverse of C has W bands (`bisr:W`), at W times
        the cost in every round.

    Formal guarantees:
      - The noise of all rounds together is Gaussian with covariance (MARGIN * stddev)^2 C^-1 C^-T per coordinate
        (for a tree: B B^T with its decoder B), independent between coordinates, up to float32 rounding and to the
        quality of the generator (`noise/threefry.py`).
      - Outside the rounds of the strategy there is no noise: `next` returns NaN there, so that a run that is too long
        fails visibly.
      - Rounds with different keys have independent z, and the law of the noise is the same whatever keys there are.
      - The noise of a model on several devices is made where the parameters are, without communication, and is the
        same on any number of devices, bit by bit on the same platform.
      - The same state gives the same noise, bit by bit on the same platform. So a round that is computed again adds
        the same noise, and unless the gradients were the same the two results must not both be published. `NoiseRun`
        watches over that with a journal.

    Example:
      >>> from galton import Blt
      >>> noise = CorrelatedNoise(Blt(8, [0.9], [0.3]), stddev=2.0)
      >>> state = noise.init({"w": jnp.zeros((3, 2))})
      >>> drawn, state = noise.step(state)
      >>> drawn["w"].shape, int(state.round)
      ((3, 2), 1)
    """

    strategy: Strategy
    stddev: float
    form: str = "buffers"

    def __post_init__(self) -> None:
        positive("stddev", self.stddev)
        choice("form", self.form, tuple(FORMS))
        if self.strategy.rounds >= 2**31:
            raise InvalidArgument("strategy", self.strategy.rounds, "must have fewer than 2^31 rounds")
        _ = self._form  # a strategy that cannot be streamed is refused here

    @cached_property
    def _form(self) -> Form:
        return FORMS[self.form](self.strategy)

    @property
    def memory(self) -> int:
        """Number of copies of the model that the state holds."""
        return self._form.memory

    @cached_property
    def digest(self) -> str:
        """Content hash of strategy, standard deviation and form; a checkpoint loads only where it is the same."""
        return files.digest({"strategy": self.strategy.digest, "stddev": float(self.stddev), "form": self.form})

    def init(self, params: Tree, key: jax.Array | None = None) -> NoiseState:
        """Returns the state before the first round.

        Buffers are made where the parameters are. Call it outside `jit` for a model on several devices: inside nobody
        knows where the parameters are.

        Args:
          params: the model's parameters, a tree of arrays, for their shapes and where they are.
          key: the noise key, by default from the operating system; must be given inside `jit` or `vmap`.

        Returns:
          The state.
        """
        if key is None and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
            raise InvalidArgument(
                "key", None, "must be given inside jit or vmap: a fresh one would be the same each time"
            )
        key, layout = fresh_key() if key is None else check_key(key), layout_of(params)
        buffers = layout.zeros(self.memory)
        return NoiseState(key[None], jnp.zeros(1, jnp.int32), jnp.zeros((), jnp.int32), buffers, layout)

    def next(self, state: NoiseState) -> tuple[Tree, NoiseState]:
        """Returns the noise of this round and the state after it; pure, for use inside `jit` and `scan`.

        Args:
          state: the state before the round.

        Returns:
          The noise, a tree like the parameters, in float32 (float64 where the parameters are); and the state after it.
        """
        if any(buffer.shape[0] != self.memory for buffer in state.buffers):
            copies = state.buffers[0].shape[0]
            raise InvalidArgument("state", copies, f"must hold {self.memory} buffers: made by another noise?")
        shared = (state.keys, state.since, state.round, self.scale(state.round))
        noise, buffers = state.layout.compute(self.draw, shared, state.buffers)
        return noise, replace(state, round=state.round + 1, buffers=buffers)

    def scale(self, turn: jax.Array) -> jax.Array:
        """Returns the standard deviation of z in a round, NaN outside the rounds of the strategy.

        Args:
          turn: the round.
        """
        inside = (turn >= 0) & (turn < self.strategy.rounds)
        return jnp.where(inside, jnp.float32(self.stddev * MARGIN), jnp.float32(jnp.nan))

    def draw(self, shared: Any, group: int, places: jax.Array, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws the noise of the elements at some places; see `layout.Local`.

        Args:
          shared: keys, the rounds since which they are in use, the round, and the standard deviation.
          group: of elements that are numbered together.
          places: numbers of the elements in their group.
          buffers: of these elements.

        Returns:
          The noise, and the buffers after it.
        """
        keys, since, turn, scale = shared
        return self._form.draw(Draws(keys, since, turn, scale, group, places), buffers)

    @cached_property
    def step(self) -> Callable[[NoiseState], tuple[Tree, NoiseState]]:
        """`next`, compiled. It updates buffers in place: do not use a state again after passing it to `step`."""

        @partial(jax.jit, donate_argnums=(0,), compiler_options=WIDE)
        def advance(buffers: list[jax.Array], rest: NoiseState) -> tuple[Tree, NoiseState]:
            return self.next(replace(rest, buffers=buffers))

        def step(state: NoiseState) -> tuple[Tree, NoiseState]:
            if not 0 <= int(state.round) < self.strategy.rounds:
                raise InvalidArgument(
                    "round", int(state.round), f"the strategy has rounds 0 to {self.strategy.rounds - 1} only"
                )
            noise, after = advance(state.buffers, replace(state, buffers=[]))
            return noise, after

        return step
