"""Data-parallel sums in JAX: the rows of a batch cut over devices, and one all-reduce of what these have summed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from numpy.typing import NDArray

from galton.batching import Batch
from galton.errors import InvalidArgument
from galton.noise.layout import Tree, cut_along, sharding_of

Sum = Callable[[Tree, Tree, Any], Tree]
"""total(params, batch, mask), a sum over the rows of the batch."""


def row_axes(sharding: NamedSharding) -> tuple[str, ...]:
    """Returns the axes of the mesh that rows are cut along; raises `InvalidArgument` if there are none, or others.

    Args:
      sharding: of rows.

    Returns:
      Names of axes.
    """
    first, *rest = (*sharding.spec, None)
    if first is None or any(axis is not None for axis in rest):
        raise InvalidArgument("sharding", sharding.spec, 'must cut the first axis only, as PartitionSpec("data") does')
    return first if isinstance(first, tuple) else (first,)


def number_of_parts(sharding: NamedSharding) -> int:
    """Returns into how many parts rows are cut.

    Args:
      sharding: of rows.

    Returns:
      The number.
    """
    return math.prod(sharding.mesh.shape[axis] for axis in row_axes(sharding))


def over_devices(total: Sum, sharding: NamedSharding) -> Sum:
    """Returns a function that sums over rows that are cut over devices.

    Every device sums over the rows that it has, and one all-reduce adds the sums up. Axes of the mesh that rows are not
    cut along are left to the compiler, for models whose parameters are cut along them.

    Formal guarantee: the sum has the sensitivity of `total`: every row is summed on one device.

    Args:
      total: the sum on one device.
      sharding: of rows.

    Returns:
      The sum on all devices, where every device has all of it.
    """
    axes = row_axes(sharding)
    alone = all(size == 1 or name in axes for name, size in sharding.mesh.shape.items())

    def add_up(params: Tree, batch: Tree, mask: jax.Array) -> Tree:
        sums = total(params, batch, mask)
        return _reduced_at_once(sums, axes) if alone else _reduced(sums, axes)

    rows = cut_along(axes)
    return jax.shard_map(
        add_up,
        mesh=sharding.mesh,
        in_specs=(cut_along(), rows, rows),
        out_specs=cut_along(),
        axis_names=set(axes),
        check_vma=False,
    )


def _reduced(sums: Tree, axes: tuple[str, ...]) -> Tree:
    return jax.lax.psum(sums, axes)  # type: ignore[no-untyped-call]


def _reduced_at_once(sums: Tree, axes: tuple[str, ...]) -> Tree:
    """An all-reduce of each dtype, however many arrays there are."""
    leaves, structure = jax.tree.flatten(sums)
    reduced: list[Any] = [None] * len(leaves)
    for dtype in sorted({str(leaf.dtype) for leaf in leaves}):
        members = [number for number, leaf in enumerate(leaves) if str(leaf.dtype) == dtype]
        vector = _reduced(jnp.concatenate([leaves[number].reshape(-1) for number in members]), axes)
        ends = accumulate((leaves[number].size for number in members), initial=0)
        for number, (start, stop) in zip(members, pairwise(ends), strict=True):
            reduced[number] = vector[start:stop].reshape(leaves[number].shape)
    return jax.tree.unflatten(structure, reduced)


def cut_batch(batch: Batch, rows_of: Callable[[Batch], Tree], sharding: NamedSharding) -> tuple[Tree, jax.Array]:
    """Returns the rows of a batch and their mask, cut over devices so that all have about as many examples.

    Row r goes to part r modulo their number: examples come before padding, and would else be on the first devices. Rows
    are read for the devices of this process only.

    Args:
      batch: the batch.
      rows_of: the rows of a part of the batch, as a tree of arrays.
      sharding: of rows.

    Returns:
      Rows and mask, on devices.
    """
    parts = number_of_parts(sharding)
    length = -(-batch.padded_batch_size // parts)

    @cache
    def part(number: int) -> list[NDArray[Any]]:
        indices, mask = batch.indices[number::parts], batch.mask[number::parts]
        missing = length - len(indices)
        padded = np.concatenate((indices, np.full(missing, batch.indices[-1], indices.dtype)))
        present = np.concatenate((mask, np.zeros(missing, bool)))
        return [*jax.tree.leaves(rows_of(Batch(batch.round, padded, present, 0))), present]

    own = [index for index in sharding.addressable_devices_indices_map((parts * length,)).values() if index]
    first = part((own[0][0].start or 0) // length)
    structure = jax.tree.structure(rows_of(Batch(batch.round, batch.indices[:0], batch.mask[:0], 0)))

    def whole(number: int) -> jax.Array:
        shape = (parts * length, *first[number].shape[1:])

        def own_part(index: Any) -> NDArray[Any]:
            return part((index[0].start or 0) // length)[number]

        return jax.make_array_from_callback(shape, sharding, own_part)

    *rows, mask = [whole(number) for number in range(len(first))]
    return jax.tree.unflatten(structure, rows), mask


def automatic(sharding: NamedSharding) -> NamedSharding:
    """Returns the same sharding on a mesh whose axes are left to the compiler, which models need not be written for.

    Args:
      sharding: on any mesh.

    Returns:
      The sharding, on the same devices.
    """
    mesh = Mesh(
        sharding.mesh.devices, sharding.mesh.axis_names, axis_types=(AxisType.Auto,) * sharding.mesh.devices.ndim
    )
    return NamedSharding(mesh, sharding.spec)


def on_mesh(tree: Tree, sharding: NamedSharding) -> Tree:
    """Copies to all devices of a mesh what is not there yet; what lies on several devices stays where it is.

    Args:
      tree: of arrays.
      sharding: of rows, for its mesh.

    Returns:
      The tree.
    """
    everywhere = NamedSharding(sharding.mesh, cut_along())

    def put(leaf: Any) -> jax.Array:
        own = sharding_of(leaf)
        if own is None:
            return jax.device_put(leaf, everywhere)
        if own.device_set != everywhere.device_set:
            raise InvalidArgument("sharding", sharding.mesh, "must have the devices that the parameters are on")
        return jax.device_put(leaf, automatic(own))

    return jax.tree.map(put, tree)
