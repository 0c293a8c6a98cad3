"""jax-privacy: Monte Carlo verification for banded Toeplitz C, cyclic Poisson by dp-accounting, noise in JAX.

Its multiplier for sampled losses is sigma itself (C as given); that of BandMF is for columns of norm 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, noise_addition
from jax_privacy.experimental import accounting
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

PACKAGES = ("jax-privacy", "dp-accounting")
TAU = 1.25
"""A claim of delta is verified at delta / TAU: closer takes more samples."""
SECONDS = 5.0
"""Processor seconds in which the rate of samples is measured."""


def _sampling(cell: dict[str, Any]) -> Any:
    if cell["batches"] == "bins":
        return batch_selection.BallsInBinsSampling(iterations=cell["rounds"], cycle_length=cell["bins"])
    if cell["batches"] == "min-separation":
        chance = 1 / (cell["bins"] - cell["separation"] + 1)
        return batch_selection.BMinSepSampling(chance, cell["rounds"], cell["separation"])
    raise ValueError(cell["batches"])


def _losses(cell: dict[str, Any], seed: int, count: int, positive: bool = True) -> Any:
    losses, _ = sample_generation.get_privacy_loss_sample(
        strategy=_sampling(cell),
        noise_multiplier=cell["sigma"],
        c_col=np.asarray(cell["coefficients"]),
        seed=seed,
        positive_sample=positive,
        num_samples=count,
    )
    return losses


def check(cell: dict[str, Any]) -> dict[str, Any]:
    """One bin: delta at the epsilon of the closed form, sampled."""
    losses = _losses(cell | {"batches": "bins"}, 1, 4_000)
    values = -np.expm1(np.minimum(cell["expected"] - losses, 0.0))
    return {"delta": float(values.mean()), "error": float(values.std() / np.sqrt(values.size))}


def verification(cell: dict[str, Any]) -> dict[str, Any]:
    """The samples that verify one claim in both directions, and their seconds, extrapolated from the measured rate."""
    samples = 2 * delta_calculation.minimum_samples_to_calibrate(cell["delta"] / TAU, cell["delta"])
    _losses(cell, 0, 64)
    begun, wall, done = time.process_time(), time.perf_counter(), 0
    while time.process_time() - begun < SECONDS:
        _losses(cell, done + 1, 256, positive=done % 512 == 0)
        done += 256
    processor, wall = time.process_time() - begun, time.perf_counter() - wall
    return {
        "extrapolated_cpu_seconds": processor * samples / done,
        "extrapolated_seconds": wall * samples / done,
        "samples_needed": samples,
        "samples_drawn": done,
        "guarantee": f"sampled verification of one claim, failure in delta, tau {TAU}",
    }


def _event(sigma: float, cell: dict[str, Any]) -> Any:
    return accounting.dpsgd_event(sigma, cell["rounds"], sampling_prob=1 / cell["bins"])


def epsilon(cell: dict[str, Any]) -> dict[str, Any]:
    """Poisson by dp-accounting; else what one verification takes, for there is no function that gives epsilon."""
    if cell["batches"] == "Poisson":
        accountant = dp_accounting.pld.PLDAccountant().compose(_event(cell["sigma"], cell))
        return {"epsilon": accountant.get_epsilon(cell["delta"]), "guarantee": "upper bound"}
    return verification(cell)


def calibrate(cell: dict[str, Any]) -> dict[str, Any]:
    """Poisson only: the noise of a sampled verification is chosen from a sweep, each level as dear as `epsilon`."""
    sigma = dp_accounting.calibrate_dp_mechanism(
        dp_accounting.pld.PLDAccountant,
        lambda value: _event(value, cell),
        target_epsilon=cell["epsilon"],
        target_delta=cell["delta"],
        bracket_interval=dp_accounting.ExplicitBracketInterval(*cell["bracket"]),
        tol=1e-3,
    )
    return {"sigma": sigma, "guarantee": "upper bound"}


def error(cell: dict[str, Any]) -> dict[str, Any]:
    """Its own choice of bands and C for cyclic Poisson batches; noise by losses, not by moments as in the choice."""
    if cell["mechanism"] == "DP-SGD, Poisson":
        return calibrate(cell)
    column, _ = toeplitz.optimize_coefs_for_amplifications(
        cell["rounds"],
        dataset_size=1000 * cell["bins"],
        expected_batch_size=1000,
        epsilon=cell["epsilon"],
        delta=cell["delta"],
    )
    bands = int(np.flatnonzero(np.asarray(column))[-1]) + 1
    sigma = dp_accounting.calibrate_dp_mechanism(
        dp_accounting.pld.PLDAccountant,
        lambda value: accounting.amplified_bandmf_event(
            value, cell["rounds"], num_bands=bands, sampling_prob=bands / cell["bins"]
        ),
        target_epsilon=cell["epsilon"],
        target_delta=cell["delta"],
        bracket_interval=dp_accounting.ExplicitBracketInterval(*cell["bracket"]),
        tol=1e-3,
    )
    coefficients = [float(value) for value in column[:bands]]
    return {"sigma": sigma, "coefficients": coefficients, "guarantee": "upper bound"}


def _matrix(cell: dict[str, Any]) -> Any:
    name = cell["strategy"]
    if name == "BLT, 4 buffers":
        return buffered_toeplitz.BufferedToeplitz(
            buf_decay=jnp.array(cell["decay"], jnp.float32), output_scale=jnp.array(cell["scale"], jnp.float32)
        ).inverse_as_streaming_matrix()
    return toeplitz.inverse_as_streaming_matrix(jnp.asarray(cell["coefficients"], jnp.float32))


def noise(cell: dict[str, Any]) -> Callable[[], None]:
    """A round of noise added to a gradient, compiled, the state updated in place."""
    if cell["strategy"] == "identity":
        privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))
    else:
        privatizer = noise_addition.matrix_factorization_privatizer(_matrix(cell), stddev=1.0, prng_key=0)
    gradient = jnp.zeros(cell["parameters"])
    update = jax.jit(privatizer.update, donate_argnums=(1,))
    state = jax.tree.map(jnp.array, privatizer.init(gradient))

    def turn() -> None:
        nonlocal state
        noisy, state = update(gradient, state)
        jax.block_until_ready((noisy, state))  # type: ignore[no-untyped-call]

    return turn


TASKS = {
    "check": check,
    "epsilon": epsilon,
    "calibrate": calibrate,
    "error": error,
    "noise": noise,
}
