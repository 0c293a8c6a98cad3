"""kill -9 at random moments: nothing half written, nothing lost that was acknowledged, no leftovers after the next run.

    python benchmarks/kills.py --kills 34                        # of every call
    python benchmarks/kills.py --kills 40 --jobs certify         # others keep the results that they have

Commands (plan, optimize, certify, compare) and training runs (JAX on one device and on four, torch, and each of the two
in two processes) are each started in a child and killed: half of the time at a moment drawn uniformly from how long an
uninterrupted run takes, half of the time right before a random one of its operations on files. Of two processes one is
killed, either of them at random moments, and the other has to end by itself. After up to six kills in a row the same
call runs to its end. After every kill all files are read: each is absent, as it was, or new and whole. What the child
had acknowledged (an attempt in the ledger, a round that had its noise, a saved round) must be on disk. After the run to
the end the folder has the files of an uninterrupted run and no others, and training ends in the same model, bit by
bit.

Children are forked from a process that has imported everything and computed nothing, and share the programs that JAX
compiles, so that moments fall on the work and not on imports and compiling. Moments depend on the seed, but where in
the work they fall depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.distributed
from jax.sharding import AxisType, NamedSharding

import galton
from benchmarks.common import RESULTS, write
from galton import cli, files
from galton.accounting.ledger import Spent
from galton.noise.layout import cut_along
from galton.sampling import draws
from galton.training import TrainingRun, check_record
from galton.training import jax as jax_training
from galton.training import torch as torch_training

IN_A_ROW = 6
"""Most kills before a run to the end."""
LONGEST = 1200.0
"""Seconds after which a child hangs."""
PATIENCE = 30
"""Seconds that a process waits for the other to begin; by default JAX waits for 300."""
GRACE = 120.0
"""Seconds in which a process notices that the other was killed, and ends."""
ROUNDS, SAVE_EVERY = 16, 3
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


class Acknowledgements:
    """What a child has promised, written to a pipe at once: the parent reads it when the child is dead."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __call__(self, what: str, value: Any) -> None:
        """Promises something."""
        os.write(self._handle, (json.dumps([what, value]) + "\n").encode())


@dataclass(frozen=True)
class Rank:
    """Which of the processes of a call a child is, and the port at which they meet."""

    number: int
    port: int


class Job(ABC):
    """A call that is killed, and what must be true of its folder."""

    name: str
    processes: int = 1

    @abstractmethod
    def prepare(self, place: Path) -> None:
        """Puts what is there before the first run into an empty folder."""

    @abstractmethod
    def run(self, place: Path, rank: Rank) -> None:
        """The call, in a child whose working directory is `place`."""

    @abstractmethod
    def check(self, place: Path, promised: dict[str, Any]) -> list[str]:
        """Returns what is wrong after a kill; may clear what the next run would refuse to overwrite."""

    def check_end(self, place: Path, reference: Path) -> list[str]:
        """Returns what is wrong after a run to the end, beside one that was never interrupted."""
        return []


@dataclass(frozen=True)
class Command(Job):
    """A command of galton, with one output."""

    name: str
    words: tuple[str, ...]
    output: str
    old: Callable[[Path], object] | None
    read: Callable[[Path], object]

    def prepare(self, place: Path) -> None:
        if self.old is not None:
            self.old(place / self.output)

    def run(self, place: Path, rank: Rank) -> None:
        with mock.patch.object(sys, "argv", ["galton", self.name, *self.words, self.output]):
            cli.main()

    def check(self, place: Path, promised: dict[str, Any]) -> list[str]:
        path = place / self.output
        wrong = ledger_violations(place / "state" / "attempts.json", promised)
        if path.exists():
            wrong += readable(self.read, path)
        elif self.old is not None:
            wrong.append(f"{self.output}: the old one is gone")
        if self.old is None and path.is_dir():
            shutil.rmtree(path)  # plans overwrite nothing
        return wrong

    def check_end(self, place: Path, reference: Path) -> list[str]:
        return readable(self.read, place / self.output)


