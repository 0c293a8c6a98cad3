"""Clipping in PyTorch that keeps to the clip norm in any precision: norms that are not too small, sums in float32.

Gradients may come in half precision, or be computed under autocast. From there on everything is at least float32,
whatever context the caller is in: autocast, or matrix products that PyTorch was allowed to round (TF32, bfloat16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from galton.errors import count
from galton.training.clipping import Clipping, Group

Forward = Callable[..., Any]
"""The model as a function of its inputs."""

Loss = Callable[[Forward, Any], Any]
"""loss(model, rows): the loss of one example, given as a batch of one; call the model that is passed, no other."""

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
    if rows.shape[1] <= BLOCK:
        return torch.linalg.vector_norm(rows, dim=1).double()
    number = rows.shape[1] // BLOCK
    blocks = torch.linalg.vector_norm(rows[:, : number * BLOCK].reshape(rows.shape[0], number, BLOCK), dim=2)
    rest = torch.linalg.vector_norm(rows[:, number * BLOCK :], dim=1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([blocks, rest], dim=1).double(), dim=1)


class Observed(NamedTuple):
    """What was seen of single examples while their gradients were summed; not private.

    Attributes:
      losses: of the examples.
      norms: of their gradients, before clipping.
      clipped: whether each was made shorter.
      aux: what else the loss returned, by name, for each example.
    """

    losses: Tensor
    norms: Tensor
    clipped: Tensor
    aux: dict[str, Tensor]


Observe = Callable[[Observed], None]


class Factors(NamedTuple):
    """By what the gradients of examples are multiplied, for each parameter; and what that follows from."""

    by_name: dict[str, Tensor]
    norms: Tensor
    usable: Tensor


def clip_factors(norms: dict[str, Tensor], mask: Tensor, groups: list[Group], gamma: float | None = None) -> Factors:
    """Returns factors that bring the gradients of examples to their limits.

    Args:
      norms: of the gradients of examples, for each parameter, in float64; not too small.
      mask: True where there is an example.
      groups: which parameters are clipped together, to what.
      gamma: what is added to norms where gradients are normalised; without it only those that are too long are changed.

    Returns:
      The factors, zero where there is no example or its gradient is not finite.
    """
    whole = torch.stack(list(norms.values())).norm(dim=0)
    usable = mask & whole.isfinite()
    factors: dict[str, Tensor] = {}
    for group in groups:
        if group.names:
            norm = torch.stack([norms[name] for name in group.names]).norm(dim=0)
            divisor = norm.clamp(min=group.limit) if gamma is None else norm + gamma
            factors |= dict.fromkeys(group.names, torch.where(usable, group.limit / divisor, 0.0))
    return Factors(factors, whole, usable)


def add_clipped(
    total: dict[str, Tensor],
    gradients: dict[str, Tensor],
    mask: Tensor,
    groups: list[Group],
    gamma: float | None = None,
) -> Factors:
    """Adds gradients, each clipped, to sums in place.

    Formal guarantee: a row adds to the parameters of a group at most its limit * (1 + 2^-16) in l2 norm, summation in
    float32 aside; nothing where the mask is False or the gradient is not finite.

    Args:
      total: sums by name, in float32 at least.
      gradients: by name, one row for each example, in any precision.
      mask: True where there is an example.
      groups: which parameters are clipped together, to what.
      gamma: see `clip_factors`.

    Returns:
      By what the gradients were multiplied.
    """
    with full_precision(mask.device):
        rows = {
            name: gradients[name].to(sums.dtype).reshape(mask.shape[0], sums.numel()) for name, sums in total.items()
        }
        norms = {name: row_norms(part).to(mask.device) for name, part in rows.items()}
        factors = clip_factors(norms, mask, groups, gamma)
        if not factors.norms.isfinite().all():  # zero times what is not finite is not zero
            missing = ~factors.usable[:, None]
            rows = {name: part.masked_fill(missing.to(part.device), 0.0) for name, part in rows.items()}
        for name, sums in total.items():
            sums += (factors.by_name[name].to(sums.device, sums.dtype) @ rows[name]).reshape(sums.shape)
        return factors


def report(observe: Observe | None, losses: Tensor, factors: Factors, aux: dict[str, Tensor]) -> None:
    """Passes on what was seen of the examples whose gradients were summed.

    Args:
      observe: called with it, if there is somebody to see it.
      losses: of the rows.
      factors: of the rows.
      aux: of the rows.
    """
    if observe is not None:
        there = factors.usable
        shorter = torch.stack([part < 1 for part in factors.by_name.values()]).any(dim=0)
        seen = {name: values.detach()[there] for name, values in aux.items()}
        observe(Observed(losses.detach()[there], factors.norms[there], shorter[there], seen))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained, by name: those of `named_parameters`, in a third of the time."""
    trained: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, layer in model.named_modules():
        for name, weight in layer._parameters.items():
            if weight is not None and weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                trained[f"{prefix}.{name}" if prefix else name] = weight
    return trained


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    mask: Tensor,
    clip_norm: float,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    clipping: Clipping | None = None,
    observe: Observe | None = None,
) -> dict[str, Tensor]:
    """Returns the sum of the gradients of a batch, that of each example clipped to l2 norm `clip_norm`.

    Models that mix examples or update buffers (batch normalisation) cannot be used.

    Formal guarantee: adding, removing or zeroing one example of the batch changes the sum by at most `clip_norm` in l2
    norm, summation in float32 aside, also under autocast: norms and sums are in float32 (`torch_clipping.py`). Padding,
    where the mask is False, contributes zero, and so does an example whose gradient is not finite.

    Args:
      model: the gradient is that of its trainable parameters.
      loss: loss(model, rows), for the rows of one example as a batch of one. It may return a pair of the loss and a
        dictionary of further numbers, for `observe`.
      inputs: tensors, in any nesting, with the examples as their first axis.
      mask: True where there is an example.
      clip_norm: the plan's.
      micro_batch_size: number of examples whose gradients are in memory at the same time; by default the whole batch.
      constant_time: compute padding too, so that the time tells nothing about the size of the batch.
      clipping: per group or normalised, see `galton.training.clipping`; by default gradients are clipped as a whole.
      observe: called with losses and norms of examples, which are not private.

    Returns:
      The sums by name of the parameter, in float32 at least.

    Example:
      >>> model = nn.Linear(2, 1, bias=False)
      >>> rows, mask = torch.tensor([[0.5, 0.0], [7.0, 0.0], [9.0, 9.0]]), torch.tensor([True, True, False])
      >>> total = clipped_sum(model, lambda model, rows: model(rows).sum(), rows, mask, clip_norm=1.0)
      >>> [f"{value:.3f}" for value in total["weight"][0]]  # 0.5, clipped to 1, padding
      ['1.500', '0.000']
    """
    clipping = clipping or Clipping()
    weights = {name: weight.detach() for name, weight in trainable(model).items()}
    groups = clipping.groups(clip_norm, weights)

    def example_loss(weights: dict[str, Tensor], example: Any) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        rows = tree_map(lambda leaf: leaf.unsqueeze(0), example)
        value, aux = with_aux(loss(lambda *args, **named: functional_call(model, weights, args, named), rows))
        return value, (value, aux)

    gradients_of = vmap(grad(example_loss, has_aux=True), in_dims=(None, 0), randomness="different")
    total = zero_sums(weights)
    for rows, present in micro_batches(inputs, mask, micro_batch_size, constant_time):
        gradients, (losses, aux) = gradients_of(weights, rows)
        report(observe, losses, add_clipped(total, gradients, present, groups, clipping.gamma), aux)
    return total


