"""Trains a small network on real images with PyTorch, privately: plan, train, test, record.

    python examples/torch_digits.py                        # makes a small plan itself
    python examples/torch_digits.py --plan my-plan --run my-run
    python examples/torch_digits.py --data fashion         # apt install dataset-fashion-mnist

A run that was broken off is taken up again by the same command with the same --run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import data
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from galton.plan import load_plan, make_plan
from galton.training.torch import Forward, train

SIZES: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 256, "epochs": 20},
    "fashion": {"batch_size": 2000, "epochs": 3},
}


def network(side: int) -> nn.Module:
    """One hidden layer; nothing that mixes examples."""
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 32), nn.Tanh(), nn.Linear(32, 10))


def loss(model: Forward, rows: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of one example."""
    images, labels = rows
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    """Trains and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="folder of a plan; made for this data if left out")
    parser.add_argument("--run", type=Path, help="folder of the run; a temporary one if left out")
    parser.add_argument("--data", choices=tuple(SIZES), default="digits")
    chosen = parser.parse_args()
    start = time.perf_counter()

    images = data.load(chosen.data)
    examples = TensorDataset(torch.from_numpy(images.train), torch.from_numpy(images.train_labels))
    if chosen.plan:
        plan = load_plan(chosen.plan)
    else:
        plan = make_plan(examples=len(examples), epsilon=4.0, delta=1e-5, strategy="bandmf:6", **SIZES[chosen.data])
    print(plan.statement)
    print(f"planned after {time.perf_counter() - start:.1f} s")

    torch.manual_seed(0)
    model = network(images.train.shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        record = train(plan, chosen.run or folder, loss, model, examples, optimizer, micro_batch_size=256)

    with torch.no_grad():
        guesses = model(torch.from_numpy(images.test)).argmax(1).numpy()
    print(f"test accuracy {(guesses == images.test_labels).mean():.1%}, after {time.perf_counter() - start:.1f} s")
    print("record:", *(f"  {name}: {value}" for name, value in record.items()), sep="\n")


if __name__ == "__main__":
    main()
