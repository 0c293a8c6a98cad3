"""Samples as they come in: what is no number in the range proves nothing, and must not count as zero."""

from __future__ import annotations

import numpy as np

from galton.errors import FloatArray, GaltonError


def checked(values: FloatArray, value_range: float) -> FloatArray:
    """Returns the samples, refusing any that is not a finite number from 0 to R.

    A NaN would otherwise drop out of sums and comparisons and count as no loss at all.

    Args:
      values: samples of V.
      value_range: R.
    """
    if not (np.isfinite(values).all() and (values >= 0).all() and (values <= value_range * (1 + 1e-9)).all()):
        raise GaltonError(
            "sampling: a sample is not a number in its range: whoever computed it (a device, a worker, a library) "
            "cannot be relied on; nothing was proved"
        )
    return values
