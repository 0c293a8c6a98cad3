"""Ghost clipping in PyTorch: clipped sums from one backward pass, with no gradient of a single example in memory.

Layers note their inputs in the forward pass; one backward pass gives the gradients of their outputs. From these two
follow the norms of all gradients and, once factors are known, the weighted sum (Z. Bu, Y.-X. Wang, S. Zha, G. Karypis,
"Differentially private optimization on large model at small cost", ICML 2023). What is summed is what norms were taken
of: a parameter that a model uses behind its layer's back adds nothing, and the check of the first batch says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_map

from galton.errors import InvalidArgument
from galton.training.clipping import Clipping
from galton.training.rounds import PlanViolated
from galton.training.torch_clipping import (
    Loss,
    Observe,
    at_least_single,
    clip_factors,
    full_precision,
    is_full_precision,
    micro_batches,
    report,
    with_aux,
    zero_sums,
)
from galton.training.torch_ghost_layers import Gradients, Scratch, objection, rule_of

_checked: WeakSet[nn.Module] = WeakSet()
"""Models whose first batch was compared with what PyTorch computes."""

_scratch: WeakKeyDictionary[nn.Module, Scratch] = WeakKeyDictionary()


class _Call(NamedTuple):
    """One use of a layer: its name, its inputs, and where the gradient of its output comes by."""

    name: str
    layer: nn.Module
    inputs: Tensor
    version: int
    edge: GradientEdge


class _Layer(NamedTuple):
    """A layer whose parameters, some of them at least, are trained: its name, and theirs."""

    name: str
    module: nn.Module
    weights: dict[str, nn.Parameter]


def trained_layers(model: nn.Module) -> list[_Layer]:
    """Returns layers with trainable parameters; raises `InvalidArgument` for those that ghost clipping cannot clip.

    Args:
      model: the model.

    Returns:
      The layers, with the trainable parameters of each by their names in the model.
    """
    wrong, layers = [], []
    owners: dict[int, str] = {}
    for name, layer in model.named_modules():
        if reason := objection(layer):
            wrong.append(f"{name or 'the model'} ({type(layer).__name__}) {reason}")
        own = {}
        for part, weight in layer._parameters.items():
            if weight is None:
                continue
            first = owners.setdefault(id(weight), name)
            if first != name and weight.requires_grad:
                wrong.append(f"{first} and {name} share a parameter")
            if weight.requires_grad:
                own[f"{name}.{part}" if name else part] = weight
        if own:
            layers.append(_Layer(name, layer, own))
    if wrong:
        raise InvalidArgument(
            "model",
            "; ".join(wrong),
            "must have trainable parameters in linear, embedding, convolution and normalising layers only for ghost "
            "clipping; freeze the others, or train without it",
        )
    return layers


def ghost_clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    mask: Tensor,
    clip_norm: float,
    micro_batch_size: int | None = None,
    constant_time: bool = False,
    clipping: Clipping | None = None,
    observe: Observe | None = None,
    span: int = 1,
) -> dict[str, Tensor]:
    """Returns what `clipped_sum` returns, by ghost clipping: faster, and in the memory of ordinary training.

    The model must compute each example by itself, whatever else is in the batch, with the examples as the first axis
    of every layer's input. That and the gradients are checked for the first batch of a model, by derivatives: a model
    that mixes examples later, or without derivatives, goes unnoticed.

    Formal guarantee: that of `clipped_sum`, for models that compute each example by itself. Norms are exact up to
    rounding, which makes them larger (`torch_ghost_layers.py`).

    Args:
      model: its trainable parameters must be in linear, embedding, convolution or normalising layers.
      loss: loss(model, rows), the losses of all rows of a batch, one for each (`reduction="none"`). It may return a
        pair of these and a dictionary of further numbers for each row, for `observe`.
      inputs: tensors, in any nesting, with the examples as their first axis.
      mask: True where there is an example.
      clip_norm: the plan's.
      micro_batch_size: number of examples that are computed at the same time; by default the whole batch.
      constant_time: compute padding too; see `clipped_sum`.
      clipping: as for `clipped_sum`.
      observe: as for `clipped_sum`.
      span: rows that belong together, and are clipped as a whole, where users are the unit: inputs are then (rows,
        mask of rows), with users and their examples as the first two axes.

    Returns:
      The sums by name of the parameter, in float32 at least.

    Example:
      >>> model = nn.Linear(2, 1, bias=False)
      >>> rows, mask = torch.tensor([[0.5, 0.0], [7.0, 0.0], [9.0, 9.0]]), torch.tensor([True, True, False])
      >>> total = ghost_clipped_sum(model, lambda model, rows: model(rows)[:, 0], rows, mask, clip_norm=1.0)
      >>> [f"{value:.3f}" for value in total["weight"][0]]
      ['1.500', '0.000']
    """
    clipping = clipping or Clipping()
    layers = trained_layers(model)
    weights = {name: weight for layer in layers for name, weight in layer.weights.items()}
    groups = clipping.groups(clip_norm, weights)
    total: dict[str, Tensor] = {}
    scratch = _scratch.setdefault(model, Scratch())
    for part, present in micro_batches(inputs, mask, micro_batch_size, constant_time):
        rows, counted = part if span > 1 else (part, None)
        if counted is not None:
            rows, counted = tree_map(lambda leaf: leaf.flatten(0, 1), rows), counted.flatten()
        with _noting(layers) as calls, torch.enable_grad():
            losses, aux = with_aux(loss(model, rows))
        _check_losses(losses, present.shape[0] * span)
        wanted = losses if counted is None else torch.where(counted, losses, 0.0)
        first = model not in _checked and present.shape[0] > 1
        outputs = _output_gradients(wanted.sum(), calls, keep=first)
        gradients = _by_parameter(calls, outputs, weights)
        if first:
            _check_examples_apart(wanted, calls, span)
            if _gradients_agree(wanted, weights, gradients):
                _checked.add(model)
        with full_precision(present.device):
            units = {name: part.spanned(span) if span > 1 else part for name, part in gradients.items()}
            scratch.begin()
            units = {name: part.smallest(scratch) for name, part in units.items()}
            norms = {name: part.norms() for name, part in units.items()}
            norms |= {name: torch.zeros_like(present, dtype=torch.float64) for name in weights if name not in norms}
            factors = clip_factors(norms, present, groups, clipping.gamma)
            finite = bool(factors.norms.isfinite().all())
            for name, part in units.items():
                kept = part if finite else part.without(~factors.usable)
                own = kept.weighted(factors.by_name[name])
                total[name] = total[name].add_(own) if name in total else own.to(at_least_single(weights[name]))
        per_unit = wanted.detach().reshape(-1, span).sum(dim=1)
        report(observe, per_unit, factors, {} if span > 1 else aux)
    return zero_sums({name: weight for name, weight in weights.items() if name not in total}) | total


@contextmanager
def _noting(layers: list[_Layer]) -> Iterator[list[_Call]]:
    """Notes all uses of layers inside a block."""
    calls: list[_Call] = []

    def note(name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if not args:
                raise PlanViolated(f"model: calls {name} with its input by name; ghost clipping needs it by position")
            if not output.requires_grad:  # the model wants no gradient here
                return
            inputs = args[0].detach()
            calls.append(_Call(name, layer, inputs, inputs._version, get_gradient_edge(output)))

        return hook

    handles = [layer.module.register_forward_hook(note(layer.name), always_call=False) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _check_losses(losses: Tensor, rows: int) -> None:
    if tuple(losses.shape) != (rows,):
        raise InvalidArgument(
            "loss", tuple(losses.shape), f"must return the losses of all {rows} rows for ghost clipping, one for each"
        )


def _output_gradients(loss: Tensor, calls: list[_Call], keep: bool) -> list[Tensor | None]:
    edges = [call.edge for call in calls]
    if not edges:
        return []
    return list(torch.autograd.grad(loss, edges, retain_graph=keep, allow_unused=True))


def _by_parameter(
    calls: list[_Call], outputs: list[Tensor | None], weights: dict[str, nn.Parameter]
) -> dict[str, Gradients]:
    """Returns the gradients of each parameter, over all uses of its layer."""
    gradients: dict[str, Gradients] = {}
    with full_precision(next(iter(weights.values())).device), torch.no_grad():
        for call, output in zip(calls, outputs, strict=True):
            if call.inputs._version != call.version:
                raise PlanViolated(f"model: changes the input of {call.name} in place, which ghost clipping needs")
            if output is None:
                continue
            dtype = at_least_single(output)
            inputs = call.inputs.to(dtype) if call.inputs.is_floating_point() else call.inputs
            for part, own in rule_of(call.layer)(call.layer, inputs, output.to(dtype)).items():
                name = f"{call.name}.{part}" if call.name else part
                if name in weights:
                    gradients[name] = gradients[name].joined(own) if name in gradients else own
    return gradients


def _check_examples_apart(losses: Tensor, calls: list[_Call], span: int) -> None:
    """Raises `PlanViolated` if the loss of the first example depends on what a layer computed of another."""
    for call, output in zip(calls, _output_gradients(losses[:span].sum(), calls, keep=True), strict=True):
        if output is not None and (output.shape[0] != losses.shape[0] or _finite(output[span:]).any()):
            raise PlanViolated(
                f"model: {call.name or 'its layer'} mixes the examples of a batch, or has them in another axis than "
                "the first; ghost clipping needs each computed by itself"
            )


def _finite(values: Tensor) -> Tensor:
    """An example that is not finite makes gradients of others so where they are zero times what it computes."""
    return values.nan_to_num(0.0, 0.0, 0.0)


def _gradients_agree(losses: Tensor, weights: dict[str, nn.Parameter], gradients: dict[str, Gradients]) -> bool:
    """Returns whether sums could be compared with those of PyTorch; raises `PlanViolated` if they differ."""
    if not losses.isfinite().all():
        return False
    expected: list[Tensor | None] = list(torch.autograd.grad(losses.sum(), list(weights.values()), allow_unused=True))
    everyone = torch.ones(losses.shape[0], device=losses.device)
    tolerance = 1e-2 if is_full_precision(losses.device) else 0.2
    for name, sums in zip(weights, expected, strict=True):
        if sums is None:
            continue
        wide = sums.double()
        mine = gradients[name].weighted(everyone).double() if name in gradients else torch.zeros_like(wide)
        if (mine - wide).norm() > tolerance * wide.norm() + 1e-6 * losses.shape[0]:
            raise PlanViolated(
                f"model: uses {name} in another way than its layer does, or changes the layer's output in place; ghost "
                "clipping does not see that gradient"
            )
    return True
