"""Gradients of dense layers in JAX as their two factors, found in the program of a loss: no outer product is made.

Where a parameter is used once, in a product with a vector, the gradient of one example is the outer product of that
vector with the gradient of the product's result. Its norm is the product of two norms, and a weighted sum over examples
is one matrix product. What is summed is what norms were taken of (docs/math.md, section 19, for one position). All
other parameters have gradients of single examples: those of kernels that are used in one convolution are made from its
input and the gradient of its result (`jax_convolutions.py`), all others as `jax.grad` makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from galton.noise.layout import Tree
from galton.training.jax_convolutions import Convolution

ERROR = 1.01 * 2.0**-23
"""Twice the rounding error of one operation in float32, with room for that of norms."""

CALL = "jit"
"""The primitive of a function that was compiled by itself; `jax.numpy` is full of them."""


class Pair(NamedTuple):
    """The factors of a gradient: the vector that a parameter was multiplied by, and the gradient of the result."""

    left: jax.Array
    right: jax.Array


class Gradient(NamedTuple):
    """The gradient of one example, or of several with a first axis: of each parameter an array or a pair."""

    leaves: list[jax.Array | Pair]


class Product(NamedTuple):
    """A product of a parameter with a vector: the axes of the parameter that are summed."""

    axes: tuple[int, ...]


class Use(NamedTuple):
    """How a parameter is used: which, in what, and the shape of the result."""

    number: int
    kind: Product | Convolution
    shape: tuple[int, ...]
    dtype: Any


class Program:
    """A loss of one example, as a program in which products with parameters are known.

    Args:
      loss: loss(params, example), which returns (loss, aux).
      params: shapes of the parameters.
      example: shapes of an example.

    Attributes:
      dense: parameters whose gradients are pairs, by number, with the product that each is used in.
    """

    dense: dict[int, Product]

    def __init__(self, loss: Callable[[Tree, Tree], Any], params: Tree, example: Tree) -> None:
        closed, self._result = jax.make_jaxpr(loss, return_shape=True)(params, example)
        self._closed: ClosedJaxpr = closed
        self._size = len(jax.tree.leaves(params))
        invars = closed.jaxpr.invars[: self._size]
        barred: set[int] = set()
        uses = list(_uses(closed.jaxpr, {var: number for number, var in enumerate(invars)}, barred))
        times = Counter(use.number for use in uses)
        self._known = {use.number: use for use in uses if use.number not in barred and times[use.number] == 1}
        self.dense = {number: use.kind for number, use in self._known.items() if isinstance(use.kind, Product)}

    def gradient(self, params: Sequence[Any], example: Sequence[Any]) -> tuple[jax.Array, Any, Gradient]:
        """Returns loss, aux and gradient of one example.

        Args:
          params: all arrays of the parameters.
          example: all arrays of the example.

        Returns:
          The loss, aux, and the gradient.
        """
        rest = {number: leaf for number, leaf in enumerate(params) if number not in self._known}
        probes = {number: jnp.zeros(use.shape, use.dtype) for number, use in self._known.items()}

        def forward(rest: dict[int, Any], probes: dict[int, Any]) -> Any:
            inputs: dict[int, Any] = {}
            given = [rest.get(number, leaf) for number, leaf in enumerate(params)]
            tracked = {self._closed.jaxpr.invars[number]: number for number in self._known}
            flat = _evaluated(self._closed.jaxpr, self._closed.consts, [*given, *example], tracked, probes, inputs)
            value, aux = jax.tree.unflatten(jax.tree.structure(self._result), flat)
            return value, (aux, inputs)

        differentiated = jax.value_and_grad(forward, argnums=(0, 1), has_aux=True)
        (value, (aux, inputs)), (arrays, outputs) = differentiated(rest, probes)

        def leaf(number: int) -> jax.Array | Pair:
            if number not in self._known:
                return arrays[number]
            kind = self._known[number].kind
            if isinstance(kind, Convolution):
                return kind.gradient(inputs[number], outputs[number])
            return Pair(inputs[number].reshape(-1), outputs[number].reshape(-1))

        return value, aux, Gradient([leaf(number) for number in range(self._size)])

    def whole(self, number: int, pair: Pair, like: Any) -> jax.Array:
        """Returns the sum over examples of the gradients that pairs stand for.

        Args:
          number: of the parameter.
          pair: with the examples as the first axis.
          like: the parameter.

        Returns:
          An array of the parameter's shape.
        """
        axes = self.dense[number].axes
        product = jnp.matmul(pair.left.T, pair.right, precision=jax.lax.Precision.HIGHEST)
        free = [axis for axis in range(like.ndim) if axis not in axes]
        order = (*axes, *free)
        shaped = product.reshape([like.shape[axis] for axis in order])
        return shaped.transpose([order.index(axis) for axis in range(like.ndim)])


def norm_of(leaf: jax.Array | Pair) -> jax.Array:
    """Returns the norm of what one example adds to a parameter for factor 1, not too small.

    Args:
      leaf: part of its gradient, in float32 at least.

    Returns:
      The norm, rounding of the sum included.
    """
    if not isinstance(leaf, Pair):
        return _length(leaf)
    return _length(leaf.left) * _length(leaf.right) * (1 + 3 * ERROR)


def _length(array: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.square(array).sum())


def _uses(jaxpr: Jaxpr, tracked: dict[Var, int], barred: set[int]) -> Iterator[Use]:
    """Yields products and convolutions of parameters; parameters that are used in any other way are barred."""
    for eqn in jaxpr.eqns:
        numbers = [tracked.get(var) if isinstance(var, Var) else None for var in eqn.invars]
        if all(number is None for number in numbers):
            continue
        if eqn.primitive.name == CALL:
            inner = eqn.params["jaxpr"].jaxpr
            named = zip(inner.invars, numbers, strict=True)
            yield from _uses(inner, {var: number for var, number in named if number is not None}, barred)
            continue
        place = _place_of_parameter(eqn, numbers)
        if place is None:
            barred.update(number for number in numbers if number is not None)
            continue
        number, result = numbers[place], _array(eqn.outvars[0])
        assert number is not None
        yield Use(number, _kind(eqn, place), tuple(result.shape), result.dtype)
    barred.update(tracked[var] for var in jaxpr.outvars if isinstance(var, Var) and var in tracked)


def _array(var: Any) -> jax.core.ShapedArray:
    """Shape and type of a variable."""
    aval = var.aval
    assert isinstance(aval, jax.core.ShapedArray)
    return aval


def _place_of_parameter(eqn: JaxprEqn, numbers: list[int | None]) -> int | None:
    """Returns which operand the parameter is, of a product with a vector or a convolution; None if it is neither.

    In a product all axes of the other operand are summed, in the order in which they lie.
    """
    if None not in numbers:
        return None
    place = 0 if numbers[0] is not None else 1
    other = _array(eqn.invars[1 - place])
    if not jnp.issubdtype(other.dtype, jnp.floating):
        return None
    if eqn.primitive.name != "dot_general":
        return place if place == 1 and Convolution.of(eqn) is not None else None
    summed, together = eqn.params["dimension_numbers"]
    plain = not any(together) and tuple(summed[1 - place]) == tuple(range(other.ndim))
    return place if plain else None


def _kind(eqn: JaxprEqn, place: int) -> Product | Convolution:
    return Convolution.of(eqn) or Product(tuple(eqn.params["dimension_numbers"][0][place]))


def _evaluated(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    tracked: dict[Var, int],
    probes: dict[int, Any],
    inputs: dict[int, Any],
) -> list[Any]:
    """Runs a program. Probes are added to results of what tracked parameters are used in; the inputs are noted."""
    known: dict[Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else known[var]

    for eqn in jaxpr.eqns:
        numbers = [tracked.get(var) if isinstance(var, Var) else None for var in eqn.invars]
        values = [read(var) for var in eqn.invars]
        if all(number is None for number in numbers):
            results = _bound(eqn, values)
        elif eqn.primitive.name == CALL:
            inner = eqn.params["jaxpr"]
            named = zip(inner.jaxpr.invars, numbers, strict=True)
            below = {var: number for var, number in named if number is not None}
            results = _evaluated(inner.jaxpr, inner.consts, values, below, probes, inputs)
        else:
            place = 0 if numbers[0] is not None else 1
            number = numbers[place]
            assert number is not None
            inputs[number] = values[1 - place]
            convolution = Convolution.of(eqn)
            made = _bound(eqn, values)[0] if convolution is None else convolution.apply(*values)
            results = [made + probes[number]]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _bound(eqn: JaxprEqn, values: list[Any]) -> list[Any]:
    """Runs one equation, as `jax.core.eval_jaxpr` does."""
    primitive: Any = eqn.primitive
    options: Any = primitive.get_bind_params(eqn.params)
    functions, options = options if isinstance(options, tuple) else ((), options)  # up to JAX 0.9 there are functions
    with eqn.ctx.manager:
        result = primitive.bind(*functions, *values, **options)
    return list(result) if primitive.multiple_results else [result]