class Training(Job):
    """A training run with a plan that was made before."""

    def __init__(
        self, name: str, train: Callable[[Rank], None], arrays: Callable[[Path], list[Any]], processes: int = 1
    ) -> None:
        self.name, self._train, self._arrays, self.processes = name, train, arrays, processes

    def prepare(self, place: Path) -> None:
        pass

    def run(self, place: Path, rank: Rank) -> None:
        self._train(rank)

    def check(self, place: Path, promised: dict[str, Any]) -> list[str]:
        run = place / "run"
        wrong = []
        for model in run.glob("checkpoint-*"):
            wrong += readable(self._arrays, model)
        if (run / "record.json").exists():
            wrong += readable(check_record, run)
        released, saved = journal_rounds(run / "noise.journal")
        if released < promised.get("released", 0):
            wrong.append(f"journal: {released} rounds, {promised['released']} had their noise")
        if saved < promised.get("saved", 0):
            wrong.append(f"journal: saved up to {saved}, {promised['saved']} was acknowledged")
        if promised.get("saved", 0) and not any(
            int(model.name.removeprefix("checkpoint-")) >= promised["saved"] for model in run.glob("checkpoint-*")
        ):
            wrong.append(f"model: that of round {promised['saved']} is gone")
        return wrong

    def check_end(self, place: Path, reference: Path) -> list[str]:
        ours, theirs = (self._arrays(folder / "run" / f"checkpoint-{ROUNDS}") for folder in (place, reference))
        same = len(ours) == len(theirs) and all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True)
        )
        return [] if same else ["model: differs from that of a run without interruption"]


def readable(read: Callable[[Path], object], path: Path) -> list[str]:
    """Returns why a file cannot be read, if it cannot."""
    try:
        read(path)
    except Exception as error:
        return [f"{path.name}: {type(error).__name__}: {error}"]
    return []


def damaged(place: Path) -> list[str]:
    """Returns what is wrong with files that anybody can check: JSON and arrays that cannot be read."""
    wrong = []
    for path in sorted(place.rglob("*")):
        if is_temporary(path.relative_to(place)) or not path.is_file():
            continue
        if path.suffix == ".json":
            wrong += readable(files.read_json, path)
        elif path.suffix == ".npz":
            wrong += readable(lambda path: [array.shape for array in np.load(path).values()], path)
    return wrong


def is_temporary(path: Path) -> bool:
    """Whether a path lies in a temporary folder of galton."""
    return any(part.startswith(".galton-") for part in path.parts)


def names(place: Path) -> set[str]:
    """All files of a folder but those whose names depend on the time: marks of plans."""
    paths = (path.relative_to(place) for path in place.rglob("*") if not path.is_dir())
    return {str(path) for path in paths if path.parent.name != "marks"}


def ledger_violations(path: Path, promised: dict[str, Any]) -> list[str]:
    """Returns which acknowledged attempts the ledger does not have."""
    if "attempts" not in promised:
        return []
    if path.exists() and (wrong := readable(files.read_json, path)):
        return wrong
    entries = {key: Spent(*value) for key, value in files.read_json(path).items()} if path.exists() else {}
    most = max((spent.attempts for spent in entries.values()), default=0)
    return [f"ledger: {most} attempts, {promised['attempts']} acknowledged"] if most < promised["attempts"] else []


def journal_rounds(path: Path) -> tuple[int, int]:
    """Returns how many rounds a journal has released, and up to which the run was saved."""
    if not path.exists():
        return 0, 0
    text = path.read_text()
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    released = sum("batch" in line for line in lines)
    return released, max((line["saved"] for line in lines if "saved" in line), default=0)


