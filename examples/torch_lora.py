"""Fine-tunes a small language model privately: low-rank adapters (LoRA) beside frozen weights, by ghost clipping.

    python examples/torch_lora.py                          # about a minute; makes the plan itself
    python examples/torch_lora.py --run my-run             # goes on from there if it was broken off

Everything is made from scratch, without a download: the text is Python's own manual, which ships with Python. One part
of it is public: a tokenizer and a transformer are trained on that, without privacy. The other part stands for private
text: only the adapters see it, through clipped gradients and the plan's noise. Frozen weights need no noise, so that
the noise is spread over few parameters; ghost clipping holds no gradient of a single example, so that the memory is
that of ordinary training.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from galton.plan import make_plan
from galton.training.torch import Forward, train

LENGTH, WIDTH, HEADS, LAYERS, RANK, MERGES = 32, 64, 4, 2, 4, 64


def texts() -> tuple[str, str, str]:
    """Returns the text that is public, the one that stands for private text, and some of its kind to test on."""
    pages = [topics[name] for name in sorted(topics)]
    return "".join(pages[::2])[:60_000], "".join(pages[1::4])[:100_000], "".join(pages[3::4])[:20_000]


class Tokenizer:
    """Byte pair encoding, trained on a public text: pairs of neighbours that are frequent become tokens."""

    def __init__(self, text: str, merges: int) -> None:
        tokens = list(text.encode())
        self.merges: dict[tuple[int, int], int] = {}
        for number in range(256, 256 + merges):
            pair = Counter(pairwise(tokens)).most_common(1)[0][0]
            self.merges[pair] = number
            tokens = _merged(tokens, pair, number)

    def __call__(self, text: str) -> list[int]:
        tokens = list(text.encode())
        for pair, number in self.merges.items():
            tokens = _merged(tokens, pair, number)
        return tokens


def _merged(tokens: list[int], pair: tuple[int, int], number: int) -> list[int]:
    merged: list[int] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] = number
        else:
            merged.append(token)
    return merged


class Adapted(nn.Module):
    """A linear layer, and a low-rank one beside it that starts at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Block(nn.Module):
    """Attention to what came before, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.widen, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.attend(self.before(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        out: Tensor = x + self.narrow(functional.gelu(self.widen(self.between(x))))
        return out


class Transformer(nn.Module):
    """Predicts the next token of a text."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, tokens)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device).expand_as(text)
        out: Tensor = self.head(self.norm(self.blocks(self.embed(text) + self.place(places))))
        return out


def losses(model: Forward, rows: Any) -> Tensor:
    """The loss of each text: the mean over its tokens, as ghost clipping wants it, one for each."""
    (text,) = rows
    guesses = model(text[:, :-1])
    each = functional.cross_entropy(guesses.flatten(0, 1), text[:, 1:].flatten(), reduction="none")
    return each.view(len(text), -1).mean(1)


def cut(tokens: list[int]) -> Tensor:
    """Cuts a text into examples."""
    number = len(tokens) // (LENGTH + 1)
    return torch.tensor(tokens[: number * (LENGTH + 1)]).view(number, LENGTH + 1)


def pretrain(model: nn.Module, public: Tensor, rounds: int) -> None:
    """Trains on public text, without privacy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(rounds):
        optimizer.zero_grad()
        mean = losses(model, [public[torch.randint(len(public), (64,))]]).mean()
        mean.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def bits(model: nn.Module, rows: Tensor) -> float:
    """Returns the bits that the model needs for a token of a text."""
    with torch.no_grad():
        return float(losses(model, [rows]).mean()) / math.log(2)


def main() -> None:
    """Pretrains, fine-tunes and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of the run; a temporary one if left out")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pretraining", type=int, default=150, help="rounds on public text")
    chosen = parser.parse_args()

    public, private, testing = texts()
    tokenizer = Tokenizer(public[:30_000], MERGES)
    torch.manual_seed(0)
    model = Transformer(256 + MERGES)
    pretrain(model, cut(tokenizer(public)), chosen.pretraining)
    examples, test = cut(tokenizer(private)), cut(tokenizer(testing))
    print(f"{len(examples)} private texts of {LENGTH + 1} tokens; {bits(model, test):.3f} bits a token before")

    for name, weight in model.named_parameters():  # the recipe: what is frozen gets no gradient, and needs no noise
        weight.requires_grad = ".down." in name or ".up." in name
    adapters = [weight for weight in model.parameters() if weight.requires_grad]
    whole = sum(weight.numel() for weight in model.parameters())
    print(f"{sum(weight.numel() for weight in adapters):,} of {whole:,} parameters are trained")

    plan = make_plan(
        examples=len(examples),
        batch_size=len(examples) / 8,
        epochs=chosen.epochs,
        epsilon=8.0,
        delta=1e-5,
        clip_norm=0.1,
        strategy="identity",
        batching="balls-in-bins",
    )
    print(plan.statement)
    optimizer = torch.optim.Adam(adapters, lr=5e-3)
    with tempfile.TemporaryDirectory() as folder:
        record = train(
            plan,
            chosen.run or folder,
            losses,
            model,
            TensorDataset(examples),
            optimizer,
            ghost=True,
            micro_batch_size=64,
            progress=True,
        )
    print(f"{bits(model, test):.3f} bits a token after {record['rounds_done']} private rounds")


if __name__ == "__main__":
    main()
