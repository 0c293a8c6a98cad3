"""A run takes everything from its plan, can be resumed, and leaves a record."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from galton.batching import Batches, StreamingBallsInBins, StreamingRedrawnBallsInBins
from galton.errors import InvalidArgument, InvalidFile
from galton.noise import key_from_seed
from galton.noise.layout import Tree
from galton.noise.run import read_keys, write_keys
from galton.plan import Plan, load_plan, save_plan
from galton.training import (
    LostRounds,
    PlanViolated,
    RoundsSkipped,
    TrainingRun,
    check_record,
    fork_run,
    release_run,
)
from tests.test_cli import galton

PARAMS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}


def opened(plan: Plan, folder: Path, **words: object) -> TrainingRun:
    return TrainingRun(plan, folder, PARAMS, **{"examples": 64, "clip_norm": 1.0, **words})  # type: ignore[arg-type]


def rounds_of(run: TrainingRun, last: int) -> list[tuple[list[int], Tree]]:
    rounds = []
    while run.round < last:
        members, noise = run.batch.examples.tolist(), run.noise(total_of(run))
        rounds.append((members, {name: np.asarray(x) for name, x in noise.items()}))
    return rounds


def total_of(run: TrainingRun) -> Tree:
    """What training would have summed: the same if it is computed again."""
    return {name: part + run.round for name, part in PARAMS.items()}


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
        assert run.checkpoint is not None
        assert run.checkpoint.read_text() == "model"
        rest = rounds_of(run, 32)
        record = run.record()
    assert same(first + rest, whole)
    assert same(rest[:4], lost)
    assert (record["rounds_done"], record["completed"]) == (32, True)
    assert (record["resumptions"], record["rounds_replayed"]) == (1, 4)


def test_rounds_before_a_checkpoint_are_not_computed_again_but_skipped(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 2)
        run.save()
        old = (folder / "noise.npz").read_bytes()
        rounds_of(run, 6)
        run.save()
    (folder / "noise.npz").write_bytes(old)
    with pytest.warns(LostRounds, match="rounds 2 to 5 have had their noise and are not computed again"):
        run = opened(small_plan, folder)
    assert run.round == 6
    run.close()
    assert check_record(folder)["rounds_skipped"] == [[2, 5]]


def test_a_checkpoint_that_a_kill_left_behind_is_removed_at_the_next_start(small_plan: Plan, tmp_path: Path) -> None:
    """`save` removes the last one when all else is done; a run that is complete never saves again."""
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 2)
        run.save(lambda path: path.write_bytes(b"model"))
    (folder / "checkpoint-1").write_bytes(b"older")
    with opened(small_plan, folder):
        assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2"]


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
    with opened(small_plan, folder):
        pass
    for name in ("run.json", "noise.npz", "noise.journal", "noise.keys"):
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
        with pytest.raises(InvalidFile, match=r"checkpoint-5: cannot be written \(No space left"):
            run.save(half)
    assert not list(folder.glob(".*"))
    assert stat.S_IMODE((folder / "checkpoint-3").stat().st_mode) == 0o600
    with opened(small_plan, folder) as run:
        assert run.round == 3
        assert run.checkpoint is not None
        assert run.checkpoint.read_text() == "model"


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
        first = run.noise(total)
    with opened(small_plan, tmp_path / "run") as run:
        again = run.noise(total)
        np.testing.assert_array_equal(first["w"], again["w"])
        assert run.token(run.batch) != run.token(run._batches.at(2))


@pytest.mark.parametrize("total", [PARAMS, None])
def test_rounds_that_come_out_differently_are_skipped(small_plan: Plan, tmp_path: Path, total: Tree | None) -> None:
    """The noise of later rounds is that of a run without interruptions: its law is the one that was analysed."""
    with opened(small_plan, tmp_path / "whole", seed=3) as run:
        whole = rounds_of(run, 32)
    folder = tmp_path / "parts"
    with opened(small_plan, folder, seed=3) as run:
        rounds_of(run, 5)
        run.save(lambda path: path.write_text("model"))
        rounds_of(run, 9)
    with opened(small_plan, folder, seed=3) as run:
        with pytest.raises(RoundsSkipped, match="gone on to round 9"):
            run.noise(total)
        assert (run.round, run.released) == (9, 9)
        assert run.checkpoint is not None  # still that of round 5
        rest = rounds_of(run, 11)
    with opened(small_plan, folder, seed=3) as run:  # killed once more: it goes on behind what was skipped
        assert (run.round, run.released) == (9, 11)
        assert same(rounds_of(run, 32), whole[9:])
    assert same(rest, whole[9:11])
    record = check_record(folder)
    assert (record["rounds_skipped"], record["rounds_replayed"], record["completed"]) == ([[5, 8]], 2, True)


def test_rounds_that_were_lost_on_another_machine_are_skipped_unseen(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        rounds_of(run, 3)
    monkeypatch.setattr("galton.training.run.environment", lambda: "another machine")
    with pytest.warns(LostRounds, match="rounds 0 to 2 .* on another machine"):
        run = opened(small_plan, tmp_path / "run")
    assert run.round == 3
    assert not run.begun  # nothing was saved: training begins with the model at the start
    assert run.checkpoint is None
    run.close()


def test_strict_runs_compute_nothing_again(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        rounds_of(run, 3)
    with pytest.warns(LostRounds, match="rounds 0 to 2"):
        run = opened(small_plan, tmp_path / "run", strict=True)
    assert run.round == 3
    run.close()


def test_random_numbers_of_a_round_are_the_same_when_it_is_computed_again(small_plan: Plan, tmp_path: Path) -> None:
    with opened(small_plan, tmp_path / "run") as run:
        seeds = [run.round_seed(turn, part) for turn in range(4) for part in range(2)]
    assert len(set(seeds)) == 8
    with opened(small_plan, tmp_path / "run") as run, opened(small_plan, tmp_path / "other") as other:
        assert [run.round_seed(turn, part) for turn in range(4) for part in range(2)] == seeds
        assert other.round_seed(0) not in seeds


def secrets_of(folder: Path) -> list[str]:
    """The seed of the batches and all keys, in hexadecimal digits and as NumPy prints them."""
    keys = [np.asarray(key, "<u4") for _, key in read_keys(folder)]
    seed = json.loads((folder / "run.json").read_text())["batches"]["seed"]
    return [seed, *(key.tobytes().hex() for key in keys), *(str(word) for key in keys for word in key.tolist())]


def test_what_leaves_the_folder_has_no_secrets(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for last in (3, 5):
        with opened(small_plan, folder) as run:
            rounds_of(run, last)
            state = run.state()
            run.publish(lambda path: path.write_text("weights"), ".txt")
    release_run(folder, tmp_path / "release.zip")
    with zipfile.ZipFile(tmp_path / "release.zip") as archive:
        assert sorted(archive.namelist()) == ["model.txt", "record.json"]
        public = json.dumps(state) + "".join(archive.read(name).decode() for name in archive.namelist())
    assert len(read_keys(folder)) == 2  # each start has a key of its own
    for secret in secrets_of(folder):
        assert secret not in public
    assert sorted(state) == ["plan", "round", "run"]


def test_only_the_model_that_the_record_names_is_released(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
    with pytest.raises(InvalidFile, match="no model for others yet"):
        release_run(folder, tmp_path / "release.zip")
    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
        run.publish(lambda path: path.write_text("old"), ".old")
        run.publish(lambda path: path.write_text("weights"), ".txt")
        assert [path.name for path in folder.glob("model.*")] == ["model.txt"]
    record = release_run(folder, tmp_path / "release.zip")
    assert (record["model"]["file"], record["model"]["round"]) == ("model.txt", 3)
    (folder / "model.txt").write_text("others")
    with pytest.raises(InvalidFile, match="not the model that the record names"):
        release_run(folder, tmp_path / "again.zip")
    assert not (tmp_path / "again.zip").exists()


def go_on_in(plan: Plan, folder: Path) -> list[tuple[list[int], Tree]]:
    with opened(plan, folder) as run:
        return rounds_of(run, 12)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_copied_folder_draws_noise_of_its_own(small_plan: Plan, tmp_path: Path, seed: int | None) -> None:
    folder, copy = tmp_path / "run", tmp_path / "copy"
    with opened(small_plan, folder, seed=seed) as run:
        rounds_of(run, 5)
        run.save()
        rounds_of(run, 7)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.lock"))
    ours = go_on_in(small_plan, folder)
    with pytest.warns(LostRounds, match="copied or moved"):
        theirs = go_on_in(small_plan, copy)
    assert same(ours[:2], theirs[:2])  # computed again, for the same sums
    for (members, left), (others, right) in zip(ours[2:], theirs[2:], strict=True):
        assert members == others
        assert not np.isclose(left["w"], right["w"]).any()
    record = check_record(copy)
    assert record["forks"] == [{"round": 7, "how": "copied or moved"}]
    assert "what all 2 release together is" in record["together"]
    assert check_record(folder)["together"] is None


def test_a_backup_that_is_put_back_draws_new_noise(small_plan: Plan, tmp_path: Path) -> None:
    """In place, file by file: nothing shows that rounds were computed since."""
    folder = tmp_path / "run"
    with opened(small_plan, folder) as run:
        rounds_of(run, 4)
        run.save()
    backup = {path.name: path.read_bytes() for path in folder.iterdir()}
    lost = go_on_in(small_plan, folder)
    for name, content in backup.items():
        (folder / name).write_bytes(content)
    again = go_on_in(small_plan, folder)
    for (_, left), (_, right) in zip(lost, again, strict=True):
        assert not np.isclose(left["w"], right["w"]).any()


def test_a_fork_goes_on_by_itself(small_plan: Plan, tmp_path: Path) -> None:
    folder, fork = tmp_path / "run", tmp_path / "fork"
    with opened(small_plan, folder, seed=3) as run:
        rounds_of(run, 5)
        state = run.state()
        run.save(lambda path: path.write_text("model"))
        rounds_of(run, 7)
        with pytest.raises(InvalidFile, match="held by another process"):
            fork_run(folder, fork)
    assert fork_run(folder, fork) == fork
    assert stat.S_IMODE(fork.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in fork.iterdir()} == {0o600}
    with opened(small_plan, fork) as run:
        assert run.checkpoint is not None
        theirs = rounds_of(run, 12)
    with opened(small_plan, folder) as run:
        ours = rounds_of(run, 12)
    assert same(ours[:2], theirs[:2])
    assert not any(np.isclose(a["w"], b["w"]).any() for (_, a), (_, b) in zip(ours[2:], theirs[2:], strict=True))
    record = check_record(fork)
    assert record["forks"] == [{"round": 7, "how": "galton fork"}]
    assert record["run"] != check_record(folder)["run"]
    with opened(small_plan, fork) as run, pytest.warns(LostRounds, match="rounds 5 to 11"):
        run.restore(state)  # of the run that it was forked from
    with pytest.raises(InvalidFile, match="is there already"):
        fork_run(folder, fork)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidFile, match=r"run\.json"):
        fork_run(tmp_path / "empty", tmp_path / "new")


def test_commands_release_and_fork(small_plan: Plan, tmp_path: Path) -> None:
    folder, target = tmp_path / "run", tmp_path / "release.zip"
    with opened(small_plan, folder) as run:
        rounds_of(run, 3)
        run.publish(lambda path: path.write_text("weights"), ".txt")
    shown = json.loads(galton("release", str(folder), "-o", str(target), "--json").out)
    assert shown["record"] == check_record(folder)
    assert "model.txt, after 3 of 32 rounds" in galton("release", str(folder), "-o", str(target)).out
    with zipfile.ZipFile(target) as archive:
        assert archive.read("model.txt") == b"weights"
        assert json.loads(archive.read("record.json"))["signature"].startswith("hmac-sha256:")
    assert galton("fork", str(folder), str(tmp_path / "fork")).code == 0
    assert (tmp_path / "fork" / "noise.journal").exists()
    for words in (("fork", str(folder), str(tmp_path / "fork")), ("release", str(tmp_path / "fork"), "-o", "x.zip")):
        refused = galton(*words)
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert "Traceback" not in refused.err


def test_two_plans_share_no_noise_by_sharing_a_seed(small_plan: Plan, tmp_path: Path) -> None:
    other = replace(small_plan, created="another time")
    with opened(small_plan, tmp_path / "run", seed=3) as run:
        ours = rounds_of(run, 1)
    with opened(other, tmp_path / "other", seed=3, pinned=other.digest) as run:
        theirs = rounds_of(run, 1)
    assert not np.isclose(ours[0][1]["w"], theirs[0][1]["w"]).any()


@pytest.mark.parametrize("kind", ["killed", "saved", "of an earlier version"])
def test_a_run_whose_noise_was_removed_does_not_begin_again(small_plan: Plan, tmp_path: Path, kind: str) -> None:
    """Its rounds would be released twice, for the same batches."""
    run = tmp_path / "run"
    with opened(small_plan, run) as first:
        rounds_of(first, 3)
        if kind != "killed":
            first.save(lambda path: path.write_bytes(b""))
    if kind == "killed":
        (run / "record.json").unlink()  # as if `close` had not been reached
    if kind == "of an earlier version":
        body = json.loads((run / "run.json").read_text())
        del body["begun"]
        (run / "run.json").write_text(json.dumps(body))
    for name in ("noise.npz", "noise.journal"):
        (run / name).unlink()
    with pytest.raises(InvalidFile, match=r"noise\.journal: is missing"):
        opened(small_plan, run)


def test_a_kill_before_there_was_any_noise_costs_nothing(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("galton.training.run.NoiseRun", kill)
        with pytest.raises(KeyboardInterrupt):
            opened(small_plan, tmp_path / "run")
    assert (tmp_path / "run" / "run.json").exists()
    with opened(small_plan, tmp_path / "run") as run:
        assert len(rounds_of(run, 2)) == 2


def test_keys_that_the_journal_does_not_name_are_refused(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for last in (2, 4):
        with opened(small_plan, folder) as run:
            rounds_of(run, last)
            run.save()
    (folder / "noise.keys").unlink()
    with pytest.raises(InvalidFile, match="has not the keys that the journal names"):
        opened(small_plan, folder)


def test_a_start_that_failed_between_key_and_journal_does_no_harm(small_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        with opened(small_plan, folder) as run:
            rounds_of(run, 2)
    write_keys(folder, [read_keys(folder)[0], (2, key_from_seed(9))])  # and then it was killed
    with opened(small_plan, folder) as run:
        assert len(rounds_of(run, 4)) == 4
    assert len(read_keys(folder)) == 2


OLD = Path(__file__).parent / "data" / "run-0.1"
"""A run as galton 0.1 left it: saved before round 5, lost after round 6; a state that was taken before round 6."""


@pytest.mark.parametrize("way", ["folder", "state"])
def test_a_run_of_the_first_version_goes_on(tmp_path: Path, way: str) -> None:
    plan = load_plan(OLD / "plan")
    folder = Path(shutil.copytree(OLD / "run", tmp_path / "run"))
    noise = plan.noise()
    state, expected = noise.init(PARAMS, key_from_seed(3)), []
    for _ in range(32):
        drawn, state = noise.step(state)
        expected.append({name: np.asarray(x) for name, x in drawn.items()})
    with opened(plan, folder, pinned=plan.digest) as run:
        assert run.checkpoint is not None
        assert run.checkpoint.read_text() == "model"
        if way == "state":
            body = json.loads((OLD / "state.json").read_text())
            run.restore(body | {"noise": bytes.fromhex(body["noise"])})
        assert run.round == (6 if way == "state" else 5)
        begin = run.round
        rest = rounds_of(run, 32)
        run.save()
    for (_, noise_of_round), expectation in zip(rest, expected[begin:], strict=True):
        np.testing.assert_array_equal(noise_of_round["w"], expectation["w"])
    record = check_record(folder)
    assert (record["rounds_done"], record["rounds_replayed"]) == (32, 7 - begin)
    assert len(record["run"]) == 32


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
        assert run.checkpoint is None
        rounds_of(run, 3)
        run.save(lambda path: path.write_text("model"))
    (tmp_path / "run" / "checkpoint-3").unlink()
    with opened(small_plan, tmp_path / "run") as run, pytest.raises(InvalidFile, match="missing"):
        _ = run.checkpoint
