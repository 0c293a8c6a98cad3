"""Training on a tiny set in the format of CIFAR-10: trials, resumption, tables, the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from galton.errors import InvalidArgument, InvalidFile
from galton.guarantee import Adjacency
from galton.plan import load_plan
from reproduction.cifar.data import Cifar, Part
from reproduction.cifar.experiment import METHODS, PRACTICAL, Setting, find_methods, plan_for
from reproduction.cifar.models import NETWORKS
from reproduction.cifar.study import STUDIES, Runner, Wish, default_rates, write_table
from reproduction.cifar.table import best_rate, difference_table, differences_of, interval, pooled, rows_of, table
from reproduction.cifar.trials import Place, Trial
from reproduction.command import FOLDER
from reproduction.tests.running import command
from reproduction.writing import read_rows
from tests.marks import SLOW

TINY = Setting(batch_size=10, epochs=2, delta=1e-3, micro_batch_size=5)


def striped(count: int, seed: int) -> Part:
    """Images whose class shows: one of ten rows of bricks is bright."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count).astype(np.int32)
    images = random.integers(0, 60, (count, 32, 32, 3), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[3 * label : 3 * label + 3] += 180
    return Part(images, labels)


@pytest.fixture(scope="module")
def data() -> Cifar:
    return Cifar(striped(60, 1), striped(40, 2))


def place(folder: Path) -> Place:
    return Place(folder / "results" / "cifar", folder / "runs")


def wish(*methods: str, trials: int = 1, rates: tuple[float, ...] | None = (0.1,)) -> Wish:
    known = METHODS | PRACTICAL
    return Wish("cnn", [known[name] for name in methods], (4.0,), trials, rates)


@pytest.fixture(scope="module")
def finished(data: Cifar, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished trial, `results` and `runs`; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    Runner(data, place(folder), TINY).run(wish("unamplified"))
    return folder


class Broken(Exception):
    """The power is gone."""


@SLOW
def test_a_run_that_is_broken_off_goes_on_and_ends_the_same(data: Cifar, finished: Path, tmp_path: Path) -> None:
    trial = Trial("cnn", "unamplified", 4.0, 0.1, 1)
    whole = place(finished)

    def breaking(what: str, done: int, total: int) -> None:
        if trial.name in what and done == 7:
            raise Broken

    other = place(tmp_path)
    shutil.copytree(whole.plans, other.plans)
    with pytest.raises(Broken):
        Runner(data, other, TINY, breaking).run(wish("unamplified"))
    assert not other.file(trial).exists()
    assert len(list(other.runs.iterdir())) == 1
    Runner(data, other, TINY).run(wish("unamplified"))
    first, second = (json.loads(where.file(trial).read_text()) for where in (whole, other))
    for name in ("accuracy", "loss", "train_accuracy", "curve", "setup", "seed"):
        assert first[name] == second[name], name
    assert (first["record"]["resumptions"], second["record"]["resumptions"]) == (0, 1)
    assert second["record"]["completed"]
    assert second["record"]["rounds_done"] == 12
    assert [done for done, _ in second["curve"]] == [2, 4, 7, 9, 12]


_SCRIPT = """
import os, signal, sys
from pathlib import Path
from reproduction.tests.test_cifar_trials import TINY, Cifar, Runner, place, striped, wish

def progress(what, done, total):
    if "cnn-" in what and done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

Runner(Cifar(striped(60, 1), striped(40, 2)), place(Path(sys.argv[1])), TINY, progress).run(wish("unamplified"))
"""


@SLOW
def test_a_process_that_is_killed_loses_nothing(data: Cifar, tmp_path: Path) -> None:
    """By SIGKILL, twice: right after a checkpoint (every round here) and later."""
    trial = Trial("cnn", "unamplified", 4.0, 0.1, 1)
    where, whole = place(tmp_path / "killed"), place(tmp_path / "whole")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for turn in (3, 8):
        command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "killed"), str(turn)]
        assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    Runner(data, where, TINY).run(wish("unamplified"))
    shutil.copytree(where.plans, whole.plans)
    Runner(data, whole, TINY).run(wish("unamplified"))
    first, second = (json.loads(location.file(trial).read_text()) for location in (where, whole))
    assert first["record"]["resumptions"] == 2
    for name in ("accuracy", "loss", "train_accuracy", "curve", "setup"):
        assert first[name] == second[name], name


