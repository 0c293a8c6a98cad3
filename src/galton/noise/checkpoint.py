"""A noise state as one file: written whole or not at all, checked by hash, readable by its owner only (it has keys).

The file is a NumPy .npz. It loads only for the noise that it was saved from: the same strategy, standard deviation and
form, and parameters of the same shapes. On how many devices these are makes no difference to the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np

from galton import files
from galton.errors import InvalidFile
from galton.noise.layout import Layout, Tree, layout_of
from galton.noise.stream import CorrelatedNoise, NoiseState
from galton.typechecking import typechecked

FORMAT = "galton-noise-state"
VERSION = 2
FIRST_VERSION = 1
"""With one key, for all rounds; read, and never written."""


@typechecked
def save_state(path: str | Path, noise: CorrelatedNoise, state: NoiseState) -> None:
    """Writes a noise state to one file, readable by its owner only: it has the secret keys.

    The file is written whole or not at all; a failure leaves an older file as it was.

    Args:
      path: file to write.
      noise: the noise that the state belongs to.
      state: the state before the next round.

    Example:
      >>> import tempfile
      >>> from galton import CorrelatedNoise, identity, load_state
      >>> noise, params = CorrelatedNoise(identity(4), stddev=1.0), {"w": np.zeros(3, np.float32)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save_state(f"{folder}/noise.npz", noise, noise.init(params))
      ...     int(load_state(f"{folder}/noise.npz", noise, params).round)
      0
    """
    with files.replacing(Path(path), secret=True) as temporary, temporary.open("wb") as file:
        write_state(file, noise, state)


def write_state(file: IO[bytes], noise: CorrelatedNoise, state: NoiseState) -> None:
    """Writes the state to an open file."""
    arrays = _arrays_of(state)
    about = {"format": FORMAT, "version": VERSION, "noise": noise.digest, "shapes": _shapes(state.layout)}
    about["hash"] = _hash(about, arrays)
    np.savez(file, about=np.frombuffer(files.canonical(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]


@typechecked
def load_state(path: str | Path, noise: CorrelatedNoise, params: Tree) -> NoiseState:
    """Reads a noise state that `save_state` wrote; raises `InvalidFile` if it was changed or belongs to other noise.

    Loading alone does not keep a round from getting its noise twice: `NoiseRun` does, with its journal.

    Args:
      path: file to read.
      noise: the noise that it was saved for: same strategy, standard deviation and form.
      params: the model's parameters, for their shapes.

    Returns:
      The state before the next round.

    Example:
      >>> import tempfile
      >>> from galton import CorrelatedNoise, identity
      >>> noise, params = CorrelatedNoise(identity(4), stddev=1.0), {"w": np.zeros(3, np.float32)}
      >>> _, state = noise.next(noise.init(params))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save_state(f"{folder}/noise.npz", noise, state)
      ...     int(load_state(f"{folder}/noise.npz", noise, params).round)
      1
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror or error})") from None
    return read_state(content, str(path), noise, params)


def read_state(content: bytes, path: str, noise: CorrelatedNoise, params: Tree) -> NoiseState:
    """Reads the content of a file that `save_state` wrote; errors name `path`."""
    about, arrays = _read_archive(content, path)
    if about.get("format") != FORMAT or about.get("version") not in (FIRST_VERSION, VERSION):
        raise InvalidFile(f"{path}: is not a noise state of version {FIRST_VERSION} or {VERSION}")
    if about.pop("hash", None) != _hash(about, arrays):
        raise InvalidFile(f"{path}: does not match its hash: it was changed after it was written")
    if about["noise"] != noise.digest:
        raise InvalidFile(f"{path}: belongs to other noise (strategy, deviation or form differ)")
    layout = layout_of(params)
    expected = [((noise.memory, size), dtype) for size, dtype in layout.groups]
    buffers = [arrays[name] for name in sorted(name for name in arrays if name.startswith("buffers"))]
    if about["shapes"] != _shapes(layout) or [(x.shape, str(x.dtype)) for x in buffers] != expected:
        raise InvalidFile(f"{path}: was saved for a model of other shapes")
    keys, since = arrays["key"].reshape(-1, 4), arrays.get("since", np.zeros(1, np.int32))
    turn = jnp.asarray(arrays["round"])
    return NoiseState(jnp.asarray(keys), jnp.asarray(since), turn, layout.placed(buffers), layout)


def _arrays_of(state: NoiseState) -> dict[str, np.ndarray[Any, Any]]:
    if int(state.round) > 0:
        groups = state.layout.joined([np.asarray(x) for x in state.buffers])
    else:  # all are zero, whichever process has them
        wholes = zip(state.buffers, state.layout.groups, strict=True)
        groups = [np.zeros((len(x), size), dtype) for x, (size, dtype) in wholes]
    named = {f"buffers_{number:06d}": group for number, group in enumerate(groups)}
    own = {"key": state.keys, "since": state.since, "round": state.round}
    return {**{name: np.asarray(array) for name, array in own.items()}, **named}


def _shapes(layout: Layout) -> list[list[int]]:
    return [list(shape) for shape in layout.shapes]


def _hash(about: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.blake2b(files.canonical(about).encode(), digest_size=32)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return "blake2b:" + digest.hexdigest()


def _read_archive(content: bytes, path: str) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(arrays.pop("about").tobytes())
        if not isinstance(about, dict) or not {"key", "round"} <= set(arrays):
            raise ValueError
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise InvalidFile(f"{path}: is not a noise state, or was damaged") from None
    return about, arrays
