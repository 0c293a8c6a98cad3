"""`opacus_before.py` with batches and noise of a plan. Arguments: the plan's folder, the run's folder; or none."""

from __future__ import annotations

import sys
import tempfile

import data
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from galton.plan import Plan, load_plan, make_plan
from galton.training.opacus import PlanPrivacyEngine

EPSILON, DELTA, BATCH_SIZE, EPOCHS = 4.0, 1e-5, 256, 20


def small_plan(examples: int) -> Plan:
    """What `galton plan` does, with a strategy that is found quickly."""
    return make_plan(
        examples=examples, batch_size=BATCH_SIZE, epochs=EPOCHS, epsilon=EPSILON, delta=DELTA, strategy="bandmf:6"
    )


def main() -> None:
    """Trains and tells."""
    images = data.load("digits")
    examples = TensorDataset(torch.from_numpy(images.train), torch.from_numpy(images.train_labels))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loader = DataLoader(examples, batch_size=BATCH_SIZE)
    criterion = nn.CrossEntropyLoss()

    plan = load_plan(sys.argv[1]) if sys.argv[1:] else small_plan(len(examples))
    engine = PlanPrivacyEngine(plan, sys.argv[2] if sys.argv[2:] else tempfile.mkdtemp())
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=128, optimizer=optimizer) as batches:
        for _ in range(EPOCHS):
            for rows, labels in batches:
                optimizer.zero_grad()
                criterion(model(rows), labels).backward()
                optimizer.step()

    with torch.no_grad():
        guesses = model(torch.from_numpy(images.test)).argmax(1).numpy()
    print(f"test accuracy {(guesses == images.test_labels).mean():.1%}, epsilon {engine.get_epsilon(DELTA):.2f}")
    print(engine.close())


if __name__ == "__main__":
    main()
