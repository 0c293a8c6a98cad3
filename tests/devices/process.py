"""One of several processes of a run: process.py NUMBER OF PORT PLAN FOLDER OUTPUT data|model [KILL_AT]."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding

from galton.noise.layout import cut_along
from galton.plan import load_plan
from galton.training.jax import train
from galton.training.jax_processes import at_hand
from tests.devices.training import cut_network, examples, noisy_loss


def main() -> None:
    """Trains with the model cut over processes and data over the devices of each, or the other way round."""
    number, processes, port = (int(part) for part in sys.argv[1:4])
    plan, folder, output = load_plan(sys.argv[4]), Path(sys.argv[5]), Path(sys.argv[6])
    model_over_processes, kill_at = sys.argv[7] == "model", int(sys.argv[8]) if len(sys.argv) > 8 else None
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(f"localhost:{port}", processes, number, heartbeat_timeout_seconds=20)
    devices = np.asarray(jax.devices()).reshape(processes, -1)
    mesh = Mesh(devices.T if model_over_processes else devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def watch(turn: int, params: Any) -> None:
        if number == 1 and turn == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trained = train(
        plan,
        folder,
        noisy_loss,
        cut_network(mesh),
        examples(),
        optax.adam(0.05),
        keyed=True,
        sharding=NamedSharding(mesh, cut_along("data")),
        watch=watch,
        save_every=3,
        rounds=10,
        seed=5,
        pinned=plan.digest,
    )
    model = {name: np.asarray(part).tolist() for name, part in at_hand(trained.params).items()}
    output.write_text(json.dumps({"model": model, "record": trained.record}))


if __name__ == "__main__":
    main()
