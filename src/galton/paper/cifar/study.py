"""The experiments as a whole: which trials are missing, in what order they are run, and what is written about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from galton.paper.cifar.data import Cifar
from galton.paper.cifar.experiment import METHODS, PRACTICAL, Method, Setting, plan_for
from galton.paper.cifar.models import find_network
from galton.paper.cifar.table import best_rate, draw, rows_of, table
from galton.paper.cifar.trials import Place, Trial, run_trial
from galton.paper.provenance import origin
from galton.paper.result import Result
from galton.paper.writing import write_json, write_pictures, write_result
from galton.plan import Plan
from galton.sampling.schedule import Progress


@dataclass(frozen=True)
class Study:
    """A set of methods that are compared.

    Attributes:
      name: as on the command line.
      title: one line.
      methods: by name.
    """

    name: str
    title: str
    methods: Mapping[str, Method]


STUDIES = {
    study.name: study
    for study in (
        Study("cifar", "CIFAR-10, 20 epochs of 100 batches of 500, delta 1e-5", METHODS),
        Study("cifar-practical", "CIFAR-10, batches of 500 places: balls-in-bins, shuffling, unamplified", PRACTICAL),
    )
}


@dataclass(frozen=True)
class Wish:
    """What is to be run.

    Attributes:
      model: name of the network.
      methods: to be compared.
      epsilons: of the guarantees.
      trials: runs of each, at the best learning rate.
      rates: learning rates to choose from; by default `default_rates`.
    """

    model: str
    methods: Sequence[Method]
    epsilons: Sequence[float]
    trials: int
    rates: Sequence[float] | None = None


def default_rates(epsilon: float) -> tuple[float, ...]:
    """Returns the learning rates to choose from, the likeliest first: the same for every method."""
    centre = 2.0 ** round(math.log2(epsilon) / 2 - 2)
    return (centre, centre / 2, centre * 2)


@dataclass
class Runner:
    """Runs what is missing. Everything is kept: a runner that is stopped and made again goes on.

    Attributes:
      data: the data set.
      place: of plans, trials and runs.
      setting: of the runs.
      progress: called as progress(what, done, total).
    """

    data: Cifar
    place: Place
    setting: Setting = field(default_factory=Setting)
    progress: Progress | None = None

    def run(self, wish: Wish) -> None:
        """Runs all rates of all cells once, the likeliest rates first; then the other trials at the best rate."""
        cells = [(method, epsilon) for epsilon in wish.epsilons for method in wish.methods]
        grids = {cell: self._rates(wish, *cell) for cell in cells}
        for turn in range(max(map(len, grids.values()), default=0)):
            for cell in cells:
                if turn < len(grids[cell]):
                    self._one(wish, *cell, grids[cell][turn], 1)
        for trial in range(2, wish.trials + 1):
            for method, epsilon in cells:
                self._one(wish, method, epsilon, self._best(wish, method, epsilon), trial)

    def _rates(self, wish: Wish, method: Method, epsilon: float) -> Sequence[float]:
        if wish.rates is not None:
            return wish.rates
        if method.noise_of and (known := self._trials(wish.model, method.noise_of, epsilon)):
            return [best_rate(known)]
        return default_rates(epsilon)

    def _best(self, wish: Wish, method: Method, epsilon: float) -> float:
        return best_rate(self._trials(wish.model, method.name, epsilon))

    def _trials(self, model: str, method: str, epsilon: float) -> list[dict[str, object]]:
        wanted = (model, method, epsilon)
        return [one for one in self.place.all() if (one["model"], one["method"], one["epsilon"]) == wanted]

    def _one(self, wish: Wish, method: Method, epsilon: float, rate: float, number: int) -> None:
        trial = Trial(wish.model, method.name, epsilon, rate, number)
        if self.place.find(trial) is None:
            network = find_network(wish.model)
            plan = self._plan(method, epsilon)
            run_trial(trial, network, method, plan, self.data, self.setting, self.place, self.progress)

    def _plan(self, method: Method, epsilon: float) -> Plan:
        return plan_for(method, epsilon, len(self.data.train), self.setting, self.place.plans, self.progress)


def write_table(study: Study, place: Place, output: Path) -> tuple[Result, list[Path]]:
    """Writes table, text and pictures of all finished trials of a study, and where they come from."""
    trials = list(place.all())
    result = table(study.name, study.title, rows_of(trials, study.methods))
    paths = [*write_result(result, output), *write_pictures(study.name, draw(result.rows), output)]
    about = origin(study.name, paths) | {"trials": sum(trial["method"] in study.methods for trial in trials)}
    return result, [*paths, write_json(output / f"{study.name}.json", about)]
