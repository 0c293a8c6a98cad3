"""galton itself, run like the others; its noise multiplier is sigma over the sensitivity of C for `bins`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import galton
from benchmarks.workers import jax_models
from galton.accountants import Setting
from galton.accountants.poisson import column_multiplier, subsampled_epsilon
from galton.comparison.registry import find_mechanism
from galton.noise import CorrelatedNoise

PACKAGES = ("galton", "jax", "optax")
OPTIONS = galton.Options(seed=1)
NO_SAMPLES = "upper bound, no samples"


def _strategy(cell: dict[str, Any]) -> galton.Strategy:
    column = cell["coefficients"]
    return galton.identity(cell["rounds"]) if len(column) == 1 else galton.Toeplitz(cell["rounds"], column)


def _pair(cell: dict[str, Any]) -> galton.DominatingPair:
    strategy, bins = _strategy(cell), cell["bins"]
    if cell["batches"] == "min-separation":
        return galton.separated_pair(strategy, bins, cell["separation"])
    if cell["batches"] == "redrawn bins":
        return galton.redrawn_pair(strategy, bins)
    return galton.dominating_pair(strategy, bins)


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """One bin."""
    strategy = _strategy(cell)
    pair = galton.dominating_pair(strategy, 1, cell["sigma"] / strategy.sensitivity(1))
    answer = galton.epsilon(pair, cell["delta"], options=OPTIONS)
    return {"epsilon": answer.upper, "lower": answer.lower}


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """Upper and lower limit."""
    if cell["batches"] == "Poisson":
        add = galton.Adjacency.ADD_OR_REMOVE
        answer = subsampled_epsilon(cell["sigma"], 1 / cell["bins"], cell["rounds"], cell["delta"], add)
        return {"epsilon": answer, "guarantee": NO_SAMPLES}
    pair = _pair(cell).at(cell["sigma"] / _strategy(cell).sensitivity(cell["bins"]))
    estimate = galton.epsilon(pair, cell["delta"], options=OPTIONS)
    words = f"limits that fail with probability {1 - estimate.confidence:.0e}" if estimate.samples else NO_SAMPLES
    return {"epsilon": estimate.upper, "lower": estimate.lower, "samples": estimate.samples, "guarantee": words}


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """Noise, and its certificate, which is timed apart too."""
    claim = cell["epsilon"], cell["delta"]
    if cell["batches"] == "Poisson":
        sigma = column_multiplier(1 / cell["bins"], cell["rounds"], *claim)
        return {"sigma": sigma, "guarantee": NO_SAMPLES}
    pair = _pair(cell)
    multiplier = galton.calibrate(pair, *claim, options=OPTIONS).noise_multiplier
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        ledger = galton.Ledger(Path(folder) / "attempts.json")
        certificate = galton.certify(pair.at(multiplier), *claim, options=galton.Options(seed=2), ledger=ledger)
    return {
        "sigma": multiplier * _strategy(cell).sensitivity(cell["bins"]),
        "certified": certificate.accepted,
        "certificate_cpu_seconds": round(time.process_time() - begun, 2),
        "samples": certificate.samples,
        "guarantee": "certificate, failure in delta" if certificate.samples else "certificate, no samples",
    }


def error(cell: dict[str, Any]) -> dict[str, Any] | str:
    """C optimised under amplification (BLT with weights), or what `galton compare` has."""
    bins, epochs, claim = cell["bins"], cell["epochs"], (cell["epsilon"], cell["delta"])
    compared = {
        "DP-SGD, Poisson": "dpsgd-poisson",
        "BandMF, cyclic Poisson": "bandmf-cyclic-poisson",
        "DP-SGD, redrawn bins": "dpsgd-redrawn",
    }
    if cell["mechanism"] in compared:
        row = find_mechanism(compared[cell["mechanism"]]).row(Setting(bins, epochs, galton.Guarantee(*claim)))
        return {"rmse": row.rmse, "guarantee": str(row.statement.standing.value)}
    participation = {"BLT, bins": "bins", "BLT, redrawn bins": "redrawn"}.get(cell["mechanism"])
    if participation is None:
        return "not offered"
    answer = galton.optimize("blt:4+scale", bins, bins * epochs, *claim, participation=participation, options=OPTIONS)
    return {"rmse": answer.rmse, "guarantee": "calibrated for a certificate, tau 1.05"}


def noise(cell: dict[str, Any]) -> Callable[[], None]:
    """A round of noise added to a gradient, compiled, buffers updated in place."""
    rounds = cell["rounds"]
    makers: dict[str, Callable[[], galton.Strategy]] = {
        "identity": lambda: galton.identity(rounds),
        "64 bands": lambda: galton.square_root(rounds, 64),
        "BLT, 4 buffers": lambda: galton.Blt(rounds, cell["decay"], cell["scale"]),
        "inverse of 4 bands": lambda: galton.banded_inverse_root(rounds, 4),
    }
    source = CorrelatedNoise(makers[cell["strategy"]](), 1.0)
    gradient = jnp.zeros(cell["parameters"])

    def added(state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
        drawn, after = source.next(state)
        return gradient + drawn, after

    add = jax.jit(added, donate_argnums=(0,))
    state = source.init(gradient)

    def turn() -> None:
        nonlocal state
        noisy, state = add(state, gradient)
        jax.block_until_ready((noisy, state))  # type: ignore[no-untyped-call]

    return turn


class Rounds:
    """Milliseconds of the rounds of a training run, by its `watch`; the first is for compiling."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.processors: list[float] = []

    def watch(self, *_: Any) -> None:
        """Takes the time."""
        self.walls.append(time.perf_counter())
        self.processors.append(time.process_time())

    def answer(self) -> dict[str, Any]:
        """As `run.turns`."""
        walls = sorted(1e3 * (b - a) for a, b in zip(self.walls[1:], self.walls[2:], strict=False))
        processors = sorted(1e3 * (b - a) for a, b in zip(self.processors[1:], self.processors[2:], strict=False))
        middle = len(walls) // 2
        return {
            "rounds": len(walls),
            "ms_least": round(walls[0], 3),
            "ms_median": round(walls[middle], 3),
            "ms_processor": round(processors[middle], 3),
        }


def step(cell: dict[str, Any]) -> dict[str, Any]:
    """A round of `train`, by a plan for independent noise: batch, clipping, noise, journal and update."""
    examples, rounds = 20 * cell["batch"], 2 + cell["rounds_timed"]
    plan = galton.make_plan(
        2.0, 1e-5, examples=examples, batch_size=cell["batch"], epochs=5, strategy="identity", batching="balls-in-bins"
    )
    seen = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        if cell["way"] == "JAX":
            import optax

            from galton.training.jax import train

            train(
                plan,
                folder,
                partial(jax_models.loss, cell["model"]),
                jax_models.parameters(cell["model"]),
                jax_models.data(cell["model"], examples),
                optax.sgd(0.1),
                rounds=rounds,
                watch=seen.watch,
            )
        else:
            _train_torch(plan, folder, cell, examples, rounds, seen)
    return seen.answer()


def _train_torch(plan: Any, folder: str, cell: dict[str, Any], examples: int, rounds: int, seen: Rounds) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from benchmarks.workers import torch_models
    from galton.training.torch import train

    model = torch_models.network(cell["model"])

    def loss(model: Any, rows: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(rows[0]), rows[1])

    data = TensorDataset(*torch_models.data(cell["model"], examples))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(plan, folder, loss, model, data, optimizer, rounds=rounds, watch=seen.watch)


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": error,
    "noise": noise,
    "step": step,
}
