"""Samples on a Dask cluster: the same bits as here, whatever happens to the workers."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

import galton
from galton import Options, cluster
from galton.cluster import ClusterError, DaskPool, connect
from galton.errors import InvalidArgument
from galton.guarantee import Direction
from galton.provenance import versions
from galton.sampling import (
    HalfSpaceSampler,
    MaximumSampler,
    OrderStatisticsSampler,
    PlainSampler,
    Sampler,
    TiltedSampler,
    draws,
)
from tests.marks import SLOW

PAIR = galton.dominating_pair(galton.square_root(32, 4), 8, 1.2)
EQUAL = galton.dominating_pair(galton.identity(32), 8, 1.2)

LAST_RESORT = 1800
"""Seconds after which a test counts as hanging: no measure of how fast anything should be."""
CONNECT = "distributed.comm.timeouts.connect"
PATIENT = {CONNECT: f"{LAST_RESORT}s", "distributed.comm.timeouts.tcp": f"{LAST_RESORT}s"}


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """No limit of galton's or of Dask's, here or in other processes, that a busy machine could miss."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set(PATIENT):
        for name, value in (PATIENT | {"distributed.scheduler.worker-ttl": f"{LAST_RESORT}s"}).items():
            patch.setenv("DASK_" + name.upper().replace(".", "__").replace("-", "_"), value)
        patch.setattr(cluster, "ANSWER", float(LAST_RESORT))
        patch.setattr(cluster, "PATIENCE", float(LAST_RESORT))
        yield


def wait_until(happened: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Waits as long as it takes; not if a process that is needed for it has died."""
    hanging = time.monotonic() + LAST_RESORT
    while not happened():
        assert [process.poll() for process in processes] == [None] * len(processes), "a process has died"
        assert time.monotonic() < hanging, "this never happens"
        time.sleep(0.05)


class Cluster:
    """A scheduler and workers, in processes of their own, as a user starts them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        wait_until(lambda: self._read_address() is not None, self.processes)
        self.address = str(self._read_address())

    def _read_address(self) -> str | None:
        try:
            return str(json.loads((self._folder / "scheduler.json").read_text())["address"])
        except (FileNotFoundError, ValueError):  # not there, or not whole
            return None

    def start_worker(self) -> None:
        self._start("worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder))

    def _start(self, *words: str) -> None:
        told = ["--scheduler-file", str(self._folder / "scheduler.json"), "--no-dashboard"]
        command = [sys.executable, "-m", "dask", *words, *told]
        with (self._folder / "log").open("a") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder))


@contextmanager
def running(folder: Path, workers: int) -> Iterator[Cluster]:
    """Yields once all workers are there."""
    made = Cluster(folder)
    try:
        for _ in range(workers):
            made.start_worker()
        with Client(made.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            wait_until(lambda: len(client.nthreads()) == workers, made.processes)
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@contextmanager
def scheduler_killed(made: Cluster, pool: DaskPool) -> Iterator[None]:
    """A client that soon gives up looking for a scheduler that is no more."""
    pool._client._timeout = 1.0
    with dask.config.set({CONNECT: "1s"}):
        made.processes[0].kill()
        yield


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("cluster"), workers=2) as started:
        yield started.address


@pytest.fixture
def pool(scheduler: str) -> Iterator[DaskPool]:
    with connect(scheduler) as connected:
        yield connected


def samplers() -> list[Sampler]:
    mixture, noise = Direction.MIXTURE_FIRST, Direction.NOISE_FIRST
    return [
        PlainSampler(PAIR, mixture),
        PlainSampler(PAIR, noise, "float64"),
        TiltedSampler(PAIR, mixture, 2.0),
        TiltedSampler(PAIR, Direction.REPLACE, 2.0, dtype="float64"),
        HalfSpaceSampler(PAIR, 2.0),
        MaximumSampler(EQUAL, mixture, 2.0),
        OrderStatisticsSampler(EQUAL, noise, 2.0),
    ]


