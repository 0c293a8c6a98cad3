"""Clipped gradients of these networks, several times faster than `training.jax.clipped_sum` gets them.

Every layer is a product, outputs = inputs @ weights. One pass backwards for several examples gives the gradient
that reaches the outputs of each layer, example by example; with the inputs that makes up the gradient of its weights:

- of a dense layer it is the outer product of the two, whose norm is the product of theirs, and the clipped sum over
  examples is one product of matrices. No example's gradient is ever formed;
- of a convolution it is a sum over places, formed for one micro-batch at a time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from galton.errors import positive
from galton.paper.cifar.models import Network, Params, cross_entropy
from galton.training.jax import ClippedSum, in_micro_batches
from galton.training.run import ROUNDING

FULL = jax.lax.Precision.HIGHEST


class _Dense:
    """Gradients of a dense layer and its bias: inputs (count, inputs), reaching (count, outputs)."""

    def __init__(self, inputs: jax.Array, reaching: jax.Array) -> None:
        self._inputs, self._reaching = inputs, reaching
        self.square_norm = (jnp.square(inputs).sum(axis=1) + 1) * jnp.square(reaching).sum(axis=1)

    def weighted(self, weight: jax.Array, usable: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the weighted sums over examples, those that are not usable left out."""
        inputs = jnp.where(usable[:, None], self._inputs, 0)
        reaching = jnp.where(usable[:, None], self._reaching, 0) * weight[:, None]
        return jnp.matmul(inputs.T, reaching, precision=FULL), reaching.sum(axis=0)


class _Convolution:
    """Gradients of a convolution: inputs (count, height, width, inputs), reaching (count, height, width, outputs)."""

    def __init__(self, inputs: jax.Array, reaching: jax.Array) -> None:
        self._kernel = jnp.einsum("nhwk,nhwc->nkc", inputs, reaching)
        self._bias = reaching.sum(axis=(1, 2))
        self.square_norm = jnp.square(self._kernel).sum(axis=(1, 2)) + jnp.square(self._bias).sum(axis=1)

    def weighted(self, weight: jax.Array, usable: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the weighted sums over examples, those that are not usable left out."""
        kernel = jnp.where(usable[:, None, None], self._kernel, 0)
        bias = jnp.where(usable[:, None], self._bias, 0)
        return jnp.tensordot(weight, kernel, 1, precision=FULL), jnp.matmul(weight, bias, precision=FULL)


def clipped_sum(network: Network, clip_norm: float) -> ClippedSum:
    """Returns a function (params, (images, labels), mask) -> sum of the examples' clipped gradients.

    The guarantee is that of `training.jax.clipped_sum`: no example contributes more than `clip_norm` in l2 norm, places
    where the mask is False and examples without a finite gradient contribute zero. Sums are taken at full precision
    on every device: the norms would not hold for rounded ones.

    Micro-batches after the last place in use are not computed. So the time of a step tells about how large the batch
    was, which does not matter in a study on public data.
    """
    positive("clip_norm", clip_norm)
    limit = clip_norm * (1 - ROUNDING)

    def together(params: Params, images: jax.Array, labels: jax.Array, mask: jax.Array) -> Params:
        def losses(taps: Params) -> tuple[jax.Array, Params]:
            logits, inputs = network.forward(params, images, taps)
            return cross_entropy(logits, labels).sum(), inputs

        reaching, inputs = jax.grad(losses, has_aux=True)(network.taps(images.shape[0]))
        layers = {
            name: (_Convolution if reached.ndim > 2 else _Dense)(inputs[name], reached)
            for name, reached in reaching.items()
        }
        norm = jnp.sqrt(sum(one.square_norm for one in layers.values()))
        usable = mask & jnp.isfinite(norm)
        weight = jnp.where(usable, jnp.where(norm > limit, limit / norm, 1.0), 0.0)
        total: Params = {}
        for name, one in layers.items():
            total[name], total[f"{name}_bias"] = one.weighted(weight, usable)
        return total

    def total(params: Params, batch: tuple[jax.Array, jax.Array], mask: jax.Array) -> Params:
        images, labels, present = in_micro_batches((*batch, mask), network.at_once)
        last = jnp.max(jnp.where(present.any(axis=1), jnp.arange(present.shape[0]), -1))

        def add(part: jax.Array, sums: Params) -> Params:
            return jax.tree.map(jnp.add, sums, together(params, images[part], labels[part], present[part]))

        return jax.lax.fori_loop(0, last + 1, add, jax.tree.map(jnp.zeros_like, params))

    return total
