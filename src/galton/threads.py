"""Threads of the BLAS under NumPy and SciPy."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits


def one_blas_thread() -> AbstractContextManager[object]:
    """Returns a context in which BLAS uses a single thread, for work on small matrices.

    Threads that wait for each other cost far more than a product of 128 x 128 matrices: next to JAX's own threads on 2
    cores, a Cholesky factorisation was measured to take 70 ms instead of 0.3 ms.
    """
    return threadpool_limits(limits=1, user_api="blas")
