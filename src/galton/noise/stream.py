"""C^-1 z for a whole model: noise of one round after the other, with explicit state.

The shape is that of optax: `init(params)` makes the state, `next(state)` returns this round's noise, a tree like the
parameters, and the state after it. Both are pure; `step` is `next` compiled, with buffers updated in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp

from galton import files
from galton.errors import InvalidArgument, choice, positive
from galton.noise.forms import FORMS, Draws, Form
from galton.noise.keys import check_key, fresh_key
from galton.noise.layout import Layout, Tree, layout_of
from galton.noise.normals import ERROR
from galton.strategies import Strategy

MARGIN = 1 + 2.0**-20
"""All noise is larger by this factor, which is above 1 + ERROR: rounding of normals never makes it too small."""
assert MARGIN > 1 + ERROR


@partial(jax.tree_util.register_dataclass, data_fields=["key", "round", "buffers"], meta_fields=["layout"])
@dataclass(frozen=True, eq=False)
class NoiseState:
    """All that the noise of coming rounds depends on, beside strategy and deviation. The key is a secret.

    Attributes:
      key: four uint32 words.
      round: index of the coming round.
      buffers: for every vector of the layout an array of shape (memory, size).
      layout: how vectors make up the model; static.
    """

    key: jax.Array = field(repr=False)
    round: jax.Array
    buffers: list[jax.Array]
    layout: Layout


@dataclass(frozen=True, eq=False)
class CorrelatedNoise:
    """Noise stddev * C^-1 z, with z independent standard normals that depend on (key, round, position) only.

    Args:
      strategy: C.
      stddev: standard deviation of z per coordinate: noise multiplier times clip norm, for a sum of clipped gradients
        and a C of sensitivity 1 (otherwise times the sensitivity).
      form: `buffers` keeps what the strategy's stream keeps: D models for a BLT, W-1 for W bands, n-1 for a full
        Toeplitz or dense C, one per level for a tree. `recompute` keeps no buffer at all and draws z_0..z_t anew in
        round t: exact for every square C with any number of rounds, at t times the cost. galton knows no
        other exact form of a full Toeplitz C in bounded memory; to save both, analyse and run a BLT instead.

    Formal guarantees:
      - The noise of all rounds together is Gaussian with covariance (MARGIN * stddev)^2 C^-1 C^-T per coordinate
        (for a tree: B B^T for its decoder B), independent between coordinates, up to float32 rounding and to the
        quality of the generator (`noise/threefry.py`).
      - Rounds before the first and after the last of the strategy have no noise: `next` returns NaN there, so
        that a run that is too long fails where it can be seen.
      - The same state gives the same noise, bit by bit on the same platform. So a round that is computed again adds
        the same noise, and the two results must not both be published unless the gradients were the same:
        `noise/journal.py` keeps watch.

    >>> from galton.strategies import Blt
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
        """Copies of the model that the state holds."""
        return self._form.memory

    @cached_property
    def digest(self) -> str:
        """A content hash of strategy, deviation and form: what a checkpoint must agree with."""
        return files.digest({"strategy": self.strategy.digest, "stddev": float(self.stddev), "form": self.form})

    def init(self, params: Tree, key: jax.Array | None = None) -> NoiseState:
        """Returns the state before the first round; the key comes from the operating system unless given."""
        if key is None and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
            raise InvalidArgument(
                "key", None, "must be given inside jit or vmap: a fresh one would be the same each time"
            )
        key, layout = fresh_key() if key is None else check_key(key), layout_of(params)
        buffers = [jnp.zeros((self.memory, size), dtype) for size, dtype in layout.groups]
        return NoiseState(key, jnp.zeros((), jnp.int32), buffers, layout)

    def next(self, state: NoiseState) -> tuple[Tree, NoiseState]:
        """Returns the noise of this round and the state after it; pure, for use inside `jit` and `scan`.

        Noise is float32, or float64 where the parameters are.
        """
        if any(buffer.shape[0] != self.memory for buffer in state.buffers):
            copies = state.buffers[0].shape[0]
            raise InvalidArgument("state", copies, f"must hold {self.memory} buffers: made by another noise?")
        inside = (state.round >= 0) & (state.round < self.strategy.rounds)
        scale = jnp.where(inside, jnp.float32(self.stddev * MARGIN), jnp.float32(jnp.nan))
        drawn = [
            self._form.draw(Draws(state.key, state.round, number, scale), buffer)
            for number, buffer in enumerate(state.buffers)
        ]
        noise = state.layout.unflatten([x for x, _ in drawn])
        return noise, NoiseState(state.key, state.round + 1, [after for _, after in drawn], state.layout)

    @cached_property
    def step(self) -> Callable[[NoiseState], tuple[Tree, NoiseState]]:
        """`next`, compiled; it takes over the buffers of the state it is given, which must not be used again."""

        @partial(jax.jit, donate_argnums=(0,))
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
