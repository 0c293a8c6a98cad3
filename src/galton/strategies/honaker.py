"""Honaker's estimate of the nodes of a binary tree, which the tree and its stream share."""

from __future__ import annotations

import numpy as np

from galton.errors import FloatArray


def refined_variances(height: int) -> FloatArray:
    """Variance of a node's sum, by height, combined with its whole subtree (Honaker's estimate from below)."""
    variances = np.ones(height + 1)
    for level in range(1, height + 1):
        children = 2 * variances[level - 1]
        variances[level] = children / (1 + children)
    return variances
