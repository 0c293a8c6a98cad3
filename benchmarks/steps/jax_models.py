"""The models in JAX, for galton and jax-privacy alike; same layers as in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
LENGTH, WORDS, WIDTH, HEADS, LAYERS = 32, 200, 64, 4, 2
DENSE = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
DENSE |= {"wide": (WIDTH, 4 * WIDTH), "narrow": (4 * WIDTH, WIDTH)}


def data(model: str, examples: int) -> tuple[Any, Any]:
    """Random images, or random words, and labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, examples).astype(np.int32)
    if model == "transformer":
        return generator.integers(0, WORDS, (examples, LENGTH)).astype(np.int32), labels
    shape = (784,) if model == "mlp" else (28, 28, 1)
    return generator.normal(size=(examples, *shape)).astype(np.float32), labels


def parameters(model: str) -> Params:
    """Random parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    if model == "mlp":
        shapes = {"w0": (784, 512), "b0": (512,), "w1": (512, 256), "b1": (256,), "w2": (256, 10), "b2": (10,)}
    elif model == "cnn":
        shapes = {"k0": (8, 8, 1, 16), "c0": (16,), "k1": (4, 4, 16, 32), "c1": (32,)}
        shapes |= {"w0": (512, 32), "b0": (32,), "w1": (32, 10), "b1": (10,)}
    else:
        shapes = {"embed": (WORDS, WIDTH), "head": (WIDTH, 10), "head_bias": (10,)}
        for layer in range(LAYERS):
            shapes |= {f"{name}{layer}": shape for name, shape in DENSE.items()}
            shapes |= {f"{name}_bias{layer}": (shape[1],) for name, shape in DENSE.items()}
            shapes |= {f"{name}{layer}": (WIDTH,) for name in ("scale0_", "shift0_", "scale1_", "shift1_")}
    generator = np.random.default_rng(1)
    return {name: jnp.asarray(0.05 * generator.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def loss(model: str, params: Params, example: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Cross entropy of one example."""
    x, label = example
    return -jax.nn.log_softmax(SCORES[model](params, x))[label]


def _mlp(params: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(x @ params["w0"] + params["b0"])
    x = jax.nn.relu(x @ params["w1"] + params["b1"])
    return x @ params["w2"] + params["b2"]


def _cnn(params: Params, x: jax.Array) -> jax.Array:
    hidden = _pooled(_convolved(x[None], params["k0"], params["c0"], ((3, 3), (3, 3))))
    hidden = _pooled(_convolved(hidden, params["k1"], params["c1"], ((0, 0), (0, 0))))
    hidden = jax.nn.relu(hidden.reshape(-1) @ params["w0"] + params["b0"])
    return hidden @ params["w1"] + params["b1"]


def _convolved(images: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Any) -> jax.Array:
    out = jax.lax.conv_general_dilated(images, kernel, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(out + bias)


def _pooled(images: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")


def _transformer(params: Params, words: jax.Array) -> jax.Array:
    x = params["embed"][words]
    for layer in range(LAYERS):
        normal = _normalised(params, x, f"0_{layer}")
        query, key, value = (
            _dense(params, normal, name, layer).reshape(LENGTH, HEADS, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        weights = jax.nn.softmax(query @ key.swapaxes(1, 2) / math.sqrt(WIDTH / HEADS))
        x = x + _dense(params, (weights @ value).swapaxes(0, 1).reshape(LENGTH, WIDTH), "out", layer)
        wide = jax.nn.relu(_dense(params, _normalised(params, x, f"1_{layer}"), "wide", layer))
        x = x + _dense(params, wide, "narrow", layer)
    return x.mean(axis=0) @ params["head"] + params["head_bias"]


def _dense(params: Params, x: jax.Array, name: str, layer: int) -> jax.Array:
    return x @ params[f"{name}{layer}"] + params[f"{name}_bias{layer}"]


def _normalised(params: Params, x: jax.Array, which: str) -> jax.Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * (1 + params[f"scale{which}"]) + params[f"shift{which}"]


SCORES = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