@SLOW
def test_a_finished_run_leaves_its_record_and_no_secret(data: Cifar, finished: Path) -> None:
    where = place(finished)
    assert list(where.runs.iterdir()) == []
    (trial,) = where.all()
    plan = load_plan(where.plans / "unamplified-epsilon4")
    assert trial["setup"]["plan"] == trial["record"]["plan"] == plan.digest
    assert "signature" not in trial["record"]
    assert trial["guarantee"] == {"epsilon": 4.0, "delta": 1e-3, "adjacency": "zero-out"}
    before = where.file(Trial("cnn", "unamplified", 4.0, 0.1, 1)).stat().st_mtime_ns
    left = where.folder(Trial("cnn", "unamplified", 4.0, 0.1, 1), NETWORKS["cnn"], trial["setup"])
    left.mkdir()  # as if it had been killed while the run was deleted
    Runner(data, where, TINY).run(wish("unamplified"))  # nothing is missing
    assert not left.exists()
    assert where.file(Trial("cnn", "unamplified", 4.0, 0.1, 1)).stat().st_mtime_ns == before


@SLOW
def test_training_learns_what_can_be_learnt(tmp_path: Path) -> None:
    """With little noise; chance is 10%."""
    data = Cifar(striped(400, 3), striped(200, 4))
    setting = Setting(batch_size=40, epochs=5, delta=1e-3)
    where = place(tmp_path)
    Runner(data, where, setting).run(Wish("cnn", [METHODS["unamplified"]], (30.0,), 1, (0.1,)))
    (trial,) = where.all()
    assert trial["accuracy"] > 0.9


@SLOW
def test_the_best_rate_is_chosen_by_training_accuracy_and_gets_the_other_trials(data: Cifar, tmp_path: Path) -> None:
    where = place(tmp_path)
    Runner(data, where, TINY).run(wish("unamplified", trials=2, rates=(0.1, 1e-9)))
    trials = list(where.all())
    assert len(trials) == 3
    first = {trial["rate"]: trial["train_accuracy"] for trial in trials if trial["trial"] == 1}
    best = max(first, key=lambda rate: first[rate])
    assert [trial["rate"] for trial in trials if trial["trial"] == 2] == [best] == [best_rate(trials)]
    result, paths = write_table(STUDIES["cifar"], where, tmp_path / "results")
    (row,) = read_rows(tmp_path / "results" / "cifar.csv", result.columns)
    chosen = [100 * trial["accuracy"] for trial in trials if trial["rate"] == best]
    assert row["accuracy"] == pytest.approx(np.mean(chosen))
    assert (row["trials"], row["rate"]) == (2, best)
    assert {path.name for path in paths} == {f"cifar.{ending}" for ending in ("csv", "txt", "png", "pdf", "json")}
    assert all(path.exists() for path in paths)


def test_a_method_with_the_rate_of_another_is_shown_at_that_rate() -> None:
    """Even if it does better at another, and not at all before it has a run there."""
    finished = [trial("blt", 0.1, 0.5), trial("blt", 0.2, 0.4), trial("cut-balls-in-bins", 0.2, 0.6)]
    assert rows_of(finished, PRACTICAL) == []
    (row,) = rows_of([*finished, trial("cut-balls-in-bins", 0.1, 0.3)], PRACTICAL)
    assert (row["rate"], row["accuracy"], row["rates_tried"]) == (0.1, 30.0, "0.1 0.2")


def trial(method: str, rate: float, accuracy: float, number: int = 1) -> dict[str, Any]:
    """A finished trial, as far as the table looks at it."""
    return {
        "model": "cnn",
        "method": method,
        "epsilon": 1.0,
        "rate": rate,
        "trial": number,
        "accuracy": accuracy,
        "train_accuracy": accuracy,
        "strategy": "",
        "noise_multiplier": 1.0,
        "rmse": 1.0,
        "batching": "",
        "guarantee": {"epsilon": 1.0, "adjacency": "zero-out"},
        "setup": {"plan": method, "network": {}, "setting": {}},
    }


