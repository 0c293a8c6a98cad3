"""Trains a small network on real images with JAX, privately: plan, train, test, record.

    python examples/jax_digits.py                          # makes a small plan itself
    python examples/jax_digits.py --plan my-plan --run my-run
    python examples/jax_digits.py --data fashion           # apt install dataset-fashion-mnist

A run that was broken off is taken up again by the same command with the same --run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import data
import jax
import jax.numpy as jnp
import optax

from galton.plan import load_plan, make_plan
from galton.training.jax import train

SIZES: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 128, "epochs": 20},
    "fashion": {"batch_size": 2000, "epochs": 4},
}
HIDDEN = 64


def start_of(pixels: int) -> dict[str, jax.Array]:
    """Parameters of a network with one hidden layer."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (pixels, HIDDEN)) / jnp.sqrt(pixels),
        "hidden_bias": jnp.zeros(HIDDEN),
        "output": jax.random.normal(second, (HIDDEN, 10)) / jnp.sqrt(HIDDEN),
        "output_bias": jnp.zeros(10),
    }


def logits(params: dict[str, jax.Array], image: jax.Array) -> jax.Array:
    """What the network says of one image."""
    hidden = jnp.tanh(image.ravel() @ params["hidden"] + params["hidden_bias"])
    return hidden @ params["output"] + params["output_bias"]


def loss(params: dict[str, jax.Array], example: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Cross entropy of one example."""
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def main() -> None:
    """Trains and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="folder of a plan; made for this data if left out")
    parser.add_argument("--run", type=Path, help="folder of the run; a temporary one if left out")
    parser.add_argument("--data", choices=tuple(SIZES), default="digits")
    chosen = parser.parse_args()
    start = time.perf_counter()

    images = data.load(chosen.data)
    examples = (images.train, images.train_labels)
    if chosen.plan:
        plan = load_plan(chosen.plan)
    else:
        plan = make_plan(examples=len(images.train), epsilon=4.0, delta=1e-5, strategy="bandmf:8", **SIZES[chosen.data])
    print(plan.statement)
    print(f"planned after {time.perf_counter() - start:.1f} s")

    with tempfile.TemporaryDirectory() as folder:
        params = start_of(images.train[0].size)
        result = train(plan, chosen.run or folder, loss, params, examples, optax.sgd(0.5, momentum=0.9))

    guesses = jax.vmap(logits, (None, 0))(result.params, jnp.asarray(images.test)).argmax(axis=1)
    print(f"test accuracy {(guesses == images.test_labels).mean():.1%}, after {time.perf_counter() - start:.1f} s")
    print("record:", *(f"  {name}: {value}" for name, value in result.record.items()), sep="\n")


if __name__ == "__main__":
    main()
