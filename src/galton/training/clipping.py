"""How the gradient of an example is brought to the plan's clip norm: as a whole, group by group, or normalised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from galton.errors import InvalidArgument, choice, positive
from galton.plan.conventions import CLIPPINGS, FLAT, NORMALIZED, PER_GROUP
from galton.typechecking import typechecked

ROUNDING = 2.0**-16
"""Gradients are clipped to a norm smaller by this share, which exceeds the rounding error of norms in float32."""


class Group(NamedTuple):
    """Parameters that are clipped together, and the norm that their gradient keeps to, rounding allowed for."""

    names: tuple[str, ...]
    limit: float


@typechecked
@dataclass(frozen=True)
class Clipping:
    """A way to clip: flat unless `per_group`, `per_layer` or `normalized` make another. The plan says which kind it is.

    Attributes:
      kind: `flat`, `per-group` or `normalized`, as in the plan.
      norms: for `per-group`, the clip norm of each group by the beginning of its parameters' names.
      gamma: for `normalized`, what is added to norms.

    Formal guarantee: an example contributes at most the plan's clip norm in l2 norm, of whichever kind: groups are
    disjoint, and the squares of their norms add up to at most the square of the clip norm; x / (x + gamma) < 1.

    Example:
      >>> clipping = Clipping("per-group", norms={"conv": 0.6, "dense": 0.8})
      >>> [group.names for group in clipping.groups(1.0, ["conv1.weight", "conv1.bias", "dense.weight"])]
      [('conv1.weight', 'conv1.bias'), ('dense.weight',)]
    """

    kind: str = FLAT
    norms: Mapping[str, float] = field(default_factory=dict)
    gamma: float | None = None

    def __post_init__(self) -> None:
        choice("kind", self.kind, tuple(CLIPPINGS))
        if bool(self.norms) != (self.kind == PER_GROUP):
            raise InvalidArgument("norms", dict(self.norms), f"must name at least one group, for {PER_GROUP} only")
        if (self.gamma is None) != (self.kind != NORMALIZED):
            raise InvalidArgument("gamma", self.gamma, f"must be given for {NORMALIZED}, and only then")
        for value in (*self.norms.values(), *([] if self.gamma is None else [self.gamma])):
            positive("norms" if self.norms else "gamma", value)

    def groups(self, clip_norm: float, names: Iterable[str]) -> list[Group]:
        """Returns which parameters are clipped together, to what.

        Args:
          clip_norm: the plan's.
          names: of all trainable parameters.

        Returns:
          Groups in which every parameter is once.
        """
        share = positive("clip_norm", clip_norm) * (1 - ROUNDING)
        if self.kind != PER_GROUP:
            return [Group(tuple(names), share)]
        whole = math.hypot(*self.norms.values())
        if not math.isclose(whole, clip_norm, rel_tol=1e-6):
            remedy = f"the squares of groups' norms must add up to that of the clip norm, {clip_norm}"
            raise InvalidArgument("norms", whole, remedy)
        members: dict[str, list[str]] = {prefix: [] for prefix in self.norms}
        for name in names:
            prefixes = [prefix for prefix in self.norms if name.startswith(prefix)]
            if len(prefixes) != 1:
                raise InvalidArgument("norms", name, f"must be in exactly one group, and is in {prefixes or 'none'}")
            members[prefixes[0]].append(name)
        scale = min(1.0, clip_norm / whole)
        return [Group(tuple(members[prefix]), norm * scale * (1 - ROUNDING)) for prefix, norm in self.norms.items()]

    def to_json(self) -> dict[str, Any]:
        """Returns what the record says about it."""
        known: dict[str, Any] = {"kind": self.kind}
        if self.norms:
            known["norms"] = dict(self.norms)
        return known if self.gamma is None else known | {"gamma": self.gamma}


@typechecked
def per_group(norms: Mapping[str, float]) -> Clipping:
    """Returns clipping of groups of parameters, each to a norm of its own.

    Args:
      norms: the clip norm of each group, by the beginning of its parameters' names, such as `{"embed.": 0.6, "head.":
        0.8}`. Every trainable parameter must be in exactly one. The squares must add up to that of the plan's clip
        norm. They are fixed before the run, never chosen by looking at gradients.

    Returns:
      The clipping, for plans of `clipping="per-group"`.

    Example:
      >>> [group.names for group in per_group({"a.": 3.0, "b.": 4.0}).groups(5.0, ["a.weight", "b.weight", "b.bias"])]
      [('a.weight',), ('b.weight', 'b.bias')]
    """
    return Clipping(PER_GROUP, dict(norms))


@typechecked
def per_layer(names: Iterable[str], clip_norm: float) -> Clipping:
    """Returns clipping layer by layer, all to the same norm: parameters that differ after the last dot are a layer.

    Args:
      names: of all trainable parameters.
      clip_norm: the plan's.

    Returns:
      The clipping, for plans of `clipping="per-group"`.

    Example:
      >>> clipping = per_layer(["0.weight", "0.bias", "2.weight", "2.bias"], clip_norm=1.0)
      >>> {layer: round(norm, 4) for layer, norm in clipping.norms.items()}
      {'0.': 0.7071, '2.': 0.7071}
    """
    layers = list(dict.fromkeys(name[: name.rfind(".") + 1] for name in names))
    if any(second.startswith(first) for first in layers for second in layers if first != second):
        raise InvalidArgument("names", layers, "has layers inside each other; name the groups yourself, by per_group")
    return per_group(dict.fromkeys(layers, positive("clip_norm", clip_norm) / math.sqrt(len(layers))))


@typechecked
def normalized(gamma: float = 0.01) -> Clipping:
    """Returns automatic clipping: every gradient is multiplied by clip norm / (its norm + gamma).

    Z. Bu, Y.-X. Wang, S. Zha, G. Karypis, "Automatic clipping: differentially private deep learning made easier and
    stronger" (NeurIPS 2023).

    Args:
      gamma: keeps small gradients small; fixed before the run.

    Returns:
      The clipping, for plans of `clipping="normalized"`.

    Example:
      >>> import numpy as np
      >>> from galton.training.jax import clipped_sum
      >>> total = clipped_sum(lambda w, x: w * x, clip_norm=1.0, clipping=normalized())
      >>> f"{total(0.0, np.array([7.0]), np.array([True])):.3f}"  # 7 / (7 + 0.01)
      '0.999'
    """
    return Clipping(NORMALIZED, gamma=gamma)