@pytest.mark.parametrize("sampler", samplers(), ids=lambda sampler: f"{sampler.name}-{sampler.direction.value}")
def test_a_sampler_keeps_every_bit_on_its_way(sampler: Sampler) -> None:
    arrived: Sampler = pickle.loads(pickle.dumps(sampler))
    sent, there = sampler.draw(5, 3), arrived.draw(5, 3)
    assert np.array_equal(sent.loss, there.loss)
    assert np.array_equal(sent.log_weight, there.log_weight)
    assert np.array_equal(sampler.values(sent, 2.5, 1), arrived.values(there, 2.5, 1))
    assert (arrived.slack, arrived.layout, arrived.value_range(2.5)) == (
        sampler.slack,
        sampler.layout,
        sampler.value_range(2.5),
    )
    for name, value in vars(sampler).items():
        if hasattr(value, "dtype"):
            assert vars(arrived)[name].dtype == value.dtype


@SLOW
def test_the_answers_are_those_of_this_machine_to_the_bit(pool: DaskPool) -> None:
    assert pool.width == 2
    here = Options(seed=3, samples=1 << 16)
    there = replace(here, workers=pool)
    asks: list[Callable[[Options], Any]] = [
        lambda how: galton.delta(PAIR, 2.0, options=how),
        lambda how: galton.calibrate(PAIR, 2.0, 1e-3, options=replace(how, sampler="plain", samples=1 << 12)),
        lambda how: galton.certify(PAIR, 8.0, 1e-3, options=how),
    ]
    for ask in asks:
        assert _timeless(ask(there).to_json()) == _timeless(ask(here).to_json())


def _timeless(answer: Any) -> Any:
    if isinstance(answer, dict):
        left_out = ("seconds", "created", "attempts", "failure_probability", "statement")
        return {name: _timeless(part) for name, part in answer.items() if name not in left_out}
    return [_timeless(part) for part in answer] if isinstance(answer, list | tuple) else answer


def test_stopping_early_leaves_nothing_behind(pool: DaskPool) -> None:
    run = draws(PlainSampler(PAIR, Direction.MIXTURE_FIRST), 1 << 24, 1, pool)
    next(run)
    run.close()  # type: ignore[attr-defined]
    wait_until(lambda: not _tasks(pool))


def _tasks(pool: DaskPool) -> int:
    return sum(len(held) for held in pool._client.has_what().values())


@SLOW
def test_workers_that_die_cost_time_and_nothing_else(tmp_path: Path) -> None:
    """The only worker, which has the sampler and all chunks so far, is killed; another one comes and goes on."""
    sampler = PlainSampler(PAIR, Direction.NOISE_FIRST)
    samples = 8 * sampler.layout.size
    expected = np.concatenate([draw.loss for draw in draws(sampler, samples, 9)])
    with running(tmp_path, workers=1) as here, connect(here.address) as pool:
        losses = []
        for number, draw in enumerate(draws(sampler, samples, 9, pool)):
            losses.append(draw.loss)
            if number == 2:
                here.processes[-1].kill()
                here.start_worker()
        assert np.array_equal(np.concatenate(losses), expected)
        with scheduler_killed(here, pool), pytest.raises(ClusterError, match="the cluster failed"):
            list(draws(sampler, samples, 9, pool))


@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
def test_a_failure_over_there_is_one_line_here(pool: DaskPool, error: type[Exception]) -> None:
    """Also one that looks like our own impatience."""

    class Broken(PlainSampler):
        def draw(self, seed: int, index: int) -> Any:
            raise error("oh")

    with pytest.raises(ClusterError, match=f"the cluster failed: {error.__name__}: oh"):
        list(draws(Broken(PAIR, Direction.NOISE_FIRST), 10, 1, pool))


