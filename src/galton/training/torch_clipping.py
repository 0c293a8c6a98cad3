"""Clipping in PyTorch that keeps to the clip norm in any precision: norms that are not too small, sums in float32.

Gradients may come in half precision, or be computed under autocast. From there on everything is at least float32,
whatever context the caller is in: autocast, or matrix products that PyTorch was allowed to round (TF32, bfloat16).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that are summed in float32. `vector_norm` over a long row is too small by 6e-4 at 2^24 numbers."""


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Computes float32 in float32 inside a block: without autocast, and without rounding the factors of products."""
    before = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        for kind in sorted({"cpu", device.type}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.callback(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision("highest")
        yield


def is_full_precision(device: torch.device) -> bool:
    """Whether float32 is computed in float32 here."""
    cast = any(torch.is_autocast_enabled(kind) for kind in {"cpu", device.type})
    return not cast and torch.get_float32_matmul_precision() == "highest"


def row_norms(rows: Tensor) -> Tensor:
    """Returns the l2 norms of rows in float64, with a relative error below 2^-16 for float32 of any length.

    The square of a block's norm is a sum of `BLOCK` squares: its relative error is at most BLOCK * 2^-24, that of the
    norm half of it. Blocks are added in float64.
    """
    number = rows.shape[1] // BLOCK
    blocks = torch.linalg.vector_norm(rows[:, : number * BLOCK].reshape(rows.shape[0], number, BLOCK), dim=2)
    rest = torch.linalg.vector_norm(rows[:, number * BLOCK :], dim=1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([blocks, rest], dim=1).double(), dim=1)


def add_clipped(total: dict[str, Tensor], gradients: dict[str, Tensor], mask: Tensor, limit: float) -> None:
    """Adds gradients, each clipped to a norm, to sums in place.

    Formal guarantee: a row adds at most `limit` * (1 + 2^-16) in l2 norm, summation in float32 aside; nothing where the
    mask is False or the gradient is not finite.

    Args:
      total: sums by name, in float32 at least.
      gradients: by name, one row for each example, in any precision.
      mask: True where there is an example.
      limit: the norm.
    """
    with full_precision(mask.device):
        rows = {
            name: gradients[name].to(sums.dtype).reshape(mask.shape[0], sums.numel()) for name, sums in total.items()
        }
        norms = torch.stack([row_norms(part).to(mask.device) for part in rows.values()]).norm(dim=0)
        usable = mask & norms.isfinite()
        factors = torch.where(usable, limit / norms.clamp(min=limit), 0.0)
        if not norms.isfinite().all():  # zero times what is not finite is not zero
            rows = {name: part.masked_fill(~usable.to(part.device)[:, None], 0.0) for name, part in rows.items()}
        for name, sums in total.items():
            sums += (factors.to(sums.device, sums.dtype) @ rows[name]).reshape(sums.shape)
