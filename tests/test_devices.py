"""Models on several devices: the noise is made where the parameters are, without communication, and is the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton.plan import Plan, save_plan
from galton.training import check_record
from tests.devices.noise import KINDS
from tests.marks import SLOW

ROOT = Path(__file__).parents[1]
QUICK = ["blt"]


def on_devices(number: int, program: str, *arguments: Any) -> None:
    """Runs a program of tests/devices on so many devices, which JAX makes of one processor."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={number}"
    command = [sys.executable, "-m", f"tests.devices.{program}", *map(str, arguments)]
    place = os.pathsep.join(path for path in (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path)
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": place}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def noise_on(number: int, folder: Path, kinds: list[str]) -> dict[str, Any]:
    folder.mkdir()
    on_devices(number, "noise", folder / "noise.json", *kinds)
    report: dict[str, Any] = json.loads((folder / "noise.json").read_text())
    assert report["devices"] == number
    return report


@pytest.mark.parametrize(
    ("numbers", "kinds"), [((1, 4), QUICK), pytest.param((1, 2, 4), [*KINDS], marks=SLOW)], ids=["blt", "all"]
)
def test_noise_is_the_same_on_any_number_of_devices_and_made_without_communication(
    tmp_path: Path, numbers: tuple[int, ...], kinds: list[str]
) -> None:
    """Bit by bit, with a checkpoint on the way, by open and by sealed states; a device has its share of the buffers."""
    reports = {number: noise_on(number, tmp_path / str(number), kinds) for number in numbers}
    alone = reports[1]
    for number, report in reports.items():
        for kind in kinds:
            seen, expected = report["kinds"][kind], alone["kinds"][kind]
            assert seen["collectives"] == [], (number, kind)
            assert seen["noise"] == expected["noise"], (number, kind)
            assert seen["sealed"] == expected["sealed"], (number, kind)
            assert seen["noise follows parameters"]
            share = (84 + 140 + 60) // number + 9 + 6 + 1  # arrays that are cut, and those that all devices have
            if seen["shards"][0][0]:  # JAX does not cut what has no rows
                assert [shape[-1] for shape in seen["shards"]] == [share] * number
        if number > 1:
            assert "all arrays must be on the same devices, in one mesh" in report["refusal"]
            # 2^30 parameters: 16 GiB of buffers, 4 GiB of noise
            large, share = report["large"], 2**30 // number
            assert large["start"] == 16 * share
            assert large["arguments"] < 16 * share + 2**20
            assert large["outputs"] < 20 * share + 2**20
            assert large["temporary"] < 8 * share + 2**20  # places and a vector of noise: buffers are never copied
        assert report["hash"] == alone["hash"]
        assert report["words"] == alone["words"]


@SLOW
def test_training_on_several_devices_is_that_on_one(small_plan: Plan, tmp_path: Path) -> None:
    """Data and model cut two ways each, or both four ways along one axis; dropout; killed on the way."""
    save_plan(small_plan, tmp_path / "plan")
    on_devices(4, "training", tmp_path / "plan", tmp_path / "runs", tmp_path / "training.json")
    report = json.loads((tmp_path / "training.json").read_text())
    sums, models = report["sums"], report["models"]
    assert sums["collectives"] == ["all-reduce"]  # of the sum, once
    assert sums["difference"] < 1e-6
    assert max(sums["moves"]) <= 1.0
    assert len(sums["moves"]) == sums["examples"] > 2
    assert max(sums["shares"]) - min(sums["shares"]) <= 1
    assert report["cut"]["both"] == {"first": [5, 4], "bias": [4], "second": [4, 3]}
    assert report["cut"]["fsdp"] == {"first": [5, 2], "bias": [2], "second": [2, 3]}
    assert report["moments"]["both"] == [[4], [5, 4], [4, 3]] * 2
    assert report["moments"]["fsdp"] == [[2], [5, 2], [2, 3]] * 2
    for name in ("alone", "both", "fsdp"):
        assert models[f"{name} whole"] == models[f"{name} killed"]
        assert report["records"][f"{name} killed"]["rounds_replayed"] == 3
        assert report["records"][f"{name} killed"]["rounds_skipped"] == []
    for name, part in models["alone whole"].items():
        for way in ("both", "fsdp"):  # sums are added up in another order
            np.testing.assert_allclose(models[f"{way} whole"][name], part, atol=1e-5)


def in_processes(number: int, *arguments: Any) -> list[int]:
    """Runs processes of one run to their end, and returns their exit codes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    plan, folder, output, *rest = arguments
    program = [sys.executable, "-m", "tests.devices.process"]
    started = [
        subprocess.Popen(
            [*program, *map(str, (rank, number, port, plan, folder, f"{output}-{rank}.json", *rest))],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(number)
    ]
    return [process.wait() for process in started]


@SLOW
@pytest.mark.parametrize("over", ["data", "model"])
def test_processes_share_a_run_and_go_on_after_one_was_killed(small_plan: Plan, tmp_path: Path, over: str) -> None:
    """Two processes of two devices: either the data or the model, and with it the noise, is cut over processes."""
    plan = save_plan(small_plan, tmp_path / "plan")
    assert in_processes(2, plan, tmp_path / "whole", tmp_path / "a", over) == [0, 0]
    killed = in_processes(2, plan, tmp_path / "parts", tmp_path / "b", over, 5)
    assert killed[1] == -signal.SIGKILL
    assert killed[0] != 0  # it cannot go on alone
    assert in_processes(2, plan, tmp_path / "parts", tmp_path / "b", over) == [0, 0]
    results = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for name in "ab" for rank in (0, 1)]
    assert all(result["model"] == results[0]["model"] for result in results)
    record = check_record(tmp_path / "parts")
    assert (record["rounds_done"], record["resumptions"], record["rounds_skipped"]) == (10, 1, [])
    assert record["rounds_replayed"] >= 2
