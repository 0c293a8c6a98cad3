"""How the arrays of a model are laid out in flat vectors, so that one compiled function makes the noise of them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from galton.errors import InvalidArgument

GROUP = 2**30
"""The most elements of neighbouring arrays that share a vector, unless a single array has more."""

LARGEST = 2**32
"""The most elements of one array: each needs a counter of its own."""

Tree = Any
"""A JAX tree of arrays."""


@dataclass(frozen=True)
class Layout:
    """Structure, shapes and dtypes of a model's noise, and which arrays share a vector. Static under `jit`.

    Attributes:
      structure: the tree.
      shapes: of every array.
      dtypes: of the noise of every array: float32, or float64 where the parameters are.
      starts: index of the first array of every group, then the number of arrays.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    starts: tuple[int, ...]

    @property
    def groups(self) -> list[tuple[int, str]]:
        """Size and dtype of every vector."""
        return [
            (sum(map(math.prod, self.shapes[first:last])), self.dtypes[first]) for first, last in pairwise(self.starts)
        ]

    def unflatten(self, vectors: list[jax.Array]) -> Tree:
        """Cuts vectors into arrays."""
        leaves = []
        for vector, (first, last) in zip(vectors, pairwise(self.starts), strict=True):
            start = 0
            for shape in self.shapes[first:last]:
                stop = start + math.prod(shape)
                leaves.append(jax.lax.slice_in_dim(vector, start, stop).reshape(shape))
                start = stop
        return jax.tree.unflatten(self.structure, leaves)


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
    return Layout(structure, shapes, dtypes, (*starts, len(shapes)) if shapes else (0,))


def _noise_dtype(leaf: Any) -> Any:
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InvalidArgument("params", str(dtype), "every array must be real and floating-point")
    return jnp.promote_types(dtype, jnp.float32)
