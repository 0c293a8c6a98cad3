"""The networks of the experiments, in JAX: a convolution is patches times a matrix, so that every layer is a product.

XLA's own convolution is several times slower on a CPU, and per-example gradients need the patches anyway.
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

    def forward(self, params: Params, images: jax.Array, taps: Params | None = None) -> tuple[jax.Array, Params]:
        """Returns logits of images, shape (count, 32, 32, 3) with pixels 0 to 255, and the inputs of every layer.

        Args:
          params: as from `init`.
          images: a batch.
          taps: what is added to the outputs of a layer before tanh: the gradient with respect to zeros there is
            the gradient that reaches the layer, for every example by itself.
        """
        inputs: Params = {}

        def layer(name: str, x: jax.Array) -> jax.Array:
            inputs[name] = x
            outputs = x @ params[name] + params[f"{name}_bias"]
            return outputs if taps is None else outputs + taps[name]

        x = images.astype(jnp.float32) / 127.5 - 1
        for block, widths in enumerate(self.blocks):
            for index in range(len(widths)):
                x = layer(f"conv{block}{index}", _patches(x))
                x = jnp.tanh(_pooled(x) if index == len(widths) - 1 else x)  # the order does not matter, the time does
        x = jnp.tanh(layer("dense", x.reshape(x.shape[0], -1)))
        return layer("classes", x), inputs

    def taps(self, count: int) -> Params:
        """Returns zeros of the shape of every layer's outputs, see `forward`."""
        sides = [SIDE >> block for block, widths in enumerate(self.blocks) for _ in widths]
        places = [(side, side) for side in sides] + [(), ()]
        return {
            name: jnp.zeros((count, *place, outputs))
            for (name, (_, outputs)), place in zip(self._layers.items(), places, strict=True)
        }

    def loss(self, params: Params, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Cross entropy of one example."""
        image, label = example
        return cross_entropy(self.forward(params, image[None])[0], label[None]).sum()


NETWORKS = {
    network.name: network
    for network in (
        Network("vgg", ((32, 32), (64, 64), (128, 128)), 128),
        Network("cnn", ((16,), (32,)), 256),
    )
}


def find_network(name: str) -> Network:
    """Returns the network of this name."""
    return NETWORKS[choice("model", name, tuple(NETWORKS))]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the loss of every example."""
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


def _patches(x: jax.Array) -> jax.Array:
    """The 3x3 surroundings of every place, zeros outside: (count, height, width, 9 channels)."""
    _, height, width, _ = x.shape
    wide = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    steps = range(KERNEL)
    return jnp.concatenate([wide[:, i : i + height, j : j + width] for i in steps for j in steps], axis=-1)


def _pooled(x: jax.Array) -> jax.Array:
    """The largest of every 2x2 places, rows first."""
    count, height, width, channels = x.shape
    x = x.reshape(count, height // 2, 2, width, channels)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1]).reshape(count, height // 2, width // 2, 2, channels)
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])
