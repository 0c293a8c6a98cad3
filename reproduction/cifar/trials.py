"""One training run from start to end: resumed if it was broken off, kept as JSON once it is done."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from galton import files
from galton.errors import InvalidArgument, InvalidFile
from galton.files import Json
from galton.plan import Plan
from galton.provenance import now, versions
from galton.sampling.schedule import Progress
from galton.training.jax import train
from galton.workloads import cooldown
from reproduction.cifar.clipping import clipped_sum, order_of_sums
from reproduction.cifar.data import Cifar, Part
from reproduction.cifar.experiment import ALL, Method, Setting, plain
from reproduction.cifar.models import NETWORKS, Network, Params, cross_entropy
from reproduction.provenance import machine

FORMAT, VERSION = "galton-cifar-trial", 1
LOOKS = 5
"""How often accuracy is measured, at equal distances and in the end."""
SEEN = 10_000
"""Training examples by which a learning rate is chosen: the test set has no part in that."""
SAVES = 8
_AT_ONCE = 500


@dataclass(frozen=True)
class Trial:
    """Which run: a model, a method, a guarantee, a learning rate, and the number of the trial."""

    model: str
    method: str
    epsilon: float
    rate: float
    number: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.model}-{self.method}-epsilon{plain(self.epsilon)}-rate{plain(self.rate)}-{self.number}"

    @property
    def seed(self) -> int:
        """Of batches and noise. It is public: these are studies on public data, which can be repeated."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Place:
    """Where things are.

    Attributes:
      results: plans and finished trials; nothing there is secret.
      runs: runs under way, with their keys and their batches. A run is deleted from here when it is done.
    """

    results: Path
    runs: Path

    @property
    def plans(self) -> Path:
        """Folder of plans."""
        return self.results / "plans"

    def file(self, trial: Trial) -> Path:
        """The file of a finished trial."""
        return self.results / "trials" / f"{trial.name}.json"

    def folder(self, trial: Trial, network: Network, setup: Json) -> Path:
        """Of a run under way: another one for another plan, network, setting, or order of sums."""
        exactly = files.digest(setup | order_of_sums(network))
        return self.runs / f"{trial.name}-{exactly.removeprefix('sha256:')[:12]}"

    def find(self, trial: Trial, network: Network, setup: Json) -> Json | None:
        """Returns a finished trial, or None; one with another plan, network or setting is refused."""
        path = self.file(trial)
        if not path.exists():
            return None
        finished = _read(path)
        for name, value in setup.items():
            if finished["setup"].get(name) != value:
                known = f"{path} has {finished['setup'].get(name)}"
                raise InvalidArgument(f"{trial.name}: {name}", value, f"{known}; take another --output")
        shutil.rmtree(self.folder(trial, network, setup), ignore_errors=True)  # if it was killed while doing so
        return finished

    def all(self) -> Iterator[Json]:
        """Yields all finished trials."""
        for path in sorted((self.results / "trials").glob("*.json")):
            yield _read(path)


def setup_of(network: Network, plan: Plan, setting: Setting) -> Json:
    """Returns all that a trial depends on beside its name, but for the order of sums, as JSON."""
    layers = list(map(asdict, network.convolutions))
    return {
        "plan": plan.digest,
        "network": {"name": network.name, "convolutions": layers, "dense": network.dense},
        "setting": setting.to_json(),
    }


def _read(path: Path) -> Json:
    body = files.read_json(path)
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        raise InvalidFile(f"{path}: must be a {FORMAT} of version {VERSION}")
    for name, kind in _KINDS.items():
        if not isinstance(_at(body, name), kind):
            raise InvalidFile(f"{path}: {name} must be a {kind.__name__}")
    trial = Trial(*(body[name] for name in ("model", "method", "epsilon", "rate", "trial")))
    if trial.name != path.stem or trial.seed != body["seed"] or trial.method not in ALL or trial.model not in NETWORKS:
        raise InvalidFile(f"{path}: holds another trial than its name says ({trial.name}, seed {body['seed']})")
    for name in ("accuracy", "train_accuracy"):
        if not 0 <= body[name] <= 1:
            raise InvalidFile(f"{path}: {name} must lie between 0 and 1, not {body[name]:g}")
    return body


_KINDS = {
    **dict.fromkeys(("model", "method", "strategy", "batching", "guarantee.adjacency", "setup.plan"), str),
    **dict.fromkeys(("epsilon", "rate", "accuracy", "train_accuracy", "noise_multiplier", "rmse"), float),
    **dict.fromkeys(("trial", "seed"), int),
    **dict.fromkeys(("setup.network", "setup.setting"), dict),
    "guarantee.epsilon": float,
}
"""What is relied on when a trial is read."""


def _at(body: Any, name: str) -> Any:
    """The value at a name with dots; None if there is none."""
    for part in name.split("."):
        body = body.get(part) if isinstance(body, dict) else None
    return body


