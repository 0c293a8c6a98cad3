"""galton itself, run like the others; its noise multiplier is sigma over the sensitivity of C for `bins`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import galton
from galton.accountants import Setting
from galton.accountants.poisson import column_multiplier, subsampled_epsilon
from galton.comparison.registry import find_mechanism
from galton.noise import CorrelatedNoise

PACKAGES = ("galton", "jax")
OPTIONS = galton.Options(seed=1)
LIMITS = galton.Options(seed=1, confidence=1 - 1e-6)
"""Limits on epsilon fail with the probability that opake allows too."""
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
    estimate = galton.epsilon(pair, cell["delta"], options=LIMITS)
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
    return {"sigma": multiplier * _strategy(cell).sensitivity(cell["bins"])} | _certified(pair.at(multiplier), *claim)


def _certified(pair: galton.DominatingPair, epsilon: float, delta: float) -> dict[str, Any]:
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        ledger = galton.Ledger(Path(folder) / "attempts.json")
        certificate = galton.certify(pair, epsilon, delta, options=galton.Options(seed=2), ledger=ledger)
    return {
        "certified": certificate.accepted,
        "certificate_cpu_seconds": round(time.process_time() - begun, 2),
        "samples": certificate.samples,
        "guarantee": "certificate, failure in delta" if certificate.samples else "certificate, no samples",
    }


def error(cell: dict[str, Any]) -> dict[str, Any]:
    """C optimised under amplification (BLT with weights) and certified, or what `galton compare` has."""
    bins, epochs, claim = cell["bins"], cell["epochs"], (cell["epsilon"], cell["delta"])
    compared = {
        "DP-SGD, Poisson": "dpsgd-poisson",
        "BandMF, cyclic Poisson": "bandmf-cyclic-poisson",
        "DP-SGD, redrawn bins": "dpsgd-redrawn",
    }
    if cell["mechanism"] in compared:
        row = find_mechanism(compared[cell["mechanism"]]).row(Setting(bins, epochs, galton.Guarantee(*claim)))
        return {"rmse": row.rmse, "guarantee": str(row.statement.standing.value)}
    redrawn = cell["batches"] == "redrawn bins"
    participation = "redrawn" if redrawn else "bins"
    answer = galton.optimize("blt:4+scale", bins, bins * epochs, *claim, participation=participation, options=OPTIONS)
    paired = galton.redrawn_pair if redrawn else galton.dominating_pair
    return {"rmse": answer.rmse} | _certified(paired(answer.strategy, bins, answer.noise_multiplier), *claim)


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


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": error,
    "noise": noise,
}
