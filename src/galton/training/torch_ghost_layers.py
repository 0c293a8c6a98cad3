"""The gradients of single examples as their factors: norms and weighted sums without the gradients themselves.

The gradient of a linear layer for one example is a sum over positions t of outer products l_t r_t^T, of the gradient
of its output with its input. Its norm follows from the two Gram matrices of l and r, and a weighted sum over examples
is one matrix product: no gradient of a single example is ever in memory. Where the gradient is small compared with l
and r (many positions, as in convolutions), it is computed once and kept instead: that is faster, and it is then summed
as it was measured.

Formal guarantees, for inputs and gradients of outputs as they are, rounded or not:
  - `norms` are not too small: at least the l2 norm of what `weighted` computes for that example with factor 1,
    rounding in float32 included, up to the relative error of `row_norms`. Where T positions cancel, that rounding is
    as large as T 2^-24 sum_t |l_t| |r_t|: bounds of all errors are added (docs/math.md, section 19). Gram matrices are
    in float64.
  - `weighted` is linear in the factors: an example with factor zero contributes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from galton.training.torch_clipping import row_norms

ERROR = 1.01 * 2.0**-23
"""Twice the rounding error of one operation in float32, with room for that of norms."""


class Scratch:
    """Memory for the gradients of a micro-batch that is used again for the next.

    To get as much from the operating system anew each time takes longer than to compute what it is for.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0)
        self._used = 0

    def begin(self) -> None:
        """Starts over: what was taken before must no longer be in use."""
        if self._used > self._room.numel():
            self._room = self._room.new_empty(self._used)
        self._used = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Returns memory for a tensor.

        Args:
          shape: of the tensor.
          like: a tensor of the same type on the same device.

        Returns:
          The tensor, whose content is anything.
        """
        if self._room.dtype != like.dtype or self._room.device != like.device:
            self._room = like.new_empty(0)
        first, self._used = self._used, self._used + math.prod(shape)
        if self._used > self._room.numel():
            return like.new_empty(shape)
        return self._room[first : self._used].view(shape)


class Gradients(Protocol):
    """The gradients of all examples for one parameter."""

    def joined(self, other: Any) -> Self:
        """Returns the gradients of a parameter that was used twice: those of both uses together."""

    def spanned(self, span: int) -> Self:
        """Returns the gradients of units of so many rows each, which are next to each other."""

    def smallest(self, scratch: Scratch) -> Gradients:
        """Returns them as rows, if these are no more than twice as many numbers as what they are products of."""

    def without(self, rows: Tensor) -> Self:
        """Returns them with zero for some rows, whatever was there."""

    def norms(self) -> Tensor:
        """Returns the norms of all examples in float64, not too small."""

    def weighted(self, factors: Tensor) -> Tensor:
        """Returns the sum over examples, each times its factor."""


class Outer:
    """Sums of outer products: of linear layers and convolutions.

    Args:
      left: gradients of outputs, shape (examples, groups, positions, outputs).
      right: inputs, shape (examples, groups, positions, inputs).
      shape: of the parameter.
    """

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self._left, self._right, self._shape = left, right, shape

    def joined(self, other: Any) -> Outer:
        left, right = (torch.cat(pair, dim=2) for pair in ((self._left, other._left), (self._right, other._right)))
        return Outer(left, right, self._shape)

    def spanned(self, span: int) -> Outer:
        def together(rows: Tensor) -> Tensor:
            units, groups, positions, size = rows.shape[0] // span, *rows.shape[1:]
            return rows.reshape(units, span, groups, positions, size).transpose(1, 2).reshape(units, groups, -1, size)

        return Outer(together(self._left), together(self._right), self._shape)

    def smallest(self, scratch: Scratch) -> Gradients:
        positions, outputs = self._left.shape[2:]
        inputs = self._right.shape[3]
        if positions == 1 or outputs * inputs > 2 * positions * (outputs + inputs):
            return self
        left, right = (part.flatten(0, 1) for part in (self._left.transpose(2, 3), self._right))
        products = scratch.take((len(left), outputs, inputs), left)
        torch.bmm(left, right, out=products)
        return Rows(products.reshape(-1, *self._shape))

    def without(self, rows: Tensor) -> Outer:
        gone = rows[:, None, None, None]
        return Outer(self._left.masked_fill(gone, 0.0), self._right.masked_fill(gone, 0.0), self._shape)

    def norms(self) -> Tensor:
        examples, groups, positions, outputs = self._left.shape
        inputs = self._right.shape[3]
        left, right = (
            row_norms(part.reshape(-1, part.shape[3])).reshape(-1, positions) for part in (self._left, self._right)
        )
        reach = (left * right).sum(dim=1)
        if positions == 1:
            norms = reach
        else:
            grams = [_gram(part.reshape(-1, positions, part.shape[3])) for part in (self._left, self._right)]
            norms = _root((grams[0] * grams[1]).sum(dim=(1, 2)), positions**2 + outputs + inputs, reach)
        return (norms + ERROR * (positions + 2) * reach).reshape(examples, groups).norm(dim=1)

    def weighted(self, factors: Tensor) -> Tensor:
        left = self._left * factors.to(self._left)[:, None, None, None]
        left, right = (part.transpose(0, 1).flatten(1, 2) for part in (left, self._right))
        return (left.transpose(1, 2) @ right).reshape(self._shape)


class Rows:
    """Gradients that are small enough to be there: of biases and normalising layers.

    Args:
      rows: shape (examples, ...).
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def joined(self, other: Any) -> Rows:
        return Rows(self._rows + other._rows)

    def spanned(self, span: int) -> Rows:
        return Rows(self._rows.reshape(-1, span, *self._rows.shape[1:]).sum(dim=1))

    def smallest(self, scratch: Scratch) -> Gradients:
        return self

    def without(self, rows: Tensor) -> Rows:
        return Rows(self._rows.masked_fill(rows.reshape(-1, *[1] * (self._rows.ndim - 1)), 0.0))

    def norms(self) -> Tensor:
        return row_norms(self._rows.flatten(1))

    def weighted(self, factors: Tensor) -> Tensor:
        return torch.tensordot(factors.to(self._rows), self._rows, dims=1)