def test_trials_with_the_same_number_are_compared() -> None:
    """At the best rate of each method; what has no partner is left out."""
    ahead = [0.52, 0.55, 0.51, 0.58]
    behind = [0.50, 0.51, 0.50]
    finished = [trial("redrawn", 0.1, accuracy, index) for index, accuracy in enumerate(ahead, 1)]
    finished += [trial("dpsgd-poisson", 0.2, accuracy, index) for index, accuracy in enumerate(behind, 1)]
    finished += [trial("dpsgd-poisson", 0.4, 0.3), trial("blt", 0.1, 0.4, 9)]
    (row,) = differences_of(finished, METHODS, "redrawn")
    assert (row["series"], row["against"], row["pairs"]) == ("scaled BLT-4, redrawn bins", "DP-SGD, Poisson", 3)
    apart = np.array([2.0, 4.0, 1.0])
    assert [float(text) for text in str(row["differences"]).split()] == pytest.approx(apart)
    limits = student.interval(0.95, 2, loc=apart.mean(), scale=apart.std(ddof=1) / np.sqrt(3))
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((apart.mean(), *limits))
    words = difference_table("cifar-differences", "", [row]).text
    assert "redrawn bins less DP-SGD, Poisson +2.33 +- 3.79 (3 pairs)." in words
    assert differences_of(finished, METHODS, "unamplified") == []


def test_the_interval_is_students() -> None:
    values = [50.0, 52.0, 51.5]
    mean, low, high = interval(values, pooled([values]))
    assert (low, high) == pytest.approx(student.interval(0.95, 2, loc=mean, scale=np.std(values, ddof=1) / np.sqrt(3)))
    assert interval([50.0], pooled([[50.0], [51.0]])) == (50.0, None, None)


@SLOW
def test_intervals_of_pooled_spread_hold_as_often_as_they_say() -> None:
    random, cells, tries = np.random.default_rng(1), 6, 4000
    missed = 0
    for _ in range(tries):
        runs = random.normal(60.0, 0.7, (cells, 2)) + np.arange(cells)[:, None]
        _, low, high = interval(list(runs[0]), pooled(list(map(list, runs))))
        assert low is not None
        assert high is not None
        missed += not low <= 60.0 <= high
    assert abs(missed / tries - 0.05) < 5 * np.sqrt(0.05 * 0.95 / tries)


@SLOW
def test_the_practical_study_trains_on_batches_that_are_cut(data: Cifar, tmp_path: Path) -> None:
    where = place(tmp_path)
    Runner(data, where, TINY).run(wish("cut-balls-in-bins", "shuffling"))
    blt, cut, shuffled = (
        load_plan(where.plans / f"{name}-epsilon4") for name in ("blt", "cut-balls-in-bins", "shuffling")
    )
    assert blt.padded_batch_size > cut.padded_batch_size == shuffled.padded_batch_size == 10
    assert blt.strategy.digest == cut.strategy.digest == shuffled.strategy.digest
    assert cut.guarantee.adjacency is Adjacency.ZERO_OUT
    assert cut.truncation.probability > 0.5
    assert shuffled.noise_multiplier == pytest.approx(cut.noise_multiplier, rel=1e-6)
    assert shuffled.noise_multiplier >= cut.noise_multiplier * (1 - 1e-9)
    assert shuffled.guarantee.epsilon > 4
    trials = {trial["method"]: trial for trial in where.all()}
    assert trials["shuffling"]["guarantee"]["epsilon"] == shuffled.guarantee.epsilon
    assert set(trials) == {"cut-balls-in-bins", "shuffling"}, "there is no rate to choose"
    result, _ = write_table(STUDIES["cifar-practical"], where, tmp_path / "results")
    assert [row["series"] for row in result.rows] == [PRACTICAL[n].words for n in ("cut-balls-in-bins", "shuffling")]
    Runner(data, where, TINY).run(wish("cut-balls-in-bins", rates=(0.1, 1e-9)))
    tried = {(trial["method"], trial["rate"]) for trial in where.all()}
    assert {("blt", 0.1), ("blt", 1e-9)} <= tried, "the rate is chosen for the method whose C it is"


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) for name in METHODS])
def test_every_method_has_a_plan(name: str, data: Cifar, tmp_path: Path) -> None:
    method = METHODS[name]
    plan = plan_for(method, 4.0, len(data.train), TINY, tmp_path)
    assert plan.scheme.kind.startswith(method.batching.split("-")[0])
    assert plan.rounds == 12
    assert plan_for(method, 4.0, len(data.train), TINY, tmp_path).digest == plan.digest


