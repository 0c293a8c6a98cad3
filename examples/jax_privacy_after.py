"""`jax_privacy_before.py` with batches and noise of a plan. Arguments: the plan's folder, the run's folder; or none."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import data
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_digits import logits, loss, start_of

from galton.plan import load_plan, make_plan
from galton.training.jax import train

BATCH_SIZE, EPOCHS = 128, 20


def main() -> None:
    """Trains and tells."""
    images = data.load("digits")
    rows = (images.train, images.train_labels)
    sizes: dict[str, Any] = {"examples": len(images.train), "batch_size": BATCH_SIZE, "epochs": EPOCHS}
    plan = load_plan(sys.argv[1]) if sys.argv[1:] else make_plan(4.0, 1e-5, **sizes, strategy="bandmf:6")
    folder = sys.argv[2] if sys.argv[2:] else tempfile.mkdtemp()
    params = start_of(images.train[0].size)
    trained = train(plan, folder, loss, params, rows, optax.sgd(0.5, momentum=0.9))
    guesses = np.asarray(jax.vmap(lambda image: logits(trained.params, image).argmax())(jnp.asarray(images.test)))
    print(f"test accuracy {(guesses == images.test_labels).mean():.1%}, epsilon {plan.guarantee.epsilon}")


if __name__ == "__main__":
    main()
