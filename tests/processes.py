"""What the ranks of tests/test_training_processes.py run, as a script: rank, number of ranks, and what to do."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from galton.training.torch import Forward, train
from galton.training.torch_sharded import gathered

SEED = 1076


def examples(number: int = 64) -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(number, 6, generator=made) * 3, torch.randint(0, 3, (number,), generator=made))


def network(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))


def loss(model: Forward, rows: Any) -> Tensor:
    return cross_entropy(model(rows[0]), rows[1])


def replicated(folder: Path, kill_at: int | None, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Trains a model that every rank has; rank 1 is killed after so many rounds."""
    return trained(network(seed=1 + dist.get_rank()), folder, kill_at, **options)  # rank 0 decides


def sharded(folder: Path, kill_at: int | None, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Trains a model of which every rank has a part (FSDP2), one of whose layers is a unit of its own."""
    model = network()
    fully_shard(model[0])  # type: ignore[index]
    fully_shard(model)
    return trained(model, folder, kill_at, **options)


def ghost(model: Forward, rows: Any) -> Tensor:
    return cross_entropy(model(rows[0]), rows[1], reduction="none")


def silent(model: Forward, rows: Any) -> Tensor:
    """A loss without a gradient: what is left is the noise."""
    return 0 * model(rows[0]).sum()


def trained(
    model: nn.Module, folder: Path, kill_at: int | None, *, loss: Any = loss, **options: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """Trains a model on all ranks; rank 1 is killed after so many rounds."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def watch(done: int) -> None:
        if rank == 1 and done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    record = train(
        folder / "plan",
        folder / "run",
        loss,
        model,
        examples(),
        optimizer,
        distributed=dist.is_initialized(),
        seed=SEED,
        save_every=6,
        watch=watch,
        **options,
    )
    return model, record


WORK: dict[str, Any] = {
    "replicated": replicated,
    "sharded": sharded,
    "replicated ghost": partial(replicated, loss=ghost, ghost=True),
    "sharded ghost": partial(sharded, loss=ghost, ghost=True),
    "sharded silent": partial(sharded, loss=silent),
}


def main() -> None:
    rank, size, what, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    kill_at = int(sys.argv[5]) if len(sys.argv) > 5 else None
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    model, record = WORK[what](folder, kill_at)
    torch.save({"model": gathered(model.state_dict()), "record": record}, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
