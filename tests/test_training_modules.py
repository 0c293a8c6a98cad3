"""Models of libraries on top of JAX, which galton does not depend on; see docs/training-jax.md for the recipes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optax")

import jax
import optax

from galton.plan import Plan
from galton.training.jax import train

SEED = 5
X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)


def entropy(logits: Any, label: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def by_plain_jax(plan: Plan, folder: Path, start: list[Any]) -> list[Any]:
    """The same layers, tanh in between, without a library; kernels have shape (in, out)."""

    def loss(params: list[Any], example: Any) -> jax.Array:
        x, y = example
        first, bias, second, last = params
        return entropy(jax.numpy.tanh(x @ first + bias) @ second + last, y)

    return list(train(plan, folder, loss, start, (X, Y), optax.sgd(0.5), seed=SEED).params)


def test_equinox_modules(small_plan: Plan, tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox")
    network = eqx.nn.MLP(6, 3, 5, 1, activation=jax.numpy.tanh, key=jax.random.key(1))
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params: Any, example: Any) -> jax.Array:
        x, y = example
        return entropy(eqx.combine(params, static)(x), y)

    for rounds in (9, None):  # interrupted and taken up
        trained = train(small_plan, tmp_path / "run", loss, params, (X, Y), optax.sgd(0.5), seed=SEED, rounds=rounds)
    straight = train(small_plan, tmp_path / "straight", loss, params, (X, Y), optax.sgd(0.5), seed=SEED)
    model = eqx.combine(trained.params, static)
    assert trained.record["completed"]
    assert eqx.tree_equal(trained.params, straight.params)
    assert jax.vmap(model)(X).shape == (64, 3)
    assert not np.array_equal(model.layers[0].weight, network.layers[0].weight)


def test_keras_models(small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras draws no noise and clips nothing: it has the layers, and they come to those of plain JAX."""
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend")
    network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)])
    params = [variable.value for variable in network.trainable_variables]
    fixed = [variable.value for variable in network.non_trainable_variables]

    def loss(params: Any, example: Any) -> jax.Array:
        x, y = example
        logits, _ = network.stateless_call(params, fixed, x[None], training=True)
        return entropy(logits[0], y)

    trained = train(small_plan, tmp_path / "run", loss, params, (X, Y), optax.sgd(0.5), seed=SEED)
    for variable, value in zip(network.trainable_variables, trained.params, strict=True):
        variable.assign(value)
    assert trained.record["completed"]
    plain = by_plain_jax(small_plan, tmp_path / "plain", params)
    for variable, expected, start in zip(network.trainable_variables, plain, params, strict=True):
        np.testing.assert_allclose(variable.value, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(variable.value, start)