def run_trial(
    trial: Trial,
    network: Network,
    method: Method,
    plan: Plan,
    data: Cifar,
    setting: Setting,
    place: Place,
    progress: Progress | None = None,
) -> Json:
    """Trains, or goes on with a run that was broken off; writes the finished trial and returns it."""
    setup = setup_of(network, plan, setting)
    folder = place.folder(trial, network, setup)
    looks = _Looks(folder / "looks.json", network, data, plan.rounds)
    watch = _teller(progress, trial, looks, plan.rounds)
    begun = time.perf_counter()
    trained = train(
        plan,
        folder,
        None,
        network.init(jax.random.key(trial.number)),
        (data.train.images, data.train.labels),
        _optimizer(trial.rate, setting, plan.rounds),
        clipped=clipped_sum(network, plan.clip_norm),
        save_every=max(1, plan.rounds // SAVES),
        watch=watch,
        seed=trial.seed,
    )
    score = measure(network, trained.params, data.test)
    training_sample = Part(data.train.images[:SEEN], data.train.labels[:SEEN])
    body: Json = {
        "format": FORMAT,
        "version": VERSION,
        "model": trial.model,
        "parameters": network.parameters,
        "method": trial.method,
        "epsilon": trial.epsilon,
        "rate": trial.rate,
        "trial": trial.number,
        "seed": trial.seed,
        "accuracy": score.accuracy,
        "loss": score.loss,
        "train_accuracy": measure(network, trained.params, training_sample).accuracy,
        "curve": looks.curve,
        "guarantee": plan.guarantee.to_json(),
        "setup": setup,
        "order_of_sums": order_of_sums(network),
        "strategy": plan.spec if not method.noise_of else f"that of {method.noise_of}",
        "noise_multiplier": plan.noise_multiplier,
        "rmse": plan.rmse,
        "rounds": plan.rounds,
        "batching": plan.scheme.kind,
        "places": plan.padded_batch_size,
        "seconds_of_last_start": round(time.perf_counter() - begun, 1),
        "record": {name: value for name, value in trained.record.items() if name != "signature"},  # the key is public
        "machine": machine(),
        "versions": versions(),
        "date": now(),
    }
    files.write_text(place.file(trial), files.pretty(body))
    shutil.rmtree(folder)
    return body


def _optimizer(rate: float, setting: Setting, rounds: int) -> optax.GradientTransformation:
    """Gradient descent with momentum, the rate cooled down as the workload of that name says."""
    rates = jnp.asarray(rate * cooldown(rounds, setting.cooldown), jnp.float32)
    return optax.chain(optax.trace(setting.momentum), optax.scale_by_learning_rate(lambda step: rates[step]))


class _Looks:
    """Test accuracy on the way, kept in the run's folder so that a resumed run has it all."""

    def __init__(self, path: Path, network: Network, data: Cifar, rounds: int) -> None:
        self._path, self._network, self._data = path, network, data
        self.curve: list[list[float]] = files.read_json(path)["curve"] if path.exists() else []
        self._rounds = {rounds * look // LOOKS for look in range(1, LOOKS + 1)}

    def __call__(self, done: int, params: Params) -> None:
        if done not in self._rounds:
            return
        accuracy = measure(self._network, params, self._data.test).accuracy
        self.curve = [*(point for point in self.curve if point[0] < done), [done, accuracy]]
        files.write_text(self._path, files.canonical({"curve": self.curve}))


def _teller(progress: Progress | None, trial: Trial, looks: _Looks, rounds: int) -> Callable[[int, Params], None]:
    def watch(done: int, params: Params) -> None:
        looks(done, params)
        if progress is not None:
            last = f" | {looks.curve[-1][1]:.2%}" if looks.curve else ""
            progress(f"{trial.name}{last}", done, rounds)

    return watch


class Score(NamedTuple):
    """How good a network is.

    Attributes:
      accuracy: share of images whose class it names.
      loss: mean cross entropy; None if that is not finite.
    """

    accuracy: float
    loss: float | None


def measure(network: Network, params: Params, part: Part) -> Score:
    """Returns how good the network is on these images."""
    right, losses = 0, []
    for start in range(0, len(part), _AT_ONCE):
        images, labels = (rows[start : start + _AT_ONCE] for rows in (part.images, part.labels))
        named, loss = _look(network, params, images, labels)
        right += int((np.asarray(named) == labels).sum())
        losses.append(float(loss))
    total = sum(losses) / len(part)
    return Score(right / len(part), total if math.isfinite(total) else None)


def _classes(network: Network, params: Params, images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    logits, _ = network.forward(params, images)
    return logits.argmax(axis=1), cross_entropy(logits, labels).sum()


_look = jax.jit(_classes, static_argnums=0)
