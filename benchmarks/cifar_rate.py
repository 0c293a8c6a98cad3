"""How far a training step on 500 images is from what the processor can do.

A step's products of matrices (forwards, backwards, and the gradients of the weights) have a known number of operations.
The rate that a large product reaches says how long they would take at best; the same products by themselves, in the
shapes of the networks, how long they take without anything in between; the rest is patches, tanh, pooling, norms.
Seconds are of the processor, so that a busy machine matters less; on two idle cores half as many pass.

python benchmarks/cifar_rate.py
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Step, markdown, write
from reproduction.cifar.clipping import at_once, clipped_sum
from reproduction.cifar.models import NETWORKS, Network

SIZE, TURNS, SIDE = 500, 7, 2048
RANDOM = np.random.default_rng(0)
Shape = tuple[int, int, int]


def layers(network: Network) -> dict[str, Shape]:
    """Places per image, inputs and outputs of every layer."""
    params = network.init(jax.random.key(0))
    taps = network.taps(1)
    return {name: (int(tap.size // tap.shape[-1]), *params[name].shape) for name, tap in taps.items()}


def operations(network: Network) -> float:
    """Multiplications and additions of an image's products: outputs, weights, and inputs but of the first layer."""
    counts = [2.0 * places * inputs * outputs for places, inputs, outputs in layers(network).values()]
    return 3 * sum(counts) - counts[0]


def product(side: int = SIDE) -> Step:
    """One large product."""
    a, b = (jnp.asarray(RANDOM.normal(size=(side, side)), jnp.float32) for _ in range(2))
    once = jax.jit(jnp.matmul)
    return lambda: jax.block_until_ready(once(a, b))  # type: ignore[no-untyped-call]


def products(network: Network) -> Step:
    """The products of SIZE images in the step's shapes, micro-batch by micro-batch, with nothing in between."""
    count, shapes = at_once(network), layers(network)
    arrays = {}
    for name, (places, inputs, outputs) in shapes.items():
        sides = ((count, places, inputs), (count, places, outputs), (inputs, outputs))
        arrays[name] = tuple(jnp.asarray(RANDOM.normal(size=side), jnp.float32) for side in sides)

    def together(turn: Any, total: jax.Array) -> jax.Array:
        moved = total * 1e-30  # so that no turn is the same as another
        for index, (x, reaching, weights) in enumerate(arrays.values()):
            outputs = (x + moved) @ weights
            gradient = jnp.einsum("npk,npc->nck", x, reaching + moved)
            total = total + outputs[0, 0, 0] + gradient[0, 0, 0]
            outputs, gradient = jax.lax.optimization_barrier((outputs, gradient))  # type: ignore[no-untyped-call]
            total = total + outputs[-1, -1, -1] + gradient[-1, -1, -1]
            if index:
                back = jax.lax.optimization_barrier((reaching + moved) @ weights.T)  # type: ignore[no-untyped-call]
                total = total + back[-1, -1, -1]
        return total

    once = jax.jit(lambda: jax.lax.fori_loop(0, SIZE // count, together, jnp.zeros(())))
    return lambda: jax.block_until_ready(once())  # type: ignore[no-untyped-call]


def step(network: Network) -> Step:
    """The clipped sum of SIZE images."""
    images = RANDOM.integers(0, 256, (SIZE, 32, 32, 3), dtype=np.uint8)
    labels = RANDOM.integers(0, 10, SIZE).astype(np.int32)
    params, once = network.init(jax.random.key(0)), jax.jit(clipped_sum(network, 1.0))
    mask = np.ones(SIZE, bool)
    return lambda: jax.block_until_ready(once(params, (images, labels), mask))  # type: ignore[no-untyped-call]


def seconds(steps: dict[str, Step]) -> dict[str, float]:
    """Least processor seconds of each, taking turns."""
    for once in steps.values():
        once()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, once in steps.items():
            begun = time.process_time()
            once()
            times[name].append(time.process_time() - begun)
    return {name: min(values) for name, values in times.items()}


def main() -> None:
    """Measures and writes results/cifar_rate.{json,md}."""
    rows: list[dict[str, Any]] = []
    for network in NETWORKS.values():
        times = seconds({"product": product(), "products": products(network), "step": step(network)})
        rate = 2 * SIDE**3 / times["product"]
        work = SIZE * operations(network)
        row = {"model": network.name, "gigaflop": work / 1e9, "rate": rate / 1e9, "at_rate_s": work / rate}
        row |= {"products_s": times["products"], "step_s": times["step"], "share": work / rate / times["step"]}
        rows.append(row)
        print(row, flush=True)
    write("cifar_rate", rows, size=SIZE, turns=TURNS, side=SIDE, load_average=os.getloadavg()[0])
    header = [
        "model",
        "Gflop",
        "Gflop a s, large product",
        "s at that rate",
        "s of its products",
        "s of the step",
        "share",
    ]
    names = ("gigaflop", "rate", "at_rate_s", "products_s", "step_s")
    body = [[row["model"], *(f"{row[name]:.3g}" for name in names), f"{row['share']:.0%}"] for row in rows]
    markdown("cifar_rate", header, body)


if __name__ == "__main__":
    main()
