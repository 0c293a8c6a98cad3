"""The networks of the experiments, in JAX: a convolution is patches times a matrix, which suits per-example gradients.

XLA's own convolution is an order of magnitude slower on a CPU once every example has a gradient of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from galton.errors import choice
from galton.paper.cifar.data import CHANNELS, CLASSES, SIDE

Params = dict[str, Any]
KERNEL = 3


@dataclass(frozen=True)
class Network:
    """Blocks of 3x3 convolutions with tanh, 2x2 max-pooling after each block, a dense layer with tanh, and the classes.

    Attributes:
      name: as on the command line.
      blocks: channels of the convolutions of each block.
      dense: width of the dense layer.

    >>> NETWORKS["vgg"].parameters
    550570
    """

    name: str
    blocks: tuple[tuple[int, ...], ...]
    dense: int

    @property
    def _layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of every layer; those of a convolution count the places of its kernel."""
        layers, channels = {}, CHANNELS
        for block, widths in enumerate(self.blocks):
            for index, width in enumerate(widths):
                layers[f"conv{block}{index}"] = (KERNEL**2 * channels, width)
                channels = width
        places = (SIDE >> len(self.blocks)) ** 2
        return layers | {"dense": (places * channels, self.dense), "classes": (self.dense, CLASSES)}

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(inputs * outputs + outputs for inputs, outputs in self._layers.values())

    def init(self, key: jax.Array) -> Params:
        """He-normal convolutions, Glorot-normal dense layers, zero biases."""
        params: Params = {}
        for (name, shape), part in zip(self._layers.items(), jax.random.split(key, len(self._layers)), strict=True):
            variance = 2 / shape[0] if name.startswith("conv") else 2 / sum(shape)
            params[name] = math.sqrt(variance) * jax.random.normal(part, shape)
            params[f"{name}_bias"] = jnp.zeros(shape[1])
        return params

    def logits(self, params: Params, image: jax.Array) -> jax.Array:
        """What the network says of one image, shape (32, 32, 3), pixels 0 to 255."""
        x = image.astype(jnp.float32) / 127.5 - 1
        for block, widths in enumerate(self.blocks):
            for index in range(len(widths)):
                name = f"conv{block}{index}"
                x = jnp.tanh(_patches(x) @ params[name] + params[f"{name}_bias"])
            x = _pooled(x)
        x = jnp.tanh(x.ravel() @ params["dense"] + params["dense_bias"])
        return x @ params["classes"] + params["classes_bias"]

    def loss(self, params: Params, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Cross entropy of one example."""
        image, label = example
        logits = self.logits(params, image)
        return jax.nn.logsumexp(logits) - logits[label]


NETWORKS = {
    network.name: network
    for network in (
        Network("vgg", ((32, 32), (64, 64), (128, 128)), 128),
        Network("cnn", ((32,), (64,)), 128),
    )
}


def find_network(name: str) -> Network:
    """Returns the network of this name."""
    return NETWORKS[choice("model", name, tuple(NETWORKS))]


def _patches(x: jax.Array) -> jax.Array:
    """The 3x3 surroundings of every place, zeros outside: (height, width, 9 channels)."""
    height, width, _ = x.shape
    wide = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
    return jnp.concatenate([wide[i : i + height, j : j + width] for i in range(KERNEL) for j in range(KERNEL)], axis=-1)


def _pooled(x: jax.Array) -> jax.Array:
    height, width, channels = x.shape
    return x.reshape(height // 2, 2, width // 2, 2, channels).max(axis=(1, 3))
