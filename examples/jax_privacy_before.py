"""A jax-privacy script before: DP-SGD on digits, with Poisson batches and independent noise. `jax_privacy_after.py`."""

from __future__ import annotations

from typing import Any

import data
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_digits import logits, loss, start_of
from jax_privacy import noise_addition
from jax_privacy.clipping import clipped_grad

BATCH_SIZE, PADDED, EPOCHS = 128, 200, 20
NOISE_MULTIPLIER = 1.45  # to be found with an accountant


def main() -> None:
    """Trains and tells."""
    images = data.load("digits")
    x, y = jnp.asarray(images.train), jnp.asarray(images.train_labels)
    params: Any = start_of(x[0].size)
    gradient_of = clipped_grad(
        lambda params, image, label: loss(params, (image, label)),
        l2_clip_norm=1.0,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        normalize_by=BATCH_SIZE,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * gradient_of.sensitivity(), prng_key=jax.random.key(0)
    )
    optimizer = optax.sgd(0.5, momentum=0.9)
    state, noise = optimizer.init(params), privatizer.init(params)
    generator = np.random.default_rng(0)
    clipped = jax.jit(lambda params, rows, padding: gradient_of(params, *rows, is_padding_example=padding))
    for _ in range(EPOCHS * len(x) // BATCH_SIZE):
        batch = np.flatnonzero(generator.random(len(x)) < BATCH_SIZE / len(x))[:PADDED]
        padding = np.arange(PADDED) >= len(batch)
        batch = np.resize(batch, PADDED)
        noisy, noise = privatizer.update(clipped(params, (x[batch], y[batch]), padding), noise)
        updates, state = optimizer.update(noisy, state, params)
        params = optax.apply_updates(params, updates)
    guesses = np.asarray(jax.vmap(lambda image: logits(params, image).argmax())(jnp.asarray(images.test)))
    print(f"test accuracy {(guesses == images.test_labels).mean():.1%}")


if __name__ == "__main__":
    main()
