"""opake (JetBrains): privacy loss distributions, sampled ones for correlated noise, noise in PyTorch.

Its noise multiplier is sigma for bins. For min-separation it divides by the norm of a column of C, which is the same
only where that norm is 1, so C and sigma are scaled to it here (checked with one round: the Gaussian mechanism).
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import opake.accounting as core
import opake.dpftrl.accounting as correlated
import opake.dpftrl.noise as strategies
import opake.dpsgd.accounting as independent
import torch
from opake.api.dpftrl.noise._band_mf import BandMfStrategy
from opake.random import key
from opake.types import clipped

warnings.simplefilter("ignore")

PACKAGES = ("opake", "opake-accounting", "opake-dpftrl")
MOST_SAMPLES = 50_000_000
"""Above so many, which opake itself warns of, seconds are extrapolated."""


@dataclasses.dataclass(frozen=True)
class GivenBands(BandMfStrategy):  # type: ignore[misc]
    """Min-separation takes its own banded optimum only; this one has the C of the cell."""

    values: tuple[float, ...] = ()

    def coefficients(self, *, n_steps: int, **_: Any) -> Any:
        """The first column of C."""
        return torch.tensor(self.values, dtype=torch.float64)


def _process(cell: dict[str, Any], sigma: float) -> Any:
    rounds, bins, column = cell["rounds"], cell["bins"], cell["coefficients"]
    if cell["batches"] == "Poisson":
        return correlated.poisson(
            correlated.mf_gaussian(sigma, strategies.identity_strategy()), sample_rate=1 / bins, n_steps=rounds
        )
    if cell["batches"] == "redrawn bins" and len(column) == 1:
        return independent.k_out_of_t(independent.gaussian(sigma), k=cell["epochs"], t=rounds, allocation="block")
    if cell["batches"] == "min-separation":
        norm = math.sqrt(sum(value**2 for value in column))
        given = GivenBands(bands=len(column), values=tuple(value / norm for value in column))
        return correlated.b_min_sep(correlated.mf_gaussian(sigma / norm, given), n_steps=rounds, p0=1 / bins)
    if len(column) == 1:
        strategy = strategies.identity_strategy()
    else:
        strategy = strategies.bsr_strategy(bandwidth=len(column), alpha=1.0, beta=0.0)
        own = strategy.coefficients(n_steps=rounds)[: len(column)]
        assert torch.allclose(own, torch.tensor(column, dtype=torch.float64))
    return correlated.balls_in_bins(correlated.mf_gaussian(sigma, strategy), num_bins=bins, n_steps=rounds)


def _words(failure: float) -> str:
    return "upper bound" if failure == 0 else f"sampled upper bound, fails with probability {failure:g}"


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """Everyone in all rounds, without amplification: bins there must be two of."""
    strategy = strategies.bsr_strategy(bandwidth=len(cell["coefficients"]), alpha=1.0, beta=0.0)
    process = correlated.mf_gaussian(
        cell["sigma"], strategy, n_steps=cell["rounds"], min_sep=cell["bins"], max_participations=cell["epochs"]
    )
    return {"epsilon": process.epsilon_at(cell["delta"])}


def _samples(resolution: float) -> int:
    return int(core.get_discretization(mc_resolution=resolution).resolved_num_mc_samples)


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """An upper bound; where samples are needed, as many as its confidence band takes at delta / 2."""
    process = _process(cell, cell["sigma"])
    resolution = min(1e-5, cell["delta"] / 2)
    sampled = len(cell["coefficients"]) > 1
    needed = _samples(resolution)
    if sampled and needed > MOST_SAMPLES:
        begun, wall = time.process_time(), time.perf_counter()
        process.pld(mc_resolution=1e-4)
        share = needed / _samples(1e-4)
        return {
            "extrapolated_cpu_seconds": share * (time.process_time() - begun),
            "extrapolated_seconds": share * (time.perf_counter() - wall),
            "samples_needed": 2 * needed,
            "guarantee": _words(1e-6),
        }
    answer = process.pld(mc_resolution=resolution)
    return {
        "epsilon": answer.epsilon_at(cell["delta"]),
        "samples": 2 * needed if sampled else 0,
        "guarantee": _words(answer.mc_failure_probability),
    }


def _calibrated(cell: dict[str, Any], process: Callable[[float], Any]) -> dict[str, Any]:
    result = core.calibrate(
        core.epsilon_budget(cell["epsilon"], delta=cell["delta"]), process, *cell["bracket"], tolerance=0.005
    )
    return {"sigma": result.param, "guarantee": _words(result.mc_failure_probability)}


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """To 0.5% in epsilon."""
    return _calibrated(cell, lambda sigma: _process(cell, sigma))


def _bands(cell: dict[str, Any]) -> dict[str, Any]:
    """Cyclic Poisson with its optimal C for so many bands; the rate is that within the group whose turn it is."""
    strategy = strategies.band_mf_strategy(bands=cell["bands"])
    rate = cell["bands"] / cell["bins"]
    answer = _calibrated(
        cell,
        lambda sigma: correlated.poisson(
            correlated.mf_gaussian(sigma, strategy), sample_rate=rate, n_steps=cell["rounds"]
        ),
    )
    column = strategy.coefficients(n_steps=cell["rounds"])
    return answer | {"coefficients": [float(value) for value in column]}


def error(cell: dict[str, Any]) -> dict[str, Any]:
    """Its BLT for these participations with bins, BandMF with cyclic Poisson, or DP-SGD."""
    rounds, bins, epochs = cell["rounds"], cell["bins"], cell["epochs"]
    if cell["mechanism"] == "BandMF, cyclic Poisson":
        return _bands(cell)
    if cell["mechanism"].startswith("DP-SGD"):
        return calibrate(cell)
    strategy = strategies.blt_strategy(max_buffers=4)
    column = strategy.coefficients(n_steps=rounds, min_sep=bins, max_participations=epochs)
    answer = _calibrated(
        cell,
        lambda sigma: correlated.balls_in_bins(correlated.mf_gaussian(sigma, strategy), num_bins=bins, n_steps=rounds),
    )
    return answer | {"coefficients": [float(value) for value in column]}


def noise(cell: dict[str, Any]) -> Callable[[], None]:
    """A round of noise added to a gradient. BLTs are tuned by opake itself, to as many buffers."""
    strategy = {
        "identity": lambda: strategies.identity_strategy(),
        "64 bands": lambda: strategies.bsr_strategy(bandwidth=64, alpha=1.0, beta=0.0),
        "BLT, 4 buffers": lambda: strategies.blt_strategy(max_buffers=4),
        "inverse of 4 bands": lambda: strategies.bisr_strategy(bandwidth=4),
    }[cell["strategy"]]()
    gradient = clipped(torch.zeros(cell["parameters"]), max_norm=1.0)
    add, state = strategies.mf_gaussian_noise(
        gradient.pytree,
        strategy,
        n_steps=cell["rounds"],
        min_sep=cell["bins"],
        max_participations=cell["epochs"],
        noise_multiplier=1.0,
        key=key(0),
    )

    def turn() -> None:
        nonlocal state
        _, state = add(gradient, state)

    return turn


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": error,
    "noise": noise,
}