def train_jax(rank: Rank, devices: bool = False) -> None:
    """Linear regression on 64 examples; on several devices, with data and model cut in two."""
    random_numbers = np.random.default_rng(0)
    rows = random_numbers.normal(size=(64, 8)).astype(np.float32)
    targets = rows @ np.arange(8, dtype=np.float32)

    def loss(params: Any, example: Any) -> Any:
        return (example[0] @ params["w"] + params["b"] - example[1]) ** 2

    params = {"w": jnp.zeros(8), "b": jnp.zeros(())}
    optimizer = optax.sgd(0.1, momentum=0.9)
    options: dict[str, Any] = {"save_every": SAVE_EVERY, "seed": 7}
    if devices:
        mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        params = {
            "w": jax.device_put(params["w"], NamedSharding(mesh, cut_along("model"))),
            "b": jax.device_put(params["b"], NamedSharding(mesh, cut_along())),
        }
        options["sharding"] = NamedSharding(mesh, cut_along("data"))
    jax_training.train("../plan", "run", loss, params, (rows, targets), optimizer, **options)


def train_jax_on_devices(rank: Rank) -> None:
    """The same on four devices, which JAX makes of the processor in a process that has computed nothing yet."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    train_jax(rank, devices=True)


def train_jax_in_processes(rank: Rank) -> None:
    """The same in two processes of two devices: each has half of the data."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(
        f"localhost:{rank.port}", 2, rank.number, initialization_timeout=PATIENCE, heartbeat_timeout_seconds=20
    )
    train_jax(rank, devices=True)
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def train_torch_in_processes(rank: Rank) -> None:
    """The same in two processes of torch, on gloo."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://localhost:{rank.port}",
        rank=rank.number,
        world_size=2,
        timeout=timedelta(seconds=PATIENCE),
    )
    train_torch(rank, distributed=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_torch(rank: Rank, distributed: bool = False) -> None:
    """The same in torch."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(rows, rows @ torch.arange(8.0))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(model: Any, rows: Any) -> torch.Tensor:
        return ((model(rows[0]).squeeze(-1) - rows[1]) ** 2).sum()

    options: dict[str, Any] = {"save_every": SAVE_EVERY, "seed": 7, "distributed": distributed}
    torch_training.train("../plan", "run", loss, model, data, optimizer, **options)


def jax_arrays(path: Path) -> list[Any]:
    """The arrays of a model that the JAX adapter saved."""
    with np.load(path) as saved:
        return [saved[name] for name in sorted(saved.files)]


def torch_arrays(path: Path) -> list[Any]:
    """The parameters and momenta of a model that the torch adapter saved."""
    saved = torch.load(path, weights_only=True)
    return [tensor.numpy() for tensor in [*saved["model"].values(), *_tensors(saved["optimizer"])]]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in _tensors(value[key])]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []


def check_strategy(path: Path) -> None:
    """Reads a strategy, whose hash is in its file."""
    galton.load_strategy(path)


def check_certificate(path: Path) -> None:
    """Reads a certificate."""
    galton.Certificate.from_json(files.read_json(path))


def check_plot(path: Path) -> None:
    """Reads a PNG: its beginning and its end."""
    content = path.read_bytes()
    if not content.startswith(b"\x89PNG") or not content.endswith(b"IEND\xaeB`\x82"):
        raise ValueError("is not whole")


SIZE = ("--bins", "4", "--epochs", "3")
TARGET = ("--epsilon", "1", "--delta", "1e-2")
PLAN = ("--examples", "64", "--batch-size", "16", "--epochs", "2", "--epsilon", "4", "--delta", "1e-3")


def _old_certificate(path: Path) -> None:
    path.write_text(_OLD_CERTIFICATE)


_OLD_CERTIFICATE = ""