def test_workers_of_another_version_are_refused(
    scheduler: str, pool: DaskPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once; and later, if they join later."""
    chunk = cluster._Chunk(None, _Done((None, {"galton": "99"})))
    with pytest.raises(ClusterError, match="install the same versions"):
        chunk.result()
    monkeypatch.setattr(cluster, "_check_versions", _refuse)
    with pytest.raises(ClusterError, match="refused"), connect(scheduler):
        pass


class _Done:
    """A future with this result."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float) -> Any:
        return self._value


def _refuse(theirs: dict[str, str]) -> None:
    assert theirs == versions()
    raise ClusterError("refused")


@SLOW
def test_a_scheduler_that_is_lost_between_two_runs(tmp_path: Path) -> None:
    """The first error is told, not that of tidying up after it."""
    with running(tmp_path, workers=1) as here, connect(here.address) as pool:
        sampler = PlainSampler(PAIR, Direction.NOISE_FIRST)
        run = draws(sampler, 64 * sampler.layout.size, 9, pool)
        next(run)
        with scheduler_killed(here, pool):
            wait_until(lambda: pool._client.status != "running")
            with pytest.raises(ClusterError, match="the cluster failed"):
                list(run)
            wait_until(lambda: pool._client.status == "closed")
            with pytest.raises(ClusterError, match="the cluster failed"):
                list(draws(sampler, 10, 9, pool))


def test_a_cluster_without_workers_is_told_from_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Future:
        def result(self, timeout: float) -> Any:
            raise TimeoutError

        status = "pending"

    class Waiting:
        left = 3

        def nthreads(self) -> dict[str, int]:
            self.left -= 1
            return {"one": 1} if self.left > 0 else {}

    monkeypatch.setattr(cluster, "PATIENCE", 0.01)
    with pytest.raises(ClusterError, match="no worker any more"):
        cluster._Chunk(Waiting(), Future()).result()


def test_a_chunk_that_comes_just_after_the_wait_is_taken() -> None:
    class Late(_Done):
        status = "finished"
        calls = 0

        def result(self, timeout: float) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise TimeoutError
            return super().result(timeout)

    class Client:
        def nthreads(self) -> dict[str, int]:
            return {"one": 1}

    draw = object()
    assert cluster._Chunk(Client(), Late((draw, versions()))).result() is draw


def test_a_time_out_on_a_worker_is_an_error() -> None:
    class Failed:
        status = "error"

        def result(self, timeout: float) -> Any:
            raise TimeoutError("reading took too long")

    with pytest.raises(ClusterError, match="reading took too long"):
        cluster._Chunk(None, Failed()).result()


@pytest.mark.parametrize(
    "address",
    [
        *(
            "tcp://127.0.0.1:9",
            "nonsense://x",
            "127.0.0.1:x",
            "localhost",
            "8786",
            "tcp://127.0.0.1",
            "tcp://",
            " ",
            "",
        ),
        *("http://127.0.0.1:8786", "inproc://1/2/3", "ucx://x:1", "tcp://host:port"),
    ],
)
def test_addresses_where_nobody_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER", 1.0)
    with pytest.raises(InvalidArgument, match=r"cluster = .*must be the address of a Dask scheduler"), connect(address):
        pass


@pytest.mark.parametrize("workers", ["two", 1.5, None, 0])
def test_workers_that_are_neither_a_number_nor_a_pool(workers: Any) -> None:
    with pytest.raises(InvalidArgument, match="workers"):
        Options(workers=workers)


@SLOW
def test_on_the_command_line(scheduler: str) -> None:
    words = ["delta", "sqrt:4", "-b", "8", "-e", "4", "-s", "1.2", "--epsilon", "2", "--seed", "1", "--json"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        code = f"from galton import cli, cluster; cluster.ANSWER = {LAST_RESORT}; cli.main()"
        return subprocess.run([sys.executable, "-c", code, *words, *more], capture_output=True, text=True)

    here, there = run(), run("--cluster", scheduler)
    assert (there.returncode, there.stderr) == (0, "")
    assert _timeless(json.loads(there.stdout)) == _timeless(json.loads(here.stdout))
    for address, remedy in {
        "localhost": "must be the address of a Dask scheduler, like tcp://host:8786",
        "tls://127.0.0.1:9": "needs certificates in Dask's configuration, distributed.comm.tls",
    }.items():
        nobody = run("--cluster", address)
        assert (nobody.returncode, nobody.stderr) == (2, f"galton: --cluster = '{address}': {remedy}\n")
