"""Sums of clipped gradients in JAX: at once, in micro-batches, or by several devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from galton.errors import count, positive
from galton.noise.layout import Tree
from galton.training.clipping import Clipping
from galton.training.jax_dense import Pair, Program, norm_of
from galton.training.jax_devices import over_devices

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
    clipping: Clipping | None = None,
) -> ClippedSum:
    """Returns a function that sums the gradients of a batch, that of each example clipped to l2 norm `clip_norm`.

    Parameters that are multiplied by a vector, once, as in dense layers, have no gradients of single examples in memory
    (`jax_dense.py`).

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
      clipping: per group or normalised, see `galton.training.clipping`; by default gradients are clipped as a whole.
        Groups know parameters by `parameter_names`.

    Returns:
      total(params, batch, mask): pure and of static shapes, so that it can be compiled.

    Example:
      >>> total = clipped_sum(lambda w, x: w * x, clip_norm=1.0)
      >>> rows, mask = jnp.array([0.5, 7.0, 9.0]), jnp.array([True, True, False])
      >>> f"{total(jnp.array(0.0), rows, mask):.3f}"  # 0.5, clipped to 1, padding
      '1.500'
    """
    positive("clip_norm", clip_norm)
    clipping = clipping or Clipping()

    def with_measures(params: Tree, example: Tree) -> Any:
        return with_aux(loss(params, example))

    def total(params: Tree, batch: Tree, mask: Any) -> Tree:
        mask = jnp.asarray(mask)
        rows, weights = jax.tree.leaves(batch), jax.tree.leaves(params)
        program = Program(with_measures, _shapes(params), jax.tree.map(_first, batch))
        groups = [
            (_numbers(params, group.names), group.limit)
            for group in clipping.groups(clip_norm, parameter_names(params))
            if group.names
        ]

        def of_row(row: list[jax.Array], present: jax.Array) -> tuple[list[Any], dict[str, Any]]:
            value, aux, gradient = program.gradient(weights, row)
            leaves = jax.tree.map(_single, gradient.leaves)
            norms = [norm_of(leaf) for leaf in leaves]
            whole = _root(norms)
            usable = present & jnp.isfinite(whole)
            clipped = list(leaves)
            shorter = jnp.zeros((), bool)
            for members, limit in groups:
                factor = _factor(_root([norms[number] for number in members]), limit, clipping.gamma)
                shorter |= factor < 1
                for number in members:
                    clipped[number] = _scaled(leaves[number], factor, usable)
            if not measured:
                return clipped, {}
            measures = {**aux, "examples": usable, "loss": value, "norm": whole, "clipped": shorter}
            return clipped, jax.tree.map(lambda part: jnp.where(usable, _single(part), 0), measures)

        def of_rows(part: list[jax.Array], present: jax.Array) -> Collected:
            leaves, measures = jax.vmap(of_row)(part, present)
            rows_of_leaves = [leaf for leaf in leaves if not _is_pair(leaf)]
            arrays, sums = jax.tree.map(lambda array: array.sum(axis=0), (rows_of_leaves, measures))
            return Collected(arrays, sums, [leaf for leaf in leaves if _is_pair(leaf)])

        def finished(collected: Collected) -> Tree:
            arrays, pairs = iter(collected.arrays), iter(collected.pairs)
            sums = [
                program.whole(number, next(pairs), weight) if number in program.dense else next(arrays)
                for number, weight in enumerate(weights)
            ]
            summed = jax.tree.unflatten(jax.tree.structure(params), sums)
            return (summed, collected.measures) if measured else summed

        if micro_batch_size is None or count("micro_batch_size", micro_batch_size) >= mask.shape[0]:
            return finished(of_rows(rows, mask))

        parts = in_micro_batches((rows, mask), micro_batch_size)
        occupied = parts[1].any(axis=1)
        number = occupied.shape[0] if constant_time else jnp.max(jnp.where(occupied, jnp.arange(len(occupied)) + 1, 0))

        def part_at(turn: Any) -> Tree:
            return jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, turn, keepdims=False), parts)

        def add(turn: Any, so_far: Collected) -> Collected:
            own = of_rows(*part_at(turn))
            arrays, measures = jax.tree.map(jnp.add, (so_far.arrays, so_far.measures), (own.arrays, own.measures))
            at = turn * micro_batch_size
            put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=at, axis=0)
            return Collected(arrays, measures, jax.tree.map(put, so_far.pairs, own.pairs))

        shapes = jax.eval_shape(lambda: of_rows(*part_at(0)))
        nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
        room = jax.tree.map(lambda part: jnp.repeat(part, len(occupied), axis=0), nothing.pairs)
        return finished(jax.lax.fori_loop(0, number, add, nothing._replace(pairs=room)))

    return total if sharding is None else over_devices(total, sharding)


class Collected(NamedTuple):
    """What is known of the rows so far: sums of gradients and measures, and gradients of dense layers as their factors.

    Factors are small, and are multiplied at the end, for all rows at once.
    """

    arrays: list[jax.Array]
    measures: dict[str, jax.Array]
    pairs: list[Pair]


def parameter_names(params: Tree) -> list[str]:
    """Returns the names of all arrays of a model, by which `per_group` and `per_layer` know them.

    Args:
      params: the model.

    Returns:
      Names, in the order of the tree: keys on the way to an array, with dots between them.

    Example:
      >>> parameter_names({"dense": {"kernel": jnp.zeros(2), "bias": jnp.zeros(1)}})
      ['dense.bias', 'dense.kernel']
    """
    named = jax.tree_util.tree_flatten_with_path(params)[0]
    return [jax.tree_util.keystr(where, simple=True, separator=".") for where, _ in named]


def _numbers(params: Tree, names: tuple[str, ...]) -> list[int]:
    return [number for number, name in enumerate(parameter_names(params)) if name in names]


def _is_pair(leaf: Any) -> bool:
    return isinstance(leaf, Pair)


def _shapes(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)  # type: ignore[no-untyped-call]


def _first(rows: Any) -> Any:
    return jax.ShapeDtypeStruct(jnp.shape(rows)[1:], jnp.result_type(rows))  # type: ignore[no-untyped-call]


def _root(norms: list[jax.Array]) -> jax.Array:
    return norms[0] if len(norms) == 1 else jnp.sqrt(sum(jnp.square(norm) for norm in norms))


def _factor(norm: jax.Array, limit: float, gamma: float | None) -> jax.Array:
    """By what a gradient is multiplied, so that its norm is at most the limit."""
    return jnp.where(norm > limit, limit / norm, 1.0) if gamma is None else limit / (norm + gamma)


def _scaled(leaf: Any, factor: jax.Array, usable: jax.Array) -> Any:
    """A gradient times its factor; zero where it cannot be used, whatever it is."""

    def kept(array: jax.Array) -> jax.Array:
        return jnp.where(usable, array, 0)

    if isinstance(leaf, Pair):
        return Pair(kept(leaf.left), kept(leaf.right * factor.astype(leaf.right.dtype)))
    return kept(leaf * factor.astype(leaf.dtype))


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
