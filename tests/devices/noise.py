"""The noise of a model that is cut over all devices: noise.py OUTPUT KIND... writes it as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from galton.errors import InvalidArgument
from galton.noise import CorrelatedNoise, NoiseState, key_from_seed, load_state, save_state
from galton.noise.hashing import content_hash, device_words
from galton.noise.layout import cut_along, layout_of
from galton.noise.sealed import sealed_noise
from galton.strategies import BandedInverse, Blt, Strategy, Tree, identity, square_root

ROUNDS = 8
COLLECTIVE = r"all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter|collective-broadcast"
SHAPES: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {
    "rows": ((12, 7), cut_along("model")),
    "columns": ((5, 28), cut_along(None, "model")),
    "whole": ((9,), cut_along()),
    "also whole": ((2, 3), cut_along()),
    "cube": ((3, 4, 5), cut_along(None, "model", None)),
    "scalar": ((), cut_along()),
}
KINDS: dict[str, tuple[Strategy, str]] = {
    "blt": (Blt(ROUNDS, [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15]), "buffers"),
    "few bands": (square_root(ROUNDS, 4), "buffers"),
    "many bands": (square_root(2 * ROUNDS, 16), "buffers"),
    "banded inverse": (BandedInverse(ROUNDS, [1.0, -0.5, -0.25]), "buffers"),
    "tree": (Tree(ROUNDS), "buffers"),
    "identity": (identity(ROUNDS), "buffers"),
    "recomputed": (square_root(ROUNDS), "recompute"),
}


def sharded_params(axis_type: AxisType = AxisType.Auto) -> dict[str, jax.Array]:
    """A model on all devices that there are; on a single one without any sharding."""
    mesh = jax.make_mesh((jax.device_count(),), ("model",), axis_types=(axis_type,))
    return {name: jax.device_put(jnp.zeros(shape), NamedSharding(mesh, spec)) for name, (shape, spec) in SHAPES.items()}


def collectives(compiled: Any) -> list[str]:
    """Operations in a compiled program by which devices talk to each other."""
    return re.findall(COLLECTIVE, compiled.as_text())


def noise_of(kind: str, folder: Path) -> dict[str, Any]:
    """Five rounds, with a checkpoint after the second, by the state in the open and by the sealed one."""
    strategy, form = KINDS[kind]
    explicit = AxisType.Explicit if kind in ("blt", "tree") else AxisType.Auto
    noise, params = CorrelatedNoise(strategy, 1.7, form), sharded_params(explicit)
    state = noise.init(params, key_from_seed(4))
    compiled = jax.jit(noise.next).lower(state).compile()
    drawn = []
    for turn in range(5):
        x, state = noise.step(state)
        drawn.append({name: np.asarray(part) for name, part in x.items()})
        if turn == 2:
            save_state(folder / "state.npz", noise, state)
            state = load_state(folder / "state.npz", noise, params)
    sealed = sealed_noise(noise, key=key_from_seed(4))
    kept = sealed.init(params)
    following = jax.jit(sealed.next).lower(kept).compile()
    for _ in range(2):
        covered, kept = following(kept)
    shards = [list(shard.data.shape) for shard in state.buffers[0].addressable_shards]
    return {
        "collectives": collectives(compiled) + collectives(following),
        "noise": {name: [x[name].tobytes().hex() for x in drawn] for name in params},
        "sealed": {name: np.asarray(part).tobytes().hex() for name, part in covered.items()},
        "shards": shards,
        "noise follows parameters": all(
            x.sharding.is_equivalent_to(params[name].sharding, x.ndim) for name, x in covered.items()
        ),
    }


def large() -> dict[str, Any]:
    """Bytes of a device for a BLT with four buffers and 2^30 parameters, which are compiled for and never made."""
    mesh = jax.make_mesh((jax.device_count(),), ("model",), axis_types=(AxisType.Auto,))
    cut = NamedSharding(mesh, cut_along("model"))
    params = [jax.ShapeDtypeStruct((2**15, 2**14), jnp.float32, sharding=cut)] * 2  # type: ignore[no-untyped-call]
    noise, layout = CorrelatedNoise(KINDS["blt"][0], 1.0), layout_of(params)
    start = layout.zeros_program(noise.memory).lower().compile()
    rows: list[Any] = [
        jax.ShapeDtypeStruct(row.shape, row.dtype, sharding=where)  # type: ignore[no-untyped-call]
        for row, where in zip(start.out_info, start.output_shardings, strict=True)
    ]
    small = noise.init({"w": jnp.zeros(1)}, key_from_seed(1))
    state = NoiseState(small.keys, small.since, small.round, rows, layout)
    step: Any = jax.jit(noise.next).lower(state).compile().memory_analysis()
    return {
        "start": start.memory_analysis().output_size_in_bytes,
        "arguments": step.argument_size_in_bytes,
        "outputs": step.output_size_in_bytes,
        "temporary": step.temp_size_in_bytes,
    }


def refusal() -> str:
    """What is said of parameters that lie in two meshes."""
    meshes = (jax.make_mesh((jax.device_count(),), (name,), axis_types=(AxisType.Auto,)) for name in ("model", "rows"))
    start = jnp.zeros((2 * jax.device_count(), 3))
    params = [jax.device_put(start, NamedSharding(mesh, cut_along(mesh.axis_names[0]))) for mesh in meshes]
    try:
        layout_of(params)
    except InvalidArgument as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Writes noise and hashes for this number of devices."""
    output = Path(sys.argv[1])
    params = {name: part + 1.5 for name, part in sharded_params().items()}
    key = key_from_seed(5)
    report = {
        "devices": jax.device_count(),
        "kinds": {kind: noise_of(kind, output.parent) for kind in sys.argv[2:]},
        "large": large() if jax.device_count() > 1 else None,
        "refusal": refusal() if jax.device_count() > 1 else None,
        "hash": content_hash(params, key).hex(),
        "words": [np.asarray(device_words(part, key, 1)).tolist() for part in params.values()],
    }
    output.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
