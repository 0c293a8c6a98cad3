"""The models of the step benchmark in PyTorch, for galton, opake and Opacus alike."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (784, 512, 256, 10)


def data(model: str, examples: int) -> tuple[Tensor, Tensor]:
    """Random images of 28 x 28 and labels."""
    generator = torch.Generator().manual_seed(0)
    shape = (784,) if model == "mlp" else (1, 28, 28)
    images = torch.randn(examples, *shape, generator=generator)
    return images, torch.randint(0, 10, (examples,), generator=generator)


def network(model: str) -> nn.Module:
    """The model, with the same layers as in JAX; the convolutional one is that of Opacus's example on MNIST."""
    if model == "mlp":
        layers: list[nn.Module] = []
        for inner, outer in pairwise(WIDTHS):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
