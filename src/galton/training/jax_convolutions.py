"""Convolutions with a kernel that is a parameter, such that their derivatives take no longer in a loop than outside.

XLA's processor backend brings the convolutions of a program's first level to the form that it has fast code for, not
those in loops, where micro-batches are: there the derivatives that JAX makes take ten times as long. Here inputs,
kernels and results are brought to that form by hand, the gradient of the input is a convolution of the same form, and
that of the kernel is a matrix product of windows of the input with the gradient of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn
from jax.lax import ConvDimensionNumbers

PRIMITIVE = "conv_general_dilated"

LONGEST = 64
"""Length of a kernel along an axis up to which windows are cut, one slice for each place in it."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of an input with a kernel, without groups and without holes in the input.

    Attributes:
      strides: between windows, along each axis.
      padding: before and after, along each axis.
      dilation: of the kernel, along each axis.
      numbers: which axes are which; examples, channels, then the others.
      kernel: shape of the kernel.
      precision: as in JAX.
      dtype: of the result.
    """

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    numbers: ConvDimensionNumbers
    kernel: tuple[int, ...]
    precision: Any
    dtype: Any

    @staticmethod
    def of(eqn: JaxprEqn) -> Convolution | None:
        """Returns the convolution that an equation is; None for any other, and for what is not meant here.

        Args:
          eqn: an equation of a program.

        Returns:
          The convolution.
        """
        if eqn.primitive.name != PRIMITIVE:
            return None
        known, shape = eqn.params, tuple(eqn.invars[1].aval.shape)  # type: ignore[attr-defined]
        numbers: ConvDimensionNumbers = known["dimension_numbers"]
        groups = max(known["feature_group_count"], known["batch_group_count"])
        sizes = [shape[axis] for axis in numbers.rhs_spec[2:]]
        if groups > 1 or any(part > 1 for part in known["lhs_dilation"]) or max(sizes, default=0) > LONGEST:
            return None
        return Convolution(
            tuple(known["window_strides"]),
            tuple(map(tuple, known["padding"])),
            tuple(known["rhs_dilation"]),
            numbers,
            shape,
            known["precision"],
            eqn.outvars[0].aval.dtype,  # type: ignore[attr-defined]
        )

    def apply(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the result, of which only the gradient of the images is wanted.

        Args:
          images: the input.
          kernel: the kernel.

        Returns:
          The result.
        """
        spec = self.numbers.out_spec
        plain = self._convolved(_last(images, self.numbers.lhs_spec), self._plain(kernel))
        return plain.transpose([_places(spec).index(axis) for axis in range(len(spec))])

    def _convolved(self, images: jax.Array, kernel: jax.Array) -> jax.Array:
        """The convolution with examples first and channels last, and a kernel of shape (sizes, channels, channels)."""

        @jax.custom_vjp
        def convolved(images: jax.Array) -> jax.Array:
            return self._call(images, kernel, self.strides, self.padding, (1,) * len(self.strides), self.dtype)

        def backward(_: None, outputs: jax.Array) -> tuple[jax.Array]:
            axes = range(len(self.strides))
            reach = [self.dilation[axis] * (kernel.shape[axis] - 1) for axis in axes]
            padding = []
            for axis in axes:
                before = reach[axis] - self.padding[axis][0]
                holed = self.strides[axis] * (outputs.shape[1 + axis] - 1) + 1
                padding.append((before, images.shape[1 + axis] + reach[axis] - holed - before))
            turned = jnp.flip(kernel, tuple(axes)).swapaxes(-1, -2)
            wide = jnp.promote_types(outputs.dtype, turned.dtype)  # results of half precision may be float32
            ones = (1,) * len(self.strides)
            made = self._call(outputs.astype(wide), turned.astype(wide), ones, padding, self.strides, wide)
            return (made.astype(images.dtype),)

        convolved.defvjp(lambda images: (convolved(images), None), backward)
        return convolved(images)

    def _call(self, images: jax.Array, kernel: jax.Array, strides: Any, padding: Any, holes: Any, dtype: Any) -> Any:
        axes = len(self.strides)
        first = (0, axes + 1, *range(1, axes + 1))
        numbers = ConvDimensionNumbers(first, (axes + 1, axes, *range(axes)), first)
        return jax.lax.conv_general_dilated(
            images,
            kernel,
            strides,
            padding,
            holes,
            self.dilation,
            numbers,
            precision=self.precision,
            preferred_element_type=dtype,
        )

    def gradient(self, images: jax.Array, outputs: jax.Array) -> jax.Array:
        """Returns the gradient of the kernel, in float32 at least.

        Args:
          images: the input.
          outputs: the gradient of the result.

        Returns:
          An array of the kernel's shape.
        """
        axes = range(len(self.strides))
        plain = _last(outputs, self.numbers.out_spec)
        windows = jax.lax.pad(
            _last(images, self.numbers.lhs_spec),
            jnp.zeros((), images.dtype),
            [(0, 0, 0), *((*part, 0) for part in self.padding), (0, 0, 0)],
        )
        for axis in axes:  # to (examples, places in the result, places in the kernel, channels)
            size, stride = self.kernel[self.numbers.rhs_spec[2 + axis]], self.strides[axis]
            last = stride * (plain.shape[1 + axis] - 1) + 1
            starts = [self.dilation[axis] * place for place in range(size)]
            parts = [jax.lax.slice_in_dim(windows, start, start + last, stride, 1 + axis) for start in starts]
            windows = jnp.stack(parts, axis=-2)
        together = range(1 + len(axes))
        product = jnp.tensordot(
            windows,
            plain,
            (list(together), list(together)),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.promote_types(outputs.dtype, jnp.float32),
        )
        spec = _kernel_places(self.numbers.rhs_spec)
        return product.transpose([spec.index(axis) for axis in range(len(spec))])

    def _plain(self, kernel: jax.Array) -> jax.Array:
        return kernel.transpose(_kernel_places(self.numbers.rhs_spec))


def _places(spec: Sequence[int]) -> list[int]:
    """Axes in the order examples, places, channels, of a specification with channels second."""
    return [spec[0], *spec[2:], spec[1]]


def _kernel_places(spec: Sequence[int]) -> list[int]:
    """Axes of a kernel in the order places, channels of the input, channels of the result."""
    return [*spec[2:], spec[1], spec[0]]


def _last(array: jax.Array, spec: Sequence[int]) -> jax.Array:
    """Brings an array to the order examples, places, channels."""
    return array.transpose(_places(spec))