class Lookup:
    """Gradients of embeddings: rows that are added to those of a table.

    Args:
      places: row of the table at each position, shape (examples, positions).
      rows: gradients of outputs, shape (examples, positions, size).
      shape: of the table.
    """

    def __init__(self, places: Tensor, rows: Tensor, shape: torch.Size) -> None:
        self._places, self._rows, self._shape = places, rows, shape

    def joined(self, other: Any) -> Lookup:
        places, rows = (torch.cat(pair, dim=1) for pair in ((self._places, other._places), (self._rows, other._rows)))
        return Lookup(places, rows, self._shape)

    def spanned(self, span: int) -> Lookup:
        examples = self._places.shape[0] // span
        return Lookup(
            self._places.reshape(examples, -1), self._rows.reshape(examples, -1, self._rows.shape[2]), self._shape
        )

    def smallest(self, scratch: Scratch) -> Gradients:
        return self

    def without(self, rows: Tensor) -> Lookup:
        return Lookup(self._places, self._rows.masked_fill(rows[:, None, None], 0.0), self._shape)

    def norms(self) -> Tensor:
        positions = self._places.shape[1]
        reach = row_norms(self._rows.flatten(0, 1)).reshape(-1, positions).sum(dim=1)
        together = self._places[:, :, None] == self._places[:, None, :]
        squares = (_gram(self._rows) * together).sum(dim=(1, 2))
        return _root(squares, positions**2 + self._rows.shape[2], reach) + ERROR * (positions + 2) * reach

    def weighted(self, factors: Tensor) -> Tensor:
        rows = self._rows * factors.to(self._rows)[:, None, None]
        table = self._rows.new_zeros(self._shape)
        return table.index_add_(0, self._places.flatten(), rows.flatten(0, 1))


def _gram(rows: Tensor) -> Tensor:
    wide = rows.double()
    return wide @ wide.transpose(1, 2)


