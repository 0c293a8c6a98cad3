"""Training on all devices: training.py PLAN FOLDER OUTPUT writes what came out, and what was compiled, as JSON."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding

from galton.noise.layout import cut_along
from galton.plan import load_plan
from galton.training.jax import clipped_sum, train
from galton.training.jax_devices import cut_batch, on_mesh
from tests.devices.noise import COLLECTIVE

WIDTH = 8


class Killed(Exception):
    """Instead of the end of the process."""


def network() -> dict[str, jax.Array]:
    """A network of two layers, the same everywhere."""
    generator = np.random.default_rng(0)
    return {
        "first": jnp.asarray(generator.normal(size=(5, WIDTH)), jnp.float32) / 3,
        "bias": jnp.zeros(WIDTH),
        "second": jnp.asarray(generator.normal(size=(WIDTH, 3)), jnp.float32) / 3,
    }


def loss(params: Any, example: Any) -> jax.Array:
    x, y = example
    hidden = jnp.tanh(x @ params["first"] + params["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["second"], y)


def noisy_loss(params: Any, example: Any, key: jax.Array) -> jax.Array:
    """With dropout of inputs."""
    x, y = example
    return loss(params, (jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0), y))


def examples(size: int = 64) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(size, 5)).astype(np.float32) * 3
    return x, (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0)


def cut_network(mesh: Any, axis: str = "model") -> dict[str, jax.Array]:
    """The network with its hidden units cut along an axis."""
    specs = {"first": cut_along(None, axis), "bias": cut_along(axis), "second": cut_along(axis, None)}
    return {name: jax.device_put(part, NamedSharding(mesh, specs[name])) for name, part in network().items()}


def sums(plan: Any) -> dict[str, Any]:
    """The sum of one batch by all devices, and how far single examples move it."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, cut_along("data"))
    batch, (x, y) = next(plan.batches(seed=3)), examples()
    rows, mask = cut_batch(batch, lambda part: (part.take(x), part.take(y)), sharding)
    params = on_mesh(network(), sharding)
    total = jax.jit(clipped_sum(loss, 1.0, 2, sharding=sharding))
    compiled = total.lower(params, rows, mask).compile()
    whole = compiled(params, rows, mask)
    alone = clipped_sum(loss, 1.0)(network(), (batch.take(x), batch.take(y)), batch.mask)
    moves = []
    for row in np.flatnonzero(np.asarray(mask)):
        less = compiled(params, rows, jax.device_put(np.asarray(mask) & (np.arange(len(mask)) != row), sharding))
        moves.append(float(jnp.sqrt(sum(((whole[name] - less[name]) ** 2).sum() for name in whole))))
    shares = [int(np.asarray(shard.data).sum()) for shard in mask.addressable_shards]
    return {
        "collectives": re.findall(rf"= \S+ ({COLLECTIVE})", compiled.as_text() or ""),
        "difference": max(float(jnp.abs(whole[name] - alone[name]).max()) for name in whole),
        "examples": len(batch.examples),
        "moves": moves,
        "shares": shares,
    }


def run(plan: Any, folder: Path, kill_at: int | None = None, **words: Any) -> Any:
    def watch(turn: int, params: Any) -> None:
        if turn == kill_at:
            raise Killed

    words = {"save_every": 5, "seed": 5, "pinned": plan.digest, "rounds": 13} | words
    return train(
        plan, folder, noisy_loss, words.pop("params"), examples(), optax.adam(0.05), keyed=True, watch=watch, **words
    )


def main() -> None:
    """Sums with the data cut; trains on one device, and on all with data and model cut, each killed on the way too."""
    plan, folder, output = load_plan(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    two = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    line = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Explicit,))
    settings: dict[str, dict[str, Any]] = {
        "alone": {"params": network()},
        "both": {"params": cut_network(two), "sharding": NamedSharding(two, cut_along("data"))},
        "fsdp": {"params": cut_network(line, "data"), "sharding": NamedSharding(line, cut_along("data"))},
    }
    report: dict[str, Any] = {"sums": sums(plan), "models": {}, "records": {}, "cut": {}, "moments": {}}
    for name, setting in settings.items():
        whole = run(plan, folder / name, **setting)
        with suppress(Killed):
            run(plan, folder / f"{name} killed", kill_at=8, **setting)
        again = run(plan, folder / f"{name} killed", **setting)
        for kind, trained in (("whole", whole), ("killed", again)):
            report["models"][f"{name} {kind}"] = {k: np.asarray(v).tolist() for k, v in trained.params.items()}
            report["records"][f"{name} {kind}"] = trained.record
        report["cut"][name] = {k: list(v.sharding.shard_shape(v.shape)) for k, v in whole.params.items()}
        moments = [leaf for leaf in jax.tree.leaves(whole.optimizer_state) if leaf.ndim]
        report["moments"][name] = [list(leaf.sharding.shard_shape(leaf.shape)) for leaf in moments]
    output.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
