"""Trees of arrays in files: the model alone for others, and all that a run needs to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from galton import files
from galton.errors import InvalidFile
from galton.noise.layout import Tree, sharding_of


def save_model(path: Path, params: Tree) -> None:
    """Writes a model alone, for others: every array under its path in the tree, half precision as float32.

    Args:
      path: file to write, a NumPy .npz.
      params: the model.
    """
    named = jax.tree_util.tree_flatten_with_path(params)[0]
    names = [jax.tree_util.keystr(where, simple=True, separator="/") or "params" for where, _ in named]
    if len(set(names)) < len(names):
        names = [jax.tree_util.keystr(where) for where, _ in named]
    arrays = dict(zip(names, (leaf for _, leaf in named), strict=True))
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{name: _portable(leaf) for name, leaf in arrays.items()})  # type: ignore[arg-type]


def _portable(leaf: Any) -> NDArray[Any]:
    array = np.asarray(leaf)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def save_tree(path: Path, tree: Tree) -> None:
    """Writes the arrays of a tree to a file, whole or not at all.

    Args:
      path: file to write.
      tree: arrays of any type that JAX has, and random keys.
    """
    leaves = jax.tree.leaves(tree)
    kinds = json.dumps([_kind(leaf) for leaf in leaves]).encode()
    arrays = [np.atleast_1d(np.asarray(jnp.asarray(_plain(leaf)))) for leaf in leaves]
    raw = [array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}") for array in arrays]
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, *raw, kinds=np.frombuffer(kinds, np.uint8))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _kind(leaf: Any) -> list[Any]:
    """Shape and type of an array, or of a random key, by which a saved tree is compared."""
    if _is_key(leaf):
        return [list(leaf.shape), f"key {jax.random.key_impl(leaf)}"]
    return [list(jnp.shape(leaf)), str(jnp.result_type(leaf))]


def load_tree(path: Path, like: Tree) -> Tree:
    """Reads what `save_tree` wrote; raises `InvalidFile` if shapes or types differ from those of `like`.

    Args:
      path: file to read.
      like: a tree of the same structure, shapes and types.

    Returns:
      The tree.
    """
    leaves, structure = jax.tree.flatten(like)
    try:
        with np.load(path) as saved:
            arrays = [saved[f"arr_{index}"] for index in range(len(saved.files) - ("kinds" in saved.files))]
            if "kinds" in saved.files:
                kinds = json.loads(saved["kinds"].tobytes())
            else:  # as galton 0.1 wrote it
                kinds = [[list(array.shape), str(array.dtype)] for array in arrays]
    except (OSError, ValueError, KeyError):
        raise InvalidFile(f"{path}: cannot be read, or was damaged") from None
    if len(arrays) != len(leaves) or kinds != [_kind(leaf) for leaf in leaves]:
        raise InvalidFile(f"{path}: holds another model or optimiser than this one")
    return jax.tree.unflatten(structure, [_restored(*pair) for pair in zip(arrays, leaves, strict=True)])


def _restored(array: NDArray[Any], like: Any) -> jax.Array:
    plain = _plain(like)
    values = _as_placed(array.view(jnp.result_type(plain)).reshape(jnp.shape(plain)), plain)
    return jax.random.wrap_key_data(values, impl=jax.random.key_impl(like)) if _is_key(like) else values


def _as_placed(values: NDArray[Any], like: Any) -> jax.Array:
    """Puts an array on the devices of another, each with its part only."""
    sharding = sharding_of(like)
    if sharding is None:
        return jnp.asarray(values)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
