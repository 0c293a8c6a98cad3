"""Seconds a training step on 500 images of CIFAR-10's size: per-example clipping and, but for torch, noise and update.

Ours against the general method of `training.jax` (a gradient for every example by vmap) with the same patches or with
XLA's convolution, and against torch.func, taking turns in one run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch.func import grad, vmap
from torch.nn import functional

import galton
from benchmarks.common import Step, markdown, measured, write
from galton.noise import CorrelatedNoise
from galton.training.jax import clipped_sum as general_sum
from reproduction.cifar.clipping import clipped_sum
from reproduction.cifar.models import NETWORKS, Network, Params

SIZE, MICRO, STEPS = 500, 25, 5
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (SIZE, 32, 32, 3), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, SIZE).astype(np.int32)
BLT = galton.Blt(2000, [0.99, 0.9, 0.7, 0.3], [0.1, 0.1, 0.1, 0.15])


def stepping(total: Any, network: Network) -> Step:
    """One step of private gradient descent with these clipped sums."""
    params = network.init(jax.random.key(0))
    noise, optimizer = CorrelatedNoise(BLT, 1.0), optax.sgd(0.1, momentum=0.95)
    mask = np.ones(SIZE, bool)

    @jax.jit
    def once(params: Params, inner: Any, state: Any) -> tuple[Any, Any, Any]:
        drawn, state = noise.next(state)
        mean = jax.tree.map(lambda a, b: (a + b) / SIZE, total(params, (IMAGES, LABELS), mask), drawn)
        updates, inner = optimizer.update(mean, inner, params)
        return optax.apply_updates(params, updates), inner, state

    everything = (params, optimizer.init(params), noise.init(params))

    def step() -> None:
        nonlocal everything
        everything = jax.block_until_ready(once(*everything))  # type: ignore[no-untyped-call]

    return step


def xla_loss(network: Network) -> Any:
    """The loss of one example by XLA's convolution."""

    def loss(params: Params, example: Any) -> jax.Array:
        image, label = example
        x = image[None].astype(jnp.float32) / 127.5 - 1
        for index, convolution in enumerate(network.convolutions):
            kernel = params[f"conv{index}"].reshape(3, 3, x.shape[-1], convolution.channels)
            strides, sides = (convolution.stride, convolution.stride), ((1, 1), (1, 1))
            x = jax.lax.conv_general_dilated(x, kernel, strides, sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jnp.tanh(x + params[f"conv{index}_bias"])
            if convolution.pooled:
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jnp.tanh(x.reshape(-1) @ params["dense"] + params["dense_bias"])
        logits = x @ params["classes"] + params["classes_bias"]
        return jax.nn.logsumexp(logits) - logits[label]

    return loss


def in_torch(network: Network) -> Step:
    """Per-example gradients by torch.func in micro-batches, clipped and summed; no noise, no update."""
    start = {name: torch.from_numpy(np.array(part)) for name, part in network.init(jax.random.key(0)).items()}
    params, channels = {}, 3
    for name, part in start.items():
        index = name.removeprefix("conv")
        if index.isdigit():
            wide = network.convolutions[int(index)].channels
            params[name] = part.reshape(3, 3, channels, wide).permute(3, 2, 0, 1).contiguous()
            channels = wide
        else:
            params[name] = part
    images = (torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()
    labels = torch.from_numpy(LABELS).long()

    def loss(params: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = image[None]
        for index, convolution in enumerate(network.convolutions):
            x = functional.conv2d(x, params[f"conv{index}"], params[f"conv{index}_bias"], convolution.stride, padding=1)
            x = torch.tanh(x)
            if convolution.pooled:
                x = functional.max_pool2d(x, 2)
        x = torch.tanh(x.reshape(-1) @ params["dense"] + params["dense_bias"])
        logits = x @ params["classes"] + params["classes_bias"]
        return functional.cross_entropy(logits[None], label[None])

    gradients_of = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        total = {name: torch.zeros_like(part) for name, part in params.items()}
        for start in range(0, SIZE, MICRO):
            gradients = gradients_of(params, images[start : start + MICRO], labels[start : start + MICRO])
            squares = torch.stack([part.flatten(1).square().sum(1) for part in gradients.values()]).sum(0)
            factor = torch.clamp(1 / torch.sqrt(squares), max=1.0)
            for name, part in gradients.items():
                total[name] += torch.tensordot(factor, part, 1)

    return step


def main() -> None:
    """Measures and writes results/cifar.{json,md}."""
    torch.set_num_threads(2)
    rows: list[dict[str, Any]] = []
    for network in NETWORKS.values():
        ways = {
            "galton": stepping(clipped_sum(network, 1.0), network),
            "vmap, patches": stepping(general_sum(network.loss, 1.0, MICRO), network),
            "vmap, XLA convolution": stepping(general_sum(xla_loss(network), 1.0, MICRO), network),
            "torch.func": in_torch(network),
        }
        times = measured(ways, STEPS)
        for name, (least, median) in times.items():
            row = {"model": network.name, "way": name, "least_s": least / 1e3, "median_s": median / 1e3}
            rows.append(row | {"ratio_of_medians": median / times["galton"][1]})
            print(rows[-1], flush=True)
    write("cifar", rows, size=SIZE, steps=STEPS, torch=torch.__version__, load_average=os.getloadavg()[0])
    body = [
        [
            str(row["model"]),
            str(row["way"]),
            f"{row['least_s']:.2f}",
            f"{row['median_s']:.2f}",
            f"{row['ratio_of_medians']:.1f}",
        ]
        for row in rows
    ]
    markdown("cifar", ["model", "clipped gradients by", "s, least", "s, median", "against galton"], body)


if __name__ == "__main__":
    main()