@SLOW
@pytest.mark.parametrize(
    ("change", "named"),
    [({"batch_size": 20}, "batch_size"), ({"epochs": 3}, "epochs"), ({"delta": 1e-4}, "delta")],
)
def test_a_plan_for_something_else_is_refused(change: dict[str, Any], named: str, finished: Path) -> None:
    plans = place(finished).plans
    with pytest.raises(InvalidArgument, match=named):
        plan_for(METHODS["unamplified"], 4.0, 60, replace(TINY, **change), plans)
    with pytest.raises(InvalidArgument, match="examples"):
        plan_for(METHODS["unamplified"], 4.0, 61, TINY, plans)


@SLOW
def test_a_finished_trial_of_another_setting_is_refused(data: Cifar, finished: Path) -> None:
    where = place(finished)
    with pytest.raises(InvalidArgument, match="setting"):
        Runner(data, where, replace(TINY, momentum=0.0)).run(wish("unamplified"))


@SLOW
def test_a_later_cooldown_is_another_setting(data: Cifar, finished: Path, tmp_path: Path) -> None:
    """It moves the model further, is named in the title, and is not mixed with trials that have the paper's."""
    where, late = place(finished), place(tmp_path)
    with pytest.raises(InvalidArgument, match="setting"):
        Runner(data, where, replace(TINY, cooldown=0.75)).run(wish("unamplified"))
    shutil.copytree(where.plans, late.plans)
    Runner(data, late, replace(TINY, cooldown=0.75)).run(wish("unamplified"))
    ((first,), (second,)) = (list(there.all()) for there in (where, late))
    assert second["setup"]["setting"]["cooldown"] == 0.75
    assert first["loss"] != second["loss"]
    result, _ = write_table(STUDIES["cifar"], late, tmp_path / "results")
    assert result.title.endswith("learning rate falling after 75% of the rounds")


def test_committed_trials_are_of_the_default_setting() -> None:
    """Otherwise they would be refused, and no trial could be added to them."""
    committed = list(Place(FOLDER / "cifar", FOLDER).all())
    assert len(committed) > 60
    assert all(body["setup"]["setting"] == Setting().to_json() for body in committed)


@SLOW
def test_the_other_trials_are_at_a_rate_that_was_asked_for(data: Cifar, tmp_path: Path) -> None:
    where = place(tmp_path)
    Runner(data, where, TINY).run(wish("unamplified"))
    Runner(data, where, TINY).run(wish("unamplified", trials=2, rates=(1e-9,)))
    assert sorted((trial["rate"], trial["trial"]) for trial in where.all()) == [(1e-9, 1), (1e-9, 2), (0.1, 1)]


