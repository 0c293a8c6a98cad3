"""The models of the step benchmark in JAX, for galton and jax-privacy alike."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]
WIDTHS = (784, 512, 256, 10)


def data(model: str, examples: int) -> tuple[Any, Any]:
    """Random images of 28 x 28 and labels."""
    generator = np.random.default_rng(0)
    shape = (784,) if model == "mlp" else (28, 28, 1)
    images = generator.normal(size=(examples, *shape)).astype(np.float32)
    return images, generator.integers(0, 10, examples).astype(np.int32)


def parameters(model: str) -> Params:
    """Random parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    if model == "mlp":
        for layer, (inner, outer) in enumerate(pairwise(WIDTHS)):
            shapes |= {f"w{layer}": (inner, outer), f"b{layer}": (outer,)}
    else:
        shapes = {"k0": (8, 8, 1, 16), "c0": (16,), "k1": (4, 4, 16, 32), "c1": (32,)}
        shapes |= {"w0": (512, 32), "b0": (32,), "w1": (32, 10), "b1": (10,)}
    generator = np.random.default_rng(1)
    return {name: jnp.asarray(0.05 * generator.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def logits(model: str, params: Params, image: jax.Array) -> jax.Array:
    """Class scores of one image."""
    if model == "mlp":
        hidden = image
        for layer in range(len(WIDTHS) - 1):
            hidden = hidden @ params[f"w{layer}"] + params[f"b{layer}"]
            hidden = jax.nn.relu(hidden) if layer < len(WIDTHS) - 2 else hidden
        return hidden
    hidden = _pooled(_convolved(image[None], params["k0"], params["c0"], ((3, 3), (3, 3))))
    hidden = _pooled(_convolved(hidden, params["k1"], params["c1"], ((0, 0), (0, 0))))
    hidden = jax.nn.relu(hidden.reshape(-1) @ params["w0"] + params["b0"])
    return hidden @ params["w1"] + params["b1"]


def loss(model: str, params: Params, example: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Cross entropy of one example."""
    image, label = example
    scores = jax.nn.log_softmax(logits(model, params, image))
    return -scores[label]


def _convolved(images: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Any) -> jax.Array:
    out = jax.lax.conv_general_dilated(images, kernel, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(out + bias)


def _pooled(images: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
