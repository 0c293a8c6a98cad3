"""Sums of clipped gradients in JAX: at once, in micro-batches, or by several devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from galton.errors import count, positive
from galton.noise.layout import Tree
from galton.training.jax_devices import over_devices
from galton.training.run import ROUNDING

KEYS = "threefry2x32"
"""The kind of random keys that losses get."""

Loss = Callable[..., Any]
"""loss(params, example), or loss(params, example, key): the loss of one example, which has no batch axis."""
ClippedSum = Callable[[Tree, Tree, Any], Tree]
"""total(params, batch, mask): the sum of clipped gradients over the batch."""


def clipped_sum(
    loss: Loss,
    clip_norm: float,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    *,
    measured: bool = False,
    sharding: NamedSharding | None = None,
) -> ClippedSum:
    """Returns a function that sums the gradients of a batch, that of each example clipped to l2 norm `clip_norm`.

    Formal guarantee: adding, removing or zeroing one example of the batch changes the sum by at most `clip_norm` in l2
    norm, summation in float32 aside. Padding, where the mask is False, contributes zero, and so does an example whose
    gradient is not finite. Measures have no such limit, and no noise: they are not private.

    Args:
      loss: loss(params, example), for one example without a batch axis. It may return (loss, aux), with a dictionary
        of numbers to be measured.
      clip_norm: the plan's.
      micro_batch_size: number of examples whose gradients are in memory at the same time; by default the whole batch.
      constant_time: compute micro-batches that are all padding too, so that the time tells nothing about the size of
        the batch.
      measured: return (sum, measures) instead of the sum. Measures are sums over the examples that have a finite
        gradient: `examples`, `loss`, `norm` (of gradients), `clipped` (how many were longer than the clip norm), and
        what the loss returned besides.
      sharding: how rows are cut over devices, such as `NamedSharding(mesh, PartitionSpec("data"))`. Every device sums
        over its rows, `micro_batch_size` at a time, and one all-reduce adds the sums up.

    Returns:
      total(params, batch, mask): pure and of static shapes, so that it can be compiled.

    Example:
      >>> total = clipped_sum(lambda w, x: w * x, clip_norm=1.0)
      >>> rows, mask = jnp.array([0.5, 7.0, 9.0]), jnp.array([True, True, False])
      >>> f"{total(jnp.array(0.0), rows, mask):.3f}"  # 0.5, clipped to 1, padding
      '1.500'
    """
    positive("clip_norm", clip_norm)
    limit = clip_norm * (1 - ROUNDING)
    differentiated = jax.value_and_grad(lambda params, example: with_aux(loss(params, example)), has_aux=True)

    def clipped_gradient(params: Tree, example: Tree, present: jax.Array) -> Tree:
        (value, aux), gradient = differentiated(params, example)
        gradient = jax.tree.map(_single, gradient)
        norm = jnp.sqrt(sum(jnp.square(part).sum() for part in jax.tree.leaves(gradient)))
        usable = present & jnp.isfinite(norm)
        factor = jnp.where(norm > limit, limit / norm, 1.0)
        clipped = jax.tree.map(lambda part: jnp.where(usable, part * factor.astype(part.dtype), 0), gradient)
        if not measured:
            return clipped
        measures = {**aux, "examples": usable, "loss": value, "norm": norm, "clipped": norm > limit}
        return clipped, jax.tree.map(lambda part: jnp.where(usable, _single(part), 0), measures)

    def sum_at_once(params: Tree, batch: Tree, mask: jax.Array) -> Tree:
        gradients = jax.vmap(partial(clipped_gradient, params))(batch, mask)
        return jax.tree.map(lambda part: part.sum(axis=0), gradients)

    def total(params: Tree, batch: Tree, mask: Any) -> Tree:
        mask = jnp.asarray(mask)
        size = mask.shape[0]
        if micro_batch_size is None or count("micro_batch_size", micro_batch_size) >= size:
            return sum_at_once(params, batch, mask)

        parts = in_micro_batches((batch, mask), micro_batch_size)
        occupied = parts[1].any(axis=1)
        number = occupied.shape[0] if constant_time else jnp.max(jnp.where(occupied, jnp.arange(len(occupied)) + 1, 0))

        def part_at(turn: Any) -> Tree:
            return jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, turn, keepdims=False), parts)

        def add(turn: Any, sums: Tree) -> Tree:
            rows, present = part_at(turn)
            return jax.tree.map(jnp.add, sums, sum_at_once(params, rows, present))

        shapes = jax.eval_shape(lambda: sum_at_once(params, *part_at(0)))
        nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
        return jax.lax.fori_loop(0, number, add, nothing)

    return total if sharding is None else over_devices(total, sharding)


def user_loss(loss: Loss) -> Loss:
    """Returns the loss of a user: the sum over the user's examples, for `clipped_sum` to clip as a whole.

    Args:
      loss: loss(params, example), for one example without a batch axis.

    Returns:
      loss(params, (examples, mask)), for the examples of one user along a first axis and True where there is one.

    Example:
      >>> total = clipped_sum(user_loss(lambda w, x: w * x), clip_norm=1.0)
      >>> rows, mask = jnp.array([[0.25, 0.25], [7.0, 0.0]]), jnp.array([[True, True], [True, False]])
      >>> f"{total(jnp.array(0.0), (rows, mask), jnp.array([True, True])):.3f}"  # 0.5, and 7 clipped to 1
      '1.500'
    """

    def total(params: Tree, user: Tree) -> tuple[jax.Array, dict[str, jax.Array]]:
        examples, present = user
        values, aux = jax.vmap(lambda example: with_aux(loss(params, example)))(examples)
        return jax.tree.map(lambda part: jnp.where(present, part, 0).sum(), (values, aux))

    return total


def with_key(loss: Loss) -> Loss:
    """Returns a loss that finds the key of an example beside it.

    Args:
      loss: loss(params, example, key), with a key of `jax.random` for dropout or augmentation.

    Returns:
      loss(params, (example, words)), with the key as two uint32 words.
    """

    def keyed(params: Tree, row: Tree) -> Any:
        example, words = row
        return loss(params, example, jax.random.wrap_key_data(words, impl=KEYS))

    return keyed


def example_keys(seed: int, numbers: Any) -> jax.Array:
    """Returns keys for what is random in a round, one for each example.

    Args:
      seed: of the round, see `TrainingRun.round_seed`.
      numbers: of the examples in the data set: the key of an example does not depend on its place in the batch.

    Returns:
      Two uint32 words for each.
    """
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    return _folded(words, jnp.asarray(numbers, jnp.uint32))


@jax.jit
def _folded(words: jax.Array, numbers: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(words, impl=KEYS)
    flat = jax.vmap(lambda number: jax.random.key_data(jax.random.fold_in(key, number)))(numbers.reshape(-1))
    return flat.reshape(*numbers.shape, 2)


def with_aux(result: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss and what came with it.

    Args:
      result: of a loss: the loss alone, or (loss, aux).

    Returns:
      The loss and aux, which may be empty.
    """
    value, aux = result if isinstance(result, tuple) else (result, {})
    return value, aux


def in_micro_batches(rows: Tree, micro_batch_size: int) -> Tree:
    """Cuts the rows of a tree of arrays into micro-batches.

    Args:
      rows: tree of arrays of shape (size, ...).
      micro_batch_size: rows of a micro-batch.

    Returns:
      A tree of arrays of shape (parts, micro_batch_size, ...), zero after the last row.
    """

    def cut(array: Any) -> jax.Array:
        array = jnp.asarray(array)
        parts = math.ceil(array.shape[0] / micro_batch_size)
        padded = jnp.pad(array, [(0, parts * micro_batch_size - array.shape[0])] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(parts, micro_batch_size, *padded.shape[1:])

    return jax.tree.map(cut, rows)


def _single(part: jax.Array) -> jax.Array:
    """Returns a gradient in float32 at least: summing in half precision errs by more than clipping allows for."""
    return jnp.asarray(part).astype(jnp.promote_types(jnp.result_type(part), jnp.float32))