def with_aux(result: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss and its further numbers, if it returned any."""
    value, aux = result if isinstance(result, tuple) else (result, {})
    return value, aux


def zero_sums(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns sums of gradients to add to, by name."""
    return {
        name: torch.zeros(weight.shape, dtype=at_least_single(weight), device=weight.device)
        for name, weight in weights.items()
    }


def micro_batches(
    inputs: Any, mask: Tensor, micro_batch_size: int | None, constant_time: bool
) -> Iterator[tuple[Any, Tensor]]:
    """Cuts a batch into rows that are in memory at the same time, and their masks.

    Args:
      inputs: tensors, in any nesting, with the examples as their first axis.
      mask: True where there is an example.
      micro_batch_size: number of rows at a time; by default all.
      constant_time: keep padding, which else is left out.

    Yields:
      Rows and mask.
    """
    if not constant_time and not mask.all():
        number = int(mask.sum())
        first = bool(mask[:number].all())  # examples come first in the batches of a plan: then nothing is copied
        kept: Any = slice(number) if first else mask
        inputs, mask = tree_map(lambda leaf: leaf[kept], inputs), mask[kept]
    size = mask.shape[0] if micro_batch_size is None else count("micro_batch_size", micro_batch_size)
    if 0 < mask.shape[0] <= size:
        yield inputs, mask
        return
    for start in range(0, mask.shape[0], max(size, 1)):
        part = slice(start, start + size)
        yield tree_map(lambda leaf, part=part: leaf[part], inputs), mask[part]


def user_loss(loss: Loss) -> Loss:
    """Returns the loss of a user: the sum over the user's examples, for `clipped_sum` to clip as a whole.

    Args:
      loss: loss(model, rows), for the rows of one example as a batch of one.

    Returns:
      loss(model, (rows, mask)), for a batch of one user, whose examples are the second axis; the mask is True where
      there is one.

    Example:
      >>> model = nn.Linear(1, 1, bias=False)
      >>> rows, present = torch.tensor([[[0.25], [0.25]], [[7.0], [0.0]]]), torch.tensor([[True, True], [True, False]])
      >>> each = user_loss(lambda model, rows: model(rows).sum())
      >>> total = clipped_sum(model, each, (rows, present), torch.tensor([True, True]), clip_norm=1.0)
      >>> f"{total['weight'].item():.3f}"  # 0.5, and 7 clipped to 1
      '1.500'
    """

    def total(model: Forward, user: Any) -> Tensor:
        rows, present = user

        def single(example: Any) -> Tensor:
            return with_aux(loss(model, tree_map(lambda leaf: leaf.unsqueeze(0), example)))[0]

        losses = vmap(single, randomness="different")(tree_map(lambda leaf: leaf[0], rows))
        return torch.where(present[0], losses, 0.0).sum()

    return total


def at_least_single(weight: Tensor) -> torch.dtype:
    """Returns the precision of sums: float32, or float64 where the parameter has it."""
    return torch.promote_types(weight.dtype, torch.float32)
