"""The accountant's samples on several machines: the same chunks, computed by the workers of a Dask cluster.

    dask scheduler                          on one machine
    dask worker tcp://scheduler:8786        on each of the others, with galton[cluster] installed
    galton certify ... --cluster tcp://scheduler:8786

A chunk is a function of sampler, seed and index (up to rounding, which the samplers' slack covers), and chunks are used
in their order. So it does not matter for the guarantee which worker computes a chunk, whether it is computed twice, or
when it arrives: a worker that dies costs time only. The workers are trusted: one that returns invented samples
invalidates the guarantee.
"""

from __future__ import annotations

import time
import warnings
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from galton.errors import GaltonError, InvalidArgument
from galton.provenance import versions
from galton.sampling.base import Draw, Sampler
from galton.sampling.schedule import Pool, Submit

PATIENCE = 60.0
"""Seconds for which a cluster may be without a single worker."""
ANSWER = 10.0
"""Seconds within which a scheduler must answer the first call."""
RETRIES = 3
_POLL = 5.0
"""Seconds between two looks at whether any workers are left."""


class ClusterError(GaltonError, RuntimeError):
    """Raised when the cluster fails, has no workers left, or runs other versions of the packages."""


class DaskPool(Pool):
    """The workers of a Dask cluster, as a pool that `Options.workers` takes."""

    def __init__(self, client: Any) -> None:
        """Wraps a `distributed.Client`, which the caller has to close."""
        self._client = client

    @property
    def width(self) -> int:
        # The threads of all workers there are now; workers may come and go.
        with _as_cluster_errors():
            return max(1, sum(self._client.nthreads().values()))

    @contextmanager
    def drawing(self, sampler: Sampler) -> Iterator[Submit]:
        # A task, not scattered data: the scheduler can repeat it when the workers that have the sampler are lost.
        with warnings.catch_warnings(), _as_cluster_errors():
            warnings.filterwarnings("ignore", "Sending large graph")
            remote_sampler = self._client.submit(_identity, sampler, pure=False)

        def submit(seed: int, index: int) -> _Chunk:
            with _as_cluster_errors():
                future = self._client.submit(_draw_chunk, remote_sampler, seed, index, pure=False, retries=RETRIES)
            return _Chunk(self._client, future)

        try:
            yield submit
        finally:
            with suppress(Exception):  # a cluster that is gone holds it no more
                remote_sampler.release()


class _Chunk:
    """A chunk under way on the cluster."""

    def __init__(self, client: Any, future: Any) -> None:
        self._client, self._future = client, future

    def result(self) -> Draw:
        """Waits for the chunk; not for ever if no worker is left."""
        alone_since: float | None = None
        while True:
            with _as_cluster_errors():
                try:
                    draw, worker_versions = self._future.result(timeout=_POLL)
                    break
                except TimeoutError:
                    if self._future.status == "error":  # the worker's own time-out, not ours
                        raise
                alone_since = None if self._client.nthreads() else alone_since or time.monotonic()
            if alone_since is not None and time.monotonic() - alone_since > PATIENCE:
                raise ClusterError("the cluster has no worker any more")
        _check_versions(worker_versions)
        return draw

    def cancel(self) -> None:
        """Tells the cluster that the chunk is no longer needed; it does not matter if that fails."""
        with suppress(Exception):
            self._future.cancel()


def _identity(sampler: Sampler) -> Sampler:
    """Returns the sampler: as a task of the cluster, this puts it on a worker."""
    return sampler


def _draw_chunk(sampler: Sampler, seed: int, index: int) -> tuple[Draw, dict[str, str]]:
    """Runs on a worker: returns a chunk, and the versions of the packages that computed it."""
    return sampler.draw(seed, index), versions()


@contextmanager
def _as_cluster_errors() -> Iterator[None]:
    """Turns whatever goes wrong on the cluster into a `ClusterError` of one line."""
    try:
        yield
    except GaltonError:
        raise
    except (Exception, CancelledError) as error:
        raise ClusterError(f"the cluster failed: {type(error).__name__}: {error}") from error


def _check_versions(worker_versions: dict[str, str]) -> None:
    if worker_versions != versions():
        raise ClusterError(f"a worker has {worker_versions}, this machine {versions()}: install the same versions")


@contextmanager
def connect(address: str) -> Iterator[DaskPool]:
    """Connects to a running Dask cluster, whose workers then draw the accountant's samples.

    Args:
      address: of the scheduler, such as tcp://host:8786; or tls://, with certificates in Dask's own configuration.

    Yields:
      The pool of workers, for `Options.workers`.

    Example:
      >>> import galton
      >>> from distributed import LocalCluster
      >>> pair = galton.dominating_pair(galton.square_root(8, 4), 4, 2.0)
      >>> with (
      ...     LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=None) as workers,
      ...     connect(workers.scheduler_address) as pool,  # of yours, such as tcp://host:8786
      ... ):
      ...     galton.certify(pair, epsilon=4.0, delta=1e-3, options=galton.Options(workers=pool)).accepted
      True
    """
    try:
        from distributed import Client
        from distributed.security import Security
    except ImportError:
        raise InvalidArgument("cluster", address, "needs Dask; pip install 'galton[cluster]'") from None
    _check_address(address)
    security: Any = Security()  # type: ignore[no-untyped-call]
    if address.startswith("tls:") and security.get_connection_args("client")["ssl_context"] is None:
        raise InvalidArgument("cluster", address, "needs certificates in Dask's configuration, distributed.comm.tls")
    try:
        client: Any = Client(address, timeout=ANSWER, security=security, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        remedy = f"must be the address of a Dask scheduler that answers, like tcp://host:8786 ({error})"
        raise InvalidArgument("cluster", address, remedy) from None
    with client:
        with _as_cluster_errors():
            if not client.nthreads():
                raise InvalidArgument("cluster", address, "has no workers; start some with: dask worker " + address)
            for worker_versions in client.run(versions).values():
                _check_versions(worker_versions)
        yield DaskPool(client)


def _check_address(address: str) -> None:
    """Raises `InvalidArgument` for what is no address; Dask itself would leave a half-open client behind."""
    try:
        parts = urlsplit(address)
        complete = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise InvalidArgument("cluster", address, "must be the address of a Dask scheduler, like tcp://host:8786")
