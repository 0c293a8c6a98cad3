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
from reproduction.cifar.data import CHANNELS, CLASSES, SIDE

Params = dict[str, Any]
KERNEL = 3


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution with tanh.

    Attributes:
      channels: outputs.
      stride: of its places, in both directions.
      pooled: take the largest of every 2x2 outputs.
    """

    channels: int
    stride: int = 1
    pooled: bool = False


@dataclass(frozen=True)
class Network:
    """Convolutions, a dense layer with tanh, and the classes.

    Attributes:
      name: as on the command line.
      convolutions: in their order.
      dense: width of the dense layer.
      at_once: examples whose gradients a CPU computes at one time, so that they stay in its cache.

    >>> NETWORKS["vgg"].parameters
    550570
    """

    name: str
    convolutions: tuple[Convolution, ...]
    dense: int
    at_once: int

    @property
    def _layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of every layer; those of a convolution count the places of its kernel."""
        layers, channels, side = {}, CHANNELS, SIDE
        for index, convolution in enumerate(self.convolutions):
            layers[f"conv{index}"] = (KERNEL**2 * channels, convolution.channels)
            channels, side = convolution.channels, side // convolution.stride // (2 if convolution.pooled else 1)
        return layers | {"dense": (side * side * channels, self.dense), "classes": (self.dense, CLASSES)}

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
        for index, convolution in enumerate(self.convolutions):
            x = layer(f"conv{index}", _patches(x, convolution.stride))
            x = jnp.tanh(_pooled(x) if convolution.pooled else x)  # pooled first: the order matters for the time only
        x = jnp.tanh(layer("dense", x.reshape(x.shape[0], -1)))
        return layer("classes", x), inputs

    def taps(self, count: int) -> Params:
        """Returns zeros of the shape of every layer's outputs, see `forward`."""
        shapes = jax.eval_shape(
            lambda: self.forward(self.init(jax.random.key(0)), jnp.zeros((count, SIDE, SIDE, 3)))[1]
        )
        return {name: jnp.zeros((*shapes[name].shape[:-1], outputs)) for name, (_, outputs) in self._layers.items()}

    def loss(self, params: Params, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Cross entropy of one example."""
        image, label = example
        return cross_entropy(self.forward(params, image[None])[0], label[None]).sum()


_VGG = tuple(Convolution(channels, pooled=pooled) for channels in (32, 64, 128) for pooled in (False, True))
_CNN = (Convolution(16, stride=2), Convolution(32, pooled=True))
NETWORKS = {
    network.name: network
    for network in (Network("vgg", _VGG, dense=128, at_once=4), Network("cnn", _CNN, dense=256, at_once=10))
}
"""vgg is the paper's; cnn is for quick runs, more than ten times as fast."""


def find_network(name: str) -> Network:
    """Returns the network of this name."""
    return NETWORKS[choice("model", name, tuple(NETWORKS))]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the loss of every example."""
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


def _patches(x: jax.Array, stride: int = 1) -> jax.Array:
    """The 3x3 surroundings of every place, or every other, zeros outside: (count, height, width, 9 channels)."""
    _, height, width, _ = x.shape
    wide = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = [(i, j) for i in range(KERNEL) for j in range(KERNEL)]
    return jnp.concatenate([wide[:, i : i + height : stride, j : j + width : stride] for i, j in shifts], axis=-1)


def _pooled(x: jax.Array) -> jax.Array:
    """The largest of every 2x2 places, rows first."""
    count, height, width, channels = x.shape
    x = x.reshape(count, height // 2, 2, width, channels)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1]).reshape(count, height // 2, width // 2, 2, channels)
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])