def jobs() -> dict[str, Job]:
    """All calls that are killed, by name."""
    listed: list[Job] = [
        Command("plan", (*PLAN, "--strategy", "sqrt:2", "--output"), "plan", None, galton.load_plan),
        Command(
            "optimize",
            ("blt:1", "--bins", "2", "--epochs", "2", *TARGET, "--samples", "64", "--iterations", "2", "--output"),
            "strategy.json",
            lambda path: galton.save_strategy(galton.square_root(4), path),
            check_strategy,
        ),
        Command(
            "certify",
            ("sqrt", *SIZE, "--noise-multiplier", "1.8", *TARGET, "--output"),
            "certificate.json",
            _old_certificate,
            check_certificate,
        ),
        Command(
            "compare",
            (*SIZE, "--epsilons", "1,4", "--delta", "1e-5", "--mechanisms", "dpsgd-poisson,tree-unamplified", "--plot"),
            "errors.png",
            None,
            check_plot,
        ),
        Training("training with JAX", train_jax, jax_arrays),
        Training("training with JAX on 4 devices", train_jax_on_devices, jax_arrays),
        Training("training with torch", train_torch, torch_arrays),
        Training("training with JAX in 2 processes", train_jax_in_processes, jax_arrays, processes=2),
        Training("training with torch in 2 processes", train_torch_in_processes, torch_arrays, processes=2),
    ]
    return {job.name: job for job in listed}


# Children


@dataclass
class Ended:
    """How a call ended: exit code or minus the signal, how long it took, what it promised and said, who hung."""

    code: int
    seconds: float
    promised: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    hung: bool = False


