"""The networks for CIFAR-10 and their clipped gradients, against JAX's own convolution and the general method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from galton.errors import InvalidArgument
from galton.training.jax import clipped_sum as general_sum
from reproduction.cifar.clipping import clipped_sum
from reproduction.cifar.models import NETWORKS, Network, Params, find_network
from tests.marks import SLOW, slow_after

EACH = pytest.mark.parametrize("network", [NETWORKS["cnn"], pytest.param(NETWORKS["vgg"], marks=SLOW)])


def batch(count: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, count).astype(np.int32)


def norm(tree: Params) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(part, float)).sum() for part in jax.tree.leaves(tree))))


@SLOW
@EACH
def test_size_and_scale_are_as_they_should_be(network: Network) -> None:
    assert NETWORKS["vgg"].parameters == 550_570
    assert abs(NETWORKS["cnn"].parameters - 500_000) < 60_000
    params = network.init(jax.random.key(1))
    assert sum(part.size for part in jax.tree.leaves(params)) == network.parameters
    assert float(params["conv0"].std()) == pytest.approx(np.sqrt(2 / 27), rel=0.15)
    inputs, outputs = params["dense"].shape
    assert float(params["dense"].std()) == pytest.approx(np.sqrt(2 / (inputs + outputs)), rel=0.02)
    assert not params["dense_bias"].any()
    assert find_network(network.name) is network


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="model"):
        find_network("resnet")


@SLOW
@EACH
def test_the_forward_pass_is_that_of_a_plain_implementation(network: Network) -> None:
    """By XLA's convolutions and windows, tanh before pooling."""
    images, _ = batch(3)
    params = network.init(jax.random.key(2))
    x = jnp.asarray(images, jnp.float32) / 127.5 - 1
    for index, convolution in enumerate(network.convolutions):
        kernel = params[f"conv{index}"].reshape(3, 3, x.shape[-1], convolution.channels)
        sides = ((1, 1), (1, 1))
        strides = (convolution.stride, convolution.stride)
        x = jax.lax.conv_general_dilated(x, kernel, strides, sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jnp.tanh(x + params[f"conv{index}_bias"])
        if convolution.pooled:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jnp.tanh(x.reshape(3, -1) @ params["dense"] + params["dense_bias"])
    expected = x @ params["classes"] + params["classes_bias"]
    np.testing.assert_allclose(network.forward(params, images)[0], expected, rtol=1e-4, atol=1e-5)


@SLOW
@pytest.mark.parametrize("name", ["cnn", pytest.param("vgg", marks=SLOW)])
@pytest.mark.parametrize("clip_norm", slow_after(1, [3.0, 0.01, 1e6]))
def test_clipped_sums_are_those_of_the_general_method(name: str, clip_norm: float) -> None:
    """Some of the gradients are clipped, all, or none."""
    network = NETWORKS[name]
    images, labels = batch(7)
    params = network.init(jax.random.key(3))
    mask = np.array([True, False, True, True, True, False, False])
    sums = jax.jit(clipped_sum(replace(network, at_once=3), clip_norm))(params, (images, labels), mask)
    expected = jax.jit(general_sum(network.loss, clip_norm))(params, (images, labels), mask)
    for layer, part in expected.items():
        np.testing.assert_allclose(sums[layer], part, rtol=1e-4, atol=1e-6 * norm(expected), err_msg=layer)


@SLOW
def test_no_example_contributes_more_than_the_clip_norm() -> None:
    network = NETWORKS["cnn"]
    params = jax.tree.map(lambda part: 3 * part, network.init(jax.random.key(4)))
    total = jax.jit(clipped_sum(network, 0.5))
    for seed in range(5):
        length = norm(total(params, batch(1, seed), np.array([True])))
        assert 0.4999 < length <= 0.5


@SLOW
def test_an_empty_batch_gives_zero_and_so_does_a_gradient_that_is_not_finite() -> None:
    network = NETWORKS["cnn"]
    params = network.init(jax.random.key(5))
    total = jax.jit(clipped_sum(replace(network, at_once=2), 1.0))
    assert norm(total(params, batch(5), np.zeros(5, bool))) == 0
    broken = params | {"classes_bias": params["classes_bias"].at[0].set(jnp.nan)}
    assert norm(total(broken, batch(5), np.ones(5, bool))) == 0


@SLOW
def test_an_example_without_a_finite_gradient_does_not_touch_the_others() -> None:
    network = NETWORKS["cnn"]
    params = network.init(jax.random.key(6))
    total = jax.jit(clipped_sum(network, 1.0))
    images, labels = batch(4)
    images = images.astype(np.float32)
    expected = total(params, (images, labels), np.array([True, True, False, True]))
    images[2, 5, 5, 0] = np.nan
    sums = total(params, (images, labels), np.ones(4, bool))
    assert norm(expected) > 0.1
    for name, part in expected.items():
        np.testing.assert_array_equal(sums[name], part, err_msg=name)
