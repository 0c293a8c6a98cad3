"""Which form the noise takes where memory is scarce."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from galton.errors import InvalidArgument
from galton.noise.choice import buffer_bytes, chosen_form
from galton.noise.stream import CorrelatedNoise
from galton.plan import Plan
from galton.strategies import Blt, Strategy, Tree, banded_inverse_root, identity, square_root
from galton.training import TrainingRun

ROUNDS = 16
PARAMS = {"a": jnp.zeros((500, 1000)), "b": jnp.zeros(250_000, jnp.bfloat16)}  # 3 MB of float32 noise
STRATEGIES = {
    "identity": identity(ROUNDS),
    "bisr": banded_inverse_root(ROUNDS, 4),
    "bands": square_root(ROUNDS, 3),
    "blt": Blt(ROUNDS, [0.9, 0.5], [0.1, 0.2]),
    "tree": Tree(ROUNDS),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_bytes_are_those_of_the_state(strategy: Strategy) -> None:
    state = CorrelatedNoise(strategy, 1.0).init(PARAMS)
    assert buffer_bytes(strategy, PARAMS) == sum(np.asarray(buffer).nbytes for buffer in state.buffers)


@pytest.mark.parametrize(
    ("name", "form", "chosen"),
    [
        ("bisr", "buffers", "buffers"),
        ("bisr", "recompute", "recompute"),
        ("bisr", "auto:9MB", "buffers"),  # three copies of 3 MB
        ("bisr", "auto:8.9 MB", "recompute"),
        ("bands", "auto:6MB", "buffers"),
        ("bands", "auto:5MB", "recompute"),
        ("blt", "auto:0MB", "recompute"),
        ("blt", "auto:0.006GB", "buffers"),
        ("identity", "auto:0GB", "buffers"),  # nothing is kept
        ("tree", "auto:1GB", "buffers"),
    ],
)
def test_buffers_are_kept_where_they_fit(name: str, form: str, chosen: str) -> None:
    assert chosen_form(form, STRATEGIES[name], PARAMS) == chosen


def test_many_draws_are_warned_of() -> None:
    rounds = 200
    with pytest.warns(UserWarning, match=r"^form = 'auto:1MB': buffers need 6 MB, .* draws up to 200 vectors"):
        assert chosen_form("auto:1MB", Blt(rounds, [0.9999, 0.99], [0.01, 0.01]), PARAMS) == "recompute"
    for few in (banded_inverse_root(rounds, 64), square_root(rounds, 4)):  # else the warning is an error
        assert chosen_form("auto:1MB", few, PARAMS) == "recompute"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^form = 'auto:1MB': buffers need 15 MB, and this C has no other form"):
        chosen_form("auto:1MB", STRATEGIES["tree"], PARAMS)
    for bad in ("auto", "auto:", "auto:-1GB", "auto:2", "auto:2gb", "auto:1e3MB", "auto:infGB"):
        with pytest.raises(InvalidArgument, match=r"^form = 'auto.*such as auto:2GB$"):
            chosen_form(bad, STRATEGIES["bisr"], PARAMS)
    with pytest.raises(InvalidArgument, match=r"^form = 'other'"):
        CorrelatedNoise(STRATEGIES["bisr"], 1.0, chosen_form("other", STRATEGIES["bisr"], PARAMS))


@pytest.mark.parametrize(("limit", "form"), [("auto:0MB", "recompute"), ("auto:1TB", "buffers")])
def test_a_run_takes_the_form_and_keeps_it(small_plan: Plan, tmp_path: Path, limit: str, form: str) -> None:
    params = {"w": np.zeros(7, np.float32)}
    for resumed in (False, True):
        with TrainingRun(
            small_plan,
            tmp_path / "run",
            params,
            examples=small_plan.examples,
            clip_norm=small_plan.clip_norm,
            form=limit,
        ) as run:
            record = run.record()
            assert (record["noise_form"], record["resumptions"]) == (form, int(resumed))
