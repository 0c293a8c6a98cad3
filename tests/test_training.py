"""A run takes everything from its plan, can be resumed, and leaves a record."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from galton.batching import Batches, StreamingBallsInBins, StreamingRedrawnBallsInBins
from galton.errors import InvalidArgument, InvalidFile
from galton.noise import NoiseReused
from galton.noise.layout import Tree
from galton.plan import Plan, save_plan
from galton.training import PlanViolated, TrainingRun, check_record

PARAMS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}


def opened(plan: Plan, folder: Path, **words: object) -> TrainingRun:
    return TrainingRun(plan, folder, PARAMS, **{"examples": 64, "clip_norm": 1.0, **words})  # type: ignore[arg-type]


def rounds_of(run: TrainingRun, last: int) -> list[tuple[list[int], Tree]]:
    rounds = []
    while run.round < last:
        rounds.append((run.batch.examples.tolist(), {name: np.asarray(x) for name, x in run.noise().items()}))
    return rounds


def same(left: list[tuple[list[int], Tree]], right: list[tuple[list[int], Tree]]) -> bool:
    return len(left) == len(right) and all(
        a == b and all(np.array_equal(x[name], y[name]) for name in x)
        for (a, x), (b, y) in zip(left, right, strict=True)
    )


def test_batches_and_noise_are_those_of_the_plan(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        seen = rounds_of(run, 32)
        assert run.done
    in_rounds = np.zeros((64, 32), int)
    for turn, (members, _) in enumerate(seen):
        in_rounds[members, turn] += 1
    by_epoch = in_rounds.reshape(64, 4, 8)
    assert (by_epoch.sum(axis=2) == 1).all()
    assert (by_epoch == by_epoch[:, :1]).all()
    other = opened(small_plan, tmp_path / "other")
    assert not same(seen[:1], rounds_of(other, 1))  # seeds are from the operating system
    other.close()


def test_a_run_can_be_taken_up_in_the_middle_and_is_the_same(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "whole", seed=3) as run:
        whole = rounds_of(run, 32)
    with opened(small_plan, tmp_path / "parts", seed=3) as run:
        first = rounds_of(run, 13)
        run.save(lambda path: path.write_text("model"))
        lost = rounds_of(run, 17)  # and then the machine dies
    with opened(small_plan, tmp_path / "parts", seed=3) as run:
        assert run.round == 13
        assert run.model is not None
        assert run.model.read_text() == "model"
        rest = rounds_of(run, 32)
        record = run.record()
    assert same(first + rest, whole)
    assert same(rest[:4], lost)
    assert (record["rounds_done"], record["completed"]) == (32, True)
    assert (record["resumptions"], record["rounds_replayed"]) == (1, 4)


def test_rounds_before_a_checkpoint_cannot_be_computed_again(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 2)
        run.save()
        old = (folder / "noise.npz").read_bytes()
        rounds_of(run, 6)
        run.save()
    (folder / "noise.npz").write_bytes(old)
    with opened(small_plan, folder) as run, pytest.raises(NoiseReused):
        run.noise()


def test_more_rounds_than_planned_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        rounds_of(run, 32)
        with pytest.raises(PlanViolated, match="32 rounds"):
            run.noise()
        with pytest.raises(PlanViolated, match="32 rounds"):
            _ = run.batch


@pytest.mark.parametrize("words", [{"examples": 63}, {"examples": 640}, {"clip_norm": 2.0}])
def test_other_data_or_clipping_than_planned_is_refused(
    small_plan: Plan, tmp_path: Path, words: dict[str, object]
) -> None:
    with pytest.raises(PlanViolated, match=next(iter(words))):
        opened(small_plan, tmp_path / "run", **words)
    assert not (tmp_path / "run").exists()


def test_a_folder_belongs_to_one_plan_and_one_process(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run"), pytest.raises(InvalidFile, match="held by another"):
        opened(small_plan, tmp_path / "run")
    other = replace(small_plan, created="another time")
    with pytest.raises(PlanViolated, match="plan"):
        opened(other, tmp_path / "run", pinned=other.digest)


def test_a_run_can_be_opened_from_the_folder_of_a_plan(small_plan: Plan, tmp_path: Path) -> None:
    save_plan(small_plan, tmp_path / "plan")
    with TrainingRun(tmp_path / "plan", tmp_path / "run", PARAMS, examples=64, clip_norm=1.0) as run:
        assert run.plan.digest == small_plan.digest


def test_secrets_are_readable_by_their_owner_only_and_the_record_has_none(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
        run.save()
        batches = Batches.resume(small_plan.scheme, json.loads((folder / "run.json").read_text())["batches"])
    for name in ("run.json", "noise.npz", "noise.journal"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert batches.seed not in (folder / "record.json").read_text()
    assert batches.seed not in (folder / "noise.journal").read_text()


def test_a_model_is_saved_whole_or_the_last_one_stays(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def half(path: Path) -> None:
        path.write_text("half a mo")
        raise OSError(28, "No space left on device")

    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
        run.save(lambda path: path.write_text("model"))
        rounds_of(run, 5)
        with pytest.raises(InvalidFile, match=r"model-5: cannot be written \(No space left"):
            run.save(half)
    assert not list(folder.glob(".*"))
    assert stat.S_IMODE((folder / "model-3").stat().st_mode) == 0o600
    with opened(small_plan, folder) as run:
        assert run.round == 3
        assert run.model is not None
        assert run.model.read_text() == "model"


def test_a_run_goes_on_with_its_own_batches_or_not_at_all(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 5)
        run.save()
    about = folder / "run.json"
    good = about.read_text()
    body = json.loads(good)
    for name, value in (("seed", "00" * 32), ("physical", 5)):
        about.write_text(json.dumps(body | {"batches": body["batches"] | {name: value}}))
        with pytest.raises((InvalidFile, PlanViolated)):
            opened(small_plan, folder)
    about.unlink()
    with pytest.raises(InvalidFile, match="missing"):
        opened(small_plan, folder)
    about.write_text(good)
    with opened(small_plan, folder) as run:
        assert run.round == 5


def test_a_plan_that_was_changed_in_memory_is_refused(small_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        opened(replace(small_plan, noise_multiplier=1e-6), tmp_path / "run")


def test_batches_for_shuffled_data_need_shuffled_data(small_plan: Plan, tmp_path: Path) -> None:
    streaming = replace(small_plan, scheme=StreamingBallsInBins(64, 8, 32))
    with pytest.raises(PlanViolated, match="shuffled"):
        opened(streaming, tmp_path / "run")
    with opened(streaming, tmp_path / "run", shuffled=True, pinned=streaming.digest) as run:
        assert run.batch.examples.size


def test_batches_for_reshuffled_data_need_reshuffled_data(small_plan: Plan, redrawn_plan: Plan, tmp_path: Path) -> None:
    """Data that was shuffled once does not do: an example would stay near its place in every epoch."""
    streaming = replace(redrawn_plan, scheme=StreamingRedrawnBallsInBins(64, 8, 32))
    for words in ({}, {"shuffled": True}):
        with pytest.raises(PlanViolated, match="shuffled anew for every epoch"):
            opened(streaming, tmp_path / "run", **words)
    with opened(streaming, tmp_path / "run", reshuffled=True, pinned=streaming.digest) as run:
        assert run.batch.examples.size
    once = replace(small_plan, scheme=StreamingBallsInBins(64, 8, 32))
    with pytest.raises(PlanViolated, match="shuffled once"):
        opened(once, tmp_path / "once", reshuffled=True)


def test_the_record_counts_rounds_that_had_noise_and_were_lost(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        rounds_of(run, 2)
    with opened(small_plan, tmp_path / "run") as run:
        assert (run.round, run.released) == (0, 2)
        assert run.record()["rounds_released"] == 2


def test_a_sum_is_held_to_what_it_was(small_plan: Plan, tmp_path: Path) -> None:
    total = {name: part + 1 for name, part in PARAMS.items()}
    with opened(small_plan, tmp_path / "run") as run:
        run.noise(total)
    with opened(small_plan, tmp_path / "run") as run:
        with pytest.raises(NoiseReused, match="another gradient"):
            run.noise(PARAMS)
        with pytest.raises(NoiseReused, match="another gradient"):
            run.noise()
        run.noise(total)
        assert run.token(run.batch) != run.token(run._batches.at(2))


def test_a_record_that_was_changed_is_noticed(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
    assert check_record(folder)["rounds_done"] == 3
    path = folder / "record.json"
    path.write_text(path.read_text().replace('"rounds_done": 3', '"rounds_done": 2'))
    with pytest.raises(InvalidFile, match="changed"):
        check_record(folder)


def test_a_model_that_is_missing_stops_the_run(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        assert run.model is None
        rounds_of(run, 3)
        run.save(lambda path: path.write_text("model"))
    (tmp_path / "run" / "model-3").unlink()
    with opened(small_plan, tmp_path / "run") as run, pytest.raises(InvalidFile, match="missing"):
        _ = run.model
