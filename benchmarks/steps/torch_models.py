"""The models in PyTorch, for galton, Opacus and opake alike."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LENGTH, WORDS, WIDTH, HEADS, LAYERS = 32, 200, 64, 4, 2


def data(model: str, examples: int) -> tuple[Tensor, Tensor]:
    """Random images, or random words, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (examples,), generator=generator)
    if model == "transformer":
        return torch.randint(0, WORDS, (examples, LENGTH), generator=generator), labels
    shape = (784,) if model == "mlp" else (1, 28, 28)
    return torch.randn(examples, *shape, generator=generator), labels


class Block(nn.Module):
    """Attention and two linear layers, out of layers that every package can clip."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        normal = self.before(x)
        query, key, value = (
            layer(normal).unflatten(-1, (HEADS, -1)).transpose(-3, -2) for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(-2, -1) / math.sqrt(WIDTH / HEADS)).softmax(dim=-1)
        x = x + self.out((weights @ value).transpose(-3, -2).flatten(-2))
        normal = self.between(x)
        summed: Tensor = x + self.narrow(torch.relu(self.wide(normal)))
        return summed


class Transformer(nn.Module):
    """Two layers, then the mean over all words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, words: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.blocks(self.embed(words)).mean(dim=-2))
        return scores


def network(model: str) -> nn.Module:
    """The model, with the same layers as in JAX; the convolutional one is that of Opacus's example on MNIST."""
    torch.manual_seed(1)
    if model == "transformer":
        return Transformer()
    if model == "mlp":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
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