def test_default_rates_are_three_and_grow_with_epsilon_to_a_limit() -> None:
    grids = [default_rates(epsilon) for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(len(set(grid)) == 3 for grid in grids)
    assert [grid[0] for grid in grids] == sorted(grid[0] for grid in grids)
    assert grids[0][0] < grids[2][0] < grids[4][0]
    assert max(default_rates(1e6)) <= 1


def test_methods_are_found_by_name() -> None:
    assert find_methods("all", METHODS) == list(METHODS.values())
    assert [method.name for method in find_methods("blt,toeplitz,blt", METHODS)] == ["blt", "toeplitz"]
    for wrong in ("blt,other", "all,blt", ""):
        with pytest.raises(InvalidArgument, match="method"):
            find_methods(wrong, METHODS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("cifar", "--method", "dpsgd"), "method"),
        (("cifar", "--epsilon", "0"), "epsilon"),
        (("cifar", "--epsilon", "one"), "epsilon"),
        (("cifar", "--epsilon", "1,101"), "epsilon"),
        (("cifar", "--redraw", "--model", "vgg"), "model"),
        (("cifarr",), "cifar-practical"),
        (("cifar", "--rate", "-1"), "rate"),
        (("cifar", "--cooldown", "1"), "cooldown"),
        (("dpsgd", "--cooldown", "0.5"), "cooldown"),
        (("cifar", "--trials", "0"), "trials"),
        (("cifar", "--model", "resnet"), "model"),
        (("cifar", "--seed", "2"), "seed"),
        (("cifar-practical", "--fresh"), "fresh"),
        (("cifar-practical", "--method", "blt"), "method"),
        (("dpsgd", "--trials", "2"), "trials"),
        (("cifar",), "fetch-cifar"),
    ],
)
def test_wrong_words_are_named_in_one_line(arguments: tuple[str, ...], named: str, tmp_path: Path) -> None:
    result = command(*arguments, "--data", str(tmp_path / "nothing"), "-o", str(tmp_path / "results"))
    if arguments[0] == "dpsgd":
        result = command(*arguments, "-o", str(tmp_path / "results"))
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert result.err.count("\n") == 1


def test_without_a_trial_no_table_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "cifar.csv").write_text("mine")
    result = command("cifar", "--redraw", "-o", str(tmp_path))
    assert (result.code, result.out) == (2, "")
    assert "no finished trial" in result.err
    assert (tmp_path / "cifar.csv").read_text() == "mine"


@SLOW
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"accuracy": 7.5}, "accuracy"),
        ({"train_accuracy": None}, "train_accuracy"),
        ({"epsilon": "4"}, "epsilon"),
        ({"setup": 3}, "setup"),
        ({"guarantee": {"epsilon": 4.0}}, "guarantee.adjacency"),
        ({"trial": 2}, "another trial"),
        ({"seed": 1}, "another trial"),
        ({"method": "blt"}, "another trial"),
    ],
)
def test_a_trial_that_was_changed_is_refused(
    change: dict[str, Any], named: str, finished: Path, tmp_path: Path
) -> None:
    (source,) = (finished / "results" / "cifar" / "trials").iterdir()
    changed = tmp_path / "results" / "cifar" / "trials" / source.name
    changed.parent.mkdir(parents=True)
    changed.write_text(json.dumps(json.loads(source.read_text()) | change))
    with pytest.raises(InvalidFile, match=named):
        list(place(tmp_path).all())


@SLOW
def test_a_copy_does_not_count_as_another_run(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "results", tmp_path / "results")
    (source,) = (tmp_path / "results" / "cifar" / "trials").iterdir()
    shutil.copy(source, source.with_name(source.name.replace("-1.json", "-2.json")))
    with pytest.raises(InvalidFile, match="another trial"):
        write_table(STUDIES["cifar"], place(tmp_path), tmp_path / "results")


def test_trials_of_other_settings_are_not_compared() -> None:
    other = trial("toeplitz", 0.1, 0.5)
    other["setup"] |= {"setting": {"momentum": 0.0}}
    with pytest.raises(InvalidFile, match="settings"):
        rows_of([trial("blt", 0.1, 0.5), other], METHODS)


def test_the_lower_of_equally_good_rates_is_taken() -> None:
    """As when all of them diverge."""
    for rates in ((0.1, 0.2), (0.2, 0.1)):
        assert best_rate([trial("blt", rate, 0.1) for rate in rates]) == 0.1


def test_the_text_says_where_an_epsilon_is_not_guaranteed() -> None:
    shuffled = trial("shuffling", 0.1, 0.5)
    shuffled["guarantee"] = {"epsilon": 2.815, "adjacency": "zero-out"}
    text = table("x", "x", rows_of([trial("unamplified", 0.1, 0.5), shuffled], PRACTICAL)).text
    assert text.count("guaranteed epsilon 2.81 only") == 1


@SLOW
def test_a_table_can_be_drawn_again_without_the_data(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "results", tmp_path / "results")
    result = command("cifar", "--redraw", "--json", "-o", str(tmp_path / "results"))
    assert result.code == 0
    assert [row["trials"] for row in json.loads(result.out)["rows"]] == [1]