def in_child(job: Job, place: Path, after: float = LONGEST, at_operation: int = 0, victim: int = 0) -> Ended:
    """Runs a job in forked children; kills one after so many seconds, or right before that operation on files."""
    reading, writing = os.pipe()
    said = place.with_suffix(".said")
    said.unlink(missing_ok=True)
    begun, port = time.perf_counter(), free_port() if job.processes > 1 else 0
    children = []
    for number in range(job.processes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks; nothing has been computed here
            children.append(os.fork())
        if children[-1] == 0:
            os.close(reading)
            _be_child(job, place, said, Acknowledgements(writing), at_operation, Rank(number, port))
    os.close(writing)
    code, _ = _wait(children[victim], begun + after)
    seconds = time.perf_counter() - begun
    others = [_wait(child, time.perf_counter() + GRACE) for number, child in enumerate(children) if number != victim]
    if code == 0:
        code = next((other for other, _ in others if other), 0)
    with os.fdopen(reading) as pipe:
        promised = dict(json.loads(line) for line in pipe.read().splitlines())
    words = said.read_text() if said.exists() else ""
    return Ended(code, seconds, promised, words, any(hung for _, hung in others))


def free_port() -> int:
    """Returns a port of this machine that nobody uses."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


def apart(check: Callable[[], list[str]]) -> list[str]:
    """Returns what a check returns, which runs in a child: threads that it starts must not be here at the next fork."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            words = check()
        except BaseException:
            words = [traceback.format_exc()]
        with os.fdopen(writing, "w") as pipe:
            json.dump(words, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told: list[str] = json.loads(pipe.read())
    os.waitpid(child, 0)
    return told


def _wait(child: int, deadline: float) -> tuple[int, bool]:
    """Returns how a child ended, and whether it had to be killed at the deadline."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        if time.perf_counter() > deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), True
        time.sleep(0.002)


def _be_child(job: Job, place: Path, said: Path, promise: Acknowledgements, at_operation: int, rank: Rank) -> None:
    code = 1
    try:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(place)
        os.environ |= {"GALTON_STATE": str(place / "state"), "GALTON_CACHE": str(place / "cache"), "MPLBACKEND": "Agg"}
        if rank.number == 0:  # it has the folder
            _promise_what_is_acknowledged(promise)
            _count_operations(place, promise, at_operation)
        job.run(place, rank)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _promise_what_is_acknowledged(promise: Acknowledgements) -> None:
    """Promises attempts once samples may be drawn, and rounds once their noise or their checkpoint is returned."""
    begin, accept, noise, save = galton.Ledger.begin, galton.Ledger.accept, TrainingRun.noise, TrainingRun.save
    attempts: list[int] = []

    def begin_and_remember(self: Any, *given: Any, **named: Any) -> Any:
        spent = begin(self, *given, **named)
        attempts.append(spent.attempts)
        return spent

    def draw_and_promise(*given: Any, **named: Any) -> Any:
        promise("attempts", attempts[-1])
        return draws(*given, **named)

    def accept_and_promise(self: Any, *given: Any, **named: Any) -> Any:
        promise("attempts", 0)
        return accept(self, *given, **named)

    def noise_and_promise(self: Any, *given: Any, **named: Any) -> Any:
        drawn = noise(self, *given, **named)
        promise("released", self.round)
        return drawn

    def save_and_promise(self: Any, *given: Any, **named: Any) -> Any:
        save(self, *given, **named)
        promise("saved", self.round)

    for name, replacement in (
        ("galton.accounting.ledger.Ledger.begin", begin_and_remember),
        ("galton.accounting.ledger.Ledger.accept", accept_and_promise),
        ("galton.accounting.certificate.draws", draw_and_promise),
        ("galton.training.run.TrainingRun.noise", noise_and_promise),
        ("galton.training.run.TrainingRun.save", save_and_promise),
    ):
        mock.patch(name, replacement).start()


def _count_operations(place: Path, promise: Acknowledgements, at_operation: int) -> None:
    """Counts what is done to files below `place`, and dies right before one of these operations."""
    count, start = 0, str(place)
    fsync = os.fsync

    def operation() -> None:
        nonlocal count
        count += 1
        if count == at_operation:
            os.kill(os.getpid(), signal.SIGKILL)
        if not at_operation:
            promise("operations", count)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not given or not isinstance(given[0], str | Path):
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & _WRITING):
            return
        if os.path.abspath(given[0]).startswith(start):
            operation()

    def counted_fsync(handle: Any) -> None:
        operation()
        fsync(handle)
        operation()

    mock.patch("os.fsync", counted_fsync).start()
    sys.addaudithook(hook)


# The experiment


def kill_often(job: Job, place: Path, kills: int, random_numbers: random.Random) -> dict[str, Any]:
    """Kills a job so many times, and returns what was wrong, with how often it was killed when."""
    reference = place / "reference"
    whole = _begin(job, reference)
    ended = in_child(job, reference)
    if ended.code not in (0, 3):
        raise RuntimeError(f"{job.name}: cannot run at all ({ended.code}):\n{ended.said[-2000:]}")
    ended_again = in_child(job, _begin(job, place / "measured"))
    seconds, operations = ended_again.seconds, ended_again.promised["operations"]
    wrong: list[str] = []
    done = {"timed": 0, "aimed": 0, "ended_before": 0, "runs_to_the_end": 0}
    while done["timed"] + done["aimed"] < kills:
        here = _begin(job, place / f"trial{done['runs_to_the_end']}")
        promised: dict[str, Any] = {}
        for _ in range(random_numbers.randint(1, IN_A_ROW)):
            if random_numbers.random() < 0.5:
                victim = random_numbers.randrange(job.processes)
                kind, ended = "timed", in_child(job, here, after=random_numbers.uniform(0, seconds), victim=victim)
            else:
                kind, ended = "aimed", in_child(job, here, at_operation=random_numbers.randint(1, operations))
            if ended.code != -signal.SIGKILL:
                done["ended_before"] += 1
                if ended.code not in (0, 3):
                    wrong.append(f"{here.name}: exit code {ended.code} after a kill: {ended.said[-500:]}")
                break
            done[kind] += 1
            if ended.hung:
                wrong.append(f"{here.name}: a process did not notice in {GRACE:.0f} seconds that another was killed")
            promised |= ended.promised
            told = apart(partial(_after_a_kill, job, here, promised))
            wrong += [f"{here.name}: {words}" for words in told]
        if ended.code in (0, 3) and isinstance(job, Command) and job.old is None and (here / job.output).is_dir():
            shutil.rmtree(here / job.output)
        last = in_child(job, here)
        done["runs_to_the_end"] += 1
        if last.code not in (0, 3):
            wrong.append(f"{here.name}: exit code {last.code} of the run to the end: {last.said[-500:]}")
            continue
        wrong += [f"{here.name}: {words}" for words in apart(partial(_at_the_end, job, here, whole))]
        more = names(here) - names(whole)
        if more:
            wrong.append(f"{here.name}: left over: {sorted(more)}")
        if not wrong:
            shutil.rmtree(here)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    whole_run = {"seconds": round(seconds, 2), "operations": operations}
    return {"job": job.name, "date": date, **whole_run, **done, "violations": wrong}


def _after_a_kill(job: Job, place: Path, promised: dict[str, Any]) -> list[str]:
    return [*damaged(place), *job.check(place, promised)]


def _at_the_end(job: Job, place: Path, reference: Path) -> list[str]:
    return [*damaged(place), *job.check_end(place, reference)]


def _begin(job: Job, place: Path) -> Path:
    place.mkdir(parents=True)
    job.prepare(place)
    return place


def prepare(place: Path) -> None:
    """Makes, in a child, the plan that training runs use and a certificate that is there before others."""
    global _OLD_CERTIFICATE

    class Preparation(Job):
        name = "preparation"

        def prepare(self, place: Path) -> None:
            pass

        def run(self, place: Path, rank: Rank) -> None:
            claim = galton.Guarantee(4.0, 1e-3, galton.Adjacency.REPLACE)
            plan = galton.make_plan(
                claim, examples=64, batch_size=8, epochs=2, batching="fixed-order", strategy="sqrt:4"
            )
            galton.save_plan(plan, place / "plan")
            pair = galton.dominating_pair(galton.square_root(12), 4, 3.0)
            made = galton.certify(pair, 1.0, 1e-2, options=galton.Options(seed=1))
            (place / "certificate.json").write_text(files.pretty(made.to_json()))

        def check(self, place: Path, promised: dict[str, Any]) -> list[str]:
            return []

    ended = in_child(Preparation(), place)
    if ended.code:
        raise RuntimeError(ended.said)
    _OLD_CERTIFICATE = (place / "certificate.json").read_text()


def main() -> None:
    """Kills all jobs, and writes results/kills.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=34, help="of every job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", nargs="*", default=list(jobs()), help="names of jobs")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "programs"))  # type: ignore[no-untyped-call]
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # type: ignore[no-untyped-call]
        prepare(Path(folder))
        for name in chosen.jobs:
            place = Path(folder) / "jobs" / name.replace(" ", "-")
            place.mkdir(parents=True)
            (place / "plan").symlink_to(Path(folder) / "plan")
            rows.append(kill_often(jobs()[name], place, chosen.kills, random.Random(f"{chosen.seed} {name}")))
            print(rows[-1], flush=True)
    print(f"{_kills(rows)} kills, {_violations(rows)} violations")
    if not chosen.dry:
        known = json.loads((RESULTS / "kills.json").read_text())["rows"] if (RESULTS / "kills.json").exists() else []
        all_rows = {row["job"]: row for row in (*known, *rows)}
        listed = [all_rows[name] for name in jobs() if name in all_rows]
        write("kills", listed, kills=_kills(listed), violations=_violations(listed), seed=chosen.seed)
    sys.exit(1 if _violations(rows) else 0)


def _kills(rows: list[dict[str, Any]]) -> int:
    return sum(row["timed"] + row["aimed"] for row in rows)


def _violations(rows: list[dict[str, Any]]) -> int:
    return sum(len(row["violations"]) for row in rows)


if __name__ == "__main__":
    main()
