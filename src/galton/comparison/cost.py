"""What the noise of a strategy costs a training run: memory and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from galton.strategies.base import Strategy


@dataclass(frozen=True)
class NoiseCost:
    """Cost of one step of the noise stream.

    Attributes:
      memory: buffers of the size of the model that are kept between rounds.
      operations: multiplications (with their additions) per model parameter and round, beside the fresh normals.
      draws: fresh normals per model parameter and round.
    """

    memory: int
    operations: int
    draws: int


def noise_cost(strategy: Strategy) -> NoiseCost:
    """Returns the cost of a strategy's stream.

    Args:
      strategy: C.

    Returns:
      Memory and work of its noise, per parameter.

    >>> from galton.strategies import square_root
    >>> noise_cost(square_root(100, bands=8))
    NoiseCost(memory=7, operations=8, draws=1)
    """
    stream = strategy.stream()
    return NoiseCost(stream.memory, stream.operations, stream.draws)
