"""How the arrays of a model are laid end to end, so that one compiled function makes the noise of them all.

Every element has a counter of its own: its place in a group of arrays. Where a model is spread over several devices,
each device lays the pieces that it has end to end, and knows their places. Noise depends on places only, so that it is
the same on any number of devices, and every device makes its own without a word to the others. The same goes for
processes that JAX knows nothing of, each of which has a `Piece` of every array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from galton.errors import InvalidArgument

GROUP = 2**30
"""The most elements of neighbouring arrays that share a vector, unless a single array has more."""

LARGEST = 2**32
"""The most elements of one array: each needs a counter of its own."""

Tree = Any
"""A JAX tree of arrays."""


def cut_along(*axes: Any) -> PartitionSpec:
    """Returns the `PartitionSpec` of an array whose axes are cut along these axes of a mesh."""
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


Local = Callable[[Any, int, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""f(shared, group, places, rows): of the elements at these places a vector, and new rows of shape (memory, size)."""


class Piece(jax.ShapeDtypeStruct):
    """The part of an array that this process has, where others, which JAX knows nothing of, have the rest.

    Args:
      shape: of the whole array.
      dtype: of the array.
      begin: first index of the part along each axis.
      local: shape of the part.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, begin: tuple[int, ...], local: tuple[int, ...]) -> None:
        super().__init__(shape, dtype)  # type: ignore[no-untyped-call]
        self.begin, self.local = begin, local


@dataclass(frozen=True)
class Layout:
    """Structure, shapes and dtypes of a model's noise, and which arrays share a vector. Static under `jit`.

    Attributes:
      structure: the tree.
      shapes: of every array.
      dtypes: of the noise of every array: float32, or float64 where the parameters are.
      starts: index of the first array of every group, then the number of arrays.
      mesh: the `Mesh` of devices, if there are several.
      specs: how every array is cut over them.
      cuts: first index and shape of the part of every array that this process has, if it has parts only (`Piece`).
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    starts: tuple[int, ...]
    mesh: Any = None
    specs: tuple[PartitionSpec, ...] = ()
    cuts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    @property
    def groups(self) -> list[tuple[int, str]]:
        """Size and dtype of every group; they do not depend on devices."""
        return [
            (sum(map(math.prod, self.shapes[first:last])), self.dtypes[first]) for first, last in pairwise(self.starts)
        ]

    @cached_property
    def _pieces(self) -> list[tuple[tuple[int, ...], NDArray[np.uint32]]]:
        """Of every array, the shape that each device has of it, and where that begins, for all devices."""
        pieces = []
        for index, shape in enumerate(self.shapes):
            if self.cuts:
                begin, local = self.cuts[index]
                pieces.append((local, np.asarray(begin, np.uint32).reshape(1, len(shape))))
                continue
            if self.mesh is None:
                pieces.append((shape, np.zeros((1, len(shape)), np.uint32)))
                continue
            sharding = NamedSharding(self.mesh, self.specs[index])
            slices = sharding.devices_indices_map(shape)
            begins = [[part.start or 0 for part in slices[device]] for device in self.mesh.devices.flat]
            pieces.append(
                (sharding.shard_shape(shape), np.asarray(begins, np.uint32).reshape(self.mesh.size, len(shape)))
            )
        return pieces

    def _offset(self, index: int) -> int:
        """Place of the first element of an array in its group."""
        first = max(start for start in self.starts[:-1] if start <= index)
        return sum(math.prod(shape) for shape in self.shapes[first:index])

    def zeros(self, memory: int) -> list[jax.Array]:
        """Returns rows of zeros for every group, made where they belong: no device ever has them all."""
        return list(self.zeros_program(memory)())

    def zeros_program(self, memory: int) -> Any:
        """Returns the function that makes them, for several devices compiled by `jit`."""
        dtypes = [dtype for _, dtype in self.groups]
        if self.mesh is None:
            return lambda: [
                jnp.zeros((memory, size), dtype) for size, dtype in zip(self._local_sizes, dtypes, strict=True)
            ]
        shapes = [(memory, self.mesh.size * size) for size in self._local_sizes]
        rows = NamedSharding(self.mesh, self._rows)
        return jax.jit(lambda: list(map(jnp.zeros, shapes, dtypes)), out_shardings=rows)

    @property
    def _rows(self) -> PartitionSpec:
        """Rows of a group have what each device has of them one after the other.

        An axis for the devices would do as well, but makes XLA change the order of axes, and copy all rows for it.
        """
        return cut_along(None, self.mesh.axis_names if self.mesh else None)

    @cached_property
    def _local_sizes(self) -> list[int]:
        return [sum(math.prod(shape) for shape, _ in self._pieces[first:last]) for first, last in pairwise(self.starts)]

    def compute(self, function: Local, shared: Any, rows: list[jax.Array]) -> tuple[Tree, list[jax.Array]]:
        """Calls a function for every group, on each device for the elements that it has.

        Args:
          function: see `Local`.
          shared: what all devices have: a tree of arrays.
          rows: of every group.

        Returns:
          The vectors, as a tree like the model that lies where the model does, and the new rows.
        """
        if self.mesh is None:
            places = [self._own_places(group) for group in range(len(rows))]
            done = [function(shared, *given) for given in zip(range(len(rows)), places, rows, strict=True)]
            return self._unflatten([x for x, _ in done]), [after for _, after in done]

        def local(shared: Any, rows: list[jax.Array]) -> Any:
            device = jax.lax.axis_index(self.mesh.axis_names)
            done = [function(shared, group, self._places(group, device), part) for group, part in enumerate(rows)]
            return self._unflatten([x for x, _ in done]), [after for _, after in done]

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(cut_along(), self._rows),
            out_specs=(jax.tree.unflatten(self.structure, self.specs), self._rows),
            check_vma=False,  # arrays that all devices have are the same on all: they are functions of places
        )(shared, rows)

    def _own_places(self, group: int) -> jax.Array:
        """Places of the elements that this process has of a group, without a mesh of devices."""
        if not self.cuts:
            return jax.lax.iota(jnp.uint32, self.groups[group][0])
        indices = range(*self.starts[group : group + 2])
        return jnp.concatenate([self._places_of(index, jnp.zeros((), jnp.int32)).reshape(-1) for index in indices])

    def _places(self, group: int, device: jax.Array) -> jax.Array:
        """Places of the elements that a device has of a group."""
        indices = range(*self.starts[group : group + 2])

        def made() -> jax.Array:
            return jnp.concatenate([self._places_of(index, device).reshape(-1) for index in indices])

        # The branch, which is always taken, keeps XLA from making places anew, piece by piece, in loops that draw.
        return jax.lax.cond(device < self.mesh.size, made, lambda: jnp.zeros_like(jax.eval_shape(made)))

    def _places_of(self, index: int, device: jax.Array) -> jax.Array:
        shape, (local, begins) = self.shapes[index], self._pieces[index]
        begin = jnp.asarray(begins)[device]
        place = jnp.full(local, self._offset(index), jnp.uint32)
        for axis in range(len(shape)):
            coordinate = jax.lax.broadcasted_iota(jnp.uint32, local, axis) + begin[axis]
            place += coordinate * np.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        return place

    def _unflatten(self, vectors: list[jax.Array]) -> Tree:
        """Cuts vectors into the arrays, or pieces of arrays, of this device."""
        leaves = []
        for vector, (first, last) in zip(vectors, pairwise(self.starts), strict=True):
            start = 0
            for shape, _ in self._pieces[first:last]:
                stop = start + math.prod(shape)
                leaves.append(jax.lax.slice_in_dim(vector, start, stop).reshape(shape))
                start = stop
        return jax.tree.unflatten(self.structure, leaves)

    def joined(self, rows: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Returns rows in the order of places, whatever the devices: an array of shape (memory, size) a group.

        A process that has parts of arrays only must be given the rows of all: see `put`.
        """
        if self.mesh is None:
            if [part.shape[1] for part in rows] != [size for size, _ in self.groups]:
                raise InvalidArgument("buffers", [part.shape for part in rows], "must be those of all processes")
            return rows
        wholes = [np.empty((len(part), size), dtype) for part, (size, dtype) in zip(rows, self.groups, strict=True)]
        self.put(wholes, rows)
        return wholes

    def put(self, wholes: list[NDArray[Any]], rows: list[NDArray[Any]]) -> None:
        """Puts the rows of all devices, or of the process that has these parts, to their places."""
        devices = self.mesh.size if self.mesh else 1
        parts = [part.reshape(len(part), devices, part.shape[1] // devices) for part in rows]  # there may be no row
        for group, device, places, local in self._slices():
            wholes[group][:, places] = parts[group][:, device, local]

    def placed(self, wholes: list[NDArray[Any]]) -> list[jax.Array]:
        """The inverse of `joined`: every element goes to the devices that have it, and to no other."""
        if self.mesh is None and not self.cuts:
            return [jnp.array(whole) for whole in wholes]
        rows = [
            np.empty((len(whole), self.mesh.size if self.mesh else 1, size), whole.dtype)
            for whole, size in zip(wholes, self._local_sizes, strict=True)
        ]
        for group, device, places, local in self._slices():
            rows[group][:, device, local] = wholes[group][:, places]
        flat = [part.reshape(len(part), part.shape[1] * part.shape[2]) for part in rows]
        if self.mesh is None:
            return [jnp.array(part) for part in flat]
        sharding = NamedSharding(self.mesh, self._rows)
        return [jax.make_array_from_callback(part.shape, sharding, part.__getitem__) for part in flat]

    def _slices(self) -> Any:
        """Yields (group, device, places in the group, where the device has them) of every piece."""
        for group, (first, last) in enumerate(pairwise(self.starts)):
            start = 0
            for index in range(first, last):
                local, begins = self._pieces[index]
                stop = start + math.prod(local)
                for device, begin in enumerate(begins):
                    axes = [int(at) + np.arange(length) for at, length in zip(begin, local, strict=True)]
                    strides = [math.prod(self.shapes[index][axis + 1 :]) for axis in range(len(local))]
                    places = np.full((1,) * len(local), self._offset(index))
                    for axis, (coordinates, stride) in enumerate(zip(axes, strides, strict=True)):
                        places = places + (coordinates * stride).reshape(
                            [-1 if k == axis else 1 for k in range(len(local))]
                        )
                    yield group, device, places.reshape(-1), slice(start, stop)
                start = stop


def layout_of(params: Tree) -> Layout:
    """Returns the layout of a model; raises `InvalidArgument` for arrays that cannot have noise."""
    try:
        leaves, structure = jax.tree.flatten(params)
        shapes = tuple(tuple(jnp.shape(leaf)) for leaf in leaves)
        dtypes = tuple(str(_noise_dtype(leaf)) for leaf in leaves)
    except (TypeError, OverflowError):  # not what JAX makes arrays of
        raise InvalidArgument("params", params, "must be an array, or a tree of arrays") from None
    starts, size = [0], 0
    for index, shape in enumerate(shapes):
        if math.prod(shape) > LARGEST:
            raise InvalidArgument("params", shape, f"an array may have at most {LARGEST} elements")
        if index and (size + math.prod(shape) > GROUP or dtypes[index] != dtypes[index - 1]):
            starts.append(index)
            size = 0
        size += math.prod(shape)
    starts = [*starts, len(shapes)] if shapes else [0]
    shardings = [sharding_of(leaf) for leaf in leaves]
    meshes = {sharding.mesh for sharding in shardings if sharding is not None}
    if len(meshes) > 1:
        raise InvalidArgument("params", f"{len(meshes)} meshes", "all arrays must be on the same devices, in one mesh")
    if not meshes:
        cuts = tuple((leaf.begin, leaf.local) for leaf in leaves if isinstance(leaf, Piece))
        if len(cuts) not in (0, len(leaves)):
            raise InvalidArgument("params", f"{len(cuts)} of {len(leaves)} arrays", "must all be cut, or none")
        return Layout(structure, shapes, dtypes, tuple(starts), cuts=cuts)
    specs = tuple(cut_along() if sharding is None else sharding.spec for sharding in shardings)
    return Layout(structure, shapes, dtypes, tuple(starts), meshes.pop(), specs)


def sharding_of(leaf: Any) -> NamedSharding | None:
    """Returns how an array is spread over devices; None if it is on one, or being traced, or not yet there."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1:
        return None
    if not isinstance(sharding, NamedSharding):
        raise InvalidArgument("params", sharding, "an array on several devices must have a NamedSharding")
    return sharding


def shapes_of(params: Tree) -> Tree:
    """Returns shapes, dtypes and shardings of a model, without holding on to any array."""
    return jax.tree.map(
        lambda leaf: (
            leaf
            if isinstance(leaf, Piece)
            else jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
                jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding_of(leaf)
            )
        ),
        params,
    )


def _noise_dtype(leaf: Any) -> Any:
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InvalidArgument("params", str(dtype), "every array must be real and floating-point")
    return jnp.promote_types(dtype, jnp.float32)
