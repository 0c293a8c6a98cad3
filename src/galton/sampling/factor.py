"""A square root of the Gram matrix that only ever rounds upwards (docs/math.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from galton.errors import FloatArray, InvalidArgument
from galton.pair import ROUNDOFF, Pair


@dataclass(frozen=True, eq=False)
class Factor:
    """`root` @ root.T = `gram` up to `residual` in every entry, and >= the matrix asked for in every entry.

    Attributes:
      root: (b, b), lower-triangular.
      gram: (b, b).
      residual: bound on |root @ root.T - gram|, entry by entry.
    """

    root: FloatArray
    gram: FloatArray
    residual: float


def factor_residual(gram: FloatArray) -> float:
    """Returns a bound on the backward error of the factor of this matrix, entry by entry."""
    return 4 * (gram.shape[0] + 2) * ROUNDOFF * float(gram.diagonal().max()) * 1.01


def upward_factor(gram: FloatArray) -> Factor:
    """Factors a positive semi-definite matrix, singular or not, never lowering an entry.

    Cholesky of H = G + c 1 1^T + j I has a backward error of at most c = 4 (b+2) 2^-53 max(diag H) in every entry
    (Higham, Theorem 10.3, with |L||L^T| <= max diag), so that L L^T, which is positive semi-definite by its form,
    is nowhere below G: by Kahane's inequality delta does not fall. j starts at rounding level and grows only if
    the factorisation breaks down.
    """
    size = gram.shape[0]
    residual = factor_residual(gram)
    jitter = 4 * residual
    for _ in range(8):
        raised = gram + residual
        raised[np.diag_indices(size)] += jitter
        try:
            return Factor(cholesky(raised, lower=True, check_finite=False), raised, residual)
        except LinAlgError:
            jitter *= 10
    raise InvalidArgument(
        "gram", f"matrix of {size} modes", "must be positive semi-definite; it is not, beyond rounding"
    )


@lru_cache(maxsize=1)
def factor_of(pair: Pair) -> Factor:
    """Returns the upward factor of the pair's Gram matrix in force, made once for all who ask for it in turn."""
    return upward_factor(pair.gram)
