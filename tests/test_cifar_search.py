"""The search for settings of the CIFAR-10 study, against torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from benchmarks.cifar_search import SHAPES, SIZES, Run, clipped_mean, forward, split, start, wishes
from reproduction.cifar.models import NETWORKS
from tests.marks import SLOW


def test_all_combinations_are_tried() -> None:
    runs = wishes(["rate=0.1,0.2", "normalize=yes,no", "model=cnn"])
    assert [(run.rate, run.normalize) for run in runs] == [(0.1, True), (0.1, False), (0.2, True), (0.2, False)]
    assert {run.model for run in runs} == {"cnn"}


def test_networks_are_those_of_the_study() -> None:
    assert {model: NETWORKS[model].parameters for model in NETWORKS} == SIZES


@SLOW
@pytest.mark.parametrize("model", ["cnn", "vgg"])
@pytest.mark.parametrize("clip", [1.0, 35.0, 1e3])
def test_the_mean_is_that_of_clipped_gradients(model: str, clip: float) -> None:
    """Every gradient by itself; at the start all are clipped, some, or none."""
    run = Run(model=model, clip=clip, activation="softsign" if clip == 35 else "tanh")
    torch.manual_seed(1)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    params = split(start(run), run)

    def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(forward(run, params, image[None]), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(params, images, labels)
    flat = torch.cat([each[name].reshape(8, -1) for name in SHAPES[model]], dim=1)
    expected = (flat / flat.norm(dim=1, keepdim=True).clamp(min=clip)).mean(0)
    mean, norms = clipped_mean(run, params, images, labels)
    torch.testing.assert_close(norms, flat.norm(dim=1), rtol=1e-3, atol=0)
    assert float((mean - expected).norm() / expected.norm()) < 1e-3
