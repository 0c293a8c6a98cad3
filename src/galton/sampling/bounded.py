"""Samples that come with bounds of their own on the errors of their log weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galton.errors import FloatArray
from galton.sampling.base import Draw, Sampler


@dataclass(frozen=True, eq=False)
class BoundedDraw(Draw):
    """Samples whose log weights are known up to bounds of their own: `least` and `most`."""

    least: FloatArray
    most: FloatArray

    def room(self, slack: float, steepness: int) -> dict[str, float | FloatArray]:
        apart = np.maximum(slack, self.most - self.least)
        return {"loss": slack, "log_weight": apart, "least": apart, "most": apart}

    def first(self, size: int) -> BoundedDraw:
        return BoundedDraw(self.loss[:size], self.log_weight[:size], self.least[:size], self.most[:size])


class BoundedSampler(Sampler):
    """A sampler of such samples: values that are rounded take the bound in the place of the log weight."""

    def values(self, draw: Draw, epsilon: float, rounding: int = 0) -> FloatArray:
        if rounding and isinstance(draw, BoundedDraw):
            draw = Draw(draw.loss, draw.most if rounding > 0 else draw.least)
        return super().values(draw, epsilon, rounding)
