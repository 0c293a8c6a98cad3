"""One package's step: worker.py PACKAGE MODEL BATCH waits for lines on stdin and does one step for each.

It answers with a line of JSON: wall and processor milliseconds of the step, and the peak memory of the process so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

SAID = os.fdopen(os.dup(1), "w")
"""Answers; packages may print what they like elsewhere."""


def peak() -> float:
    """Megabytes that the process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Turns:
    """Steps on demand: `next` answers for the step that has been done, and waits for the next demand."""

    def __init__(self) -> None:
        self.base = 0.0
        self._begun: tuple[float, float] | None = None

    def next(self) -> None:
        """Answers, waits, and begins to measure."""
        if self._begun is not None:
            wall, processor = time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]
            answer = {"ms": 1e3 * wall, "processor_ms": 1e3 * processor, "peak_mb": peak(), "loaded_mb": self.base}
            print(json.dumps(answer), file=SAID, flush=True)
        else:
            print("ready", file=SAID, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        self._begun = time.perf_counter(), time.process_time()


def galton_plan(batch: int) -> Any:
    """A plan for independent noise: that of DP-SGD, as the others add it."""
    import galton

    return galton.make_plan(
        2.0, 1e-5, examples=20 * batch, batch_size=batch, epochs=5, strategy="identity", batching="balls-in-bins"
    )


def galton_jax(model: str, batch: int, turns: Turns) -> None:
    """Rounds of `train`: batch, clipping, noise, journal and update."""
    import optax

    from benchmarks.steps import jax_models
    from galton.training.jax import train

    plan, start, rows = galton_plan(batch), jax_models.parameters(model), jax_models.data(model, 20 * batch)
    turns.base = peak()
    with tempfile.TemporaryDirectory() as folder:
        watch: Callable[[int, Any], None] = lambda done, params: turns.next()  # noqa: E731
        train(plan, folder, partial(jax_models.loss, model), start, rows, optax.sgd(0.1), watch=watch, save_every=10**6)


def galton_torch(model: str, batch: int, turns: Turns, ghost: bool = False) -> None:
    """Rounds of `train`, by gradients of single examples or by ghost norms."""
    import torch
    from torch.utils.data import TensorDataset

    from benchmarks.steps import torch_models
    from galton.training.torch import train

    plan, network = galton_plan(batch), torch_models.network(model)
    rows = TensorDataset(*torch_models.data(model, 20 * batch))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def loss(model: Any, part: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(part[0]), part[1], reduction="none" if ghost else "mean")

    turns.base = peak()
    with tempfile.TemporaryDirectory() as folder:
        watch: Callable[[int], None] = lambda done: turns.next()  # noqa: E731
        train(plan, folder, loss, network, rows, optimizer, ghost=ghost, watch=watch, save_every=10**6)


def jax_privacy(model: str, batch: int, turns: Turns) -> None:
    """Its clipped gradients, all at once, independent noise, and SGD, compiled as one."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import noise_addition
    from jax_privacy.clipping import clipped_grad

    from benchmarks.steps import jax_models

    images, labels = (jnp.asarray(part) for part in jax_models.data(model, batch))
    gradient_of = clipped_grad(
        lambda params, x, y: jax_models.loss(model, params, (x, y)),
        l2_clip_norm=1.0,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        normalize_by=batch,
    )
    privatizer = noise_addition.gaussian_privatizer(stddev=gradient_of.sensitivity(), prng_key=0)
    optimizer = optax.sgd(0.1)
    params = jax_models.parameters(model)
    state = (params, optimizer.init(params), privatizer.init(params))

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any) -> Any:
        params, inner, noise = state
        noisy, noise = privatizer.update(gradient_of(params, images, labels), noise)
        updates, inner = optimizer.update(noisy, inner, params)
        return optax.apply_updates(params, updates), inner, noise

    turns.base = peak()
    state = step(jax.tree.map(jnp.array, state))
    while True:
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        turns.next()
        state = step(state)


def opacus(model: str, batch: int, turns: Turns, ghost: bool = False) -> None:
    """A step of its private optimiser, clipping by hooks or by ghost norms."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.steps import torch_models

    images, labels = torch_models.data(model, batch)
    network = torch_models.network(model)
    private = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    module, optimizer = private[0], private[1]
    criterion = private[2] if ghost else torch.nn.CrossEntropyLoss()
    turns.base = peak()
    while True:
        optimizer.zero_grad()
        criterion(module(images), labels).backward()
        optimizer.step()
        turns.next()


def opake(model: str, batch: int, turns: Turns) -> None:
    """Its clipped gradients, independent noise, and SGD by hand, as in its example."""
    if sys.version_info < (3, 13):  # it asks for an option of dataclasses that earlier Pythons refuse
        plain: Any = dataclasses.dataclass
        dataclasses.dataclass = lambda cls=None, /, weakref_slot=False, **options: plain(cls, **options)
    import torch
    from torch.func import functional_call

    clipped_grad = importlib.import_module("opake.dpsgd.clipping").clipped_grad
    gaussian_noise = importlib.import_module("opake.dpsgd.noise").gaussian_noise
    key = importlib.import_module("opake.random").key

    from benchmarks.steps import torch_models

    images, labels = torch_models.data(model, batch)
    network = torch_models.network(model)
    params = {name: value.detach() for name, value in network.named_parameters()}

    def loss(params: Any, image: Any, label: Any) -> Any:
        scores = functional_call(network, params, (image.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(scores, label.unsqueeze(0))

    gradient_of, clip_state = clipped_grad(loss, clipping_norm=1.0, batch_argnums=(1, 2), normalize_by=batch)
    add, noise_state = gaussian_noise(noise_multiplier=1.0, key=key(0))
    turns.base = peak()
    while True:
        gradients, clip_state = gradient_of(params, images, labels, state=clip_state)
        noisy, noise_state = add(gradients, noise_state)
        params = {name: value - 0.1 * noisy.pytree[name] for name, value in params.items()}
        turns.next()


STEPS: dict[str, Callable[[str, int, Turns], None]] = {
    "galton JAX": galton_jax,
    "galton torch": galton_torch,
    "galton torch ghost": partial(galton_torch, ghost=True),
    "jax-privacy": jax_privacy,
    "Opacus hooks": opacus,
    "Opacus ghost": partial(opacus, ghost=True),
    "opake": opake,
}


def main() -> None:
    """Does steps until stdin ends."""
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        STEPS[sys.argv[1]](sys.argv[2], int(sys.argv[3]), Turns())


if __name__ == "__main__":
    main()