def _root(squares: Tensor, operations: int, reach: Tensor) -> Tensor:
    """Returns square roots of sums in float64 that are not too small; `reach`^2 bounds the sum of absolute values."""
    return (squares.clamp(min=0.0) + 2.0**-52 * (operations + 2) * reach**2).sqrt()


Rule = Callable[[Any, Tensor, Tensor], dict[str, Gradients]]
"""rule(layer, inputs, gradients of outputs): gradients by name of the layer's parameter."""


def _linear(layer: nn.Linear, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    left, right = (part.reshape(part.shape[0], 1, -1, part.shape[-1]) for part in (outputs, inputs))
    return {"weight": Outer(left, right, layer.weight.shape), "bias": Rows(left.sum(dim=(1, 2)))}


def _convolution(layer: Any, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    axes = range(len(layer.kernel_size))
    for axis, size, stride, dilation in zip(axes, layer.kernel_size, layer.stride, layer.dilation, strict=True):
        patches = patches.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    examples, groups = inputs.shape[0], layer.groups
    inside = len(layer.kernel_size)
    # (examples, channels, places..., kernel...) to (examples, groups, places, channels of a group and kernel)
    patches = patches.reshape(examples, groups, -1, *patches.shape[2:])
    patches = patches.flatten(3, 2 + inside).movedim(3, 2).flatten(3)
    left = outputs.reshape(examples, groups, -1, outputs.shape[2:].numel()).transpose(2, 3)
    return {"weight": Outer(left, patches, layer.weight.shape), "bias": Rows(outputs.flatten(2).sum(dim=2))}


def _embedding(layer: nn.Embedding, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    places = inputs.reshape(inputs.shape[0], -1)
    rows = outputs.reshape(*places.shape, outputs.shape[-1])
    if layer.padding_idx is not None:
        rows = rows.masked_fill((places == layer.padding_idx)[:, :, None], 0.0)
    return {"weight": Lookup(places, rows, layer.weight.shape)}


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    whitened = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    return _affine(outputs, whitened, range(1, inputs.ndim - len(layer.normalized_shape)))


def _rms_norm(layer: nn.RMSNorm, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    whitened = functional.rms_norm(inputs, layer.normalized_shape, eps=layer.eps)
    return _affine(outputs, whitened, range(1, inputs.ndim - len(layer.normalized_shape)))


def _group_norm(layer: nn.GroupNorm, inputs: Tensor, outputs: Tensor) -> dict[str, Gradients]:
    return _affine(outputs, functional.group_norm(inputs, layer.num_groups, eps=layer.eps), range(2, inputs.ndim))


def _affine(outputs: Tensor, whitened: Tensor, axes: range) -> dict[str, Gradients]:
    def over(rows: Tensor) -> Rows:
        return Rows(rows.sum(dim=tuple(axes)) if len(axes) else rows)

    return {"weight": over(outputs * whitened), "bias": over(outputs)}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
}
"""Layers whose parameters may be trained, by their exact type: a subclass may compute something else."""


def objection(layer: nn.Module) -> str:
    """Returns why the parameters of a layer, those of its parts aside, cannot be trained; nothing if they can.

    Args:
      layer: any module.

    Returns:
      Words, or nothing.
    """
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
        return "mixes the examples of a batch"
    own = {name for name, weight in layer._parameters.items() if weight is not None and weight.requires_grad}
    if not own:
        return ""
    kind = next((kind for kind in type(layer).__mro__ if kind in RULES), None)
    if kind is None or (kind is not type(layer) and type(layer).__name__ != f"FSDP{kind.__name__}"):
        return "has parameters of its own"
    if not own <= {"weight", "bias"}:
        return f"has other parameters than weight and bias ({', '.join(sorted(own))})"
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
        return "has max_norm, scale_grad_by_freq or sparse"
    return ""


def rule_of(layer: nn.Module) -> Rule:
    """Returns the rule of a layer that has no objection."""
    return next(RULES[kind] for kind in type(layer).__mro__ if kind in RULES)
